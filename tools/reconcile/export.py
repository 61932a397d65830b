"""`foreshore reconcile export DIR... -o OUT`: what nodes have, or what their logs say, as Parquet, a folder for each
node.

To a path it is written here, by pyarrow. To a URL (`hdfs://`, `s3a://`, `file://`) it is written by Spark, whose
executors read the directories; what those URLs need beyond Spark itself is for its configuration to give. What is at a
path, or at a `file://` URL, is there when all of it is written, or not at all. A table `state` has a sketch of each
directory beside its rows, of the same moment, so that it can be compared with others (`exported`).
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.errors import CorruptionError, UsageError
from engine.state.identity import no_directory, read_identity
from tools.outputs import new_directory
from tools.reconcile.exported import SKETCHES
from tools.reconcile.session import borrowed
from tools.reconcile.sketch import encoded, sketching
from tools.reconcile.spark_errors import spark_errors
from tools.reconcile.survey import FILE, local_path
from tools.shown import Values
from tools.terminal import emit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

KINDS = ("state", "wal", "diff")


def export_command(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", help="Data directories, one per node.")],
    out: Annotated[str, typer.Option("-o", "--out", help="A new directory, or a URL that Spark can write to.")],
    kind: Annotated[str, typer.Option(help="state, wal or diff: the table.")] = "state",
    values: Annotated[Values, typer.Option(help="Values: none of them, their hashes, or themselves.")] = Values.HASH,
    master: Annotated[str | None, typer.Option(help="Spark's master, for a URL.")] = None,
) -> None:
    """Write what nodes have, what their logs say, or what differs, as Parquet.

    Exit codes: 0 written; 2 usage; 3 a directory cannot be read.
    """
    if kind not in KINDS:
        raise UsageError(f"--kind is {kind!r}: expected {', '.join(KINDS)}")
    if "://" in out:
        with _place_for(out) as url, borrowed(master, name="foreshore export") as spark, spark_errors():
            export_by_spark(spark, directories, url, kind, values)
        emit([f"written to {out}"])
        return
    emit([f"{written} rows in {out}" for written in [export_here(directories, Path(out), kind, values)]])


@contextmanager
def _place_for(url: str) -> Iterator[str]:
    """The URL that Spark is to write to: of this machine a directory beside the one that it becomes."""
    if not url.startswith(f"{FILE}/"):
        yield url
        return
    with new_directory(Path(local_path(url))) as aside:
        yield f"{FILE}{aside}"


def export_by_spark(spark: SparkSession, directories: Sequence[str], url: str, kind: str, values: Values) -> None:
    """Write a table to a URL, which must not exist, or on this machine be an empty directory."""
    from pyspark import StorageLevel  # noqa: PLC0415  # there where a session is

    from tools.reconcile.tables import NO_PARTITION  # noqa: PLC0415  # it needs pyarrow

    mode = "append" if url.startswith(FILE) else "error"
    reader = spark.read.format("foreshore").option("kind", kind).option("values", values.value)
    if kind != "state":
        writer = reader.load(",".join(directories)).write.mode(mode)
        (writer if kind == "diff" else writer.partitionBy("node")).parquet(url)
        return
    found = reader.option("sketched", "true").load(",".join(directories)).persist(StorageLevel.DISK_ONLY)
    try:  # kept for as long as both are written, so that they are of one moment
        found.where(f"partition <> {NO_PARTITION}").write.mode(mode).partitionBy("node").parquet(url)
        found.where(f"partition = {NO_PARTITION}").select("node", "value").write.parquet(f"{url}/{SKETCHES}")
    finally:
        found.unpersist()


def export_here(directories: Sequence[str], out: Path, kind: str, values: Values) -> int:
    """Write a table into a new directory, which is there when it is whole; how many rows."""
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415  # not every user has it

        from tools.reconcile.tables import SCHEMAS, Table, batches, cells_of, in_batches, pieces  # noqa: PLC0415  # it needs pyarrow
    except ImportError:
        raise UsageError("pyarrow is not installed: run `pip install 'foreshore[spark]'`") from None
    table, rows = Table(kind), 0
    names = {path: _node(path) for path in map(local_path, directories)}
    with new_directory(out) as aside:
        for at, piece in enumerate(pieces(table, directories, values)):
            folder = aside if table is Table.DIFF else aside / f"node={names[piece.path]}"
            folder.mkdir(exist_ok=True)
            with ExitStack() as stack:
                if table is Table.STATE:
                    sketch, state = stack.enter_context(sketching(piece.path))
                    if state is None:
                        raise CorruptionError(sketch.survey.problem or f"nothing of {piece.path} can be read")
                    found = in_batches(cells_of(state, values), SCHEMAS[table])
                    (aside / SKETCHES).mkdir(exist_ok=True)
                    (aside / SKETCHES / names[piece.path]).write_bytes(encoded(sketch))
                else:
                    found = batches(piece)
                with pq.ParquetWriter(folder / f"part-{at:05}.parquet", SCHEMAS[table]) as writer:
                    for batch in found:
                        writer.write_batch(batch)
                        rows += batch.num_rows
    return rows


def _node(path: str) -> str:
    try:
        identity = read_identity(Path(path))
    except OSError as error:
        raise UsageError(f"{path} is not a data directory that can be read: {error.strerror}") from error
    if identity is None:
        raise UsageError(no_directory(Path(path)))
    return identity.node
