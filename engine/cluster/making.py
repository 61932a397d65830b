"""What a step makes of the map that is here: light steps and, where maps are large, those of a full exchange.

It is read when it is proposed, and not again when it is decided. Where a map is large that is done in pieces
(`engine.cluster.foresight`), before anything is promised about it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from engine.cluster.foresight import MAP_BYTES_OF_WORK, Foresight
from engine.messages import Propose
from engine.turn.core import Core
from rebalance.differing import makes_a_map
from rebalance.ports import all_of
from rebalance.steps import Step, encode_step, fits, map_of, may_follow, stepped
from rebalance.table import Topology, encoding, hash_of
from wal import records as r
from wal.probe import probe

MADE_OF_WORK = 32
"""So many partitions of a map that a step makes are as much work as one thing that is decided."""


class Made(NamedTuple):
    """A step, the map that comes of it, and the bytes of both."""

    of: Step
    step: bytes
    map: Topology
    topology: bytes


class Making:
    """What one node has read of the next map."""

    def __init__(self, core: Core, foresight: Foresight) -> None:
        self.core = core
        self.foresight = foresight
        self._read_last: Step | None = None  # of those that others have said,
        self._made: Made | None = None  # and what it makes of the map, if it fits

    def reads(self, step: Step, go_on: Callable[[], None]) -> bool:
        """Whether a step from this map is to be read, and that is much: then it goes on when that is done."""
        if not self.foresight.is_large(self.core.topology) or not self._is_next(step) or self._is_read(step):
            return False
        self.foresight.read(self._read(step), go_on)
        return True

    def what_it_makes(self, step: Step) -> Made | None:
        """The map that comes of a step; None if it may not be taken here. Whoever accepts it will commit it next."""
        if not self._is_next(step):
            return None
        if not self._is_read(step):
            all_of(self._read(step))
        return self._made

    def proposed(self, message: Propose, go_on: Callable[[], None]) -> bytes:
        """The bytes of a map that is proposed, whole or as what it changes; none if it is no map that may follow the one
        that is here, or if it is yet to be read: then it goes on when that is done."""
        step = message.step
        if step is None:
            self.core.work += len(message.topology) // MAP_BYTES_OF_WORK
            return message.topology if may_follow(message.after, message.topology) else b""
        if self.reads(step, go_on):
            return b""
        made = self.what_it_makes(step) if step.rest is not None else None
        if made is None or hash_of(made.topology) != message.map_hash:
            probe("exchange.proposed_a_step_that_makes_no_map")
            return b""
        return made.topology

    def accept(self, message: Propose, encoded: bytes) -> None:
        """Log that this is accepted, as it was proposed."""
        core, step = self.core, encode_step(message.step) if message.step is not None else b""
        core.vote(r.Accepted(message.after, message.ballot, b"" if step else encoded, step, message.map_hash))
        if step:
            core.replica.maps.know_accepted(step, encoded)

    def know(self, made: Made) -> None:
        """This node has worked it out itself."""
        self._read_last, self._made = made.of, made

    def map_of(self, encoded: bytes) -> Topology | None:
        """The map that somebody speaks of; None: what is said is none."""
        made = self._made
        return made.map if made is not None and made.topology == encoded else map_of(encoded)

    def _is_next(self, step: Step) -> bool:
        core = self.core
        return core.topology is not None and (step.after, step.map_hash) == (core.version, core.map_hash)

    def _is_read(self, step: Step) -> bool:
        """What was read when it was proposed is not read again."""
        return self._read_last is step or (self._made is not None and self._made.of == step)

    def _read(self, step: Step) -> Generator[int, None, None]:
        """Look whether a step from this map fits, and find out what it makes of it."""
        topology, map_hash = self.core.topology, self.core.map_hash
        assert topology is not None
        self._read_last, self._made = step, None
        if not (fits(topology, map_hash, step) if step.rest is None else makes_a_map(topology, map_hash, step)):
            return
        yield 1
        made = stepped(topology, step)
        yield len(made.placements) // MADE_OF_WORK
        encoded = yield from encoding(made)
        self._made = Made(step, encode_step(step), made, encoded)
