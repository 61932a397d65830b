"""Data directories as tables: what a log says, what a copy has, what differs. Rows as Arrow batches, for Spark and Parquet.

| kind | one row is | read in tasks of |
| --- | --- | --- |
| `wal` | one update in one node's log: a put, a delete, or a counter that was closed | a segment |
| `state` | the newest entry of a key on one node, tombstones included: checkpoint folded with log | a directory |
| `diff` | one finding of a check | a share of the partitions, of all directories or exported tables |

Values stay where they are unless they are asked for: `values` is `none`, `hash` or `full`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import State, read_directory
from tools.reconcile.children import InChildren
from tools.reconcile.copies import Rules
from tools.reconcile.entries import Cells, entries, value_cells
from tools.reconcile.exported import TableShare, is_table, judge_tables, sketches_in
from tools.reconcile.fetched import here
from tools.reconcile.findings import Finding
from tools.reconcile.plan import Share, plan
from tools.reconcile.share import attribute, check_share, found_by
from tools.reconcile.sketch import encoded, sketching
from tools.reconcile.sketched import planned_of
from tools.reconcile.survey import Look, local_path, named_path, surveys_of
from tools.shown import Values
from wal import Block, inspect, list_segments
from wal.ids import fragment_name

NO_PARTITION = -1
"""Where a row of a state says so it is no row, but the sketch of all of them, as its value."""
ROWS_AT_ONCE = 10_000
SHARES = 8


class Table(StrEnum):
    """Which table."""

    WAL = "wal"
    STATE = "state"
    DIFF = "diff"


SCHEMAS: dict[Table, Any] = {
    Table.WAL: pa.schema(
        [
            ("node", pa.string()),
            ("segment", pa.string()),
            ("lsn", pa.int64()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("record", pa.string()),
            ("tx", pa.string()),
            ("namespace", pa.string()),
            ("partition", pa.int32()),
            ("epoch", pa.int64()),
            ("counter", pa.int64()),
            ("op", pa.string()),
            ("key", pa.binary()),
            ("size", pa.int64()),
            ("hash", pa.string()),
            ("value", pa.binary()),
        ]
    ),
    Table.STATE: pa.schema(
        [
            ("node", pa.string()),
            ("namespace", pa.string()),
            ("partition", pa.int32()),
            ("key", pa.binary()),
            ("epoch", pa.int64()),
            ("counter", pa.int64()),
            ("tombstone", pa.bool_()),
            ("size", pa.int64()),
            ("hash", pa.string()),
            ("value", pa.binary()),
        ]
    ),
    Table.DIFF: pa.schema(
        [
            ("kind", pa.string()),
            ("fragment", pa.string()),
            ("namespace", pa.string()),
            ("partition", pa.int32()),
            ("key", pa.string()),
            ("on", pa.list_(pa.string())),
            ("counters", pa.list_(pa.int64())),
            ("tx", pa.string()),
            ("proof", pa.string()),
            ("history", pa.string()),
            ("detail", pa.string()),
            ("finding", pa.string()),
        ]
    ),
}
"""The columns. `hash` and `value` are null unless `values` asks for them; `finding` is the line of a report."""


class Piece(NamedTuple):
    """What one task reads. `above` and `to`: of a segment, the records above an LSN, and up to one; 0: to its end. `tables`
    are compared, if there are any, and not directories. `sketched`: the last row of a state is the sketch of it."""

    table: Table
    path: str = ""
    segment: str = ""
    share: Share | None = None
    values: Values = Values.HASH
    above: int = 0
    to: int = 0
    tables: tuple[str, ...] = ()
    sketched: bool = False


def pieces(
    table: Table, directories: Sequence[str], values: Values, shares: int = SHARES, *, sketched: bool = False
) -> list[Piece]:
    """The tasks that a table is read in. Raises UsageError."""
    paths = [named_path(given) for given in directories]
    if not paths:
        raise UsageError("no directory was given: expected the data directories of nodes")
    match table:
        case Table.STATE:
            return [Piece(table, path, values=values, sketched=sketched) for path in paths]
        case Table.WAL:
            return [
                Piece(table, path, info.name, values=values) for path in paths for info in list_segments(here(path) / "wal")
            ]
        case Table.DIFF if any(map(is_table, paths)):
            sketches = [sketch for sketch, _ in sketches_in(paths)]
            planned = planned_of(sketches, shares, Rules(grace_ms=-1, values=values), 0)
            return [Piece(table, share=share, values=values, tables=tuple(paths)) for share in planned.shares]
        case Table.DIFF:
            surveys = surveys_of(InChildren(), [Look(path, shares=shares) for path in paths])
            planned = plan(surveys, shares=shares, rules=Rules(grace_ms=-1, values=values), limit=0)
            broken = next((s for s in surveys if s.problem), None)
            if broken is not None:
                raise UsageError(f"{broken.path}: {broken.problem}: `foreshore reconcile check` compares without it")
            return [Piece(table, share=share, values=values) for share in planned.shares]


Reached: TypeAlias = dict[str, int]
"""By path of a data directory: the LSN up to which its log was read."""


def ends_of_logs(directories: Sequence[str]) -> Reached:
    """Where the logs of these directories end now."""
    return {
        path: max((info.last_lsn for info in list_segments(Path(path) / "wal")), default=0)
        for path in map(local_path, directories)
    }


def pieces_between(start: Reached, end: Reached, values: Values) -> list[Piece]:
    """The tasks that read what logs have above `start`, up to `end`.

    Raises UsageError where a log was read before and does not reach back so far any more.
    """
    found: list[Piece] = []
    for path, to in end.items():
        above = start.get(path, 0)
        infos = [info for info in list_segments(Path(path) / "wal") if info.last_lsn > above and info.first_lsn <= to]
        if above and infos and infos[0].first_lsn > above + 1:
            raise UsageError(
                f"{path}: the log was read up to LSN {above}, and begins with LSN {infos[0].first_lsn} now: what lay "
                "between was trimmed; begin again with another checkpoint location, or keep more (wal_total_bytes)"
            )
        found += [Piece(Table.WAL, path, info.name, values=values, above=above, to=to) for info in infos]
    return found


def batches(piece: Piece) -> Iterator[Any]:
    """What one task reads, as Arrow batches."""
    return in_batches(_rows(piece), SCHEMAS[piece.table])


def in_batches(rows: Iterable[Cells], schema: Any) -> Iterator[Any]:
    """Rows as Arrow batches."""
    held = list[Cells]()
    for cells in rows:
        held.append(cells)
        if len(held) == ROWS_AT_ONCE:
            yield batch_of(held, schema)
            held = []
    if held:
        yield batch_of(held, schema)


def batch_of(held: Sequence[Cells], schema: Any) -> Any:
    """Rows as an Arrow batch."""
    columns = zip(*held, strict=True)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(piece: Piece) -> Iterator[Cells]:
    match piece.table:
        case Table.STATE:
            return _state(piece)
        case Table.WAL:
            return _wal(piece)
        case Table.DIFF:
            assert piece.share is not None, "a piece of a comparison has a share"
            if piece.tables:
                return (_found(line) for line in judge_tables(TableShare(piece.share, list(piece.tables))).lines())
            share = piece.share
            return (_found(line) for line in attribute(found_by(share, check_share(share))).lines())


def _state(piece: Piece) -> Iterator[Cells]:
    if piece.sketched:
        with sketching(piece.path) as (sketch, whole):
            if whole is None:
                raise CorruptionError(sketch.survey.problem or f"nothing of {piece.path} can be read")
            yield from cells_of(whole, piece.values)
            data = encoded(sketch)
            head = (sketch.survey.node, "", NO_PARTITION, b"", 0, 0, False)
            yield (*head, len(data), None, data)
        return
    with read_directory(here(piece.path), tolerant=True) as state:
        yield from cells_of(state, piece.values)


def cells_of(state: State, values: Values) -> Iterator[Cells]:
    """All rows of a state."""
    node = state.identity.node
    for name in sorted(state.fragments):
        for key, entry in state.rows(name, lambda _key, _what: None):
            head = (node, *name, key, entry.epoch, entry.counter, entry.value is None)
            yield (*head, *value_cells(entry.value, values))


def _wal(piece: Piece) -> Iterator[Cells]:
    path = here(piece.path)
    with read_directory(path, partitions=(), tolerant=True) as state:
        node = state.identity.node
    for block in inspect([path / "wal" / piece.segment]):
        if isinstance(block, Block):
            for lsn, record in enumerate(block.records, block.first_lsn):
                if lsn > piece.above and (not piece.to or lsn <= piece.to):
                    yield from entries((node, piece.segment, lsn, block.time_ms * 1000), record, piece.values)


def _found(line: bytes) -> Cells:
    f = msgspec.json.decode(line, type=Finding)
    name = fragment_name((f.namespace, f.partition)) if f.namespace else None
    head = (str(f.kind), name, f.namespace or None, f.partition, f.key, f.on, f.counters, f.tx or None)
    return (*head, str(f.proof) if f.proof else None, f.history or None, f.detail or None, line.decode())
