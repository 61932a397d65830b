"""A batch of keys, put into parts by partition, and who waits for them: a part that is under way, or a put that is alone;
and the keys of a part that has very many, held and let go in pieces.

The keys of a single write are pending while it is under way, or pinned, if it had to wait and has them locked. Very many
are held piece by piece before the write is issued. A key that is held stays what it was found to be, so that all of them
are when the last one is: no transaction has it, and whoever wants it waits behind the write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol, TypeAlias

from engine.data.expiry import rows_of
from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.protocol.requests import Put
from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS
from engine.turn.events import SessionId
from rebalance.ports import WORK_MAX
from rebalance.table import Topology
from wal import records as r
from wal.ids import Namespace, TxId

KEYS_PUT_OF_WORK = 8
"""So many keys that are put into a part are as much work as one thing that is decided."""

Entries: TypeAlias = tuple[list[bytes], list[bytes | None]]
Parts: TypeAlias = dict[int, Entries]
"""Keys and values, by partition."""


def parts_of(request: Put, topology: Topology) -> Parts:
    """A batch, put into parts."""
    if len(request.keys) == 1:
        return {topology.place(request.namespace, request.keys[0]): (request.keys, request.values)}
    parts: Parts = {}
    _put_into(parts, topology.places(request.namespace, request.keys), request.keys, request.values)
    return parts


def split(request: Put, topology: Topology, parts: Parts) -> Iterator[int]:
    """Put a batch into `parts`, in pieces; yields how much work each was."""
    keys, values = request.keys, request.values
    for at in range(0, len(keys), LARGE_KEYS):
        some, before = keys[at : at + LARGE_KEYS], len(parts)
        _put_into(parts, topology.places(request.namespace, some), some, values[at : at + LARGE_KEYS])
        yield (LARGE_KEYS + len(parts) - before) // KEYS_PUT_OF_WORK


def _put_into(parts: Parts, numbers: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    for number, key, value in zip(numbers, keys, values, strict=True):
        part = parts.get(number)
        if part is None:
            part = parts[number] = ([], [])
        part[0].append(key)
        part[1].append(value)


class Job:
    """One request, answered when every part that it waits for counts. `over`: it was answered, one way or another."""

    __slots__ = ("left", "over", "request_id", "session")

    def __init__(self, session: SessionId, request_id: int) -> None:
        self.session = session
        self.request_id = request_id
        self.left = 0
        self.over = False


class Writer(Protocol):
    """Who is told what became of what it wrote."""

    def on_counted(self, part: Part) -> None:
        """Durable on every in-sync copy: apply, unlock, answer."""

    def on_alone_counted(self, put: Alone) -> None:
        """The same."""

    def on_abandoned(self, part: Part | Alone) -> None:
        """Another primary has it or closes it; the client asks there."""


class Part:
    """What one partition is written by a request, as it is shipped. Each time it was asked for is a job that waits.

    `locked`: its keys are pinned in the name of its id; else they are pending.
    """

    __slots__ = ("deadline", "epoch", "held", "jobs", "locked", "partition", "records", "write", "writer")

    def __init__(self, writer: Writer, write: r.Write, job: Job, *, locked: bool) -> None:
        self.writer = writer
        self.write = write
        self.partition = write.partition
        self.epoch = write.epoch
        self.deadline: r.Write | None = None  # what says when it expires
        self.locked = locked
        self.held: Keys | None = None  # of a large one, and then it holds them already
        self.jobs: tuple[Job, ...] = (job,)
        self.records: tuple[r.Record, ...] = ()

    @property
    def writes(self) -> list[r.Write]:
        """What its record says."""
        return [self.write] if self.deadline is None else [self.write, self.deadline]

    def counted(self) -> None:
        """Durable on every in-sync copy: apply, unlock, answer."""
        self.writer.on_counted(self)

    def abandoned(self) -> None:
        """Another primary has it or closes it; the client asks there."""
        self.writer.on_abandoned(self)


class Alone:
    """A put of one key that nothing is in the way of, which is all of its request: `key` is pending, and nothing expires.

    Nearly every write is one, and there is one object for it instead of a part and a job: with a few more for each of them
    a turn of 64 puts made the interpreter look for circles. `jobs`: who has asked for it again.
    """

    __slots__ = ("jobs", "key", "records", "request_id", "session", "write", "writer")

    def __init__(self, writer: Writer, write: r.Write, key: Key, session: SessionId, request_id: int) -> None:
        self.writer = writer
        self.write = write
        self.key = key
        self.session = session
        self.request_id = request_id
        self.jobs: tuple[Job, ...] = ()
        self.records: tuple[r.Record, ...] = ()

    @property
    def partition(self) -> int:
        """Which all of it concerns."""
        return self.write.partition

    @property
    def epoch(self) -> int:
        """In which it was decided."""
        return self.write.epoch

    def counted(self) -> None:
        """Durable on every in-sync copy: apply, let go of the key, answer."""
        self.writer.on_alone_counted(self)

    def abandoned(self) -> None:
        """Another primary has it or closes it; the client asks there."""
        self.writer.on_abandoned(self)


class Keys:
    """The keys of one write in one namespace; `locked`: its id has them."""

    def __init__(self, locks: LockTable, tx: TxId, namespace: Namespace, keys: list[bytes], *, locked: bool) -> None:
        self._locks = locks
        self._tx = tx
        self._namespace = namespace
        self._keys = keys
        self._locked = locked
        self._held = 0
        self.rows: list[bytes] | None = None

    def take(self, wanted: Callable[[], bool], lasting: Sequence[bytes | None] | None = None) -> Generator[int, None, bool]:
        """Take them all, piece by piece; False if one cannot be taken, or if they are not `wanted` any more.

        `lasting`: their values, where these are to expire. Then `rows` are those that will say when.
        """
        rows: list[bytes] = []
        while self._held < len(self._keys):
            at, some = self._held, self._some(self._held)
            if not wanted() or not self._take(some):
                return False
            self._held += len(some)
            if lasting is not None:
                rows += rows_of(self._namespace, self._keys[at : self._held], lasting[at : self._held])
            yield len(some) // KEYS_OF_WORK
        self.rows = rows if lasting is not None else None
        yield WORK_MAX  # what is done with all of them is another turn
        return wanted()

    def _some(self, at: int) -> list[Key]:
        return [(self._namespace, key) for key in self._keys[at : at + LARGE_KEYS]]

    def _take(self, some: list[Key]) -> bool:
        locks = self._locks
        if self._locked:
            if not locks.may_write_all(self._tx, some):
                return False
            locks.pin(self._tx, some, in_doubt=False, sure=True)
            return True
        if not locks.idle and locks.busy_any(some):
            return False
        for key in some:
            locks.pend(key)
        return True

    def let_go(self, still: Callable[[], bool]) -> Iterator[int]:
        """Let go of all that are held; of what its id has at once, unless that is `still` nobody else's to have meanwhile:
        asked again elsewhere and here, the id may have it anew."""
        for at in range(0, self._held, LARGE_KEYS):
            some = self._some(at)[: self._held - at]
            if self._locked:
                self._locks.release(self._tx, some)
            else:
                for key in some:
                    self._locks.unpend(key)
            if not self._locked or still():
                yield len(some) // KEYS_OF_WORK
