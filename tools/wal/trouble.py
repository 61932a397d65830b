"""What is wrong with the logs that a command reads, told as it comes; at the end it is the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from tools.pager import Progress
from tools.terminal import Ended, ExitCode, code_of, complain
from tools.wal.places import Place, empty_text, loss_text, losses_of
from wal import Block, Finding, SegmentInfo, backwards, inspect, list_segments
from wal.footer import Ask
from wal.segment_walk import Choose

if TYPE_CHECKING:
    from tools.wal.jobs import Run

SIZE_BYTES = 8


class Trouble:
    """What was found to be wrong so far."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._code = ExitCode.OK
        self._met: set[Path] = set()
        self._left_out: set[Path] = set()
        self._quiet = quiet  # it is told by another reading of the same logs

    def aside(
        self,
        place: Place,
        from_lsn: int = 1,
        to_lsn: int | None = None,
        *,
        choose: Choose | None = None,
        ask: Ask | None = None,
        newest_first: bool = False,
        jobs: int = 1,
        passed: Callable[[SegmentInfo], None] = lambda _: None,
    ) -> Iterator[Block]:
        """The blocks of a log, without what is wrong with it; `passed` is told of segments, as by `wal.inspect`.

        With several `jobs` they are chosen in other processes, which know nothing of what was taken here, and of all of it.
        """
        self.meet(place, from_lsn, to_lsn)
        if jobs > 1:
            blocks: Iterator[Block | Finding] = _in_processes(place, jobs, choose, ask)
        elif newest_first:
            blocks = backwards(place.source, from_lsn, to_lsn, owner=place.owner, choose=choose)
        else:
            blocks = inspect(place.source, from_lsn, to_lsn, owner=place.owner, choose=choose, ask=ask, passed=passed)
        progress = Progress(place.log_bytes)
        try:
            for found in blocks:
                if isinstance(found, Finding):
                    self.note(place, found)
                else:
                    progress.step(found.bytes)
                    yield found
        finally:
            progress.close()

    def meet(self, place: Place, from_lsn: int = 1, to_lsn: int | None = None) -> None:
        """Tell once what a log does not tell by itself: whose it is, where that cannot be read, and what `cut` or `repair`
        left out of what is read here."""
        if place.path in self._met:
            return
        self._met.add(place.path)
        if place.problem:
            if not self._quiet:
                complain(place.problem)
            self._code = max(self._code, ExitCode.DAMAGED)
        if empty := empty_text(place):
            if not self._quiet:
                complain(empty)
            self._code = max(self._code, ExitCode.MISSING)
        losses = losses_of(place)
        for loss in losses:
            if max(from_lsn, loss.first_lsn) <= loss.last_lsn and (to_lsn is None or loss.first_lsn <= to_lsn):
                if not self._quiet:
                    complain(f"{place.path}: lost {loss_text(loss)}")
                ends = max((info.last_lsn for info in list_segments(place.source, owner=place.owner)), default=0)
                self._code = max(self._code, ExitCode.SHORT if loss.last_lsn >= ends else ExitCode.MISSING)

    def note(self, place: Place, finding: Finding) -> None:
        """Tell of a finding."""
        if not self._quiet:
            complain(f"{place.path}: {finding}")
        code = code_of(finding)
        if not (place.live and code is ExitCode.SHORT):  # it is being written
            self._code = max(code, self._code)

    def leave_out(self, place: Place, error: Exception, code: ExitCode) -> None:
        """A store cannot be read, and what it would say is not said: tell it once."""
        if place.path not in self._left_out:
            self._left_out.add(place.path)
            complain(f"{place.path}: the store is left out: {error}")
            self._code = max(self._code, code)

    def files(self, place: Place) -> list[SegmentInfo]:
        """The segments of a log; what is wrong with their files is told."""
        self.meet(place)
        return list_segments(place.source, owner=place.owner, tell=lambda finding: self.note(place, finding))

    def end(self, code: ExitCode = ExitCode.OK) -> None:
        """The command ends here; `code` is what it found out itself."""
        worst = max(code, self._code)
        if worst:
            raise Ended(worst)


def _in_processes(place: Place, jobs: int, choose: Choose | None, ask: Ask | None) -> Iterator[Block | Finding]:
    """What is chosen of a log by several processes, run by run of its segments, in their order."""
    from tools.wal.jobs import written_in_parts  # noqa: PLC0415  # who reads alone does not wait for it

    for findings, file in written_in_parts(place, jobs, list[Finding], partial(_chosen, place, choose, ask)):
        yield from findings
        while size := int.from_bytes(file.read(SIZE_BYTES), "big"):
            yield msgspec.msgpack.decode(file.read(size), type=Block)


def _chosen(place: Place, choose: Choose | None, ask: Ask | None, run: Run, file: IO[bytes]) -> list[Finding]:
    """Write what is chosen of a run of segments; what is wrong with it."""
    findings: list[Finding] = []
    for found in inspect(place.source, owner=place.owner, choose=choose, ask=ask, **run._asdict()):
        if isinstance(found, Finding):
            findings.append(found)
        else:
            encoded = msgspec.msgpack.encode(found)
            file.writelines((len(encoded).to_bytes(SIZE_BYTES, "big"), encoded))
    return findings
