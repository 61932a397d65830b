"""The maps that a log has, each told in full or as what it changes of the one before it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tools.wal.origins import Origins
from wal import records as r

if TYPE_CHECKING:
    from rebalance.table import Topology


class Maps:
    """The committed maps of one log, as it is read on; decoded when somebody asks, or the next one builds on them."""

    def __init__(self, origins: Origins, known: Topology | None = None) -> None:
        self._origins = origins
        self._encoded = b""
        self._met: Topology | None = None  # the last one in the log
        self._known = known
        origins.note_map(known)

    def take(self, record: r.Committed) -> None:
        """A map is told in full, or as what it changes of the one before it, which is the last met, or not known here."""
        _ = self.newest
        self._encoded = record.topology
        if record.step and self._met is not None:
            from rebalance import steps  # noqa: PLC0415  # maps are seldom, and their hashes come with OpenSSL

            with suppress(ValueError):
                step = steps.decode_step(record.step)
                if self._met.version == step.after:
                    self._note(steps.stepped(self._met, step))

    @property
    def newest(self) -> Topology | None:
        """The newest map that was met."""
        if self._encoded:
            from rebalance import table as topologies  # noqa: PLC0415  # see above

            with suppress(ValueError):  # a newer version's; what it says is not needed
                self._note(topologies.decode(self._encoded))
            self._encoded = b""
        return self._known

    def _note(self, met: Topology) -> None:
        self._met = met
        if self._known is None or met.version > self._known.version:
            self._known = met
        self._origins.note_map(met)
