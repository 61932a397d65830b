"""Findings, set aside until all are there: a report may have more of them than memory should hold.

Shares are read by many tasks, and a report stands in the order of partition, namespace, key. Each share's findings are in
that order by themselves, so they are kept as a run, and the runs are merged when the last one has come. Small ones stay in
memory; what is more goes to a file that has no name, and that is gone with whoever has it.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import NamedTuple

from engine.errors import UsageError
from tools.reconcile.findings import place_of
from tools.reconcile.task import ShareResult

HELD_BYTES = 1 << 20
"""So many bytes of lines are held in memory; more are in a file."""
READ_BYTES = 1 << 15


class Lines:
    """Lines of JSON, none of which has an end of line in it: added at the end, and read as often as one likes."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile[bytes](max_size=HELD_BYTES)
        self._count = self._end = 0
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return self.between(0, self._end)

    @property
    def end(self) -> int:
        """Where the next line will begin, in bytes."""
        return self._end

    def add(self, lines: Iterable[bytes]) -> bytes:
        """Add some, and say which was the last. Raises UsageError where there is no room for them."""
        line = b""
        self._file.seek(self._end)
        for line in lines:
            self._end += self._write(line + b"\n")
            self._count += 1
        return line

    def _write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise UsageError(
                f"no room to set lines aside in {gettempdir()}: {error.strerror}; name a folder with more as TMPDIR"
            ) from error

    def at(self, place: int) -> bytes:
        """The line that begins at this byte."""
        self._file.seek(place)
        return self._file.readline().removesuffix(b"\n")

    def between(self, start: int, end: int) -> Iterator[bytes]:
        """The lines from one place to another, in bytes."""
        begun = b""
        while start < end:
            self._file.seek(start)  # others may read elsewhere meanwhile
            data = self._file.read(min(READ_BYTES, end - start))
            start += len(data)
            *whole, begun = (begun + data).split(b"\n")
            yield from whole
        assert not begun, "what was added ends with the end of a line"

    def chunks(self) -> Iterator[bytes]:
        """The same as a file of lines, in pieces."""
        for start in range(0, self._end, READ_BYTES):
            self._file.seek(start)
            yield self._file.read(min(READ_BYTES, self._end - start))


def lines_in(path: Path) -> Lines:
    """The lines of a file. Raises OSError."""
    found = Lines()
    with path.open("rb") as file:
        found.add(line.rstrip(b"\r\n") for line in file)
    return found


class _Run(NamedTuple):
    """The findings of one share: where they are, how many, and of which partition the last one is."""

    start: int
    end: int
    lines: int
    last: int


class Aside:
    """What shares have found, a run each. No more is kept than a report of at most `limit` findings needs, 0: all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines = Lines()
        self._runs: list[_Run] = []

    def take(self, results: Iterable[ShareResult]) -> Iterator[ShareResult]:
        """The same results, in their order, without what they have found."""
        for result in results:
            self.keep(result.lines())
            result.packed = []
            yield result

    def keep(self, found: Iterator[bytes]) -> None:
        """Keep what was found, which is in the order of a report."""
        first = next(found, None)
        if first is None:
            return
        number = place_of(first)[0]
        if self._limit and sum(run.lines for run in self._runs if run.last < number) >= self._limit:
            return  # a report has no room for what stands behind these
        lines, start, before = self._lines, self._lines.end, len(self._lines)
        last = lines.add(chain([first], found))
        self._runs.append(_Run(start, lines.end, len(lines) - before, place_of(last)[0]))

    def merged(self) -> Iterator[bytes]:
        """All of it, in the order of a report; of one thing in the order of the shares."""
        runs = [self._lines.between(run.start, run.end) for run in self._runs]
        return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=place_of)
