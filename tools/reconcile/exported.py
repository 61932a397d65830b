"""Tables `state` that were exported, compared: by the sketches that lie with them, and then by the rows of what differs.

A table has no log, so who is right is told by votes only. Where a log had something against its own store, as its sketch
says, or where copies are at different counters and nobody tells of what came between, the answer is `incomplete`. The work
is cut like that over directories, and only rows of partitions that differ are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import UsageError
from engine.offline.directory import PartitionView
from tools.reconcile.children import InChildren
from tools.reconcile.copies import Rules
from tools.reconcile.fetched import here
from tools.reconcile.plan import Share
from tools.reconcile.report import Report, make_report
from tools.reconcile.run import FINDINGS_KEPT, Engine
from tools.reconcile.sketch import Asking, Sketch, Slice, SlicedFragment, decoded, encoded, read_file
from tools.reconcile.sketched import judged, planned_of
from tools.reconcile.spark_errors import spark_errors
from tools.reconcile.survey import FILE, named_path
from tools.reconcile.task import ShareResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal.ids import Fragment

SKETCHES = "_sketches"
"""Where a table has its sketches, by node: what reads Parquet passes over names that begin so."""
COLUMNS = ["namespace", "partition", "key", "epoch", "counter", "tombstone", "size", "value"]


IN_CHILDREN = InChildren()


class TableShare(msgspec.Struct, frozen=True):
    """Some partitions of some tables, for one task."""

    share: Share
    paths: list[str]


def is_table(path: str) -> bool:
    """Whether an exported table lies there that can be compared."""
    return (here(path.removeprefix(FILE)) / SKETCHES).is_dir()


def check_for_spark(given: str) -> None:
    """Raise UsageError if this is a path, and no table that Spark reads: one that was exported without it has sketches of
    another form."""
    path = given.removeprefix(FILE)
    if "://" in path:
        return
    if not is_table(path):
        what = "is no table of `foreshore reconcile export --kind state`"
        raise UsageError(f"{given} {what}: name tables only, or leave out --engine spark")
    if not any((Path(path) / SKETCHES).glob("*.parquet")):
        raise UsageError(f"{given} was exported without Spark: compare it without --engine spark")


def sketches_in(paths: Sequence[str]) -> list[tuple[Sketch, Path]]:
    """The sketches of tables, each with the folder of its rows. Raises UsageError."""
    found: list[tuple[Sketch, Path]] = []
    for given in paths:
        table = here(named_path(given))
        if not is_table(str(table)):
            raise UsageError(f"{given} is no table of `foreshore reconcile export --kind state`: name tables only")
        for node, sketch in sorted(_sketches(table / SKETCHES)):
            if not isinstance(sketch, Sketch):
                raise UsageError(f"{table}: {node} has no sketch there: export the table again")
            found.append((sketch, table / f"node={node}"))
    return found


def _sketches(folder: Path) -> Iterator[tuple[str, Sketch | Slice | Asking]]:
    """By node: each a file, or where Spark wrote them rows of Parquet."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # not every user has it

    for file in folder.iterdir():
        if file.suffix == ".parquet":
            for row in pq.read_table(file, columns=["node", "value"]).to_pylist():
                yield row["node"], decoded(row["value"], str(file))
        elif not file.name.startswith((".", "_")):
            yield file.name, read_file(str(file))


def check_tables(
    paths: Sequence[str], *, rules: Rules, limit: int = FINDINGS_KEPT, engine: Engine = IN_CHILDREN, shares: int = 1
) -> Report:
    """Compare exported tables, which have rows beside their sketches. Raises UsageError."""
    sketches = [sketch for sketch, _ in sketches_in(paths)]
    planned = planned_of(sketches, shares, rules, limit)
    items = [TableShare(share, list(paths)) for share in planned.shares]
    return make_report(planned, engine(judge_tables, items), limit=limit)


def judge_tables(item: TableShare) -> ShareResult:
    """Compare one share: sketches, and then the rows of the buckets that have to be seen."""
    found = sketches_in(item.paths)
    sketches = [sketch for sketch, _ in found]
    result, asked = judged(item.share, sketches, {})
    if not asked:
        return result
    asking = Asking("", asked)
    numbers = sorted({one.partition for one in asked})
    slices = {s.survey.node: slice_of_rows(_rows(folder, numbers), str(folder), s, asking) for s, folder in found}
    return judged(item.share, sketches, slices)[0]


