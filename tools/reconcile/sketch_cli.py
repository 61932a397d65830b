"""`foreshore reconcile sketch|rows`: what a host says of its own directory, for `check --sketches` anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.errors import UsageError
from tools.outputs import check_place, put_file
from tools.reconcile.children import InChildren
from tools.reconcile.sketch import Asking, encoded, read_file, sketch_of, slice_of
from tools.reconcile.survey import local_path
from tools.terminal import emit

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The data directory of the node on this host.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Write it here.")]


def sketch_command(directory: Directory, out: Out) -> None:
    """Sum up a data directory, beside its node if that runs: a few MB for a million keys, and no key or value among them.

    Exit codes: 0 written, also where the directory is damaged, which is then part of it; 2 usage; 3 it cannot be read.
    """
    check_place(out)
    path = local_path(directory)
    (data,) = InChildren()(_sketch_bytes, [path])
    _write(out, data)


def rows_command(
    directory: Directory,
    buckets: Annotated[Path, typer.Option(help="What `check --sketches` asked for.")],
    out: Out,
) -> None:
    """Write the rows that have to be seen, values included, and what the log says of them.

    Exit codes: 0 written; 2 usage; 3 the directory cannot be read.
    """
    check_place(out)
    try:
        asks = isinstance(read_file(str(buckets)), Asking)
    except UsageError:
        if buckets.is_file():
            raise
        asks = False
    if not asks:
        raise UsageError(f"{buckets} asks for no rows: name the file of `check --sketches --ask`")
    (data,) = InChildren()(_slice_bytes, [(local_path(directory), str(buckets))])
    _write(out, data)


def _sketch_bytes(path: str) -> bytes:
    return encoded(sketch_of(path))


def _slice_bytes(asked: tuple[str, str]) -> bytes:
    asking = read_file(asked[1])
    assert isinstance(asking, Asking)
    return encoded(slice_of(asked[0], asking))


def write_asking(path: Path, asking: Asking) -> None:
    """Write down what has to be seen; nothing is printed, for a report follows."""
    put_file(path, [encoded(asking)])


def _write(out: Path, data: bytes) -> None:
    put_file(out, [data])
    emit([f"{len(data)} bytes in {out}"])
