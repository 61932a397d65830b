"""A set that only grows: what was acknowledged stays, nothing comes from nowhere, and all see one growth.

Such a set remembers its history less well than a list, but well enough for an exact verdict: nothing is found if and
only if the history is linearizable. Two reads of which neither contains the other saw two different growths, as in a
long fork or after a split brain. A read took effect after each element it saw was asked for, and whatever had been
acknowledged by then must be in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.sim.checkers.history import (
    Add,
    Anomaly,
    HistoryError,
    Operation,
    ReadSet,
    Report,
    SetAction,
    Value,
    admit,
    precedes,
    shown,
)


class _Reading(NamedTuple):
    operation: Operation
    elements: frozenset[Value]


def check(history: Iterable[Operation]) -> list[Anomaly]:
    """Judge a history of `Add` and `ReadSet`, of one set that was empty at first; [] if it is linearizable."""
    entries: list[tuple[Operation, SetAction]] = admit(history, Add, ReadSet)
    report = Report()
    adds: dict[Value, Operation] = {}
    readings: list[_Reading] = []
    for operation, action in entries:
        if isinstance(action, Add):
            if action.element in adds:
                first = adds[action.element].name
                raise HistoryError(f"{operation.name} and {first} both add {action.element}: elements must be unique")
            adds[action.element] = operation
    for operation, action in entries:
        if isinstance(action, ReadSet) and operation.outcome == "ok" and action.elements is not None:
            _report_elements(operation, action.elements, adds, report)
            readings.append(_Reading(operation, frozenset(action.elements)))
    _report_order(readings, report)
    _report_missing(readings, adds, report)
    return report.anomalies()


def _report_elements(operation: Operation, elements: Sequence[Value], adds: dict[Value, Operation], report: Report) -> None:
    """Judge what one read saw by itself."""
    seen: set[Value] = set()
    for element in elements:
        add = adds.get(element)
        if element in seen:
            report.add("duplicate", f"{operation.name} read {element} twice: {shown(elements)}", [operation])
        elif add is None:
            report.add("garbage-read", f"{operation.name} read {element}, which nobody added", [operation])
        elif precedes(operation, add):
            explanation = f"{operation.name} read {element} before {add.name} asked for it"
            report.add("garbage-read", explanation, [operation, add])
        elif add.outcome == "fail":
            report.add("G1a", f"{operation.name} read {element} of {add.name}, which failed", [operation, add])
        seen.add(element)


def _report_order(readings: Sequence[_Reading], report: Report) -> None:
    """Judge the reads against each other: one growth, seen in the order of time."""
    ordered = sorted(readings, key=lambda reading: len(reading.elements))
    for smaller, larger in pairwise(ordered):
        if not smaller.elements <= larger.elements:
            first, second = smaller.operation, larger.operation
            explanation = (
                f"{first.name} read {_some(smaller.elements - larger.elements)} without "
                f"{_some(larger.elements - smaller.elements)}, and {second.name} the other way round"
            )
            report.add("incompatible-order", explanation, [first, second])
    # Each read must hold all of the largest that had completed when it began, and all of its own process's last.
    by_end = sorted(readings, key=lambda reading: reading.operation.ended)
    largest: _Reading | None = None
    own: dict[int, _Reading] = {}
    at = 0
    for reading in readings:
        while at < len(by_end) and by_end[at].operation.ended < reading.operation.invoked:
            if largest is None or len(by_end[at].elements) > len(largest.elements):
                largest = by_end[at]
            at += 1
        for before in (largest, own.get(reading.operation.process)):
            if before and not before.elements <= reading.elements:
                gone = _some(before.elements - reading.elements)
                explanation = f"{before.operation.name} had read {gone}; {reading.operation.name}, later, did not"
                report.add("vanished", explanation, [before.operation, reading.operation])
                break
        own[reading.operation.process] = reading


def _report_missing(readings: Sequence[_Reading], adds: dict[Value, Operation], report: Report) -> None:
    """Judge the reads against acknowledged adds: lost, if no late read has the element; else the read is stale."""
    if not readings:
        return
    final = readings[-1].operation
    late = [reading for reading in readings if reading.operation.ended >= final.invoked]
    kept = frozenset[Value]().union(*(reading.elements for reading in late))
    acknowledged = [(element, add) for element, add in adds.items() if add.outcome == "ok"]
    lost = [(element, add) for element, add in acknowledged if element not in kept and precedes(add, final)]
    if lost:
        names = ", ".join(f"{element} of {add.name}" for element, add in lost[:8])
        explanation = (
            f"lost {len(lost)} acknowledged element{'s' if len(lost) > 1 else ''}: {names}; {final.name}, which began "
            f"later, read {len(readings[-1].elements)} others"
        )
        report.add("lost-write", explanation, [final, *(add for _, add in lost)])
    gone = {element for element, _ in lost}
    acknowledged = [(element, add) for element, add in acknowledged if element not in gone]
    for reading in readings:
        present = [adds[element] for element in sorted(reading.elements) if element in adds]
        newest = max(present, key=lambda add: add.invoked, default=None)
        after = {(add.process, add.invoked): add for add in present}  # one process: even at equal times
        for element, add in acknowledged:
            if element in reading.elements:
                continue
            if precedes(add, reading.operation):
                why = f"which had completed at {add.completed}"
            elif newest and precedes(add, newest):
                why = f"but with the later one of {newest.name}"
            elif later := after.get((add.process, add.ended)):
                why = f"but with the later one of {later.name}"
            else:
                continue
            explanation = f"{reading.operation.name} read the set without {element} of {add.name}, {why}"
            report.add("stale-read", explanation, [reading.operation, add])


def _some(elements: Iterable[Value]) -> str:
    return shown(sorted(elements))
