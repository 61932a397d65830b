"""Tables `state` that were exported, compared: by the sketches that lie with them, and then by the rows of what differs.

A table has no log, so who is right is told by votes only. Where a log had something against its own store, as its sketch
says, or where copies are at different counters and nobody tells of what came between, the answer is `incomplete`. The work
is cut like that over directories, and only rows of partitions that differ are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import UsageError
from engine.offline.directory import PartitionView
from tools.reconcile.children import InChildren
from tools.reconcile.copies import Rules
from tools.reconcile.plan import Share
from tools.reconcile.report import Report, make_report
from tools.reconcile.run import FINDINGS_KEPT, Engine
from tools.reconcile.sketch import Asking, Sketch, Slice, SlicedFragment, read_file
from tools.reconcile.sketched import judged, planned_of
from tools.reconcile.survey import FILE, local_path
from tools.reconcile.task import ShareResult

if TYPE_CHECKING:
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
    return (Path(path.removeprefix(FILE)) / SKETCHES).is_dir()


def sketches_in(paths: Sequence[str]) -> list[tuple[Sketch, Path]]:
    """The sketches of tables, each with the folder of its rows. Raises UsageError."""
    found: list[tuple[Sketch, Path]] = []
    for given in paths:
        table = Path(local_path(given))
        if not is_table(str(table)):
            raise UsageError(f"{given} is no table of `foreshore reconcile export --kind state`: name tables only")
        for file in sorted((table / SKETCHES).iterdir()):
            sketch = read_file(str(file))
            if not isinstance(sketch, Sketch):
                raise UsageError(f"{file} is no sketch: export the table again")
            found.append((sketch, table / f"node={file.name}"))
    return found


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
    slices = {sketch.survey.node: slice_in(folder, sketch, asking) for sketch, folder in found}
    return judged(item.share, sketches, slices)[0]


def slice_in(folder: Path, sketch: Sketch, asking: Asking) -> Slice:
    """What a table has of what was asked. Raises UsageError where it was exported without values."""
    views = {one.view.name: one.view for one in sketch.fragments}
    rows: dict[Fragment, list[tuple[bytes, int, int, bytes | None]]] = {one.name: [] for one in asking.fragments}
    wanted = {one.name: one.holds() for one in asking.fragments}
    for row in _rows(folder, sorted({number for _, number in rows})):
        name = (row["namespace"], row["partition"])
        if name in wanted and wanted[name](row["key"]):
            if row["value"] is None and row["size"] is not None:
                raise UsageError(f"{folder} has no values, and some differ: export it with --values full")
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
