"""The Spark data source `foreshore`: `spark.read.format("foreshore").option("kind", "diff").load("data/n1,data/n2")`.

Options: `kind` (`wal`, `state` or `diff`), `values` (`none`, `hash` or `full`; Spark prunes no column of such a source) and
`shares`, into how many tasks a comparison is cut. The directories are those of `load`, with commas between them; every
executor must see them at these paths. `pyspark_foreshore` registers it with every session by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from engine.errors import UsageError
from tools.reconcile.findings import Values
from tools.reconcile.tables import SCHEMAS, SHARES, Piece, Table, batches, pieces


class Foreshore(DataSource):
    """Data directories, as one of three tables."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "foreshore"

    def schema(self) -> StructType:
        """The columns of the table."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # where a session is

        return from_arrow_schema(SCHEMAS[self._table()])

    def reader(self, schema: StructType) -> Reader:
        """Reads the table."""
        directories = [path.strip() for path in self.options.get("path", "").split(",") if path.strip()]
        values = _one_of(Values, self.options.get("values", Values.HASH), "values")
        return Reader(pieces(self._table(), directories, values, int(self.options.get("shares", SHARES))))

    def _table(self) -> Table:
        found: Table = _one_of(Table, self.options.get("kind", Table.STATE), "kind")
        return found


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(0)
        self.piece = piece


class Reader(DataSourceReader):
    """One task for each piece."""

    def __init__(self, found: list[Piece]) -> None:
        self._pieces = found

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [Task(piece) for piece in self._pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as Arrow batches."""
        assert isinstance(partition, Task), "a task of another source"
        return batches(partition.piece)


def _one_of(kinds: Any, given: str, option: str) -> Any:
    try:
        return kinds(given)
    except ValueError:
        raise UsageError(f"{option} is {given!r}: expected one of {', '.join(kinds)}") from None
