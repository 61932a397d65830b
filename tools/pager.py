"""What a person at a terminal gets beside the answer: colours, a pager, a line that says how far a long scan is.

None of it reaches a pipe. `NO_COLOR` is kept (no-color.org); the pager is that of `FORESHORE_PAGER` or `PAGER`, or `less`,
which by itself shows what fits on the screen and leaves it there, as it does for git.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from engine.errors import UsageError
from tools.terminal import Paint

_COLOURS = {
    32: ("update", "history", "preload"),
    33: ("prepare", "outcome", "noop", "results", "forget"),
    31: ("clear", "undo", "trimmed"),
    36: ("epoch", "ready", "stable", "compare", "origin"),
    35: ("promised", "accepted", "committed", "boot", "claimed", "checkpoint"),
}
_OF_KIND = {kind: colour for colour, kinds in _COLOURS.items() for kind in kinds}
_KIND = r"(?:node=\S+ )?lsn=\d+ time=\S+ (\S+)"
SLOW_SECONDS = 2.0
_AGAIN_SECONDS = 0.2


def painter() -> Paint | None:
    """How a line of a dump is coloured, by the kind of its record; None where nobody sees it, or wants it."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    return painted


def painted(line: str) -> str:
    """A line with the kind of its record in colour.

    >>> painted("lsn=1 time=2023-11-14T22:13:20.000Z boot start=0")
    'lsn=1 time=2023-11-14T22:13:20.000Z \\x1b[35mboot\\x1b[0m start=0'
    """
    found = re.match(_KIND, line)
    colour = _OF_KIND.get(found[1]) if found is not None else None
    if found is None or colour is None:
        return line
    return f"{line[: found.start(1)]}\x1b[{colour}m{found[1]}\x1b[0m{line[found.end(1) :]}"


@contextmanager
def paged(wanted: bool) -> Iterator[None]:
    """Let a pager show what is printed, if it is wanted and a person looks."""
    if not wanted or not sys.stdout.isatty():
        yield
        return
    command = os.environ.get("FORESHORE_PAGER") or os.environ.get("PAGER") or "less"
    if command == "cat":
        yield
        return
    import shlex  # noqa: PLC0415  # no pipe waits for it
    import subprocess  # noqa: PLC0415

    try:
        pager = subprocess.Popen(  # noqa: S603  # what the user named
            shlex.split(command), stdin=subprocess.PIPE, env={"LESS": "FRX", "LV": "-c", **os.environ}
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"the pager {command!r} cannot be started: {error}; set PAGER, or leave --pager out") from None
    assert pager.stdin is not None
    sys.stdout.flush()
    terminal = os.dup(sys.stdout.fileno())
    os.dup2(pager.stdin.fileno(), sys.stdout.fileno())
    pager.stdin.close()
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            pass  # it was left before the end
        finally:
            os.dup2(terminal, sys.stdout.fileno())
            os.close(terminal)
            pager.wait()


class Progress:
    """A line on stderr about a scan that takes longer than `SLOW_SECONDS`; nothing where nobody looks.

    Made before the scan with how much there is to read; `step` is told what was read. It is gone when it is closed.
    """

    def __init__(
        self,
        total: int,
        *,
        out: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
        beside: TextIO | None = None,
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._looked_at = self._out.isatty() and not (sys.stdout if beside is None else beside).isatty()
        self._total = total
        self._now = now
        self._due = now() + SLOW_SECONDS
        self._done = 0
        self._shown = False

    def step(self, size: int) -> None:
        """So many bytes more were read."""
        self._done += size
        if not self._looked_at or self._now() < self._due:
            return
        self._due = self._now() + _AGAIN_SECONDS
        percent = min(99, 100 * self._done // max(1, self._total))
        self._out.write(f"\r\x1b[K{self._done / 1e6:,.0f} MB of {self._total / 1e6:,.0f} MB read ({percent}%)")
        self._out.flush()
        self._shown = True

    def close(self) -> None:
        """The scan is over, and the line goes."""
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._shown = False
