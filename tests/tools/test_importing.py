"""Who presses Ctrl-C while a command still imports its modules interrupts it, and no module is left half made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.commands import environment
from tests.support.patience import PATIENCE_SECONDS

INTERRUPTED = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
came_to_its_end = True
"""
PROGRAM = """
import sys
from tools.importing import whole_module
try:
    whole_module("interrupted")
except KeyboardInterrupt:
    print(sys.modules["interrupted"].came_to_its_end)
whole_module("json")
print("and is heard once")
"""
COMMAND = """
import sys
import foreshore
sys.argv = ["foreshore", "wal", "verify", "nowhere"]
foreshore.main()
"""


def _run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment(PYTHONPATH=str(path)),
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_an_interrupt_waits_until_a_module_is_whole(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED, encoding="utf-8")
    result = _run(PROGRAM, tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\nand is heard once\n", "")


def test_a_command_that_is_interrupted_while_it_begins_says_so_and_nothing_else(tmp_path: Path) -> None:
    """Of the modules that it imports one is replaced by another that brings the interrupt."""
    (tmp_path / "msgspec.py").write_text(f"{INTERRUPTED}\nraise ImportError('no more of it is needed')", encoding="utf-8")
    result = _run(COMMAND, tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "foreshore: interrupted\n")