def check_tables_by_spark(spark: SparkSession, urls: Sequence[str], *, rules: Rules, limit: int = FINDINGS_KEPT) -> Report:
    """The same of tables that Spark exported, wherever it reads. Raises UsageError, JobFailed.

    Sketches are laid side by side in the driver; of rows only those come there that lie in buckets which differ.
    """
    found: list[tuple[Sketch, str]] = []
    with spark_errors():
        for url in urls:
            for row in spark.read.parquet(f"{url.rstrip('/')}/{SKETCHES}").collect():
                sketch = decoded(bytes(row["value"]), url)
                if not isinstance(sketch, Sketch):
                    raise UsageError(f"{url}: {row['node']} has no sketch there: export the table again")
                found.append((sketch, url))
    found.sort(key=lambda one: one[0].survey.node)
    sketches = [sketch for sketch, _ in found]
    planned = planned_of(sketches, 1, rules, limit)
    results: list[ShareResult] = []
    for share in planned.shares:
        result, asked = judged(share, sketches, {})
        if asked:
            slices = {s.survey.node: _slice_by_spark(spark, url, s, Asking("", asked)) for s, url in found}
            result = judged(share, sketches, slices)[0]
        results.append(result)
    return make_report(planned, results, limit=limit)


def _slice_by_spark(spark: SparkSession, url: str, sketch: Sketch, asking: Asking) -> Slice:
    numbers = ",".join(map(str, sorted({one.partition for one in asking.fragments})))
    wanted = partial(_is_asked, encoded(asking))
    with spark_errors():
        table = spark.read.parquet(url).where(f"partition IN ({numbers})")
        mine = table.where(table["node"] == sketch.survey.node).select(*COLUMNS)
        rows = [_plain(row) for row in mine.rdd.mapPartitions(wanted).collect()]
    return slice_of_rows(rows, url, sketch, asking)


def _is_asked(asking: bytes, rows: Iterable[Any]) -> Iterator[Any]:
    """A task: of some rows those that lie in the buckets that are asked for."""
    asked = decoded(asking, "what was asked for")
    assert isinstance(asked, Asking), "rows are asked for by buckets"
    wanted = {one.name: one.holds() for one in asked.fragments}
    for row in rows:
        holds = wanted.get((row["namespace"], row["partition"]))
        if holds is not None and holds(bytes(row["key"])):
            yield row


def _plain(row: Any) -> dict[str, Any]:
    """A row of Spark, whose binary cells may be bytearrays."""
    value = row["value"]
    cells: dict[str, Any] = row.asDict()
    return cells | {"key": bytes(row["key"]), "value": bytes(value) if value is not None else None}


def slice_of_rows(found: Iterable[dict[str, Any]], place: str, sketch: Sketch, asking: Asking) -> Slice:
    """What a table has of what was asked. Raises UsageError where it was exported without values."""
    views = {one.view.name: one.view for one in sketch.fragments}
    rows: dict[Fragment, list[tuple[bytes, int, int, bytes | None]]] = {one.name: [] for one in asking.fragments}
    wanted = {one.name: one.holds() for one in asking.fragments}
    for row in found:
        name = (row["namespace"], row["partition"])
        if name in wanted and wanted[name](row["key"]):
            if row["value"] is None and row["size"] is not None:
                raise UsageError(f"{place} has no values, and some differ: export it with --values full")
            rows[name].append((row["key"], row["epoch"], row["counter"], row["value"]))
    fragments = [
        SlicedFragment(
            one,
            views[one.name],
            sketch.partitions.get(one.partition) or PartitionView(),
            sorted(rows[one.name]),
            [],
            heard=None,
            newest=[],
            counters=[],
        )
        for one in asking.fragments
        if one.name in views
    ]
    return Slice(asking.cluster, sketch.survey.node, sketch.version, fragments)


def _rows(folder: Path, partitions: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of some partitions, in any number of files."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # not every user has it

    files = sorted(folder.glob("*.parquet"))
    filters = [("partition", "in", list(partitions))]
    return [row for file in files for row in pq.read_table(file, columns=COLUMNS, filters=filters).to_pylist()]
