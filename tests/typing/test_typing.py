"""Six mistakes of a user, and more: each is found by a type checker, in the environment that README makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

APPLICATION = Path(__file__).with_name("application.py")


def test_what_a_type_checker_finds(tmp_path: Path) -> None:
    """As a user would: from another directory, with the installed package."""
    text = APPLICATION.read_text()
    copy = tmp_path / "application.py"
    copy.write_text(text)
    expected = {
        number: mark[1] for number, line in enumerate(text.splitlines(), 1) if (mark := re.search(r"# error: (\S+)$", line))
    }
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(copy)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert checked.stderr == ""
    found = {
        int(match[1]): match[2] for match in re.finditer(r"application\.py:(\d+): error: .*\[([a-z-]+)\]", checked.stdout)
    }
    assert found == expected, checked.stdout
    assert len(expected) >= 15
