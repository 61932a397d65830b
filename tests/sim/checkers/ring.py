"""Each key names its successor, and together they are one ring; transactions change several successors at once.

FoundationDB's cycle test: half a rotation, or two that did not see each other, breaks the ring or splits it in two, and
it stays so. A total would not notice; the ring does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.sim.checkers.history import Anomaly, Key, Operation, ReadRing, Report, RingAction, Rotate, admit


def check(keys: Collection[Key], history: Iterable[Operation]) -> list[Anomaly]:
    """Judge a history of `Rotate` and `ReadRing`: every read must be one cycle through all of `keys`."""
    entries: list[tuple[Operation, RingAction]] = admit(history, Rotate, ReadRing)
    report = Report()
    expected = sorted(set(keys))
    for operation, action in entries:
        if operation.outcome == "ok" and isinstance(action, ReadRing) and action.successors is not None:
            _report_ring(operation, action.successors, expected, report)
    return report.anomalies()


def _report_ring(operation: Operation, successors: dict[Key, Key], keys: list[Key], report: Report) -> None:
    missing = [key for key in keys if key not in successors]
    strange = sorted(set(successors) - set(keys))
    if missing or strange:
        lacks = f" without {_names(missing)}" if missing else ""
        holds = f" with {_names(strange)}, not of the ring" if strange else ""
        report.add("ring-broken", f"{operation.name} read a ring{lacks}{holds}", [operation])
        return
    pointing: dict[Key, list[Key]] = {}
    for key in keys:
        pointing.setdefault(successors[key], []).append(key)
    orphans = [key for key in keys if key not in pointing]
    if orphans:
        crowded = [f"{_names(sources)} point to {key}" for key, sources in sorted(pointing.items()) if len(sources) > 1]
        lost = [f"{_names(sources)} points to {key}" for key, sources in sorted(pointing.items()) if key not in successors]
        story = "; ".join([f"nothing points to {_names(orphans)}", *crowded[:8], *lost[:8]])
        report.add("ring-broken", f"{operation.name} read a broken ring: {story}", [operation])
        return
    rings: list[list[Key]] = []
    left = dict.fromkeys(keys)
    while left:
        at = next(iter(left))
        ring: list[Key] = []
        while at in left:
            del left[at]
            ring.append(at)
            at = successors[at]
        rings.append(ring)
    if len(rings) > 1:
        story = ", ".join(" > ".join(ring[:8]) + (" > .." if len(ring) > 8 else "") for ring in rings[:8])
        report.add("ring-split", f"{operation.name} read {len(rings)} rings instead of one: {story}", [operation])


def _names(keys: list[Key]) -> str:
    return ", ".join(keys[:8]) + (", .." if len(keys) > 8 else "")
