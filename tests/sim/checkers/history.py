"""What clients did and what they were told: the only evidence that a checker looks at.

A history is a sequence of operations, in any order. Each has two times on one monotonic clock, so that "this had ended
before that began" is a fact and not an opinion, and one of three outcomes: `ok` (it took effect), `fail` (it surely had
no effect) and `info` (nobody knows; it may take effect at any time after it was invoked, or never). Confusing `fail`
with `info` is the harness's gravest mistake: it makes a correct engine look guilty, or a guilty one correct.

The actions are closed unions, one for each workload. A record that contradicts itself is a `HistoryError`, never an
anomaly: it accuses the harness and not the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar, assert_never

import msgspec

Key: TypeAlias = str
Value: TypeAlias = int

REPORTED_MAX = 10
"""Of one kind of anomaly, so many are reported in full and the rest are counted: a lost disk says it 10,000 times."""


class HistoryError(Exception):
    """The record contradicts itself, or is not for this checker: repair what recorded it."""


class Stamp(NamedTuple):
    """An update's identity, ordered by epoch and then by counter. Prints as `2.17`."""

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"


class Append(msgspec.Struct, frozen=True, tag="append"):
    """Append `value` to the list at `key`. A key sees each value once in a history, whatever came of it."""

    key: Key
    value: Value


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Read the list at `key`: () if there is none, None if the answer is not known."""

    key: Key
    values: tuple[Value, ...] | None = None


class Transaction(msgspec.Struct, frozen=True, tag="transaction"):
    """List-append: appends and reads of lists, all or none, in this order.

    Without an `ok`, recorded answers are those of the attempt whose outcome is not known; in doubt leave them None.
    """

    ops: tuple[Append | Read, ...]


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Read a register: None if there is no such key. Without an `ok` the value means nothing."""

    key: Key
    value: Value | None = None


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Write a register; None deletes it."""

    key: Key
    value: Value | None


class CompareAndSet(msgspec.Struct, frozen=True, tag="cas"):
    """Write `value` if the register holds `expected`; an `ok` says in `swapped` whether it did."""

    key: Key
    expected: Value | None
    value: Value | None
    swapped: bool = True


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Add an element to the set. An element is added at most once in a history."""

    element: Value


class ReadSet(msgspec.Struct, frozen=True, tag="read-set"):
    """Read the whole set."""

    elements: tuple[Value, ...] | None = None


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """Move an amount from one account to another."""

    source: Key
    target: Key
    amount: int


class ReadBalances(msgspec.Struct, frozen=True, tag="read-balances"):
    """Read all accounts in one transaction; an account that was deleted at zero may be left out."""

    balances: dict[Key, int] | None = None


class Rotate(msgspec.Struct, frozen=True, tag="rotate"):
    """Change the successors of some keys of the ring so that it stays one ring."""

    keys: tuple[Key, ...]


class ReadRing(msgspec.Struct, frozen=True, tag="read-ring"):
    """Read every key's successor in one transaction."""

    successors: dict[Key, Key] | None = None


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Write a versioned key; an `ok` says which version the write became."""

    key: Key
    version: Stamp | None
    value: Value


class Observe(msgspec.Struct, frozen=True, tag="observe"):
    """Read a versioned key; version None: there is no such key."""

    key: Key
    version: Stamp | None = None
    value: Value | None = None


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """One attempt at the transaction that the client named `tx`; every attempt carries the same name."""

    tx: str
    answer: str | None = None


class ReadApplied(msgspec.Struct, frozen=True, tag="read-applied"):
    """Read how often each transaction has taken effect; one that is left out has not."""

    counts: dict[str, int] | None = None


class Scan(msgspec.Struct, frozen=True, tag="scan"):
    """Scan `low <= key < high`, and get some keys in the same transaction; a get of None found nothing."""

    low: Key
    high: Key
    rows: tuple[tuple[Key, Value], ...] | None = None
    gets: tuple[tuple[Key, Value | None], ...] = ()


ListAppendAction: TypeAlias = Transaction
RegisterAction: TypeAlias = Get | Put | CompareAndSet
SetAction: TypeAlias = Add | ReadSet
BankAction: TypeAlias = Transfer | ReadBalances
RingAction: TypeAlias = Rotate | ReadRing
MonotonicAction: TypeAlias = Update | Observe
IdempotentAction: TypeAlias = Apply | ReadApplied
ScanAction: TypeAlias = Scan | Get | Put
Action: TypeAlias = (
    ListAppendAction
    | RegisterAction
    | SetAction
    | BankAction
    | RingAction
    | MonotonicAction
    | IdempotentAction
    | ScanAction
)
Outcome: TypeAlias = Literal["ok", "fail", "info"]


class Operation(msgspec.Struct, frozen=True):
    """One thing that one client asked, and what it was told.

    A process does one thing at a time and retires after an `info`: the client goes on under a new number. Times are
    nanoseconds; an `info` may name the time at which its client gave up, which proves nothing.
    """

    process: int
    invoked: int
    completed: int | None
    outcome: Outcome
    action: Action

    @property
    def name(self) -> str:
        """How it is called in every report, `p3@120`: the process and when it began; unique in a history."""
        return f"p{self.process}@{self.invoked}"

    @property
    def ended(self) -> int:
        """When an operation completed that is known to have."""
        assert self.completed is not None, f"{self.name} is {self.outcome} and never completed"
        return self.completed


Kind: TypeAlias = Literal[
    "G0",  # write cycle
    "G1a",  # aborted read
    "G1b",  # intermediate read
    "G1c",  # circular information flow
    "G-single",  # one anti-dependency: read skew, lost update
    "G2",  # several anti-dependencies: write skew, long fork
    "stale-read",
    "strict-serializability",  # serializable, but not in an order that respects real time
    "duplicate",
    "garbage-read",  # a value that nobody wrote, or that was not yet written
    "dirty-update",  # a committed write upon an aborted one
    "internal",  # a transaction contradicts its own reads and writes
    "incompatible-order",  # two reads that no one history of the key contains
    "lost-write",  # acknowledged, and missing in the end
    "vanished",  # seen, never acknowledged, and gone again
    "nonlinearizable",
    "undecided",  # the search was given up: proves nothing
    "wrong-total",
    "negative-balance",
    "unknown-account",
    "ring-broken",
    "ring-split",
    "session-rollback",
    "version-rollback",
    "divergent-version",
    "contradictory-answer",
    "scan-missing",
    "scan-phantom",
    "scan-value",
    "scan-order",
]


class Anomaly(msgspec.Struct, frozen=True):
    """Something that must not have happened. Prints as `kind: explanation`; the first line is enough to grep for."""

    kind: Kind
    explanation: str
    operations: tuple[Operation, ...]
    key: Key | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.explanation}"


class Report:
    """Collects anomalies in the order in which they are found, at most `REPORTED_MAX` in full of each kind."""

    __slots__ = ("_anomalies", "_counts")

    def __init__(self) -> None:
        self._anomalies: list[Anomaly] = []
        self._counts: dict[Kind, int] = {}

    def add(self, kind: Kind, explanation: str, operations: Iterable[Operation], key: Key | None = None) -> None:
        """Report one anomaly, or count it if there are enough of its kind."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if self._counts[kind] <= REPORTED_MAX:
            self._anomalies.append(Anomaly(kind, explanation, tuple(operations), key))

    def skip(self, kind: Kind) -> bool:
        """Whether enough of this kind are reported; then it is counted, and need not be explained."""
        full = self._counts.get(kind, 0) >= REPORTED_MAX
        if full:
            self._counts[kind] += 1
        return full

    def anomalies(self) -> list[Anomaly]:
        """All that was found; the last of a kind says how many more there were."""
        found = list(self._anomalies)
        for kind, count in self._counts.items():
            if count > REPORTED_MAX:
                last = max(i for i, anomaly in enumerate(found) if anomaly.kind == kind)
                more = f"{found[last].explanation}\n  ... and {count - REPORTED_MAX} more of this kind"
                found[last] = msgspec.structs.replace(found[last], explanation=more)
        return found


