"""What a person at a terminal gets, and a pipe does not."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import FORESHORE, environment, foreshore
from tests.support.patience import PATIENCE_SECONDS
from tests.wal import golden
from tools.pager import SLOW_SECONDS, Progress, painted

DUMP = ("wal", "dump", str(golden.DIRECTORY))


def at_a_terminal(*words: str, **env: str) -> str:
    """What a command prints where a person looks."""
    ours, theirs = pty.openpty()
    try:
        command = [*FORESHORE, *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment(**env))
        os.close(theirs)
        parts: list[bytes] = []
        try:
            while data := os.read(ours, 65536):
                parts.append(data)
        except OSError:
            pass  # the other end is closed
        process.wait(PATIENCE_SECONDS)
    finally:
        os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_records_are_coloured_by_kind_at_a_terminal_and_nowhere_else() -> None:
    coloured = at_a_terminal(*DUMP, TERM="xterm", NO_COLOR="")
    plain = foreshore(*DUMP).stdout
    assert "\x1b" not in plain
    assert coloured != plain
    assert coloured == "".join(painted(line) + "\n" for line in plain.splitlines())
    assert all("\x1b[" in line for line in coloured.splitlines()), "every kind has a colour"
    assert at_a_terminal(*DUMP, TERM="xterm", NO_COLOR="1") == plain
    assert at_a_terminal(*DUMP, TERM="dumb", NO_COLOR="") == plain


def test_a_pager_shows_it_if_that_is_asked_for() -> None:
    paged = at_a_terminal(*DUMP, "--pager", TERM="dumb", PAGER="sed s/^/paged:/")
    assert paged == "".join(f"paged:{line}\n" for line in foreshore(*DUMP).stdout.splitlines())
    assert "paged" not in at_a_terminal(*DUMP, TERM="dumb", PAGER="sed s/^/paged:/")
    assert "paged" not in foreshore(*DUMP, "--pager", env=environment(PAGER="sed s/^/paged:/")).stdout
    assert "cannot be started" in at_a_terminal(*DUMP, "--pager", TERM="dumb", PAGER="/no/such/pager")
    assert len(at_a_terminal(*DUMP, "--pager", TERM="dumb", PAGER="head -n 1").splitlines()) == 1


class Terminal(io.StringIO):
    """Somebody looks."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.mark.parametrize(("err", "out", "told"), [(True, False, True), (True, True, False), (False, False, False)])
def test_a_long_scan_says_how_far_it_is_and_leaves_nothing_behind(err: bool, out: bool, told: bool) -> None:
    now = 0.0
    said = Terminal() if err else io.StringIO()
    progress = Progress(100_000_000, out=said, now=lambda: now, beside=Terminal() if out else io.StringIO())
    progress.step(10_000_000)
    assert said.getvalue() == "", "it is not slow yet"
    now = SLOW_SECONDS
    progress.step(40_000_000)
    progress.step(1)
    assert said.getvalue() == ("\r\x1b[K50 MB of 100 MB read (50%)" if told else "")
    progress.close()
    assert said.getvalue().endswith("\r\x1b[K") == told


def test_the_manual_has_the_help_of_every_command(tmp_path: Path) -> None:
    page = foreshore("man").stdout
    assert page.startswith(".TH FORESHORE 1 ")
    helped = foreshore("wal", "dump", "--help").stdout
    for line in (
        "\\-\\-follow",
        "\\-\\-reverse",
        ".B foreshore wal repair",
        ".B foreshore cluster status",
        ".SS foreshore doctor",
    ):
        assert line in page
    assert "--follow" in helped
    assert "\\u000a" not in page
