"""`foreshore cluster`, and what all commands share: help, exit codes, and one line instead of a traceback."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import engine
from engine import errors
from foreshore import main as begin
from tests.support.commands import Node, foreshore, free_port, nodes
from tests.support.patience import PATIENCE_SECONDS
from tools.asking import question, wait_for
from tools.cli import PROGRAMS, app, main, run
from tools.cluster_commands import serving
from tools.terminal import ExitCode, Row, exit_code_of, show, width_of
from wal import DiskError, Finding, LogDamaged, LogTooNew

# What all commands share.


def test_help_lists_every_program_and_the_exit_codes() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed[: len(PROGRAMS)] == list(PROGRAMS)
    assert "130 interrupted" in " ".join(result.stdout.split())
    for name in ("node", "cluster", "wal", "reconcile", "demo"):
        told = CliRunner().invoke(app, [name, "--help"])
        assert (told.exit_code, f"foreshore {name}" in told.stdout) == (0, True), told.output


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"foreshore {version('foreshore')}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["version"], f"foreshore {version('foreshore')}\n"),
        (["help"], "Usage: foreshore [OPTIONS] COMMAND"),
        (["help", "wal", "dump"], "Usage: foreshore wal dump [OPTIONS]"),
        (["-h"], "Usage: foreshore [OPTIONS] COMMAND"),
        *(([name, "-h"], f"Usage: foreshore {name} [OPTIONS]") for name in PROGRAMS),
    ],
)
def test_help_is_found_wherever_it_is_looked_for(words: list[str], says: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.output.startswith(says)) == (0, True), result.output


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("status", "`foreshore node status`, or `foreshore cluster status`, or `foreshore reconcile status`"),
        ("init", "`foreshore cluster init`"),
        ("dump", "`foreshore wal dump`"),
        ("check", "`foreshore reconcile check`"),
    ],
)
def test_a_word_of_a_program_leads_there(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word, "127.0.0.1:7401"])
    told = capsys.readouterr()
    says = f"foreshore: '{word}' is no command by itself: did you mean {meant}?\n"
    assert (ended.value.code, told.out, told.err) == (2, "", says)


PRINTS = [
    ["node", "config"],
    ["help"],
    ["--help"],
    ["help", "wal", "dump"],
    ["wal", "dump", "--help"],
    ["doctor", "--help"],
]


@pytest.mark.parametrize("words", PRINTS, ids=" ".join)
def test_an_answer_that_cannot_be_written_is_told(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        assert _printed(words, full.fileno()) == (
            ExitCode.UNREADABLE,
            "foreshore: the answer could not be written: No space left on device; what was printed is not all of it\n",
        )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert _printed(words, writing) == (ExitCode.HUNG_UP, "")
    finally:
        os.close(writing)


def _printed(words: list[str], to: int) -> tuple[int, str]:
    told = [sys.executable, "-m", "foreshore", *words]
    result = subprocess.run(told, stdout=to, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_SECONDS)
    return result.returncode, result.stderr


def test_whoever_interrupts_an_import_gets_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "tools.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tools.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        begin()
    assert ended.value.code == ExitCode.INTERRUPTED


ROWS: list[Row] = [
    {"node": "n1", "address": "a-host-with-a-long-name.example:7401", "primary": 1365, "updates": 123456789},
    {"node": "n2", "address": "127.0.0.1:7402", "primary": 0, "updates": 7},
]


@pytest.mark.parametrize("columns", [30, 40, 68, 69, 80, 200])
def test_a_table_cuts_nothing_however_narrow_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(ROWS, as_json=False)
    out = capsys.readouterr().out
    is_table = width_of(ROWS) <= columns
    assert width_of(ROWS) == 69
    assert out.startswith("┏" if is_table else "node=n1 address=a-host-with-a-long-name.example:7401 ")
    for cell in (str(cell) for row in ROWS for cell in row.values()):
        assert cell in out
    if is_table:
        assert len(out.splitlines()[0]) == 69


def test_a_program_that_is_not_there_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tools.not_there", "later", []) == ExitCode.UNREADABLE
    assert capsys.readouterr().err.startswith("foreshore: this installation has no 'later'")


def test_looking_at_a_log_does_not_wait_for_what_it_does_not_need() -> None:
    code = "import sys, tools.cli, tools.wal.cli; print(*(m for m in sys.modules if '.' not in m))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=PATIENCE_SECONDS
    )
    assert not {"pyspark", "pyarrow", "uvloop"} & set(result.stdout.split())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.Unavailable("x"), 3),
        (errors.CorruptionError("x"), 5),
        (errors.NoQuorum("x"), 1),
        (DiskError("read", "file", "why"), 3),
        (LogDamaged(Finding(kind="damaged", segment="1.wal", offset=0, lsn=1, what="x", cost="y")), 5),
        (LogTooNew(Finding(kind="newer", segment="1.wal", offset=0, lsn=1, what="x", cost="y")), 3),
    ],
)
def test_an_error_has_an_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


# The cluster.


@pytest.mark.processes
def test_nobody_is_reached_and_nothing_is_meant() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for arguments in (
        ("cluster", "status", nowhere),
        ("cluster", "baseline", nowhere),
        ("cluster", "plan", nowhere),
        ("cluster", "migrations", nowhere),
        ("cluster", "init", nowhere, "--nodes", "n1", "--timeout", 0),
    ):
        result = foreshore(*arguments)
        assert (result.returncode, result.stdout) == (3, "")
        assert result.stderr.startswith(f"foreshore: no answer from {nowhere}")
        assert len(result.stderr.splitlines()) == 1
    for words, says in (
        (("cluster", "status", "nowhere"), "'nowhere' is not an address: expected host:port"),
        (("cluster", "status", ""), "'' is not an address: expected host:port"),
        (
            ("cluster", "refetch", nowhere, "n1", "acc/1", "acc"),
            "'acc' is no fragment: expected a namespace and a partition",
        ),
        (("cluster", "refetch", nowhere, "n1", "acc/123456"), "'acc/123456' is no fragment: expected a namespace and"),
        (("cluster", "init", nowhere, "--nodes", ","), "--nodes is ',': expected names of nodes"),
        (("cluster", "init", nowhere, "--nodes", "n1,n1"), "--nodes names n1 twice"),
        (("cluster", "init", nowhere, "--nodes", "../n1"), "is not a legal name"),
        (("cluster", "init", nowhere), "--nodes"),
        (("cluster", "baseline", nowhere, "--set", ""), "--set is ''"),
    ):
        result = foreshore(*words)
        assert (result.returncode, says in result.stderr) == (2, True), result.stderr


@pytest.mark.processes
def test_a_cluster_is_formed_once_of_nodes_that_see_each_other(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1")
    try:
        status = foreshore("cluster", "status", node.address)
        assert (status.returncode, "n1 is in no cluster yet, and sees nobody" in status.stderr) == (1, True)
        early = foreshore("cluster", "init", node.address, "--nodes", "n1,n2", "--timeout", 1)
        assert (early.returncode, "n1 did not see n2 within 1 s; it sees nobody" in early.stderr) == (1, True)
        assert foreshore("cluster", "init", node.address, "--nodes", "n1").returncode == 0
        again = foreshore("cluster", "init", node.address, "--nodes", "n1")
        assert (again.returncode, "the cluster is formed already: foreshore 1.0" in again.stderr) == (1, True)
    finally:
        node.kill()


@pytest.mark.processes
def test_a_cluster_is_formed_although_another_node_joins_it_at_once(tmp_path: Path) -> None:
    """Whoever was not named comes in as soon as there is a cluster: often before it is looked for."""
    with nodes(tmp_path, "n1") as (first,):
        spare = Node(tmp_path, "n2", seeds=[first.address])
        try:
            asyncio.run(_joined_and_formed(first.address))
        finally:
            spare.kill()


async def _joined_and_formed(address: str) -> None:
    async def joined() -> bool | None:
        return True if len((await question(address, "status"))["members"]) == 2 else None

    assert await wait_for(joined, PATIENCE_SECONDS)
    assert await wait_for(lambda: serving(address, ["n1"]), PATIENCE_SECONDS), "init would wait for this"
    assert await serving(address, ["n1", "n3"]) is None


@pytest.mark.processes
def test_a_node_in_no_cluster_has_no_namespaces_and_says_so_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1")
    try:
        said = foreshore("cluster", "namespaces", node.address)
        assert (said.returncode, "n1 is in no cluster yet: run `foreshore cluster init" in said.stderr) == (1, True)
    finally:
        node.kill()


@pytest.mark.processes
def test_status_says_what_is_wrong_and_the_baseline_who_should_be_there(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3") as (first, second, third):
        whole = foreshore("cluster", "status", second.address)
        assert (whole.returncode, whole.stdout.splitlines()[-1]) == (0, "every copy is in sync")
        told = msgspec.json.decode(foreshore("cluster", "status", first.address, "--json").stdout)
        assert (told["problems"], told["epoch"], told["baseline"]) == ([], 1, ["n1", "n2", "n3"])
        assert {name: member["status"]["serving"] for name, member in told["members"].items()} == dict.fromkeys(
            ("n1", "n2", "n3"), True
        )
        nothing = foreshore("cluster", "plan", first.address)
        assert "copies=0 updates=0 primaries=0 drops=0" in nothing.stdout
        without = msgspec.json.decode(foreshore("cluster", "plan", first.address, "--set", "n1,n2", "--json").stdout)
        assert (without["copies"], without["drops"]) == (0, 16), "each of two has all already"
        assert foreshore("node", "stop", third.address).returncode == 0
        changed = foreshore("cluster", "baseline", first.address, "--set", "n1,n2", "--yes", "--planned", without["map"])
        assert (changed.returncode, f"this was planned for map {without['map']}" in changed.stderr) == (1, True)
        less = foreshore("cluster", "status", third.address, f"{first.address},{second.address}")
        assert less.returncode == 1
        assert less.stdout.splitlines()[0] == f"no answer from {third.address}, which is no member's", "first what is wrong"
        assert "n3 should hold data and is not here\n16 partitions have fewer in-sync copies" in less.stdout
        refused = foreshore("cluster", "baseline", first.address, "--set", "n1,n9")
        assert (refused.returncode, "not a member: n9" in refused.stderr) == (1, True)
        fewer = foreshore("cluster", "baseline", second.address, "--set", "n1,n2")
        assert (fewer.returncode, "2 of 3 copies of each partition" in fewer.stderr) == (1, True)
        changed = foreshore("cluster", "baseline", second.address, "--set", "n1,n2", "--yes")
        assert changed.stdout.startswith("baseline n1,n2\n2 nodes hold data (n1, n2): 2 of 3 copies of each partition")
        assert foreshore("cluster", "baseline", first.address).stdout == "baseline n1,n2\n"
        second.kill()
        lost = foreshore("cluster", "status", first.address)
        assert lost.returncode == 1
        assert "n2 does not answer" in lost.stdout


@pytest.mark.processes
def test_what_an_operator_orders_is_done_when_it_is_meant(tmp_path: Path) -> None:
    """Removing, stopping all, coming back with two of three disks, and going on from the last one."""
    with nodes(tmp_path, "n1", "n2", "n3") as (first, second, third):
        address = first.address
        with engine.connect(address) as database:
            database.namespace("acc", codec="str").put_many({f"k{n}": "v" for n in range(100)})
        refused = foreshore("cluster", "remove", address, "n3")
        assert (refused.returncode, "2 of 3 copies of each partition" in refused.stderr) == (1, True)
        unknown = foreshore("cluster", "remove", address, "n9", "--yes")
        assert (unknown.returncode, "not in the baseline: n9" in unknown.stderr) == (1, True)
        removed = foreshore("cluster", "remove", address, "n3", "--yes", "--json")
        assert msgspec.json.decode(removed.stdout)["failures_survived"] == 0, removed.stderr
        status = foreshore("cluster", "status", address)
        assert (status.returncode, "2 of 3 copies of each partition at most: only n1, n2 hold data" in status.stdout) == (
            1,
            True,
        )
        while "n3" in (left := foreshore("cluster", "plan", address).stdout):
            assert left  # what it leads goes to others first, and then its copies go, with the next maps
        more = foreshore("cluster", "plan", address, "--set", "n1,n2,n3")
        head, *lines = more.stdout.splitlines()
        assert ("copies=16 updates=101 " in head, len(lines) >= 2) == (True, True), more.stdout
        assert lines[0].startswith("kind=copy why=repair node=n3 from=n1")
        planned = re.search(r"map=(\S+)", head)
        assert planned is not None
        done = foreshore("cluster", "baseline", address, "--set", "n1,n2,n3", "--planned", planned[1])
        assert done.returncode == 0, done.stderr
        watched = foreshore("cluster", "migrations", address, "--watch", "--interval", "0.2", "--json")
        last = [msgspec.json.decode(line) for line in watched.stdout.splitlines()][-3:]
        assert {(row["node"], row["state"], row["behind"]) for row in last} == {(n, "whole", 0) for n in ("n1", "n2", "n3")}
        assert [row["rows"] for row in last if row["node"] == "n3"] == [101], "with the decision about them"
        needless = foreshore("cluster", "reset-lost", address)
        assert (needless.returncode, needless.stdout) == (0, "no partition was LOST\n")
        healthy = foreshore("cluster", "recover", address, "--nodes", "n1", "--force")
        assert (healthy.returncode, "a majority of n1, n2, n3 is here" in healthy.stderr) == (1, True)
        stopped = foreshore("cluster", "stop", address)
        assert (stopped.returncode, stopped.stdout) == (0, "stopped n1,n2,n3\n"), stopped.stderr
        assert [node.ended() for node in (first, second, third)] == [0, 0, 0]
    with again(tmp_path, "n1", "n2") as (first, second):  # the machine of n3 burns
        with engine.connect(first.address, timeout=PATIENCE_SECONDS) as database:
            assert len(database.namespace("acc", codec="str")) == 100
        second.kill()
        alone = foreshore("cluster", "recover", first.address, "--nodes", "n1", "--force")
        while "a majority of" in alone.stderr or "n2 is here too" in alone.stderr:
            alone = foreshore("cluster", "recover", first.address, "--nodes", "n1", "--force")
        assert (alone.returncode, "goes on with n1, without n2, n3" in alone.stdout) == (0, True), alone.stderr
        with engine.connect(first.address, timeout=PATIENCE_SECONDS) as database:
            assert len(database.namespace("acc", codec="str")) == 100


@contextmanager
def again(root: Path, *names: str) -> Iterator[list[Node]]:
    """Nodes that are started from directories that are there."""
    started: list[Node] = []
    try:
        for name in names:
            for said in ("ready", "log"):  # by the process before
                (root / f"{name}.{said}").unlink()
            started.append(Node(root, name, seeds=[node.address for node in started]))
        yield started
    finally:
        for node in started:
            node.kill()


def test_fish_completes_the_same() -> None:
    script = foreshore("completion", "fish").stdout
    assert "complete -c foreshore -n __fish_use_subcommand -a wal -d 'Look at a node\\'s log" in script
    assert next(line for line in script.splitlines() if "__fish_seen_subcommand_from wal" in line).endswith("export'")


def test_zsh_completes_by_the_script_of_bash() -> None:
    first, *script = foreshore("completion", "zsh").stdout.splitlines()
    assert first == "autoload -U +X bashcompinit && bashcompinit"
    assert script == foreshore("completion", "bash").stdout.splitlines()
    unknown = foreshore("completion", "tcsh")
    assert (unknown.returncode, "expected bash, zsh or fish" in unknown.stderr) == (2, True)


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    script = foreshore("completion", "bash")
    assert script.returncode == 0
    (tmp_path / "complete.bash").write_text(script.stdout)
    for typed, expected in (
        (["foreshore", "do"], ["doctor"]),
        (["foreshore", "cluster", "re"], ["resume", "remove", "refetch", "reset-lost", "recover"]),
        (["foreshore", "wal", "du"], ["dump"]),
        (["foreshore", "help", "n"], ["node"]),
    ):
        words = " ".join(f"'{word}'" for word in typed)
        asked = (
            f"source complete.bash; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _foreshore; echo ${{COMPREPLY[*]}}"
        )
        told = subprocess.run(
            ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
        )
        assert (told.stdout.split(), told.stderr) == (expected, "")
    assert foreshore("completion", "zsh").stdout.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    refused = foreshore("completion", "tcsh")
    assert (refused.returncode, refused.stderr) == (
        2,
        "foreshore: completion for 'tcsh' is not there: expected bash, zsh or fish\n",
    )
