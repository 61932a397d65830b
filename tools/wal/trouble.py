"""What is wrong with the logs that a command reads, told as it comes; at the end it is the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.pager import Progress
from tools.terminal import Ended, ExitCode, code_of, complain
from tools.wal.places import Place
from wal import Block, Finding, SegmentInfo, backwards, inspect, list_segments
from wal.footer import Ask
from wal.segment_walk import Choose


class Trouble:
    """What was found to be wrong so far."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._code = ExitCode.OK
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
        passed: Callable[[SegmentInfo], None] = lambda _: None,
    ) -> Iterator[Block]:
        """The blocks of a log, without what is wrong with it; `passed` is told of segments, as by `wal.inspect`."""
        if newest_first:
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

    def note(self, place: Place, finding: Finding) -> None:
        """Tell of a finding."""
        if not self._quiet:
            complain(f"{place.path}: {finding}")
        code = code_of(finding)
        if not (place.live and code is ExitCode.SHORT):  # it is being written
            self._code = max(code, self._code)

    def files(self, place: Place) -> list[SegmentInfo]:
        """The segments of a log; what is wrong with their files is told."""
        return list_segments(place.source, owner=place.owner, tell=lambda finding: self.note(place, finding))

    def end(self, code: ExitCode = ExitCode.OK) -> None:
        """The command ends here; `code` is what it found out itself."""
        worst = max(code, self._code)
        if worst:
            raise Ended(worst)
