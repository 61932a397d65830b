"""The whole of a check, with the engine left open: two maps over lists, and what goes before, between and after."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from engine.errors import UsageError
from tools.outputs import folder_of_its_own
from tools.reconcile.again import look_again
from tools.reconcile.aside import Aside, Lines
from tools.reconcile.children import InChildren, WorkerDied
from tools.reconcile.copies import Level, Rules
from tools.reconcile.plan import Plan, Share, pieces_of, plan
from tools.reconcile.report import Report, make_report
from tools.reconcile.share import attribute, check_share, found_by
from tools.reconcile.shelf import put_down_piece
from tools.reconcile.survey import Look, local_path, pages_of, surveys_of, unusable
from tools.reconcile.task import ShareResult
from tools.shown import Values

A = TypeVar("A")
B = TypeVar("B")

FINDINGS_KEPT = 100_000
FOUND_AT_ONCE = 20_000
"""The logs are asked about so many findings at once, which are held as values meanwhile; it costs nearly a reading."""


class Engine(Protocol):
    """Runs a function over a list, wherever; results come one by one, in the order of the list."""

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> Iterable[B]:
        """`[function(item) for item in items]`; who takes them has all of that happen."""
        ...


def in_this_process(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """The engine that needs nothing: one after the other, here."""
    return [function(item) for item in items]


def check(
    directories: Sequence[str],
    *,
    engine: Engine = InChildren(),  # noqa: B008  # it has no state
    shares: int = 1,
    values: Values = Values.HASH,
    grace_seconds: float | None = None,
    limit: int = FINDINGS_KEPT,
    only: Sequence[int] = (),
    level: Level = Level.ROWS,
    recheck: int = 0,
    delay_seconds: float = 0.0,
    path_of: Callable[[str], str] = local_path,
) -> Report:
    """Compare the copies in the data directories of one cluster's nodes. Raises UsageError.

    `shares`: into how many tasks the partitions are cut.
    `grace_seconds`: what a log's last seconds touched counts as under way; None: ten where a node runs, else none.
    `limit`: findings that the report keeps; all are counted. `only`: these partitions; none given: all. `level`: with
    `digest` the rows of a fragment are read only if its digests, or its counters, differ. `recheck`: so often at most keys
    that could not be compared are looked at again, and only those, each time after `delay_seconds`. `path_of` is how a
    given name is made a path for the engine's tasks. Where a worker dies, the pages of all stores are walked, and it begins
    again without those that are damaged.
    """
    if not directories:
        raise UsageError("no directory was given: expected the data directories of a cluster's nodes")
    paths = [path_of(given) for given in directories]
    doubled = next((path for at, path in enumerate(paths) if path in paths[:at]), None)
    if doubled is not None:
        raise UsageError(f"{doubled} was given twice: name one directory per node")
    rules = Rules(
        grace_ms=-1 if grace_seconds is None else round(grace_seconds * 1000),
        values=values,
        level=level,
        again=bool(recheck),
    )
    broken: dict[str, str] = {}
    while True:
        whole = [path for path in paths if path not in broken]
        try:
            looked = dict(zip(whole, surveys_of(engine, [Look(path, level, shares) for path in whole]), strict=True))
            surveys = [looked[path] if path in looked else unusable(path, broken[path]) for path in paths]
            planned = plan(surveys, shares=shares, rules=rules, limit=limit, only=only)
            again = partial(_look_again, times=recheck, delay_seconds=delay_seconds)
            return with_evidence(_compared(planned, engine, limit, again), planned, engine)
        except WorkerDied:
            found = {path: why for path, why in zip(whole, engine(pages_of, whole), strict=True) if why}
            if not found:
                raise
            broken |= found


Again = Callable[[Engine, Sequence[Share], Sequence[ShareResult]], None]


def _compared(planned: Plan, engine: Engine, limit: int, again: Again) -> Report:
    """All shares, and what was unsettled once more. Meanwhile logs lie by partition in a folder of this host."""
    with folder_of_its_own("foreshore-logs-") as folder:
        shelf = str(folder)
        shares = planned.shares
        if len(shares) > 1 or any(share.rules.again for share in shares):
            shares = [msgspec.structs.replace(share, shelf=shelf) for share in shares]
            deque(engine(put_down_piece, pieces_of(planned, shelf)), maxlen=0)
        aside = Aside(limit)
        results = list(aside.take(engine(check_share, shares)))
        again(engine, shares, results)
        return make_report(planned, results, limit=limit, aside=aside)


def _look_again(
    engine: Engine, shares: Sequence[Share], results: Sequence[ShareResult], *, times: int, delay_seconds: float
) -> None:
    look_again(partial(engine, check_share), shares, results, times=times, wait=lambda: time.sleep(delay_seconds))


def with_evidence(report: Report, planned: Plan, engine: Engine, at_once: int = FOUND_AT_ONCE) -> Report:
    """The report, with what the logs tell of each finding in it; so many are asked about at once."""
    if not planned.shares:
        return report
    whole, left, lines = planned.shares[0], iter(report.findings), Lines()
    while some := list(islice(left, at_once)):
        result = ShareResult()
        result.keep(some)
        for told in engine(attribute, [found_by(whole, result)]):
            lines.add(told.lines())
    return msgspec.structs.replace(report, findings=lines)
