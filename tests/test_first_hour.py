"""`docs/first-hour.md`, run as it stands in a fresh virtual environment that was made from the wheel."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import free_port
from tests.support.patience import PATIENCE_SECONDS, waiting
from tests.tools.test_packages import NOT_OURS, WHEEL

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "first-hour.md"
END = "~the end of what it said~"


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a page, and what is expected of it."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            yield command, expected


def environment_of(folder: Path) -> Path:
    """A virtual environment with the package from its wheel, installed by pip.

    Its dependencies are lent to it by the environment that runs the test, which has the locked ones. To install them anew
    needs the network in each run: pip takes nothing from its own cache without asking an index first, and what is
    installed here are no wheels any more.
    """
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_OURS)
    make = [sys.executable, "-c", WHEEL, str(folder)]
    subprocess.run(make, cwd=folder / "tree", check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(venv, check=True, timeout=PATIENCE_SECONDS)
    (wheel,) = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"), "install", "--quiet", "--no-deps"]
    pip += ["--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.rmtree(folder / "tree")
    return folder / "venv" / "bin"


@pytest.mark.processes
def test_the_first_hour_goes_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "home").mkdir()
    path = f"{environment_of(tmp_path / 'made')}{os.pathsep}{os.environ['PATH']}"
    text = PAGE.read_text(encoding="utf-8")
    for port in ("7401", "7402", "7403"):
        text = text.replace(port, str(free_port()))
    shell = subprocess.Popen(
        ["bash", "--norc"],
        cwd=tmp_path / "home",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    check = doctest.OutputChecker().check_output
    try:
        taken = 0
        for command, expected in steps(text):
            shell.stdin.write(f"{command}\necho '{END}'\n")
            shell.stdin.flush()
            with waiting(shell, f"end of {command}"):
                said = "".join(iter(shell.stdout.readline, f"{END}\n"))
            assert check(expected, said, doctest.ELLIPSIS), f"$ {command}\n{said}\nexpected:\n{expected}"
            taken += 1
        assert taken > 15, "the page lost its commands"
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate(timeout=PATIENCE_SECONDS)
