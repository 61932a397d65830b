"""Reading one log by several processes at a time, a segment each, or a run of small ones; what they find is told in the
order of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import IO, NamedTuple, TypeVar

import msgspec

from tools.reconcile.children import InChildren
from tools.terminal import Unreadable
from tools.wal.places import Place
from wal import DiskError, LogError, parts

T = TypeVar("T")
RUN_BYTES = 64 << 20
RUNS_EACH = 8
"""So many runs there are for each process, if there are enough segments, so that none waits long for the last."""
END = 2**63
"""More than any LSN."""


class _Said(msgspec.Struct):
    """What a process has to say: its result as MessagePack, or why the log could not be read."""

    result: bytes = b""
    unreadable: str = ""


class Run(NamedTuple):
    """The segments of a log that one process reads: from the one that begins at `segment` up to `until`, without it."""

    segment: int
    until: int


def in_parts(place: Place, jobs: int, kind: type[T], work: Callable[[Run], T]) -> list[T]:
    """What `work` makes of each run of segments, in their order."""
    return _results(kind, [*InChildren(jobs)(partial(_said, work), runs_of(place, jobs))])


def written_in_parts(
    place: Place, jobs: int, kind: type[T], work: Callable[[Run, IO[bytes]], T]
) -> Iterator[tuple[T, IO[bytes]]]:
    """The same for work that writes: no more files are there than processes, whatever the log's size."""
    from tempfile import TemporaryFile  # noqa: PLC0415  # only here

    left = iter(runs_of(place, jobs))
    while some := list(islice(left, jobs)):
        with ExitStack() as stack:
            files: dict[Run, IO[bytes]] = {run: stack.enter_context(TemporaryFile()) for run in some}

            found = _results(kind, [*InChildren(jobs)(partial(_said, partial(_into_its_own, work, files)), some)])
            for one, file in zip(found, files.values(), strict=True):
                file.seek(0)
                yield one, file


def runs_of(place: Place, jobs: int) -> list[Run]:
    """A log in runs: of one segment, unless they are so many and so small that to begin a process costs more than that."""
    lsns = parts(place.source)
    if not lsns:
        return []
    small = RUN_BYTES * len(lsns) // max(1, place.log_bytes)
    count = max(1, min(small, len(lsns) // (RUNS_EACH * jobs)))
    firsts = lsns[::count]
    return [Run(first, until) for first, until in zip(firsts, [*firsts[1:], END], strict=True)]


def _into_its_own(work: Callable[[Run, IO[bytes]], T], files: Mapping[Run, IO[bytes]], run: Run) -> T:
    found = work(run, files[run])
    files[run].flush()
    return found


def _said(work: Callable[[Run], object], run: Run) -> _Said:
    try:
        return _Said(msgspec.msgpack.encode(work(run)))
    except (DiskError, LogError) as error:
        return _Said(unreadable=str(error))


def _results(kind: type[T], said: list[_Said]) -> list[T]:
    """Raises Unreadable."""
    for one in said:
        if one.unreadable:
            raise Unreadable(one.unreadable)
    return [msgspec.msgpack.decode(one.result, type=kind) for one in said]
