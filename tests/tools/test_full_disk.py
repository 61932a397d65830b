"""A disk without room, as whoever calls a command is told of it: what was to be written, and what to do, in his place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import engine
from engine.errors import DiskFull
from engine.host.data_directory import held
from tests.support.commands import environment, foreshore, wal
from tests.support.small_files import files_up_to
from tools.cli import app
from wal import list_segments

SETTINGS = {"partitions": 4, "wal_segment_bytes": 8 << 10, "wal_total_bytes": 1 << 20}
CAUSE = r"File too large( \(EFBIG\))?: free some space"


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node whose log is damaged somewhere in the middle."""
    path = tmp_path_factory.mktemp("damaged") / "node"
    with engine.open(path, **SETTINGS, checkpoint_bytes=1 << 30, checkpoint_ms=86_400_000) as database:
        for n in range(150):
            database.namespace("acc").put(b"key-%03d" % n, b"%0100d" % n)
        shutil.copytree(path, path.with_name("killed"), ignore=shutil.ignore_patterns("*.tmp"))
    node = path.with_name("killed")
    victim = node / "wal" / list_segments(node / "wal")[2].name
    data = bytearray(victim.read_bytes())
    data[700] ^= 1
    victim.write_bytes(data)
    return node


@pytest.mark.parametrize(
    ("words", "place", "otherwise"),
    [
        (["repair", "DIR", "--out", "OUT"], "OUT", "name another --out"),
        (["cut", "DIR", "--to-lsn", "9", "--out", "OUT"], "OUT", "name another --out"),
        (["export", "DIR", "--out", "OUT"], "OUT", "name another --out"),
        (["repair", "DIR", "--in-place"], "DIR/wal.repair.tmp", "say --out with a directory elsewhere"),
    ],
)
def test_who_copies_a_log_is_told_where_there_was_no_room_and_what_else_there_is(
    damaged: Path, tmp_path: Path, words: list[str], place: str, otherwise: str
) -> None:
    def named(text: str) -> str:
        return text.replace("DIR", str(damaged)).replace("OUT", str(tmp_path / "out"))

    before = sorted(damaged.iterdir())
    with files_up_to(1 << 10):
        result = wal(*map(named, words))
    assert result.exit_code == 3, result.output
    assert result.stdout == ""
    line = result.stderr.splitlines()[-1]  # before it stands what is wrong with the log
    assert line.startswith(f"foreshore: cannot write to {named(place)}: File too large"), line
    assert line.endswith(f": free some space, or {otherwise}"), line
    assert (sorted(damaged.iterdir()), list(tmp_path.iterdir())) == (before, [])


def test_a_node_without_room_for_its_directory_is_told_so_and_not_that_its_user_may_not(tmp_path: Path) -> None:
    with files_up_to(0):
        result = CliRunner().invoke(app, ["node", "start", "--data", str(tmp_path / "n1"), "--listen", "127.0.0.1:0"])
    assert result.exit_code == 3, result.output
    assert result.stderr.endswith(
        f"cannot use the data directory {tmp_path / 'n1'}: {tmp_path / 'n1'}: "
        "File too large: free some space and start again\n"
    ), result.stderr


def test_a_directory_is_taken_on_a_disk_without_room_for_the_name_of_who_has_it(tmp_path: Path) -> None:
    with held(tmp_path):
        pass
    told = pytest.raises(engine.UsageError, match="is in use by process another process: ")
    with files_up_to(0), held(tmp_path), told, held(tmp_path):
        pass


def test_a_node_whose_disk_is_full_is_told_to_be_started_again_once(tmp_path: Path) -> None:
    with engine.open(tmp_path, **SETTINGS):
        pass
    with files_up_to(0), pytest.raises(DiskFull, match=r"^[^;]*File too large \(EFBIG\): free some space and start again$"):
        engine.open(tmp_path, **SETTINGS)


def test_where_no_file_finds_room_no_half_of_a_modules_bytecode_is_left(tmp_path: Path) -> None:
    with files_up_to(16):
        cached = environment(PYTHONPYCACHEPREFIX=str(tmp_path / "bytecode"))
        assert foreshore("version", env=cached).returncode == 0
    assert not (tmp_path / "bytecode").exists()
