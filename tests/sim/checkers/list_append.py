"""Serializability of transactions that append to lists and read them, after Elle (Kingsbury and Alvaro, VLDB 2020).

A list remembers its history: whoever reads `[1 2 3]` says which appends took effect and in what order. So the judge
need not search for an order of the transactions, it derives one and asks whether the evidence contradicts it.

1. Each read by itself: values that nobody appended, that were aborted, that are half a transaction's, or twice there;
   reads that contradict their own transaction, or each other.
2. Real time: an acknowledged append must be in every read that began later.
3. The dependency graph must have no cycle (`dependencies`, `cycles`).

The verdict is exact: nothing is found if and only if some serial order of the committed transactions explains every
read, in an order that respects real time if `strict`. The cost is about linear in the size of the history: 10,000
transactions take about half a second. Keys whose lists grow without end make the history itself quadratic; retire them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.sim.checkers.cycles import Cycle, Step, find_cycles
from tests.sim.checkers.dependencies import Chain, Dependencies
from tests.sim.checkers.history import Anomaly, Key, Kind, Operation, Report, Transaction, Value, admit, precedes, shown
from tests.sim.checkers.ledger import Ledger, Observation, maximal

EDGES_MAX = 12
"""Of a longer cycle, so many edges and the last one are told."""


def check(history: Iterable[Operation], *, strict: bool = True) -> list[Anomaly]:
    """Judge a history of `Transaction`s; [] if it is strictly serializable (serializable, if not `strict`).

    With `strict=False` nothing depends on the clock: a read that misses all news, and an append that is never seen
    again, are legal then.
    """
    ledger = Ledger(admit(history, Transaction))
    report = Report()
    graph = Dependencies(len(ledger.operations))
    stale: set[int] = set()
    observations = ledger.observations(report)
    for key in dict.fromkeys([*observations, *ledger.writers]):
        reads = observations.get(key, [])
        order = _version_order(ledger, key, reads, report)
        compatible = [read for read in reads if order[: len(read.values)] == read.values]
        _report_intermediate(ledger, key, reads, report)
        if strict:
            stale |= _report_stale(ledger, key, order, reads, compatible, report)
        chain = _chain(ledger, key, order)
        seen = {value for value, _ in chain.links}
        unread: dict[int, Value] = {}
        for value, writer in ledger.writers.get(key, {}).items():
            if value not in seen and writer in ledger.committed:
                unread.setdefault(writer, value)
        graph.connect_key(key, chain, [(read.txn, read.external) for read in compatible], unread)
    if strict:
        graph.connect_time(ledger.operations, sorted(ledger.committed))
    for cycle in find_cycles(graph, explained=stale):
        _report_cycle(ledger, cycle, report)
    return report.anomalies()


def _version_order(ledger: Ledger, key: Key, reads: Sequence[Observation], report: Report) -> tuple[Value, ...]:
    """The longest read of the key, after each value in it, and in reads that are no prefix of it, was judged."""
    if not reads:
        return ()
    longest, *others = maximal(read.values for read in reads)
    for values in [longest, *others]:
        _report_values(ledger, key, values, reads, report)
    for values in others:
        if report.skip("incompatible-order"):
            continue
        at = next(i for i, (ours, theirs) in enumerate(zip(longest, values, strict=False)) if ours != theirs)
        first, second = _reader(reads, longest), _reader(reads, values)
        explanation = (
            f"{ledger.name(first)} read {key}={shown(longest)} and {ledger.name(second)} read {key}={shown(values)}: "
            f"at position {at} one has {longest[at]}, the other {values[at]}"
        )
        report.add("incompatible-order", explanation, [ledger.operations[first], ledger.operations[second]], key)
    return longest


def _reader(reads: Sequence[Observation], values: tuple[Value, ...]) -> int:
    """Who first read a list that begins with `values`."""
    return min(read.txn for read in reads if read.values[: len(values)] == values)


def _report_values(
    ledger: Ledger, key: Key, values: tuple[Value, ...], reads: Sequence[Observation], report: Report
) -> None:
    """Judge each value of a list that was read: appended once, by a committed transaction, in its own order."""
    writers = ledger.writers.get(key, {})

    def accuse(kind: Kind, at: int, why: str, *others: int) -> None:
        if not report.skip(kind):
            reader = _reader(reads, values[: at + 1])
            who = f"{ledger.name(reader)} read {key}={shown(values[: at + 1])}"
            report.add(kind, f"{who}: {why}", [ledger.operations[txn] for txn in (reader, *others)], key)

    seen: set[Value] = set()
    ranks: dict[int, int] = {}
    aborted: int | None = None
    for at, value in enumerate(values):
        writer = writers.get(value)
        if value in seen:
            accuse("duplicate", at, f"{value} is in it twice")
        elif writer is None:
            accuse("garbage-read", at, f"nobody appended {value}")
        elif writer not in ledger.committed:
            accuse("G1a", at, f"{value} is of {ledger.name(writer)}, which failed", writer)
            aborted = writer
        else:
            own = ledger.appended(writer, key)
            rank = own.index(value)
            if rank < ranks.get(writer, 0):
                accuse("internal", at, f"{ledger.name(writer)} appended {shown(own)}, in this order", writer)
            ranks[writer] = rank
            if aborted is not None:
                why = f"{value} of {ledger.name(writer)}, which committed, is upon {ledger.name(aborted)}, which failed"
                accuse("dirty-update", at, why, writer, aborted)
                aborted = None
        seen.add(value)


def _report_intermediate(ledger: Ledger, key: Key, reads: Sequence[Observation], report: Report) -> None:
    """G1b: a list that ends amid the appends of another transaction."""
    for read in reads:
        if not read.external:
            continue
        last = read.values[read.external - 1]
        writer = ledger.writers.get(key, {}).get(last)
        if writer is None or writer == read.txn or writer not in ledger.committed:
            continue
        own = ledger.appended(writer, key)
        if own[-1] not in read.values[: read.external]:
            explanation = (
                f"{ledger.name(read.txn)} read {key}={shown(read.values[: read.external])}, which ends amid "
                f"{shown(own)} of {ledger.name(writer)}"
            )
            report.add("G1b", explanation, [ledger.operations[read.txn], ledger.operations[writer]], key)


def _report_stale(
    ledger: Ledger,
    key: Key,
    order: tuple[Value, ...],
    reads: Sequence[Observation],
    compatible: Sequence[Observation],
    report: Report,
) -> set[int]:
    """Acknowledged appends that a later read does not have: lost, if no late read has them; else the read is stale.

    Returns the readers that were reported. "Late" is a read that had not completed when the last one began.
    """
    if not reads:
        return set()
    operations = ledger.operations
    final = max(reads, key=lambda read: read.txn)
    began = operations[final.txn].invoked
    late = maximal(read.values for read in reads if _may_end_after(operations[read.txn], began))
    kept = {value for values in late for value in values}
    acknowledged = {
        value: completed
        for value, writer in ledger.writers.get(key, {}).items()
        if operations[writer].outcome == "ok" and (completed := operations[writer].completed) is not None
    }
    lost = [value for value, time in acknowledged.items() if value not in kept and time < began]
    blamed = {final.txn} if lost else set()
    if lost:
        writers = [ledger.writers[key][value] for value in lost]
        names = ", ".join(
            f"{value} of {ledger.name(writer)}" for value, writer in list(zip(lost, writers, strict=True))[:8]
        )
        explanation = (
            f"{key} lost {len(lost)} acknowledged append{'s' if len(lost) > 1 else ''}: {names}; "
            f"{ledger.name(final.txn)}, which began later, read {shown(final.values)}"
        )
        report.add("lost-write", explanation, [operations[final.txn], *(operations[w] for w in writers[:8])], key)
        for value in lost:
            del acknowledged[value]
    # The earliest acknowledgement of anything at or behind each position; unread values stand behind all positions.
    unread = set(acknowledged) - set(order)
    earliest = min(((acknowledged[value], value) for value in unread), default=None)
    missing = [earliest]
    for value in reversed(order):
        if value in acknowledged:
            earliest = min(earliest or (acknowledged[value], value), (acknowledged[value], value))
        missing.append(earliest)
    missing.reverse()
    for read in compatible:
        first = missing[len(read.values)]
        if first and first[0] < operations[read.txn].invoked:
            blamed.add(read.txn)
            if report.skip("stale-read"):
                continue
            writer = ledger.writers[key][first[1]]
            explanation = (
                f"{ledger.name(read.txn)} read {key}={shown(read.values)} without {first[1]} of {ledger.name(writer)}, "
                f"which had completed at {first[0]}, {operations[read.txn].invoked - first[0]} ns before the read began"
            )
            report.add("stale-read", explanation, [operations[read.txn], operations[writer]], key)
    return blamed


def _may_end_after(operation: Operation, time: int) -> bool:
    return operation.outcome == "info" or operation.completed is None or operation.completed >= time


def _chain(ledger: Ledger, key: Key, order: tuple[Value, ...]) -> Chain:
    """The version order without what does not belong there: values that are garbage, aborted or there twice."""
    writers = ledger.writers.get(key, {})
    links: list[tuple[Value, int]] = []
    kept = [0]
    seen: set[Value] = set()
    for value in order:
        writer = writers.get(value)
        if writer is not None and writer in ledger.committed and value not in seen:
            links.append((value, writer))
            seen.add(value)
        kept.append(len(links))
    return Chain(links, kept)


def _report_cycle(ledger: Ledger, cycle: Cycle, report: Report) -> None:
    if report.skip(cycle.kind):
        return
    operations = [ledger.operations[step.source] for step in cycle.steps]
    story = [_explain(ledger, step) for step in cycle.steps[:EDGES_MAX]]
    if len(cycle.steps) > EDGES_MAX:
        story += [f"... {len(cycle.steps) - EDGES_MAX - 1} more", _explain(ledger, cycle.steps[-1])]
    report.add(cycle.kind, "\n  ".join([f"a cycle of {len(cycle.steps)} transactions", *story]), operations)


def _explain(ledger: Ledger, step: Step) -> str:
    first, second = ledger.operations[step.source], ledger.operations[step.target]
    kind, key, before, after = step.edge
    if kind == "time":
        assert precedes(first, second), f"{first.name} did not end before {second.name}"
        why = f"{first.name} completed at {first.completed}, {second.name} began at {second.invoked}"
    elif kind == "ww":
        why = f"{first.name} appended {before} to {key}, {second.name} appended {after} after it"
    elif kind == "wr":
        why = f"{first.name} appended {before} to {key}, and {second.name} read it"
    else:
        last = "[]" if before is None else f"[.. {before}]"
        why = f"{first.name} read {key}={last}, without {after} of {second.name}"
    return f"{first.name} -{kind}{' ' + key if key else ''}-> {second.name}: {why}"
