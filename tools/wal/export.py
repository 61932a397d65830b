"""`foreshore wal export`: one row for each update in a log, a folder for each namespace, as JSON lines or Parquet.

The columns are those of Spark's table `wal` (`docs/reconcile.md`). JSON lines need nothing but this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import quote

import msgspec
import typer

from engine.errors import UsageError
from tools.outputs import new_directory
from tools.reconcile.entries import COLUMNS, Cells, entries
from tools.shown import Values
from tools.terminal import ExitCode, emit, word
from tools.wal.absent import absent
from tools.wal.filters import Filter, check_range
from tools.wal.options import Directories, FromLsn, OfNamespace, OfPartition, ToLsn, WithValues
from tools.wal.places import Place, place_of
from tools.wal.times import time_text
from tools.wal.trouble import Trouble

ROWS_AT_ONCE = 10_000
_NAMESPACE, _TIME, _KEY, _VALUE = (COLUMNS.index(name) for name in ("namespace", "time", "key", "value"))


class Format(StrEnum):
    """How it is written."""

    JSONL = "jsonl"
    PARQUET = "parquet"


class Writer(Protocol):
    """One file."""

    def write(self, rows: Sequence[Cells]) -> None:
        """Some rows."""
        ...

    def close(self) -> None:
        """All are written."""
        ...


def export(
    directories: Directories,
    out: Annotated[Path, typer.Option("-o", "--out", help="A new directory.")],
    form: Annotated[Format, typer.Option("--format", help="JSON lines, or Parquet, which needs pyarrow.")] = Format.JSONL,
    from_lsn: FromLsn = 1,
    to_lsn: ToLsn = None,
    namespace: OfNamespace = None,
    partition: OfPartition = None,
    values: WithValues = Values.HASH,
) -> None:
    """Write one row for each update in a log: who, where, which counter, what. OUT is there when it is whole.

    The exit code says whether the log is, as that of verify does. In JSON lines keys and values are text as in a dump, any
    byte as \\xNN.
    """
    check_range(from_lsn, to_lsn)
    opened = _parquet if form is Format.PARQUET else _Lines
    if form is Format.PARQUET:
        _need_pyarrow()
    wanted = Filter(namespace=namespace, partition=partition)
    places = [place_of(text) for text in directories]
    trouble = Trouble()
    files: dict[tuple[str, int], Writer] = {}
    held: dict[tuple[str, int], list[Cells]] = {}
    count = 0
    with new_directory(out) as aside, _closed(files):
        for at, place in enumerate(places):
            for cells in _rows(place, trouble, wanted, from_lsn, to_lsn=to_lsn, values=values):
                file = cells[_NAMESPACE], at
                rows = held.setdefault(file, [])
                if file not in files:
                    folder = aside / f"namespace={quote(cells[_NAMESPACE].encode('utf-8', 'surrogatepass'), safe='')}"
                    folder.mkdir(exist_ok=True)
                    files[file] = opened(folder / f"part-{at:05}.{form}")
                rows.append(cells)
                count += 1
                if len(rows) == ROWS_AT_ONCE:
                    files[file].write(rows)
                    rows.clear()
        for file, writer in files.items():
            writer.write(held[file])
            writer.close()
    emit([f"{count} rows in {out}"])
    trouble.end(ExitCode.OK if count else absent(places, wanted, from_lsn, to_lsn))


@contextmanager
def _closed(files: dict[tuple[str, int], Writer]) -> Iterator[None]:
    """None of them stays open, however that ends."""
    try:
        yield
    finally:
        for writer in files.values():
            with suppress(OSError):  # of one that is closed by now nothing is written any more
                writer.close()


def _rows(
    place: Place, trouble: Trouble, wanted: Filter, from_lsn: int, to_lsn: int | None, values: Values
) -> Iterator[Cells]:
    for block in trouble.aside(place, from_lsn, to_lsn, choose=wanted.chooser()):
        for lsn, record in enumerate(block.records, block.first_lsn):
            narrowed = wanted.narrow(record)
            if narrowed is not None:
                yield from entries((place.name, block.segment, lsn, block.time_ms * 1000), narrowed, values)


class _Lines:
    """JSON lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._encode = msgspec.json.Encoder().encode

    def write(self, rows: Sequence[Cells]) -> None:
        """An object a line."""
        self._file.write(b"".join(self._encode(_object(row)) + b"\n" for row in rows))

    def close(self) -> None:
        """All are written."""
        self._file.close()


def _object(cells: Cells) -> dict[str, Any]:
    told = dict(zip(COLUMNS, cells, strict=True))
    told["time"] = time_text(cells[_TIME] // 1000)
    for name in ("key", "value"):
        if told[name] is not None:
            told[name] = word(told[name])
    told["namespace"] = word(told["namespace"].encode("utf-8", "surrogatepass"))
    return told


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401, PLC0415  # not every user has it
    except ImportError:
        raise UsageError(
            "pyarrow is not installed: run `pip install 'foreshore[spark]'`, or say --format jsonl, which needs nothing"
        ) from None


def _parquet(path: Path) -> Writer:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    from tools.reconcile.tables import SCHEMAS, Table, batch_of  # noqa: PLC0415  # it needs pyarrow

    schema = SCHEMAS[Table.WAL]
    assert isinstance(schema, pa.Schema)

    class Parquet:
        """One file of it."""

        def __init__(self) -> None:
            self._writer = pq.ParquetWriter(path, schema)

        def write(self, rows: Sequence[Cells]) -> None:
            """A row group."""
            if rows:
                self._writer.write_batch(batch_of(rows, schema))

        def close(self) -> None:
            """All are written."""
            self._writer.close()

    return Parquet()
