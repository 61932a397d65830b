"""What `make` does first on a fresh machine, where something is missing: it says what, and the command that fixes it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

SETUP = Path(__file__).parents[2] / "tools" / "setup.sh"
NEEDED = ("bash", "dirname", "env", "sed", "head")


def set_up(tmp_path: Path, python: str | None) -> subprocess.CompletedProcess[str]:
    """Run the script on a machine that has `python`, a shell script, as its only Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found, name
        (programs / name).symlink_to(found)
    if python is not None:
        (programs / "python3").write_text(f"#!{shutil.which('bash')}\n{python}\n")
        (programs / "python3").chmod(0o755)
    return subprocess.run(
        [SETUP, str(tmp_path / "venv")],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PATH": str(programs), "HOME": str(tmp_path)},
    )


@pytest.mark.parametrize(
    ("python", "says"),
    [
        (None, "Python 3.11 or newer is missing; install it with: sudo apt-get install python3 python3-venv"),
        ("exit 1", "Python 3.11 or newer is missing; install it with: sudo apt-get install python3 python3-venv"),
        (
            'case "$*" in *ensurepip*) exit 1 ;; -V) echo Python 3.11.2 ;; esac',
            "the venv module of Python 3.11.2 is missing; install it with: sudo apt-get install python3-venv",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(python: str | None, says: str, tmp_path: Path) -> None:
    result = set_up(tmp_path, python)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"foreshore: {says}\n")
    assert not (tmp_path / "venv").exists()


def test_the_script_is_executable() -> None:
    assert os.access(SETUP, os.X_OK)
