"""`wal repair`, `cut` and `export`, killed at each of their steps, or on a disk that fills there.

Begun again they end well, and nothing of them stays that is not told of.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import engine
from engine.errors import UsageError
from tests.support.commands import wal
from tests.support.killed import killed_at
from wal import list_segments

SETTINGS = {"partitions": 4, "wal_segment_bytes": 8 << 10, "wal_total_bytes": 1 << 20}
HOWS = pytest.mark.parametrize("full", [False, True], ids=["killed", "full"])


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node whose store has nothing yet, and whose log is damaged somewhere in the middle."""
    path = tmp_path_factory.mktemp("damaged") / "node"
    with engine.open(path, **SETTINGS, checkpoint_bytes=1 << 30, checkpoint_ms=86_400_000) as database:
        for n in range(150):
            database.namespace("acc").put(b"key-%03d" % n, b"%0100d" % n)
        shutil.copytree(path, path.with_name("killed"), ignore=shutil.ignore_patterns("*.tmp"))
    node = path.with_name("killed")
    victim = list_segments(node / "wal")[2]
    data = bytearray((node / "wal" / victim.name).read_bytes())
    data[700] ^= 1
    (node / "wal" / victim.name).write_bytes(data)
    return node


def names(node: Path) -> list[str]:
    """What is in a directory."""
    return sorted(each.name for each in node.iterdir())


def contents(log: Path) -> dict[str, bytes]:
    """All files of a log."""
    return {each.name: each.read_bytes() for each in sorted(log.iterdir()) if not each.name.startswith("loss-")}


@HOWS
def test_a_repair_in_place_that_was_cut_short_is_taken_up_by_the_next_one(
    damaged: Path, tmp_path: Path, *, full: bool
) -> None:
    whole = shutil.copytree(damaged, tmp_path / "whole")
    assert wal("repair", whole, "--in-place").exit_code == 0
    step, was_between = 0, 0
    while killed_at(step, "wal", "repair", node := shutil.copytree(damaged, tmp_path / f"{step}"), "--in-place", full=full):
        if not (node / "wal").exists():
            was_between += 1
            with pytest.raises(UsageError, match=r"`foreshore wal repair .* --in-place`"):
                engine.open(node, **SETTINGS)
        result = wal("repair", node, "--in-place")
        assert result.exit_code == 0, result.output
        assert names(node) == names(whole), f"step {step}"
        assert contents(node / "wal") == contents(whole / "wal"), f"step {step}"
        assert contents(node / "wal.before-repair") == contents(damaged / "wal")
        step += 1
        shutil.rmtree(node)
    assert step > 10
    assert was_between == 1


@HOWS
def test_an_export_and_a_cut_that_were_cut_short_leave_nothing_that_looks_whole(
    damaged: Path, tmp_path: Path, *, full: bool
) -> None:
    last = list_segments(damaged / "wal")[1].last_lsn
    for verb in ("export", "cut"):
        out, step = tmp_path / verb, 0
        while killed_at(step, "wal", verb, damaged, "--to-lsn", last, "--out", out, full=full):
            assert not out.exists() or len(list(out.iterdir())) > 1
            shutil.rmtree(out, ignore_errors=True)
            step += 1
        assert step > 3
        assert names(tmp_path) == [verb], "what was left went with the one that came to its end"
        shutil.rmtree(out)
