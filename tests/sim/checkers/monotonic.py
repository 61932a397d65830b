"""Versions of a key never go back, and one version is one value.

A version is the identity of the update that wrote the value: (epoch, counter). Within a session that is the least a
client may expect; for linearizable reads it holds across all clients. That equal versions carry equal values is the
claim upon which reconciliation by counters rests, so it is judged on every observation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tests.sim.checkers.history import (
    Anomaly,
    Key,
    MonotonicAction,
    Observe,
    Operation,
    Report,
    Stamp,
    Update,
    admit,
)
from tests.sim.checkers.notation import line

Entry: TypeAlias = tuple[Operation, MonotonicAction]

_NOTHING = Stamp(-1, -1)
"""The version of a key that was not found: before all others."""


def check(history: Iterable[Operation], *, globally: bool = True) -> list[Anomaly]:
    """Judge a history of `Update` and `Observe`, without deletes.

    Each process must see versions that never go back, and its own updates must raise them. If `globally`, so must any
    operation that began after another completed, of whichever process; that is what linearizable reads promise.
    """
    entries: list[Entry] = admit(history, Update, Observe)
    keys: dict[Key, list[Entry]] = {}
    for operation, action in entries:
        if operation.outcome == "ok":
            keys.setdefault(action.key, []).append((operation, action))
    report = Report()
    for key, mine in keys.items():
        _report_values(key, mine, report)
        blamed = _report_sessions(key, mine, report)
        if globally:
            _report_rollbacks(key, mine, blamed, report)
    return report.anomalies()


def _report_values(key: Key, entries: list[Entry], report: Report) -> None:
    """One version is one update and one value."""
    updates: dict[Stamp, Operation] = {}
    first: dict[Stamp, Entry] = {}
    for operation, action in entries:
        version = action.version
        if version is None:
            continue
        if isinstance(action, Update):
            if version in updates:
                explanation = f"{key} {version} was written twice: {line(updates[version])}, {line(operation)}"
                report.add("divergent-version", explanation, [updates[version], operation], key)
                continue
            updates[version] = operation
        before, said = first.setdefault(version, (operation, action))
        if said.value != action.value:
            explanation = f"{key} {version} is two values: {line(before)}, {line(operation)}"
            report.add("divergent-version", explanation, [before, operation], key)


def _report_sessions(key: Key, entries: list[Entry], report: Report) -> set[str]:
    """Judge each process by itself; the names of the operations that were reported."""
    last: dict[int, Entry] = {}
    blamed: set[str] = set()
    for operation, action in entries:
        before = last.get(operation.process)
        if before and _goes_back(before[1], action):
            blamed.add(operation.name)
            explanation = f"{key} went back within process {operation.process}: {line(before[0])}, {line(operation)}"
            report.add("session-rollback", explanation, [before[0], operation], key)
        if not before or _version(action) > _version(before[1]):
            last[operation.process] = (operation, action)
    return blamed


def _report_rollbacks(key: Key, entries: list[Entry], blamed: set[str], report: Report) -> None:
    """Judge each operation by the highest version that was known, to anyone, when it began."""
    by_end = sorted(entries, key=lambda entry: entry[0].ended)
    highest: Entry | None = None
    at = 0
    for operation, action in entries:
        while at < len(by_end) and by_end[at][0].ended < operation.invoked:
            if highest is None or _version(by_end[at][1]) > _version(highest[1]):
                highest = by_end[at]
            at += 1
        if highest and operation.name not in blamed and _goes_back(highest[1], action):
            explanation = f"{key} went back: {line(highest[0])}, and later {line(operation)}"
            report.add("version-rollback", explanation, [highest[0], operation], key)


def _goes_back(before: MonotonicAction, action: MonotonicAction) -> bool:
    """A read may see the same version again; an update must raise it."""
    old, new = _version(before), _version(action)
    return new <= old if isinstance(action, Update) else new < old


def _version(action: MonotonicAction) -> Stamp:
    return _NOTHING if action.version is None else action.version
