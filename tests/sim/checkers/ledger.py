"""The evidence of a list-append history, indexed: who appended what, who read what, and who committed.

A transaction that answered `ok` committed. One of unknown outcome committed if and only if a committed transaction saw
one of its appends: if nobody did, then a world in which it never happened explains the history just as well. Reads
count only from committed transactions, since nothing is promised about what a doomed one was shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.sim.checkers.history import (
    Append,
    HistoryError,
    Key,
    Operation,
    Read,
    Report,
    Transaction,
    Value,
    shown,
)


class Observation(NamedTuple):
    """A transaction's first read of a key: `values` as read, of which the first `external` are not its own appends."""

    txn: int
    values: tuple[Value, ...]
    external: int


class Ledger:
    """Transactions are numbered by their place in `operations`, which is the order in which they were invoked."""

    __slots__ = ("_infos", "bodies", "committed", "operations", "ranks", "writers")

    def __init__(self, entries: Iterable[tuple[Operation, Transaction]]) -> None:
        self.operations: list[Operation] = []
        self.bodies: list[Transaction] = []
        self.writers: dict[Key, dict[Value, int]] = {}
        """By key: each appended value's transaction, whatever came of it."""
        self.ranks: dict[Key, dict[int, list[Value]]] = {}
        """By key and transaction: what it appended there, in its own order."""
        self._infos: dict[Key, dict[Value, int]] = {}
        for txn, (operation, body) in enumerate(entries):
            self.operations.append(operation)
            self.bodies.append(body)
            for op in body.ops:
                if isinstance(op, Append):
                    self._enter(txn, op)
        self.committed = self._settle()

    def name(self, txn: int) -> str:
        """The transaction's name in a report."""
        return self.operations[txn].name

    def appended(self, txn: int, key: Key) -> list[Value]:
        """What the transaction appended to `key`, in its own order."""
        return self.ranks.get(key, {}).get(txn, [])

    def observations(self, report: Report) -> dict[Key, list[Observation]]:
        """The committed transactions' first reads by key; those that contradict themselves are reported instead."""
        found: dict[Key, list[Observation]] = {}
        for txn in sorted(self.committed):
            self._observe(txn, found, report)
        return found

    def _enter(self, txn: int, op: Append) -> None:
        writers = self.writers.setdefault(op.key, {})
        if op.value in writers:
            first = self.name(writers[op.value])
            raise HistoryError(f"{self.name(txn)} and {first} both append {op.value} to {op.key}: values must be unique")
        writers[op.value] = txn
        self.ranks.setdefault(op.key, {}).setdefault(txn, []).append(op.value)
        if self.operations[txn].outcome == "info":
            self._infos.setdefault(op.key, {})[op.value] = txn

    def _settle(self) -> set[int]:
        committed = {txn for txn, operation in enumerate(self.operations) if operation.outcome == "ok"}
        news = committed
        while news:
            reads: dict[Key, list[tuple[Value, ...]]] = {}
            for txn in news:
                for op in self.bodies[txn].ops:
                    if isinstance(op, Read) and op.values and op.key in self._infos:
                        reads.setdefault(op.key, []).append(op.values)
            seen = {
                self._infos[key][value]
                for key, lists in reads.items()
                for values in maximal(lists)
                for value in values
                if value in self._infos[key]
            }
            news = seen - committed
            committed = committed | news
        return committed

    def _observe(self, txn: int, found: dict[Key, list[Observation]], report: Report) -> None:
        known: dict[Key, tuple[Value, ...]] = {}
        own: dict[Key, tuple[Value, ...]] = {}
        for op in self.bodies[txn].ops:
            if isinstance(op, Append):
                own[op.key] = (*own.get(op.key, ()), op.value)
                if op.key in known:
                    known[op.key] += (op.value,)
                continue
            if op.values is None:
                continue
            if op.key in known:
                if op.values != known[op.key]:
                    self._contradicts(txn, op.key, op.values, f"after it had to be {shown(known[op.key])}", report)
                continue
            mine = own.get(op.key, ())
            external = len(op.values) - len(mine)
            ever = self.appended(txn, op.key)
            if mine and (external < 0 or op.values[external:] != mine):
                self._contradicts(txn, op.key, op.values, f"without its own {shown(mine)} at the end", report)
            elif ever and not set(ever).isdisjoint(op.values[:external]):
                self._contradicts(txn, op.key, op.values, f"with its own {shown(ever)} too early", report)
            else:
                known[op.key] = op.values
                found.setdefault(op.key, []).append(Observation(txn, op.values, external))

    def _contradicts(self, txn: int, key: Key, values: tuple[Value, ...], why: str, report: Report) -> None:
        explanation = f"{self.name(txn)} read {key}={shown(values)}, {why}"
        report.add("internal", explanation, [self.operations[txn]], key)


def maximal(lists: Iterable[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """The longest list, then those that are no prefix of it; what holds for these holds for every list."""
    ordered = sorted(lists, key=len, reverse=True)
    longest = ordered[0]
    return [longest, *(values for values in ordered[1:] if longest[: len(values)] != values)]
