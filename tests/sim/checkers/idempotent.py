"""A client that lost the reply tries again under the same transaction name: however often, it takes effect once.

The outcome of an operation is that of one *attempt*: a `fail` says that this attempt had no effect, and not that an
earlier one had none. So a transaction must not have taken effect only if every attempt failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.checkers.history import (
    Anomaly,
    Apply,
    IdempotentAction,
    Operation,
    ReadApplied,
    Report,
    admit,
    precedes,
)
from tests.sim.checkers.notation import line


def check(history: Iterable[Operation]) -> list[Anomaly]:
    """Judge a history of `Apply` and `ReadApplied`: once if acknowledged, never if all failed, at most once else.

    Whoever is answered `ok` must be answered the same as everybody else who asked for that transaction.
    """
    entries: list[tuple[Operation, IdempotentAction]] = admit(history, Apply, ReadApplied)
    report = Report()
    attempts: dict[str, list[Operation]] = {}
    answers: dict[str, tuple[Operation, str]] = {}
    for operation, action in entries:
        if isinstance(action, Apply):
            attempts.setdefault(action.tx, []).append(operation)
            if operation.outcome == "ok" and action.answer is not None:
                first, answer = answers.setdefault(action.tx, (operation, action.answer))
                if answer != action.answer:
                    explanation = f"{action.tx} was answered in two ways: {line(first)}, {line(operation)}"
                    report.add("contradictory-answer", explanation, [first, operation])
    acknowledged: dict[str, Operation] = {}
    for tx, mine in attempts.items():
        ok = [operation for operation in mine if operation.outcome == "ok"]
        if ok:
            acknowledged[tx] = min(ok, key=lambda operation: operation.ended)
    seen: dict[str, Operation] = {}
    for operation, action in entries:
        if isinstance(action, ReadApplied) and operation.outcome == "ok" and action.counts is not None:
            _report_counts(operation, action.counts, attempts, report)
            _report_missing(operation, action.counts, acknowledged, seen, report)
    return report.anomalies()


def _report_counts(
    operation: Operation, counts: dict[str, int], attempts: dict[str, list[Operation]], report: Report
) -> None:
    """Judge what one read found: at most once, asked for, and not refused for good."""
    for tx, count in counts.items():
        if not count:
            continue
        mine = attempts.get(tx, [])
        started = [attempt for attempt in mine if not precedes(operation, attempt)]
        if not started:
            when = f"before {mine[0].name} asked for it" if mine else "which nobody asked for"
            report.add("garbage-read", f"{operation.name} found {tx}={count}, {when}", [operation, *mine[:1]])
        elif all(attempt.outcome == "fail" for attempt in started):
            names = ", ".join(attempt.name for attempt in started)
            report.add("G1a", f"{operation.name} found {tx}={count}, but {names} failed", [operation, *started])
        if count != 1 and mine:
            names = ", ".join(attempt.name for attempt in mine)
            explanation = f"{operation.name} found {tx} applied {count} times, after attempts {names}"
            report.add("duplicate", explanation, [operation, *mine])


def _report_missing(
    operation: Operation,
    counts: dict[str, int],
    acknowledged: dict[str, Operation],
    seen: dict[str, Operation],
    report: Report,
) -> None:
    """Judge what one read did not find; `seen` remembers, by transaction, the read that found it and ended first."""
    for tx, attempt in acknowledged.items():
        if not counts.get(tx) and precedes(attempt, operation):
            explanation = f"{operation.name} did not find {tx}, which {attempt.name} had completed at {attempt.completed}"
            report.add("lost-write", explanation, [operation, attempt])
    for tx, reader in seen.items():
        if not counts.get(tx) and tx not in acknowledged and precedes(reader, operation):
            explanation = f"{operation.name} did not find {tx}, which {reader.name} had found before"
            report.add("vanished", explanation, [operation, reader])
    for tx, count in counts.items():
        if count and ((before := seen.get(tx)) is None or operation.ended < before.ended):
            seen[tx] = operation