def precedes(first: Operation, second: Operation) -> bool:
    """Whether `first` had surely ended when `second` began. Equal times prove nothing, but for one process."""
    if first.outcome == "info" or first.completed is None:
        return False
    return first.completed < second.invoked or (first.process == second.process and first.invoked < second.invoked)


A = TypeVar("A")


def admit(history: Iterable[Operation], *kinds: type[A]) -> list[tuple[Operation, A]]:
    """The operations with their actions, by time of invocation; raises HistoryError for a record that cannot be.

    An action of another workload is refused and not skipped: a checker that was handed the wrong history would
    otherwise find nothing wrong with it. Use `only` to take a mixed history apart.
    """
    admitted: list[tuple[Operation, A]] = []
    last: dict[int, Operation] = {}
    for operation in sorted(history, key=lambda op: (op.invoked, op.process)):
        action = operation.action
        if not isinstance(action, kinds):
            wanted = ", ".join(kind.__name__ for kind in kinds)
            raise HistoryError(f"{operation.name} is a {type(action).__name__}: expected {wanted}; see history.only")
        _check_times(operation, last.get(operation.process))
        if operation.outcome == "ok" and not _answered(operation.action):
            raise HistoryError(f"{operation.name} is ok, but its answer was not recorded: {operation.action}")
        last[operation.process] = operation
        admitted.append((operation, action))
    return admitted


def only(history: Iterable[Operation], *kinds: type[A]) -> list[Operation]:
    """The operations of a mixed history that belong to one workload."""
    return [operation for operation in history if isinstance(operation.action, kinds)]


def _check_times(operation: Operation, previous: Operation | None) -> None:
    if operation.completed is None and operation.outcome != "info":
        raise HistoryError(f"{operation.name} is {operation.outcome}, but it never completed: expected info")
    if operation.completed is not None and operation.completed < operation.invoked:
        raise HistoryError(f"{operation.name} completed at {operation.completed}, before it was invoked")
    if previous is None:
        return
    if previous.outcome == "info" or previous.completed is None:
        raise HistoryError(f"{operation.name} follows {previous.name}, which is info: process {operation.process} retired")
    if operation.invoked < previous.completed or operation.invoked == previous.invoked:
        raise HistoryError(f"{operation.name} began before {previous.name} of the same process completed")


def _answered(action: Action) -> bool:
    match action:
        case Transaction(ops):
            return all(isinstance(op, Append) or op.values is not None for op in ops)
        case ReadSet(answer) | ReadBalances(answer) | ReadRing(answer) | ReadApplied(answer):
            return answer is not None
        case Update(version=answer) | Scan(rows=answer) | Apply(answer=answer):
            return answer is not None
        case Get() | Put() | CompareAndSet() | Add() | Transfer() | Rotate() | Observe():
            return True
        case _:
            assert_never(action)


def shown(values: Sequence[Value | str], most: int = 8) -> str:
    """A list for a report: `[1 2 3]`, and of a long one the end, `[.. 7 8 9]`, since there the news is."""
    tail = " ".join(str(value) for value in values[-most:])
    return f"[{tail}]" if len(values) <= most else f"[.. {tail}]"
