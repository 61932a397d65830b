"""The demo as a stranger runs it, on the first weeks of the year: real processes, a kill, a return, a replacement."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tests.support.commands import FORESHORE, environment
from tests.support.pages import check_says, programs_of, steps_of
from tests.support.patience import PATIENCE_SECONDS
from tools.cli import app
from tools.demo.cli import look_around
from tools.demo.load import SPARKS
from tools.demo.summary import Summary
from tools.local_cluster import spawn
from tools.reconcile.cli import app as reconcile

WATCHED = (("writes", "writes/s"), ("lag", "partitions lacked a copy"))
SMALL = ("demo", "--partitions", "32", "--engine", "local")


def processes_about(directory: Path) -> list[str]:
    """The command lines, but for our own, that name a directory."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended
        if str(directory) in line and file.parent.name != str(os.getpid()):
            found.append(line)
    return found


def wait_for_the_last_about(directory: Path) -> None:
    """Until none is left: who writes a node's store ends when it hears that the node did, which may be a moment later."""
    until = time.monotonic() + PATIENCE_SECONDS
    while left := processes_about(directory):
        assert time.monotonic() < until, f"what outlives the demo: {left}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The story in small, told once, and what it leaves."""
    directory = tmp_path_factory.mktemp("told") / "demo"
    result = subprocess.run(
        [*FORESHORE, *SMALL, "--months", "2", "--hours", "600", "--json", "--keep", "--dir", str(directory)],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env=environment(),
    )
    return result, directory


@pytest.mark.processes
@pytest.mark.slow
def test_the_whole_story_in_small(told: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    result, directory = told
    assert result.returncode == 0, result.stderr
    summary = msgspec.json.decode(result.stdout, type=Summary)
    assert set(msgspec.json.decode(result.stdout)) == set(Summary.__struct_fields__)
    assert (summary.verdict, summary.failed) == ("ok", [])
    assert len(summary.checks) >= 24, "a check got lost"
    killed, back, replaced, reconciled = summary.kill, summary.back, summary.replacement, summary.reconciliation
    assert killed is not None
    assert back is not None
    assert replaced is not None
    assert reconciled is not None
    assert (summary.load.transactions, killed.coordinator) == (600, False)
    assert killed.primary_of >= 32 // 3 - 1
    assert killed.node == back.node
    assert back.fragments["historical"] > 0
    assert "full" not in back.fragments
    assert back.supplied > 0
    assert back.transactions_meanwhile > 0, "the load went on while it caught up"
    assert set(replaced.fragments) - {"historical"} == {"full"}
    assert replaced.rows["full"] > 0
    assert summary.load.sent_again > 0, "acknowledged commits were sent again, and applied once"
    assert (reconciled.differences, reconciled.engine, len(reconciled.found)) == (0, "local", 1)
    assert "\x1b" not in result.stderr, "a pipe gets plain lines"
    rate, lag = (re.search(rf"  {what} +([{SPARKS}]+) ([0-9,]+) {unit} at most", result.stderr) for what, unit in WATCHED)
    assert rate is not None
    assert lag is not None
    assert len(rate[1]) == len(lag[1]), "the reader sees both, for the same times"
    assert int(lag[2]) == replaced.lagged_most > 0
    assert replaced.writes > len(rate[1]), "the load went on"
    assert len(result.stdout) < 16_000, "a summary is short"
    wait_for_the_last_about(directory)
    commands = [line.partition(" foreshore ")[2].split() for line in result.stderr.splitlines() if "  foreshore " in line]
    assert len(commands) == 3, "what was made is to be looked at"
    for command in commands:
        looked = subprocess.run(
            [*FORESHORE, *command], capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False
        )
        assert (looked.returncode, bool(looked.stdout)) == (0, True), (command, looked.stderr)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_half_way_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as said:
        process = spawn(
            [*FORESHORE, *SMALL, "--months", "1", "--kill", "coordinator", "--dir", str(tmp_path / "demo")],
            output=said.fileno(),
            errors=said.fileno(),
        )
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while " is dead: primary of " not in log.read_text(encoding="utf-8"):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < until, log.read_text(encoding="utf-8")
            time.sleep(0.05)
        assert len(processes_about(tmp_path / "demo" / "n")) >= 2, "the other nodes go on"
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 130, log.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    told = log.read_text(encoding="utf-8")
    assert "partitions, the coordinator" in told
    assert "interrupted: every node is gone" in told
    assert told.splitlines()[-1].startswith("verdict: interrupted in ")
    wait_for_the_last_about(tmp_path)
    assert not list((tmp_path / "demo").rglob("*")), "nothing is left"


def test_what_cannot_be_meant_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for arguments, says in (
        (("--dir", tmp_path), f"{tmp_path} is not empty: name another --dir, or empty it"),
        (("--dir", tmp_path / "file"), f"cannot make {tmp_path / 'file'}: File exists"),
        (("--months", 13), "Invalid value for '--months'"),
        (("--kill", "everybody"), "Invalid value for '--kill'"),
        (("--monhts", 1), "--months"),
        (("--partitions", 3, "--dir", tmp_path / "new"), "partitions is 3: expected a power of two"),
        (("--hours", 2, "--dir", tmp_path / "new"), "2 hours are too few for this story: expected at least 6"),
    ):
        result = CliRunner().invoke(app, ["demo", *map(str, arguments)])
        assert (result.exit_code, result.stdout) == (2, ""), (arguments, result.stderr)
        assert says in " ".join(result.stderr.replace("│", "").split()), arguments
        assert "Traceback" not in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.demo.flights.PACKAGE", "nycflights-not-there")
    result = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path / "new")])
    assert result.exit_code == 2
    assert "the package nycflights-not-there is not installed: run `make setup`" in " ".join(result.stderr.split())
    monkeypatch.undo()
    monkeypatch.setenv("FORESHORE_JAVA_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path / "new")])
    assert result.exit_code == 2
    assert "expected Java 17, 21 or 25, found no Java that runs" in " ".join(result.stderr.split())
    assert not (tmp_path / "new").exists()


@pytest.mark.processes
@pytest.mark.slow
def test_the_walk_through_goes_as_the_page_says(
    told: tuple[subprocess.CompletedProcess[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of("reconcile-walk.md")
    monkeypatch.chdir(told[1])
    codes: list[tuple[str, int]] = []
    for command, says in steps:
        program, group, verb, *words = command.split()
        assert (program, group) == ("foreshore", "reconcile")
        result = CliRunner().invoke(reconcile, [verb, *words])
        check_says(says, result.stdout)
        codes.append((verb, result.exit_code))
    verbs = ["check", "diff", "plan", "apply", "status", "check", "check", "sketch", "sketch", "sketch", "check", "export"]
    assert codes == [(verb, int(not at)) for at, verb in enumerate(verbs)]
    ((script, says),) = programs_of("reconcile-walk.md")
    counted = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    ).stdout
    check_says(says, counted)
    assert len({line.split()[2] for line in counted.splitlines() if line.startswith("flights ")}) == 1


def test_what_is_said_to_be_typed_can_be_where_a_name_has_a_space(tmp_path: Path) -> None:
    place = tmp_path / "the demo"
    for name in ("n1", "n2"):
        (place / name).mkdir(parents=True)
        (place / name / "identity.json").touch()
    counters, dump, check = map(shlex.split, look_around(place)[1:])
    assert counters == ["foreshore", "wal", "counters", f"{place}/n1", f"{place}/n2"]
    assert dump[:4] == ["foreshore", "wal", "dump", f"{place}/n1"]
    assert check[-2:] == counters[-2:]
