"""Reading one log by several processes at a time, a segment each; what they find is told in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import IO, Annotated, TypeVar

import msgspec
import typer

from tools.reconcile.children import InChildren
from tools.terminal import Unreadable
from tools.wal.places import Place
from wal import DiskError, LogError, parts

T = TypeVar("T")

Jobs = Annotated[
    int, typer.Option(min=1, max=64, help="So many processes read at a time, a segment each; the answer is the same.")
]


class _Said(msgspec.Struct):
    """What a process has to say: its result as MessagePack, or why the log could not be read."""

    result: bytes = b""
    unreadable: str = ""


def in_parts(place: Place, jobs: int, kind: type[T], work: Callable[[int], T]) -> list[T]:
    """What `work` makes of each segment, by its first LSN, in their order."""
    return _results(kind, InChildren(jobs)(partial(_said, work), parts(place.source)))


def written_in_parts(
    place: Place, jobs: int, kind: type[T], work: Callable[[int, IO[bytes]], T]
) -> Iterator[tuple[T, IO[bytes]]]:
    """The same for work that writes: no more files are there than processes, whatever the log's size."""
    from tempfile import TemporaryFile  # noqa: PLC0415  # only here

    left = iter(parts(place.source))
    while some := list(islice(left, jobs)):
        with ExitStack() as stack:
            files: dict[int, IO[bytes]] = {segment: stack.enter_context(TemporaryFile()) for segment in some}

            found = _results(kind, InChildren(jobs)(partial(_said, partial(_into_its_own, work, files)), some))
            for one, file in zip(found, files.values(), strict=True):
                file.seek(0)
                yield one, file


def _into_its_own(work: Callable[[int, IO[bytes]], T], files: Mapping[int, IO[bytes]], segment: int) -> T:
    found = work(segment, files[segment])
    files[segment].flush()
    return found


def _said(work: Callable[[int], object], segment: int) -> _Said:
    try:
        return _Said(msgspec.msgpack.encode(work(segment)))
    except (DiskError, LogError) as error:
        return _Said(unreadable=str(error))


def _results(kind: type[T], said: list[_Said]) -> list[T]:
    """Raises Unreadable."""
    for one in said:
        if one.unreadable:
            raise Unreadable(one.unreadable)
    return [msgspec.msgpack.decode(one.result, type=kind) for one in said]
