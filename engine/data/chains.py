"""Single writes of one key that were executed one after the other, and count together: how many increment one number.

Whoever looks at what stands, to increment it for one, has the key's lock until the copies have what it wrote: else
another one might rest on what comes to nothing. Those who wait for the key meanwhile are, when it is free, executed in
the order of their line, each on what the one before left, and all that they write is one record. So a round to the copies
takes as many of them as came during the last one, and not one.

That it is one record is what makes it sound. Each write in it has counters, an id and an answer of its own, as if it were
alone, and whoever asks again is told what it was told. But no disk and no copy ever has a later one without those before:
a record is logged and taken whole, a new primary that fetches it fetches what a survivor has in one record, and issues
again in one record what is not everywhere (`rebalance.promotion`). Else a value could survive in which somebody counted
whose own write was lost, and who would then count twice.

One that is not made, as its condition does not hold of what the one before it leaves, has read what is not certain yet. So
it is told when that counts, and asks again if it does not.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.data.parts import Part
from engine.protocol.operations import AnswerTooLarge, Made, Refused, holds, make
from engine.protocol.requests import Code, Done, Failed, Put, Swap
from engine.turn.events import SessionId
from wal import records as r
from wal.probe import probe

CHAIN_MAX = 200
"""So many are one record at most: each is as much work as when it is alone, but for being sent and answered."""
CHAIN_BYTES_MAX = 64 << 10
"""And none behind so many bytes: each value is logged and shipped, also of those that nobody ever sees."""
JOIN_WORK = 2
"""To execute one more."""


class Stands(NamedTuple):
    """What a key has, and as which version (epoch and counter)."""

    value: bytes | None
    version: tuple[int, int]


def execute(request: Put | Swap, stands: Stands) -> Made | Done | Failed:
    """What a write of one key makes of what stands there; or what its client is told, if it is not made."""
    if isinstance(request, Put):
        return Made(request.values[0])
    found, problem = stands.value, ""
    if holds(request.when, request.old, (request.epoch, request.counter), found, stands.version):
        try:
            return make(request.how, request.old, request.new, found)
        except Refused as refused:
            problem = f"{request.namespace}:{request.key!r}: {refused}"
            return Failed(request.id, Code.USAGE, problem)
        except AnswerTooLarge:
            probe("write.answer_too_large_to_keep")
    return Done(request.id, False, found)


class Writer(Protocol):
    """Who is told what became of a chain."""

    def on_chain_counted(self, chain: Chain) -> None:
        """Durable on every in-sync copy: apply all of it, then unlock and answer."""

    def on_chain_abandoned(self, chain: Chain) -> None:
        """Another primary has all of it or closes it; the clients ask there."""


class Chain:
    """Some that are under way together, as they are shipped. `stands`: what the last one leaves.

    The first has the key locked, and those who joined it have it pending: so nobody else has it before all count.
    """

    __slots__ = ("parts", "records", "size", "stands", "unmade", "writer")

    def __init__(self, writer: Writer, first: Part) -> None:
        self.writer = writer
        self.parts = [first]
        self.unmade: list[tuple[SessionId, Done | Failed]] = []  # what who only read is told when the parts count
        self.records: tuple[r.Record, ...] = ()
        self.size = 0
        self._left_by(first)

    def join(self, part: Part) -> None:
        """It was executed on what stands."""
        self.parts.append(part)
        self._left_by(part)

    def _left_by(self, part: Part) -> None:
        write = part.write
        self.stands = Stands(write.values[0], (write.epoch, write.end))
        self.size += len(write.values[0] or b"")

    @property
    def full(self) -> bool:
        """Whether whoever is next waits for the next round."""
        return len(self.parts) + len(self.unmade) >= CHAIN_MAX or self.size >= CHAIN_BYTES_MAX

    @property
    def partition(self) -> int:
        """Which all of it concerns."""
        return self.parts[0].partition

    @property
    def epoch(self) -> int:
        """In which it was decided."""
        return self.parts[0].epoch

    def counted(self) -> None:
        """Durable on every in-sync copy: apply all of it, then unlock and answer."""
        self.writer.on_chain_counted(self)

    def abandoned(self) -> None:
        """Another primary has all of it or closes it; the clients ask there."""
        self.writer.on_chain_abandoned(self)
