"""What an oracle is: an observer that also looks at the whole cluster now and then, and once more at the end."""

from __future__ import annotations

from tests.sim.observer import Observer
from tests.sim.world import World


class Oracle(Observer):
    """One invariant. It raises `Violation` with its name when it is broken."""

    def look(self, world: World) -> None:
        """All nodes, as they are now."""

    def finish(self, world: World) -> None:
        """All nodes at rest, when nothing goes wrong any more."""
