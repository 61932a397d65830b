"""Real directories, whole and damaged, through the command: what is found, what is said, and the exit code."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

import engine.aio
from engine.errors import UsageError
from engine.offline.directory import read_directory
from engine.turn.settings import Settings
from tests.support.commands import FORESHORE
from tests.support.damages import DAMAGES, HARMLESS
from tests.support.directories import (
    SEGMENT_BYTES,
    build,
    copies,
    cut_in_half,
    flip,
    lose_the_log,
    replace,
    zero_last_blocks,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reconciled import IN_DOUBT, fragment_of
from tools.reconcile import check
from tools.reconcile.cli import app
from tools.reconcile.findings import Finding
from tools.reconcile.report import Summary
from tools.reconcile.survey import local_path
from wal.ids import fragment_name


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def found(findings: list[Finding]) -> list[tuple[str, str, str | None, list[str]]]:
    """As in the table; who has no name is called by its path."""
    return [(f.kind, f.where, f.key, [Path(node).name for node in f.on]) for f in findings]


def by_place(findings: list[tuple[str, str, str | None, list[str]]]) -> list[tuple[str, str, str | None, list[str]]]:
    return sorted(findings, key=str)


def test_there_are_sixty_damages() -> None:
    assert len(DAMAGES) - len(HARMLESS) >= 60


@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_done_is_found_and_nothing_else(name: str, stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    damage = DAMAGES[name]
    damage.do(tmp_path)
    result = run(*(path for path in directories if path.exists()), "--json")
    findings = [msgspec.json.decode(line, type=Finding) for line in result.stdout_bytes.splitlines()[:-1]]
    assert by_place(found(findings)) == by_place(damage.found)
    assert (result.exit_code, "Traceback" in result.output) == (damage.exit_code, False)


def test_findings_are_in_the_order_of_partition_namespace_and_key(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    DAMAGES["a transaction in doubt"].do(tmp_path)
    findings = list(check([str(path) for path in directories]).decoded())
    assert len(findings) == 6
    order = [(f.partition, f.namespace, f.key is not None, f.key) for f in findings]
    assert order == sorted(order, key=lambda at: (*at[:3], at[3] or ""))


@pytest.mark.parametrize("shares", [2, 5, 100])
def test_the_number_of_shares_does_not_show_in_the_report(shares: int, stopped: list[Path], tmp_path: Path) -> None:
    directories = [str(path) for path in copies(stopped, tmp_path)]
    DAMAGES["several rows"].do(tmp_path)
    DAMAGES["two histories"].do(tmp_path)
    whole, parts = check(directories), check(directories, shares=shares)
    assert parts.findings_bytes() == whole.findings_bytes()
    assert parts.summary_bytes() == whole.summary_bytes()


def test_copies_taken_from_running_nodes_agree(running: list[Path]) -> None:
    report = check([str(path) for path in running])
    assert (list(report.findings), report.exit_code) == ([], 0)
    assert report.summary.unsettled.keys == 0
    assert [d.checkpoint_lsn for d in report.summary.directories] == [0, 0, 0]
    assert set(report.summary.namespaces) == {"acc", "bank", "~codec", "~tx"}
    assert report.summary.namespaces["bank"].keys == 30 + 3 + 100


def test_what_was_voted_for_just_now_is_under_way(running: list[Path], tmp_path: Path) -> None:
    directories = copies(running, tmp_path)
    DAMAGES["a transaction in doubt"].do(tmp_path)
    long = check([str(path) for path in directories], grace_seconds=400 * 86_400)
    assert (list(long.findings), long.exit_code) == ([], 0)
    assert (long.summary.unsettled.transactions, long.summary.unsettled.gaps) == (1, 2)


# A verdict is never better than what was compared.


def owed(result: Result, node: str) -> dict[str, tuple[int, int]]:
    """The counters that a node is said to owe, from the first to the last of each fragment."""
    found: dict[str, tuple[int, int]] = {}
    for line in result.stdout_bytes.splitlines()[:-1]:
        finding = msgspec.json.decode(line, type=Finding)
        if finding.kind in {"COUNTER_GAP", "BEHIND"}:
            assert finding.on == [node]
            first, last = finding.counters[0], finding.counters[-1]
            known = found.get(finding.where, (first, last))
            found[finding.where] = (min(first, known[0]), max(last, known[1]))
    return found


def stands(directory: Path, *, tolerant: bool = False) -> dict[str, int]:
    """Where the copies of a directory stand."""
    with read_directory(directory, tolerant=tolerant) as state:
        return {fragment_name(name): view.counter.lwm for name, view in state.fragments.items() if view.counter.lwm}


@pytest.mark.parametrize("how", ["lost", "half", "zeroed"])
@pytest.mark.parametrize("grace", [[], ["--grace", "0"]])
def test_an_in_sync_copy_that_lost_its_log_owes_what_the_others_have(
    how: str, grace: list[str], running: list[Path], tmp_path: Path
) -> None:
    directories = copies(running, tmp_path)
    had = stands(directories[1])
    match how:
        case "lost":
            lose_the_log(directories[1])
        case "half":
            cut_in_half(directories[1])
        case _:
            zero_last_blocks(directories[1], 30)
    left = stands(directories[1], tolerant=True)
    result = run(*directories, "--json", *grace)
    assert result.exit_code == 1
    expected = {name: (left.get(name, 0) + 1, lwm) for name, lwm in had.items() if left.get(name, 0) < lwm}
    assert owed(result, "n2") == expected
    assert len(expected) > 10
    assert ('"UNREADABLE"' in result.stdout) == (how == "half"), "a file that was cut is damage as well"


def test_a_lost_partition_says_since_when_and_how_far_apart_its_copies_are(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["every partition lost"].do(tmp_path)
    result = run(*directories)
    assert result.exit_code == 3
    number = fragment_of(b"k340")[1]
    assert f"incomplete partition {number if number < 8 else 0} is LOST since version 2.0, when n4 had it" in result.stdout
    assert "incomplete node n4 is in sync for 16 partitions, and no directory of it was read for them" in result.stdout
    summary = check([str(path) for path in directories]).summary
    assert len(summary.lost) == 16
    behind = {apart.node: (apart.state, apart.behind) for apart in summary.apart}
    assert behind == {"n1": ("LEFTOVER", 1), "n2": ("LEFTOVER", 0), "n3": ("LEFTOVER", 1)}
    _replace_value(directories[0])
    assert [(f.kind, f.on, f.roles) for f in check([str(path) for path in directories]).decoded()] == [
        ("VALUE_MISMATCH", ["n1"], {"n1": "LEFTOVER"})
    ]


def _replace_value(directory: Path) -> None:
    name = fragment_of(b"k302")
    with read_directory(directory) as state:
        entry = dict(state.rows(name, lambda _key, _what: None))[b"k302"]
    replace(directory, name, {b"k302": msgspec.structs.replace(entry, value=b"forged")})


def test_a_report_says_how_much_of_how_much_was_compared(stopped: list[Path], tmp_path: Path) -> None:
    whole = run(*stopped)
    fragments = check([str(path) for path in stopped]).summary.fragments
    assert f"compared fragments={fragments} copies={3 * fragments} of {3 * fragments} keys=" in whole.stdout
    two = run(*stopped[:2])
    assert f"copies={2 * fragments} of {3 * fragments} keys=" in two.stdout
    one = run(*stopped[:1])
    assert one.exit_code == 3
    assert f"incomplete {fragments} fragments have one copy here: it was read, and compared with nothing" in one.stdout


def test_what_is_to_have_one_copy_makes_no_answer_incomplete(tmp_path: Path) -> None:
    """A namespace without backups: its rows are read, and nobody is missed who should have them as well."""

    async def write(database: engine.aio.Database) -> None:
        await database.namespace("acc").put_many({b"k%d" % at: b"twice" for at in range(50)})
        await database.create_namespace("thumbnails", backups=0)
        await database.namespace("thumbnails").put_many({b"t%d" % at: b"value of t%d." % at for at in range(50)})

    directories = build(tmp_path, write, settings=Settings(partitions=4, wal_segment_bytes=SEGMENT_BYTES), stop=True)
    result = run(*directories)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "single fragments=4: they are to have one copy, which was read, and compared with nothing" in result.stdout
    some = run(*directories[:1])
    assert some.exit_code == 3
    assert "fragments have one copy here: it was read, and compared with nothing" in some.stdout
    assert any(flip(directory, b"value of t7.") for directory in directories)
    assert [f.kind for f in check([str(path) for path in directories]).decoded()] == ["UNREADABLE"], "nobody else has it"


def test_where_nothing_was_ever_written_it_is_asked_whether_this_was_meant(tmp_path: Path) -> None:
    async def nothing(_: engine.aio.Database) -> None:
        pass

    directories = build(tmp_path, nothing, settings=Settings(partitions=4, wal_segment_bytes=SEGMENT_BYTES))
    result = run(*directories)
    assert result.exit_code == 0, "it is so of all that is there"
    assert result.stdout.splitlines()[-2:] == [
        "nothing was ever written in cluster foreshore: is it the one that was meant?",
        "consistent findings=0",
    ]
    assert "is it the one that was meant" not in run(*directories[:1]).stdout, "who lacks nodes is told of these"


def test_damage_below_the_checkpoint_is_told_and_the_copies_are_compared(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a damaged log"].do(tmp_path)
    _replace_value(directories[2])
    result = run(*directories)
    assert result.exit_code == 1
    assert "VALUE_MISMATCH" in result.stdout
    told = f"incomplete the log of {directories[2]} is damaged below its checkpoint: its copies are compared as they are"
    assert told in result.stdout


def test_who_tore_a_transaction_is_told_with_both_halves(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    one, other = fragment_of(b"k342")[1], fragment_of(b"k343")[1]
    DAMAGES["committed here and rolled back there, on all copies"].do(tmp_path)
    (finding,) = check([str(path) for path in directories]).decoded()
    assert finding.tx == IN_DOUBT.hex()
    assert finding.detail == f"committed in partition {one}; rolled back in partition {other}"
    assert finding.copies["n1"] == {f"p{one}": "committed", f"p{other}": "rolled back"}


# The command.


def test_a_pipe_gets_plain_lines(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    result = run(*directories)
    assert result.exit_code == 1
    first, *_, last = result.stdout.splitlines()
    assert first.startswith(f"VALUE_MISMATCH acc/{fragment_of(b'k302')[1]} key=k302 on=n1 n1(epoch=")
    assert last == "differences findings=1 VALUE_MISMATCH=1"
    assert "forged" not in result.stdout
    assert "value=forged" in run(*directories, "--values", "full").stdout
    assert "hash=" not in run(*directories, "--values", "none").stdout


def test_json_is_findings_and_then_the_summary(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    result = run(*directories, "--json", "--out", tmp_path / "report")
    *findings, last = result.stdout_bytes.splitlines()
    assert len([msgspec.json.decode(line, type=Finding) for line in findings]) == 4
    summary = msgspec.json.decode(last, type=Summary)
    assert (summary.exit_code, summary.verdict) == (result.exit_code, "differences") == (1, "differences")
    assert (tmp_path / "report" / "findings.jsonl").read_bytes() == b"".join(line + b"\n" for line in findings)
    assert msgspec.json.decode((tmp_path / "report" / "summary.json").read_bytes(), type=Summary) == summary


def test_a_limit_keeps_the_first_findings_and_counts_all(stopped: list[Path], tmp_path: Path) -> None:
    directories = [str(path) for path in copies(stopped, tmp_path)]
    DAMAGES["several rows"].do(tmp_path)
    every = check(directories)
    for shares in (1, 16):
        some = check(directories, limit=2, shares=shares)
        assert list(some.findings) == list(every.findings)[:2]
        assert (some.summary.findings, some.summary.kept) == (every.summary.findings, 2)


def test_a_node_that_was_left_out_makes_the_answer_incomplete(stopped: list[Path]) -> None:
    result = run(*stopped[:2])
    assert result.exit_code == 3
    assert "incomplete node n3 is in sync for 16 partitions, and no directory of it was read for them" in result.stdout


def test_a_difference_is_one_even_if_not_everything_could_be_read(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    DAMAGES["a damaged log"].do(tmp_path)
    result = run(*directories)
    assert result.exit_code == 1
    assert "incomplete" in result.stdout


def test_a_file_url_is_a_path(stopped: list[Path]) -> None:
    assert run(*(f"file://{path}" for path in stopped)).exit_code == 0


def test_usage_errors_say_what_to_do(stopped: list[Path], tmp_path: Path) -> None:
    one = shutil.copytree(stopped[0], tmp_path / "again")
    for arguments, says in (
        ([tmp_path / "nowhere"], "is not a data directory"),
        (
            [stopped[0].parent],
            f"found a directory without identity.json; did you mean {' '.join(map(str, sorted(stopped)))}?",
        ),
        ([*stopped, one], "both belong to node 'n1': name one directory per node"),
        ([stopped[0], stopped[0]], "was given twice"),
        (["hdfs://host/path"], "hdfs:// is read by Spark only"),
        ([*stopped, "--master", "local[2]"], "--master is Spark's"),
        ([*stopped, "--out", one / "identity.json"], "cannot write to"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_directory_that_is_none_is_told_before_spark_is_started(
    stopped: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("tools.reconcile.cli.borrowed", lambda _: pytest.fail("Spark is started"))
    result = run(*stopped, form.format(tmp_path / "nowhere"), "--engine", "spark")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path / 'nowhere'} is not a data directory" in result.stderr.replace("\n", "")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_what_spark_cannot_read_as_a_table_is_told_before_it_is_started(
    stopped: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("tools.reconcile.cli.borrowed", lambda _: pytest.fail("Spark is started"))
    table, sketch = tmp_path / "table", tmp_path / "sketch"
    for words in (["export", *stopped, "--out", table], ["sketch", stopped[0], "--out", sketch]):
        assert CliRunner().invoke(app, list(map(str, words))).exit_code == 0
    for place, why in (
        (table, "was exported without Spark: compare it without --engine spark"),
        (sketch, "is no table of `foreshore reconcile export --kind state`: name tables only, or leave out --engine spark"),
    ):
        result = run("--sketches", form.format(place), "--engine", "spark")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"foreshore: {form.format(place)} {why}\n"


def test_what_cannot_be_written_is_told_before_anything_is_read(stopped: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "report"):
        result = run(tmp_path / "nowhere", "--out", out)
        assert (result.exit_code, f"cannot write to {out}" in result.stderr.replace("\n", "")) == (2, True)
    for command in ("sketch", "rows"):
        buckets = ["--buckets", tmp_path / "file"] if command == "rows" else []
        for out in (tmp_path / "file" / "it", tmp_path / "no" / "it", tmp_path):
            result = CliRunner().invoke(app, list(map(str, (command, tmp_path / "nowhere", *buckets, "-o", out))))
            assert (result.exit_code, f"cannot write to {out}" in result.stderr.replace("\n", "")) == (2, True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_two_clusters_are_not_compared(stopped: list[Path], tmp_path: Path) -> None:
    async def open_and_close(**settings: str) -> None:
        async with await engine.aio.open(tmp_path / settings.get("cluster", "alone"), **settings) as database:
            await database.namespace("acc").put(b"k", b"v")

    asyncio.run(open_and_close(cluster="other"))
    asyncio.run(open_and_close())
    assert "belongs to cluster 'other'" in run(*stopped, tmp_path / "other").stderr
    assert "two clusters that have the same name 'foreshore'" in run(*stopped, tmp_path / "alone").stderr


def test_an_embedded_node_is_read_through_and_compared_with_nobody(tmp_path: Path) -> None:
    async def write() -> None:
        async with await engine.aio.open(tmp_path / "node", partitions=4) as database:
            await database.namespace("acc").put_many({b"k%d" % at: b"value of k%d." % at for at in range(100)})
            await database.namespace("acc").put_many({b"z%d" % at: b"" for at in range(50)})

    asyncio.run(write())
    whole = check([str(tmp_path / "node")])
    assert (whole.exit_code, whole.summary.keys, whole.summary.alone) == (3, 150 + 1, 4 + 1), "nothing to compare with"
    assert whole.summary.incomplete == ["5 fragments have one copy here: it was read, and compared with nothing"]
    assert flip(tmp_path / "node", b"value of k7.")
    assert [(f.kind, f.key) for f in check([str(tmp_path / "node")]).decoded()] == [("UNREADABLE", "k7")]


def test_the_disk_of_another_life_is_named_and_compared_all_the_same(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    identity = directories[1] / "identity.json"
    told = msgspec.json.decode(identity.read_bytes())
    identity.write_bytes(msgspec.json.encode(told | {"allocation": "another"}))
    DAMAGES["a flipped bit"].do(tmp_path)
    report = check([str(path) for path in directories])
    assert [(f.kind, f.key, f.on, f.roles) for f in report.decoded()] == [
        ("UNREADABLE", "k301", ["n2"], {"n2": "OTHER-DISK"})
    ]
    assert report.exit_code == 1
    assert [(a.node, a.state) for a in report.summary.apart] == [("n2", "OTHER-DISK")]
    assert report.summary.absent == {"n2": 16}


def test_a_reader_that_goes_away_ends_the_command_quietly(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    for form in ([], ["--json"]):
        read, write = os.pipe()
        os.close(read)
        command = [*FORESHORE, "reconcile", "check", *map(str, directories), *form]
        try:
            result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False)
        finally:
            os.close(write)
        assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.parametrize("name", ["ä\udcff", "a\nb", "\x1b[2J"])
def test_a_name_that_no_report_can_carry_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name that a report can carry: expected a path in UTF-8"):
        local_path(name)
