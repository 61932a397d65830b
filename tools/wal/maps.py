"""The maps that a log has, each told in full or as what it changes of the one before it."""

from __future__ import annotations

from contextlib import suppress

from rebalance import steps
from rebalance import table as topologies
from rebalance.table import Topology
from tools.wal.origins import Origins
from wal import records as r


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
            with suppress(ValueError):
                step = steps.decode_step(record.step)
                if self._met.version == step.after:
                    self._note(steps.stepped(self._met, step))

    @property
    def newest(self) -> Topology | None:
        """The newest map that was met."""
        if self._encoded:
            with suppress(ValueError):  # a newer version's; what it says is not needed
                self._note(topologies.decode(self._encoded))
            self._encoded = b""
        return self._known

    def _note(self, met: Topology) -> None:
        self._met = met
        if self._known is None or met.version > self._known.version:
            self._known = met
        self._origins.note_map(met)
