"""A scan and point reads of the same moment tell the same: every row there once, in order, with the same value.

Scans read through other code than gets do, and that is where a well tested store still went wrong: its query path had
less of the oracle's attention. Two moments are sure to be the same: one transaction, and any time after all writers
have stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tests.sim.checkers.history import (
    Anomaly,
    Get,
    HistoryError,
    Key,
    Operation,
    Put,
    Report,
    Scan,
    ScanAction,
    Value,
    admit,
)
from tests.sim.checkers.notation import line


def check(history: Iterable[Operation], *, quiet_from: int | None = None, ordered: bool = True) -> list[Anomaly]:
    """Judge a history of `Scan`, `Get` and `Put`.

    A scan must agree with the gets of its own transaction. If nothing is written from the time `quiet_from` on, all
    scans and gets that were invoked since must agree with each other, too. Rows must be in order of keys if `ordered`.
    """
    entries: list[tuple[Operation, ScanAction]] = admit(history, Scan, Get, Put)
    report = Report()
    quiet: list[tuple[Operation, Scan | Get]] = []
    for operation, action in entries:
        if quiet_from is not None and isinstance(action, Put):
            _check_quiet(operation, quiet_from)
        if operation.outcome != "ok" or isinstance(action, Put):
            continue
        if isinstance(action, Scan):
            _report_rows(operation, action, ordered, report)
            _compare(operation, action, [(operation, key, value) for key, value in action.gets], report)
        if quiet_from is not None and operation.invoked >= quiet_from:
            quiet.append((operation, action))
    _report_quiet(quiet, report)
    return report.anomalies()


def _check_quiet(operation: Operation, quiet_from: int) -> None:
    if operation.outcome == "ok" and operation.ended >= quiet_from:
        raise HistoryError(f"{operation.name} was written after {quiet_from}, when all had to be quiet")


def _report_rows(operation: Operation, scan: Scan, ordered: bool, report: Report) -> None:
    """Judge a scan's rows by themselves: in range, in order, none twice."""
    rows = scan.rows or ()
    seen: set[Key] = set()
    for key, _ in rows:
        if not scan.low <= key < scan.high:
            report.add(
                "scan-phantom", f"{operation.name} scanned {scan.low}..{scan.high} and found {key}", [operation], key
            )
        if key in seen:
            report.add(
                "duplicate", f"{operation.name} scanned {scan.low}..{scan.high} and found {key} twice", [operation], key
            )
        seen.add(key)
    for (before, _), (after, _) in pairwise(rows):
        if ordered and before > after:
            report.add("scan-order", f"{operation.name} found {after} behind {before}", [operation], after)


def _compare(operation: Operation, scan: Scan, gets: Iterable[tuple[Operation, Key, Value | None]], report: Report) -> None:
    """Compare a scan with point reads of the same moment."""
    rows = dict(scan.rows or ())
    for reader, key, value in gets:
        if not scan.low <= key < scan.high:
            continue
        found = rows.get(key)
        who = "its own get" if reader is operation else reader.name
        operations = [operation] if reader is operation else [operation, reader]
        if found is None and value is not None:
            explanation = f"{operation.name} scanned {scan.low}..{scan.high} without {key}; {who} found {value}"
            report.add("scan-missing", explanation, operations, key)
        elif found is not None and value is None:
            explanation = f"{operation.name} scanned {key}={found}; {who} found nothing"
            report.add("scan-phantom", explanation, operations, key)
        elif found != value:
            explanation = f"{operation.name} scanned {key}={found}; {who} found {value}"
            report.add("scan-value", explanation, operations, key)


def _report_quiet(quiet: Sequence[tuple[Operation, Scan | Get]], report: Report) -> None:
    """Compare every scan with what is known of each key from the first that read it, by get or by scan."""
    known: dict[Key, tuple[Operation, Value | None]] = {}
    for operation, action in quiet:
        reads = [(action.key, action.value)] if isinstance(action, Get) else [*action.gets, *(action.rows or ())]
        for key, value in reads:
            known.setdefault(key, (operation, value))
    for operation, action in quiet:
        if isinstance(action, Scan):
            others = [(reader, key, value) for key, (reader, value) in known.items() if reader is not operation]
            _compare(operation, action, others, report)
        elif known[action.key][1] != action.value:
            reader = known[action.key][0]
            explanation = f"{line(operation)} contradicts {line(reader)}, and nothing was written meanwhile"
            report.add("scan-value", explanation, [operation, reader], action.key)
