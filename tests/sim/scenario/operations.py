"""What clients of a story do: transactions, single writes and reads, by name, with what they were told.

Everything written is also kept in a ledger, so that in the end every copy can be asked whether what a client was told
still holds.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine import errors
from engine.client.calls import Call, GetCall, PutCall, SwapCall
from engine.client.ends import StatusCall
from engine.client.scans import ScanCall
from tests.sim.clients import Client, Task
from tests.sim.network import MS
from tests.sim.transactions import Key, SimTransaction
from wal.ids import Namespace, TxId

PENDING, PREPARED, COMMITTED, ABORTED, UNKNOWN = "pending", "prepared", "committed", "aborted", "unknown"
T = TypeVar("T")
SCAN_LIMIT = 10_000
STREAM_TIMEOUT_NS = 5_000_000_000


@dataclass
class Written:
    """One value that somebody asked to write. `acked` is when it was promised; `refused`: it never happened."""

    value: bytes | None
    by: str
    asked: int
    acked: int | None = None
    refused: bool = False


class Ledger:
    """Everything that clients asked to write, and what they were told, key by key."""

    def __init__(self) -> None:
        self.keys: dict[Key, list[Written]] = {}
        self.computed: dict[Key, None] = {}  # somebody had a value computed from what stood: only copies know which

    def ask(self, by: str, writes: Mapping[Key, bytes | None], now: int) -> list[Written]:
        """Somebody asks to write."""
        asked: list[Written] = []
        for key, value in writes.items():
            written = Written(value, by, now)
            self.keys.setdefault(key, []).append(written)
            asked.append(written)
        return asked

    def possible(self, key: Key) -> list[bytes | None]:
        """The values that a key may have now, given what clients were told."""
        writes = [w for w in self.keys.get(key, []) if not w.refused]
        last_asked = max((w.asked for w in writes if w.acked is not None), default=None)
        found = [w.value for w in writes if w.acked is None or last_asked is None or w.acked >= last_asked]
        if last_asked is None:
            found.append(None)
        return found


@dataclass
class Operation:
    """One named thing that a client does. `answer` is what it was told: the words above, or what was read."""

    name: str
    client: Client
    tx: TxId
    transaction: SimTransaction | None = None
    answer: str = PENDING
    error: errors.Error | None = None
    again: Call | None = None  # what a retry sends
    tasks: list[Task] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    count: int = 0  # of acknowledged writes, for a stream
    touching: int = 0  # steps of a transaction that are not answered yet
    broken: bool = False  # one of them failed
    began: int = 0  # when its last step was asked for, in ns of the world
    ended: int | None = None  # and answered
    acked: int = 0  # when a stream's last write was acknowledged, or it began
    blocked: int = 0  # the longest time between two of them
    streams: bool = False
    stopping: bool = False

    @property
    def busy(self) -> bool:
        """Something of it is not answered yet."""
        return any(not task.done for task in self.tasks)

    def run(self, coroutine: Coroutine[Any, None, None]) -> Task:
        """Begin a step of it."""
        self.began, self.ended = self.client.world.now, None
        self.acked = self.began
        task = self.client.spawn(self._step(coroutine), self.name)
        self.tasks.append(task)
        return task

    async def _step(self, coroutine: Coroutine[Any, None, None]) -> None:
        try:
            await coroutine
        except errors.Error as error:
            self.error = error
            if not isinstance(error, errors.AlreadyAnswered):
                self.told(UNKNOWN if error.maybe_committed else ABORTED)
        finally:
            self.ended = self.client.world.now

    def acknowledged(self) -> None:
        """A write of a stream is done."""
        now = self.client.world.now
        self.count += 1
        self.blocked, self.acked = max(self.blocked, now - self.acked), now

    def told(self, answer: str) -> None:
        """The client was told how it ended."""
        self.answer = answer
        now = self.client.world.now
        for written in self.written:
            if answer == COMMITTED and written.acked is None:
                written.acked = now
            elif answer == ABORTED and (self.transaction is not None or len(self.written) == 1):
                written.refused = True  # of several single writes some may have been done before the refusal


def _writes(namespace: Namespace, values: Mapping[bytes, bytes | None]) -> dict[Key, bytes | None]:
    return {(namespace, key): value for key, value in values.items()}


# Transactions.


async def touch(op: Operation, namespace: Namespace, values: Mapping[bytes, bytes | None]) -> None:
    """Enlist writes in a transaction: lock them, if it is pessimistic."""
    assert op.transaction is not None
    await _step_of(op, op.transaction.put(namespace, values))


async def read_in(op: Operation, namespace: Namespace, keys: list[bytes]) -> None:
    """Read in a transaction."""
    assert op.transaction is not None
    found = await _step_of(op, op.transaction.get(namespace, keys))
    op.answer = text_of([found[key] for key in keys])


async def _step_of(op: Operation, doing: Coroutine[Any, None, T]) -> T:
    """One step of a transaction; when one fails, so does the program that runs it, and with it the transaction."""
    op.touching += 1
    try:
        return await doing
    except errors.Error:
        op.broken = True
        raise
    finally:
        op.touching -= 1


async def prepare(op: Operation, ledger: Ledger) -> None:
    """Ask for the votes, and stop before the decision."""
    assert op.transaction is not None
    if not await _ready(op):
        return
    _enter(op, ledger)
    op.answer = PENDING
    await op.transaction.prepare()
    if op.answer == PENDING:
        op.answer = PREPARED


async def commit(op: Operation, ledger: Ledger) -> None:
    """Make it so."""
    assert op.transaction is not None
    if not await _ready(op):
        return
    _enter(op, ledger)
    op.answer = PENDING
    await op.transaction.commit()
    op.told(COMMITTED)


async def _ready(op: Operation) -> bool:
    """Every step is done; False if one failed, and the transaction was given up."""
    while op.touching:
        await op.client.pause(MS)
    if op.broken:
        await roll_back(op)
    return not op.broken


async def roll_back(op: Operation) -> None:
    """Give up."""
    assert op.transaction is not None
    await op.transaction.rollback()
    op.told(ABORTED)


def _enter(op: Operation, ledger: Ledger) -> None:
    if op.transaction is not None and not op.written:
        op.written = ledger.ask(op.name, op.transaction.written, op.client.world.now)


# Single operations.


async def write(
    op: Operation, ledger: Ledger, namespace: Namespace, values: Mapping[bytes, bytes | None], timeout_ns: int
) -> None:
    """Set keys, each partition by itself."""
    op.written = ledger.ask(op.name, _writes(namespace, values), op.client.world.now)
    op.again = PutCall(op.tx, namespace, list(values), list(values.values()))
    await op.client.call(op.again, timeout_ns=timeout_ns)
    op.told(COMMITTED)


async def swap(op: Operation, ledger: Ledger, call: SwapCall, timeout_ns: int) -> None:
    """Set one key if a condition holds of it, or have its value computed."""
    op.written = ledger.ask(op.name, {(call.namespace, call.keys[0]): call.new}, op.client.world.now)
    if call.how not in ("set", "exchange"):
        ledger.computed[(call.namespace, call.keys[0])] = None
    op.again = call
    await op.client.call(call, timeout_ns=timeout_ns)
    _told_of(op, call)


async def again(op: Operation, timeout_ns: int) -> None:
    """The same once more, under the same transaction id, as a client does that lost the answer."""
    if op.transaction is not None:
        assert op.transaction.commit_call is not None
        await op.client.call(op.transaction.request(), timeout_ns=timeout_ns)
    else:
        call = op.again
        assert isinstance(call, PutCall | SwapCall)
        if isinstance(call, PutCall):
            await op.client.call(PutCall(op.tx, call.namespace, call.keys, call.values), timeout_ns=timeout_ns)
        else:
            how, at, key = call.how, call.at, call.keys[0]
            repeated = SwapCall(op.tx, call.namespace, key, call.when, old=call.old, new=call.new, how=how, at=at)
            await op.client.call(repeated, timeout_ns=timeout_ns)
            _told_of(op, repeated)
            op.error = None if repeated.applied else op.error
            return
    op.error = None
    op.told(COMMITTED)


def _told_of(op: Operation, call: SwapCall) -> None:
    """What the client of a single write under a condition was told; the answer of an operation, if it gives one."""
    op.told(COMMITTED if call.applied else ABORTED)
    if not call.applied:
        op.answer = "not-applied"
    elif call.how != "set":
        op.answer = text_of([call.found])


async def ask_status(op: Operation, timeout_ns: int) -> None:
    """Ask how it ended."""
    topology = op.client.router.topology
    assert topology is not None, "a client that wrote has seen a table"
    if op.transaction is not None:
        namespace, key = next(iter(op.transaction.written))
    else:
        assert isinstance(op.again, PutCall | SwapCall)
        namespace, key = op.again.namespace, op.again.keys[0]
    call = StatusCall(op.tx, topology.place(namespace, key))
    await op.client.call(call, timeout_ns=timeout_ns)
    op.error = None
    op.told(call.outcome)


async def read(
    op: Operation, namespace: Namespace, keys: list[bytes], timeout_ns: int, *, stale: bool, age_ms: int
) -> None:
    """Read keys."""
    op.client.unused(op.tx)
    call = GetCall(namespace, keys, stale=stale, age_ms=age_ms)
    await op.client.call(call, timeout_ns=timeout_ns)
    op.answer = text_of([value for _, _, value in call.values])


async def scan(op: Operation, namespace: Namespace, timeout_ns: int, *, stale: bool, age_ms: int) -> None:
    """Count the rows of a namespace, as a client finds them."""
    op.client.unused(op.tx)
    start: bytes | None = b""
    rows = 0
    while start is not None:
        call = ScanCall(namespace, start, None, SCAN_LIMIT, stale=stale, age_ms=age_ms)
        await op.client.call(call, timeout_ns=timeout_ns)
        rows += len(call.rows)
        start = call.next_start
    op.answer = str(rows)


async def stream(op: Operation, ledger: Ledger, namespace: Namespace, keys: list[bytes], every_ns: int, size: int) -> None:
    """Write one key after the other, round and round, until it is told to stop; what is refused is tried again."""
    op.client.unused(op.tx)  # each write has an id of its own
    op.streams, number = True, 0
    while not op.stopping:
        key = keys[number % len(keys)]
        number += 1
        value = f"{op.name}:{number}".encode().ljust(size, b".")
        written = ledger.ask(op.name, {(namespace, key): value}, op.client.world.now)
        try:
            call = PutCall(op.client.new_tx(), namespace, [key], [value])
            await op.client.call(call, timeout_ns=STREAM_TIMEOUT_NS)
        except errors.Error as error:
            written[0].refused = not error.maybe_committed
        else:
            written[0].acked = op.client.world.now
            op.acknowledged()
        await op.client.pause(every_ns)
    op.answer = COMMITTED


def text_of(values: list[bytes | None]) -> str:
    """Values as a story speaks of them."""
    return ",".join("none" if value is None else value.decode(errors="backslashreplace") for value in values)
