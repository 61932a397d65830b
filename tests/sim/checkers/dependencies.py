"""The dependency graph of a list-append history: which transaction must stand before which, and why.

The longest read of a key is its version order, so that each edge is a fact and no search is needed:

| edge | means | evidence |
| --- | --- | --- |
| `ww` | v appended after u | neighbours in the version order |
| `wr` | v read what u appended | the read's last value |
| `rw` | u read, and did not see what v appended | the next value after the read's last |
| `time` | u had ended when v began | the clock, or the process |

Values that nobody read belong behind all that were: lists only grow, so whoever read the end did not see them. With
these edges the graph is complete: if it has no cycle, each of its topological orders explains every read.

Two things would be quadratic: many readers before many unread appends, and each end before each later beginning. Both
go through *junctions*, nodes which are no transactions: one per key for its end, one per instant at which something
completed, strung together to a time line. A junction adds no path between transactions that is not a fact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from tests.sim.checkers.history import Key, Operation, Value

EdgeKind: TypeAlias = Literal["ww", "wr", "rw", "time", "pass"]


class Edge(NamedTuple):
    """Why one transaction stands before another. `pass` leads out of a junction and belongs to the edge that led in.

    `before` is the last value of the reader or the value of the writer that comes first, `after` what came next.
    """

    kind: EdgeKind
    key: Key = ""
    before: Value | None = None
    after: Value | None = None


TIME = Edge("time")
PASS = Edge("pass")


class Chain(NamedTuple):
    """One key's version order, committed appends only, each with its transaction; `kept[n]` of the first n are here."""

    links: list[tuple[Value, int]]
    kept: list[int]


class Dependencies:
    """Nodes below `transactions` are transactions, the others junctions. No edge leads from a node to itself."""

    __slots__ = ("out", "transactions")

    def __init__(self, transactions: int) -> None:
        self.transactions = transactions
        self.out: list[dict[int, list[Edge]]] = [{} for _ in range(transactions)]

    def add(self, source: int, target: int, edge: Edge) -> None:
        """Add one reason why `source` stands before `target`."""
        assert source != target, f"{source} cannot stand before itself: {edge}"
        self.out[source].setdefault(target, []).append(edge)

    def junction(self) -> int:
        """A new node that is no transaction."""
        self.out.append({})
        return len(self.out) - 1

    def connect_key(self, key: Key, chain: Chain, reads: Iterable[tuple[int, int]], unread: Mapping[int, Value]) -> None:
        """Add one key's edges. `reads` are (transaction, length read); `unread` a value that nobody saw, by writer."""
        links = chain.links
        for (before, first), (after, second) in pairwise(links):
            if first != second:
                self.add(first, second, Edge("ww", key, before, after))
        ends: dict[int, Edge] = {}
        if links:
            ends[links[-1][1]] = Edge("ww", key, links[-1][0])
        for reader, length in reads:
            at = chain.kept[length]
            last = links[at - 1][0] if at else None
            if at and links[at - 1][1] != reader:
                self.add(links[at - 1][1], reader, Edge("wr", key, last))
            if at == len(links):
                ends.setdefault(reader, Edge("rw", key, last))
            elif links[at][1] != reader:
                self.add(reader, links[at][1], Edge("rw", key, last, links[at][0]))
        if unread:
            self._connect_end(key, ends, unread)

    def connect_time(self, operations: Sequence[Operation], committed: Sequence[int]) -> None:
        """Add real time, strictly earlier only, and each process's own order. `committed` is in invocation order."""
        done = [txn for txn in committed if operations[txn].outcome == "ok"]
        times = sorted({completed for txn in done if (completed := operations[txn].completed) is not None})
        line = {time: self.junction() for time in times}
        for earlier, later in pairwise(times):
            self.add(line[earlier], line[later], PASS)
        previous: dict[int, int] = {}
        for txn in committed:
            operation = operations[txn]
            at = bisect_left(times, operation.invoked)
            if at:
                self.add(line[times[at - 1]], txn, PASS)
            if operation.process in previous:
                self.add(previous[operation.process], txn, TIME)
            if operation.outcome == "ok" and operation.completed is not None:
                previous[operation.process] = txn
                self.add(txn, line[operation.completed], TIME)

    def _connect_end(self, key: Key, ends: Mapping[int, Edge], unread: Mapping[int, Value]) -> None:
        """Everyone in `ends` stands before everyone in `unread`, but not before itself.

        A transaction that is in both cannot use the junction, which would lead it back to itself; one of them leads
        to all the others directly, and if there are several, each stands before each: a lost update.
        """
        both = [txn for txn in ends if txn in unread]
        if len(both) < len(ends):
            end = self.junction()
            for txn, edge in ends.items():
                if txn not in unread:
                    self.add(txn, end, edge)
            for writer, value in unread.items():
                self.add(end, writer, Edge("pass", key, after=value))
        if not both:
            return
        hub = both[0]
        for writer, value in unread.items():
            if writer != hub:
                self.add(hub, writer, ends[hub]._replace(after=value))
        for txn in both[1:]:
            self.add(txn, hub, ends[txn]._replace(after=unread[hub]))
