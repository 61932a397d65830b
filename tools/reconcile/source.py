"""The Spark data source `foreshore`: `spark.read.format("foreshore").option("kind", "diff").load("data/n1,data/n2")`.

Options: `kind` (`wal`, `state` or `diff`), `values` (`none`, `hash` or `full`; Spark prunes no column of such a source)
and `shares`, into how many tasks a comparison is cut. The directories are those of `load`, with commas between them:
every executor must see them at these paths, or have fetched them from URLs (`pyspark_foreshore.fetch`). What can be written
is told by `tools.reconcile.writer`. `pyspark_foreshore` registers it with every session by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from engine.errors import UsageError
from tools.reconcile.fetched import SEPARATOR, is_fetched
from tools.reconcile.survey import FILE, local_path
from tools.reconcile.tables import SCHEMAS, SHARES, Piece, Table, batches, ends_of_logs, pieces, pieces_between
from tools.reconcile.writer import Writer
from tools.shown import Values


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
        values = _one_of(Values, self.options.get("values", Values.HASH), "values")
        shares, sketched = int(self.options.get("shares", SHARES)), self.options.get("sketched") == "true"
        return Reader(pieces(self._table(), self._directories(), values, shares, sketched=sketched))

    def streamReader(self, schema: StructType) -> LogReader:  # noqa: N802  # Spark names it so
        """Follows logs."""
        if self._table() is not Table.WAL:
            raise UsageError(f"kind is {self._table()}: expected wal, which is the only table that goes on and on")
        return LogReader(self._directories(), _one_of(Values, self.options.get("values", Values.HASH), "values"))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:  # Spark calls it so
        """Writes rows, or what a plan says."""
        if overwrite:
            raise UsageError("nothing is overwritten as a whole: expected mode append")
        return Writer(schema, self.options, self._directories())

    def _directories(self) -> list[str]:
        found = [path.strip() for path in self.options.get("path", "").split(",") if path.strip()]
        for path in found:
            if SEPARATOR in path and not path.startswith(FILE) and not is_fetched(path):
                raise UsageError(
                    f"{path} is not here: load(pyspark_foreshore.fetch(spark, {path!r}, ...)) fetches it first"
                )
        return found

    def _table(self) -> Table:
        found: Table = _one_of(Table, self.options.get("kind", Table.STATE), "kind")
        return found


class LogReader(DataSourceStreamReader):
    """A stream of what logs say, in the order of each log; where it is in each is its offset, which Spark keeps."""

    def __init__(self, directories: list[str], values: Values) -> None:
        self._directories = directories
        self._values = values

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark names it so
        """Before the first record that a log has."""
        return {local_path(path): 0 for path in self._directories}

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: N802
        """Where the logs end now."""
        return ends_of_logs(self._directories)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """A task for each segment that has something new."""
        return [Task(piece) for piece in pieces_between(start, end, self._values)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task, as Arrow batches."""
        assert isinstance(partition, Task), "a task of another source"
        return batches(partition.piece)


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
