"""The committed map of a node, and the one that it accepted last, as its log says them: whole, or as what steps change.

A light step is logged as what it changes, and not as the map that comes of it, which is half a megabyte where there are
many partitions; and where there are, so is the map of a full exchange. What the log says is folded here; the map is worked
out when somebody asks for it, so that a replay of very many steps does that once. A checkpoint keeps a whole map: what is
before it may go.

Invariant: the steps lead from the whole map to the committed one, each from the map that the one before it made.
"""

from __future__ import annotations

import msgspec

from rebalance.steps import rebuilt
from wal import records as r
from wal.ids import NO_BALLOT, NO_VERSION, Ballot, Version


class Maps:
    """What one log says of maps."""

    __slots__ = ("_accepted", "_steps", "_whole", "version")

    def __init__(self) -> None:
        self.version = NO_VERSION  # of the committed map
        self._whole = b""
        self._steps: list[tuple[bytes, int]] = []  # each with the hash of the map that it makes
        self._accepted = r.Accepted(NO_VERSION, NO_BALLOT, b"")

    def commit(self, record: r.Committed) -> None:
        """A map is committed."""
        if record.version <= self.version:
            return
        if record.step:
            self._steps.append((record.step, record.map_hash))
        else:
            self._whole, self._steps = record.topology, []
        self.version = record.version

    def accept(self, record: r.Accepted) -> None:
        """A map is accepted."""
        self._accepted = record

    def know(self, version: Version, topology: bytes) -> None:
        """This is the committed map, whoever has worked it out: that need not be done again."""
        assert version == self.version, f"{self.version} is committed, and not {version}"
        self._whole, self._steps = topology, []

    def know_accepted(self, step: bytes, topology: bytes) -> None:
        """And this is what comes of the step that was accepted."""
        if self._accepted.step == step:
            self._accepted = msgspec.structs.replace(self._accepted, topology=topology)

    def load(self, committed: tuple[Version, bytes], accepted: tuple[Version, Ballot, bytes]) -> None:
        """What a checkpoint has."""
        self.version, self._whole, self._steps = *committed, []
        self._accepted = r.Accepted(*accepted)

    @property
    def committed(self) -> tuple[Version, bytes]:
        """The committed map. Raises ValueError if the steps do not lead to it."""
        if self._steps:
            self._whole, self._steps = rebuilt(self._whole, self._steps), []
        return self.version, self._whole

    @property
    def accepted(self) -> tuple[Version, Ballot, bytes]:
        """The map that was accepted last, under which ballot, for the version after which one; once another version is
        committed it is of no interest, and no bytes are told, whether or not they are known."""
        record = self._accepted
        topology = record.topology if record.after == self.version else b""
        if record.step and not topology and record.after == self.version:
            topology = rebuilt(self.committed[1], [(record.step, record.map_hash)])
            self.know_accepted(record.step, topology)
        return record.after, record.ballot, topology

    def step_accepted(self, map_hash: int) -> bytes:
        """The step that was accepted last from the committed map, if it makes the map of this hash; else nothing."""
        record = self._accepted
        return record.step if (record.after, record.map_hash) == (self.version, map_hash) else b""

    def has_accepted(self, ballot: Ballot, step: bytes) -> bool:
        """Whether it is this very step that was accepted last, under this ballot."""
        return (self._accepted.ballot, self._accepted.step) == (ballot, step)
