"""The verbs of `foreshore wal`, each imported when it is called."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.commands import wal
from tests.support.patience import PATIENCE_SECONDS
from tests.wal.golden import DIRECTORY
from tools.wal.cli import VERBS, app


def test_all_verbs_are_listed_and_each_has_its_own_help() -> None:
    listed = wal("--help").stdout
    assert [command.name for command in app.registered_commands] == list(VERBS)
    for name, meaning in VERBS.items():
        assert f"  {name} " in listed
        assert len(meaning) < 90, "one line of a list"
        helped = wal(name, "--help")
        assert helped.exit_code == 0
        assert helped.stdout.startswith(f"Usage: foreshore wal {name} ")
        assert wal(name, "--no-such-option").exit_code == 2


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], ["engine.api", "tools.wal.dump", "rich.console", "lmdb", "pydantic"]),
        (
            ["dump", "--help"],
            ["engine.api", "engine.node.node", "tools.wal.verify", "tools.reconcile.report", "lmdb", "pydantic"],
        ),
        (["verify", str(DIRECTORY)], ["engine.state.store", "rebalance.table", "wal.log", "lmdb", "hashlib"]),
        (
            ["tx", "00000000", str(DIRECTORY)],
            ["tools.wal.records", "tools.reconcile", "wal.archive", "rebalance.table", "wal.log", "lmdb", "hashlib"],
        ),
    ],
)
def test_nobody_waits_for_what_is_not_asked(words: list[str], unneeded: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print([n for n in {unneeded!r} if n in sys.modules], file=sys.stderr))\n"
        f"from tools.cli import main\nmain(['wal', *{words!r}])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert ran.stderr.splitlines()[-1] == "[]", ran.stderr
