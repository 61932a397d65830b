"""A client needs neither LMDB nor the terminal; what does says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"lmdb", "typer", "rich", "uvloop", "pyspark", "pyarrow"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
CLIENT = """
import sys
import engine
with engine.connect(sys.argv[1]) as db:
    ns = db.namespace("alone", codec="json")
    ns["k"] = 1
    with db.transaction() as tx:
        tx.namespace(ns).put("k", 2)
    print(ns["k"])
try:
    engine.open(sys.argv[2])
except engine.UsageError as error:
    print(error)
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing but a client's dependencies can be imported."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}


def _run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def test_a_client_works_alone(bare: dict[str, str], addresses: str, tmp_path: Path) -> None:
    ran = _run(bare, "-c", CLIENT, addresses, str(tmp_path / "node"))
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "2",
        "a node in this process needs lmdb, which is not installed: pip install 'foreshore[node]'",
    ]


def test_the_command_says_what_it_needs(bare: dict[str, str]) -> None:
    assert _run(bare, "-m", "foreshore", "version").stdout.startswith("foreshore ")
    ran = _run(bare, "-m", "foreshore", "wal", "--help")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr == "foreshore: the command needs typer, which is not installed: pip install 'foreshore[node]'\n"
