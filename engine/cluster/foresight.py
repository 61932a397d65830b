"""What is said of the next map is read, and what it changes here worked out, before the map is taken.

A map takes effect in one step, because all rules of a node go by one map; and where there are very many partitions, to read
it and to look at each of them is more than a turn may do. But nearly all of that follows from the map that is here and the
one that comes. So it is done in pieces, while the node goes on under the map that it has, as if what was said had not come
yet: a network may take as long. What else is said of maps meanwhile waits its turn, for it may rest on that.

What this node has begun and cannot end any more, where the map takes a partition from it, may be very much as well. It is
given up in pieces, too, but only when the map is chosen: then nothing else can come of it (`engine.node.parting`).

What a map would change is worked out as soon as it is accepted, as it is likely to be committed. It is a cache, not a
state: what is not known when a map takes effect is found then, and comes to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from engine.turn.core import Core
from rebalance.placing import Placed
from rebalance.ports import WORK_MAX
from rebalance.table import Topology
from wal.ids import NodeId
from wal.probe import probe

LARGE_MAP = 2_048
"""Partitions. A map of no more is read and taken in the turn in which it comes."""
MAP_BYTES_OF_WORK = 512
"""So many bytes of a whole map are as much work to read as one thing that is decided."""


class Foresight:
    """What is known of the next map."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.large = LARGE_MAP
        self.looked = self.changed = 0  # partitions that were looked at, and of which a map said something else, so far
        self.released = 0  # of what was said of maps, and had to wait, so far
        self._placed: Placed | None = None  # what a map makes of the one that is here
        self._parted: Topology | None = None  # which takes effect as soon as all is given up that it ends
        self.gives_up: Callable[[dict[int, None]], Iterator[int] | None] = lambda _: None  # that, in pieces, if it is much
        self._reading = False
        self._held: deque[tuple[Callable[[NodeId, Any], None], NodeId, Any]] = deque()

    def is_large(self, topology: Topology | None) -> bool:
        """Whether a map is read in pieces."""
        return topology is not None and len(topology.placements) > self.large

    # One thing after the other.

    def in_order(self, take: Callable[[NodeId, Any], None]) -> Callable[[NodeId, Any], None]:
        """How something is taken that is said of maps: after what was said of them before, if that is still being read."""

        def take_in_order(sender: NodeId, message: Any) -> None:
            if self._reading or self._held:
                self._held.append((take, sender, message))
            else:
                take(sender, message)

        return take_in_order

    @property
    def waiting(self) -> list[tuple[NodeId, Any]]:
        """Who said what of maps that waits for that, the oldest first."""
        return [(sender, message) for _, sender, message in self._held] if self._held else []

    def read(self, pieces: Iterator[int], go_on: Callable[[], None]) -> None:
        """Read something in pieces, and go on in a turn of its own; until then whatever is said of maps waits."""
        self._reading = True
        self.core.in_pieces(self._read(pieces, go_on))

    def _read(self, pieces: Iterator[int], go_on: Callable[[], None]) -> Iterator[int]:
        yield from pieces
        yield WORK_MAX  # to take it is another turn
        self._reading = False
        go_on()
        if self._held:
            self.core.next_turn(self._release)  # it may have taken a map

    def _release(self) -> None:
        """Take what waited, one after the other, in what turns have room for."""
        if self._held and not self._reading:
            take, sender, message = self._held.popleft()
            self.released += 1
            take(sender, message)
            self.core.resume(self._release)

    # What a map changes.

    def foresee(self, topology: Topology) -> None:
        """This map is likely to come: find out what it changes, from the next turn on."""
        if self.is_large(topology) and self._known(topology) is None:
            pieces = self._find(self._begin(topology))
            self.core.next_turn(lambda: self.core.in_pieces(pieces))

    def works_out(self, topology: Topology, go_on: Callable[[], None], *, chosen: bool = False) -> bool:
        """Whether it is yet to be found out what a map changes that is to be taken: then it goes on when that is known.

        If it is `chosen`, so that it is the next one whatever happens, then also when what it ends here is given up.
        """
        if self.is_large(topology):
            placed = self._known(topology) or self._begin(topology)
            if not placed.is_found:
                self.read(self._find(placed), go_on)
                return True
        if not chosen or self._parted is topology or (pieces := self._parting(topology)) is None:
            return False
        self.read(pieces, go_on)
        return True

    def _parting(self, topology: Topology) -> Iterator[int] | None:
        pieces = self.gives_up(self._found(topology).ending)
        if pieces is None:
            return None
        probe("foresight.parted")
        self._parted = topology
        self.core.part()
        return pieces

    def take(self, topology: Topology) -> Placed:
        """What a map changes that takes effect now."""
        assert self._parted in (None, topology), "what was given up for a map was given up for the next one"
        placed = self._found(topology)
        self._placed = self._parted = None
        return placed

    def _found(self, topology: Topology) -> Placed:
        placed = self._known(topology) or self._begin(topology)
        while not placed.is_found:
            self.core.work += self._look_on(placed)
        return placed

    def _known(self, topology: Topology) -> Placed | None:
        placed = self._placed  # of the map that is here: when another takes effect, nothing is known
        return placed if placed is not None and placed.topology is topology else None

    def _begin(self, topology: Topology) -> Placed:
        core, listed = self.core, self.core.is_listed_by(topology)
        anew = listed != core.serving or not core.local
        self._placed = Placed(core.local, topology, core.node if listed else None, anew=anew)
        return self._placed

    def _find(self, placed: Placed) -> Iterator[int]:
        """Whoever holds it likely and whoever waits for it may find by turns."""
        while self._placed is placed and not placed.is_found:
            yield self._look_on(placed)

    def _look_on(self, placed: Placed) -> int:
        looked, changed = placed.looked, len(placed.moved)
        work = placed.look_on()
        self.looked += placed.looked - looked
        self.changed += len(placed.moved) - changed
        return work
