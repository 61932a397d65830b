"""A package of somebody else that has the name of one of ours is named, in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def _run(*words: str, first: Path) -> subprocess.CompletedProcess[str]:
    (first / "here").mkdir()
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        cwd=first / "here",
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(first), str(ROOT)])},
    )


@pytest.mark.parametrize("name", ["wal", "rebalance"])
@pytest.mark.parametrize("form", ["package", "module"])
def test_a_package_that_hides_ours_is_named(name: str, form: str, tmp_path: Path) -> None:
    if form == "package":
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    else:
        (tmp_path / f"{name}.py").write_text("")
    ran = _run("-c", "import engine", first=tmp_path)
    assert ran.returncode == 1
    said = ran.stderr.strip().splitlines()[-1]
    assert said.startswith(f"ImportError: foreshore needs its own package '{name}', in {ROOT}, and {tmp_path / name}"), said
    assert "comes before it on sys.path: rename the other one" in said


def test_an_applications_own_tools_are_let_be(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("")
    assert _run("-c", "import engine, tools; print(engine.connect)", first=tmp_path).returncode == 0


def test_the_command_names_tools_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("")
    ran = _run("-m", "foreshore", "version", first=tmp_path)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith(f"foreshore: foreshore needs its own package 'tools', in {ROOT}, and {tmp_path / 'tools'}")
    assert len(ran.stderr.splitlines()) == 1
