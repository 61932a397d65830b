"""`foreshore wal`: what a log says, whole, damaged, live and hostile; and that nothing is ever written."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import aio
from tests.support.commands import FORESHORE, HOSTILE, Node, damage_log, environment, foreshore, nodes, objects, wal
from tests.support.directories import append, copies
from tests.support.patience import PATIENCE_SECONDS, next_line, waiting
from tests.support.reconciled import NOW_MS, fragment_of
from tests.wal import golden
from tools.terminal import bytes_of, clean, plain, word
from tools.wal.times import time_text
from wal import list_segments, read
from wal import records as r
from wal.ids import DECISIONS, Ballot, Version
from wal.records import KINDS, kind_of


def files(paths: Sequence[Path]) -> dict[Path, bytes]:
    """Every file's contents, but for LMDB's table of readers."""
    every = [file for path in paths for file in path.rglob("*") if file.is_file() and file.name != "lock.mdb"]
    return {file: file.read_bytes() for file in sorted(every)}


# Dump.


def test_a_dump_has_every_record_once_and_says_what_the_log_says(left: list[Path]) -> None:
    records = [(block.first_lsn + at, rec) for block in read(left[0] / "wal") for at, rec in enumerate(block.records)]
    lines = wal("dump", left[0]).stdout.splitlines()
    told = objects("dump", left[0])
    assert len(lines) == len(told) == len(records)
    for (lsn, record), line, item in zip(records, lines, told, strict=True):
        assert line.startswith(f"lsn={lsn} time=")
        assert f"Z {kind_of(record)} " in line
        assert (item["lsn"], item["type"]) == (lsn, kind_of(record))
    assert {item["type"] for item in told} >= {"boot", "committed", "epoch", "update", "prepare", "outcome"}


def test_filters_narrow_a_dump(left: list[Path]) -> None:
    every = objects("dump", left[0])
    between = objects("dump", left[0], "--from-lsn", 5, "--to-lsn", 9)
    assert [item["lsn"] for item in between] == [5, 6, 7, 8, 9]
    assert objects("dump", left[0], "--limit", 3) == every[:3]
    _, partition = fragment_of(b"k7")
    mine = objects("dump", left[0], "--namespace", "acc", "--partition", partition, "--key", "k7")
    assert [item["type"] for item in mine] == ["update", "update"], "put, deleted"
    lines = wal("dump", left[0], "--key", "k7").stdout.splitlines()
    assert all(f" acc/{partition}(" in line for line in lines)
    assert lines[-1].endswith(" k7=deleted")
    assert wal("dump", left[0], "--key", "k").stdout == "", "a key, not how it begins"


def test_the_story_of_a_transaction_is_all_that_names_it(left: list[Path]) -> None:
    prepared = next(item for item in objects("dump", left[0], "--namespace", "bank") if item["type"] == "prepare")
    tx = str(prepared["tx"])
    for begins in (tx, tx.upper()):
        story = objects("dump", left[0], "--tx", begins)
        kinds = [item["type"] for item in story]
        assert kinds.count("prepare") == kinds.count("outcome") == 2
        assert any(item["type"] == "update" and DECISIONS in msgspec.json.encode(item).decode() for item in story)
        assert all(tx in msgspec.json.encode(item).decode() for item in story)
    of_its_session = objects("dump", left[0], "--tx", tx[:20])
    assert all(item in of_its_session for item in story), "ids begin with their session"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["dump", "--key", "nope"], "key nope"),
        (["dump", "--namespace", "acc", "--prefix", "nope "], r"namespace acc and a key that begins with nope\x20"),
        (["dump", "--tx", "ffffffffffffffff"], "transaction ffffffffffffffff"),
        (["dump", "--label", "nope", "--json"], "label nope"),
        (["dump", "--namespace", "nope", "--jobs", 2], "namespace nope"),
        (["dump", "--namespace", "nope", "--last", 3], "namespace nope"),
        (["stat", "--namespace", "nope"], "namespace nope"),
        (["stat", "--namespace", "nope", "--jobs", 2], "namespace nope"),
        (["counters", "--namespace", "nope"], "namespace nope"),
        (["history", "--namespace", "nope"], "namespace nope"),
        (["diff", "--namespace", "nope"], "namespace nope"),
        (["export", "--namespace", "nope"], "namespace nope"),
        (["dump", "--partition", 99], "partition 99"),
        (["stat", "--partition", 99], "partition 99"),
        (["counters", "--partition", 99], "partition 99"),
        (["history", "--partition", 99], "partition 99"),
        (["diff", "--partition", 99], "partition 99"),
        (["dump", "--namespace", "acc", "--partition", 99], "namespace acc and partition 99"),
        (["key", "acc", "nope"], "namespace acc and key nope"),
        (["key", "nope", "k1"], "namespace nope and key k1"),
    ],
)
def test_what_was_named_and_is_nowhere_is_no_success(
    words: list[object], asked: str, left: list[Path], checkpointed: list[Path], tmp_path: Path
) -> None:
    for named in ({"diff": left[:2], "dump": left}.get(str(words[0]), left[:1]), checkpointed[:2]):
        out = ["--out", tmp_path / named[0].parents[1].name] if words[0] == "export" else []
        result = wal(*words, *named, *out)
        assert result.exit_code == 1
        assert f"foreshore: no record that was read is of {asked}\n" in result.stderr
        unknown = "nothing here knows a namespace nope: expected one of acc" in result.stderr
        assert unknown == ("namespace nope" in asked)
        beyond = "nothing here is of a partition 99: expected one of 0 to " in result.stderr
        assert beyond == ("partition 99" in asked)


def test_an_empty_answer_to_what_has_no_name_is_an_answer(left: list[Path]) -> None:
    for words in (["--type", "undo"], ["--counter", "99999"], ["--from-lsn", 3, "--to-lsn", 3, "--type", "undo"]):
        result = wal("dump", left[0], *words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ["dump", "--from-time", "2100-01-01T00:00:00Z"],
        ["dump", "--to-time", "1999-01-01T00:00:00Z", "--jobs", 2],
        ["dump", "--from-lsn", 99_999],
        ["stat", "--from-lsn", 99_999],
    ],
)
def test_who_asks_beyond_a_log_is_told_where_it_begins_and_ends(words: list[object], left: list[Path]) -> None:
    first, last = list_segments(left[0] / "wal")[0], list_segments(left[0] / "wal")[-1]
    result = wal(*words, left[0])
    told = (
        f"LSN {first.first_lsn} to {last.last_lsn}, from {time_text(first.first_time_ms)} to {time_text(last.last_time_ms)}"
    )
    assert result.exit_code == 0
    assert result.stderr == f"foreshore: the log of n1 is of {told}: nothing of it is in what was asked for\n"


def test_values_are_users_data_and_shown_when_asked(left: list[Path]) -> None:
    hidden, full = wal("dump", left[0], "--key", "k3"), wal("dump", left[0], "--key", "k3", "--values", "full")
    assert "value" not in hidden.stdout
    assert " k3=12B " in hidden.stdout
    assert r" k3=12B:value\x20of\x20k3. " in full.stdout
    assert "k3=12B#" in wal("dump", left[0], "--key", "k3", "--values", "hash").stdout


def test_hostile_bytes_reach_a_terminal_escaped(left: list[Path]) -> None:
    printed = word(HOSTILE)
    assert printed == r"\x1b]0;owned\x07\x1b[2J\xff\x0a=\\\x20"
    for arguments in ([], ["--json"], ["--values", "full"], ["--values", "full", "--json"]):
        result = wal("dump", left[0], "--key", printed, *arguments)
        assert printed in result.stdout.replace("\\\\", "\\") or printed in result.stdout
        assert all(line.isprintable() for line in result.stdout.splitlines())
        assert len(result.stdout.splitlines()) == 1


def test_every_kind_of_record_has_a_line_and_an_object(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    tx = bytes(range(16))
    write = r.Write("a\x1bb", 1, 2, 3, [b"k"], [b"v"], 0, tx, 0, 1)
    records: list[r.Record] = [
        r.Update([write]),
        r.Prepare(tx, 1, 2, [write], [("acc", b"locked\x07")], [1, 3], 3, 1),
        r.Outcome(tx, 1, 2, False, [("acc", 3, 1)]),
        r.NoOp(1, 2, [("acc", 4, 2)]),
        r.EpochStart(1, 2, [("acc", 7)]),
        r.History([msgspec.structs.replace(write, keys=[], values=[], closed=2)]),
        r.Preload("acc", 1, [1], [5], [b"k\n"], [None]),
        r.Results(1, [tx], [2], tx),
        r.Forget(1, 2, [(tx[:10], 5)]),
        r.FragmentClear("acc", 1, "because \x1b[2J"),
        r.FragmentReady("acc", 1, 9, 255, [(1, 1), (2, 8)], True),
        r.Undo("acc", 1, 4, [b"\xff"]),
        r.Promised(Version(1, 0), Ballot(2, "n1")),
        r.Accepted(Version(1, 0), Ballot(2, "n\x071"), b"no topology"),
        r.Committed(Version(1, 1), b""),
        r.Boot(7),
        r.Claimed(Version(1, 1), [r.Claim("n\x072", "disk", 5, 9)]),
        r.Checkpoint(9),
        r.Trimmed(3, [("acc", 1, 2)]),
        r.Stable(1, 2, [("acc", 9)]),
        r.Compare(1, 2, "n\x073", 4),
        r.Origin(1, 2, tx, "n1", "end of month", "web\x1b", "[::1]:7"),
    ]
    assert {type(record) for record in records} == set(KINDS)
    lsn = list_segments(directory / "wal")[-1].last_lsn + 1
    append(directory, records, now_ms=NOW_MS)
    lines = wal("dump", directory, "--from-lsn", lsn).stdout.splitlines()
    assert [line.split()[2] for line in lines] == [kind_of(record) for record in records]
    assert all(line.isprintable() for line in lines)
    head = f"time={'2096-10-02T07:06:40.000Z'} "
    said = [line.partition(head)[2] for line in lines]
    assert said[1] == (
        "prepare tx=000102030405060708090a0b0c0d0e0f p1 e2 decided-in=p3 participants=1,3 issued-in=e1 "
        r"a\x1bb/1(3,1)e2 issued-in=e1 k=1B locks=acc/1:locked\x07"
    )
    assert said[2] == "outcome tx=000102030405060708090a0b0c0d0e0f p1 e2 rollback acc/1(3,1)"
    assert said[5] == r"history a\x1bb/1(3,2)e2 issued-in=e1 tx=000102030405060708090a0b0c0d0e0f closed"
    assert said[6] == r"preload acc/1 rows=1 k\x0a=deleted@1.5"
    assert said[10] == "ready acc/1 lwm=9 digest=00000000000000ff epochs=1:1,2:8 full"
    assert said[13] == r"accepted after=1.0 ballot=2@n\x071 version=unknown(11B)"
    assert said[16] == r"claimed under=1.1 n\x072:5<=9"
    assert said[18] == "trimmed below=3 acc/1<=2"
    assert said[21] == (
        r"origin tx=000102030405060708090a0b0c0d0e0f p1 e2 by=n1 label=end\x20of\x20month client=web\x1b address=[::1]:7"
    )
    told = objects("dump", directory, "--from-lsn", lsn)
    assert [item["type"] for item in told] == [kind_of(record) for record in records]
    partition = [
        line.split()[2] for line in wal("dump", directory, "--from-lsn", lsn, "--partition", 1).stdout.splitlines()
    ]
    nowhere = {"promised", "accepted", "committed", "boot", "claimed", "checkpoint"}
    assert partition == [kind_of(record) for record in records if kind_of(record) not in nowhere]


def test_a_damaged_log_is_dumped_around_the_damage(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    whole = wal("dump", directory).stdout.splitlines()
    name = damage_log(directory)
    result = wal("dump", directory)
    assert result.exit_code == 5
    assert f"foreshore: {directory}: damaged segment={name} offset=256 lsn=1: " in result.stderr
    kept = result.stdout.splitlines()
    assert 0 < len(kept) < len(whole)
    assert set(kept) < set(whole)


@pytest.mark.parametrize(
    ("verb", "options"), [("dump", []), ("dump", ["--json"]), ("stat", []), ("stat", ["--from-lsn", 20]), ("verify", [])]
)
def test_several_processes_say_what_one_does_in_the_same_order(verb: str, options: list[object], tmp_path: Path) -> None:
    """Of a log of several segments, with damage and a segment that is gone."""
    directory = tmp_path / "wal"
    shutil.copytree(golden.DIRECTORY, directory)
    for spoiled in ("nothing", "damaged", "missing"):
        if spoiled == "damaged":
            damage_log(tmp_path)
        if spoiled == "missing":
            sorted(directory.iterdir())[1].unlink()
        alone, several = wal(verb, directory, *options), wal(verb, directory, *options, "--jobs", 3)
        assert (several.exit_code, several.stderr) == (alone.exit_code, alone.stderr)
        assert several.stdout == alone.stdout


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("tx", []),
        ("tx", ["--json"]),
        ("tx", ["--label", "pay"]),
        ("key acc d", ["--partition", 7]),
        ("key acc a", ["--partition", 7, "--json"]),
    ],
)
def test_stories_are_the_same_by_several_processes(verb: str, options: list[object], tmp_path: Path) -> None:
    """Though whoever chooses a block there does not know of a prepare in the segment before."""
    directory = tmp_path / "wal"
    shutil.copytree(golden.DIRECTORY, directory)
    words = [*verb.split(), *([golden.TX.hex()] if verb == "tx" and "--label" not in options else [])]
    for spoiled in (False, True):
        if spoiled:
            damage_log(tmp_path)
        alone, several = wal(*words, directory, *options), wal(*words, directory, *options, "--jobs", 3)
        assert (several.exit_code, several.stderr) == (alone.exit_code, alone.stderr)
        assert several.stdout == alone.stdout != ""


def test_stories_of_nodes_are_the_same_by_several_processes(left: list[Path]) -> None:
    tx = next(str(item["tx"]) for item in objects("dump", left[0]) if item["type"] == "prepare")
    for words in (["tx", tx], ["key", "acc", "k7"], ["key", "acc", "k7", "--json"], ["tx", "--last", 5]):
        assert wal(*words, *left, "--jobs", 2).stdout == wal(*words, *left).stdout != ""


def test_several_processes_read_all_of_it(left: list[Path]) -> None:
    result = wal("dump", left[0], "--jobs", 2, "--last", 3)
    assert result.exit_code == 2
    assert "expected none of --follow, --reverse, --last and --limit beside it" in result.stderr


def test_several_directories_say_which_is_which(left: list[Path]) -> None:
    lines = wal("dump", *left, "--from-lsn", 1, "--to-lsn", 1).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["node=n1", "node=n2", "node=n3"]
    assert [item["node"] for item in objects("dump", *left[:2], "--to-lsn", 1)] == ["n1", "n2"]


def test_a_log_a_store_and_a_segment_can_be_named_by_themselves(left: list[Path]) -> None:
    whole = wal("dump", left[0]).stdout
    segment = left[0] / "wal" / list_segments(left[0] / "wal")[0].name
    for path in (left[0] / "wal", left[0] / "store", segment, f"{left[0]}/wal/"):
        assert wal("dump", path).stdout == whole


# The others.


def test_stat_counts_what_a_dump_shows(left: list[Path]) -> None:
    told = objects("dump", left[0])
    head, *rows = objects("stat", left[0])
    assert (head["node"], head["records"], head["last_lsn"]) == ("n1", len(told), told[-1]["lsn"])
    by_type = {row["type"]: row["records"] for row in rows if "type" in row}
    assert by_type == {kind: sum(item["type"] == kind for item in told) for kind in by_type}
    acc = next(row for row in rows if row.get("namespace") == "acc")
    assert (acc["updates"], acc["deletes"]) == (100 + 1 + 1 + 1, 1)
    assert len([row for row in rows if "partition" in row]) == 5
    assert wal("stat", left[0]).stdout.startswith("node=n1 segments=1 segment_bytes=")


def test_segments_lists_files_and_what_was_set_aside(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    (directory / "wal" / "00000000000000000001.wal.torn").write_bytes(b"torn")
    (row, aside) = objects("segments", directory)
    info = list_segments(directory / "wal")[0]
    assert (row["segment"], row["first_lsn"], row["last_lsn"], row["state"]) == (info.name, 1, info.last_lsn, "open")
    assert (aside["segment"], aside["bytes"], aside["state"]) == ("00000000000000000001.wal.torn", 4, "set-aside")


@pytest.mark.parametrize("verb", ["dump", "stat", "verify", "segments", "counters"])
def test_nothing_is_written(verb: str, left: list[Path], tmp_path: Path) -> None:
    directories = copies(left, tmp_path)
    before = files(directories)
    assert wal(verb, *directories).exit_code == 0
    assert files(directories) == before


@pytest.mark.parametrize("verb", ["dump", "stat", "verify", "segments", "counters"])
def test_what_cannot_be_read_is_told_in_a_line(verb: str, left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    newer = directory / "identity.json"
    newer.write_bytes(msgspec.json.encode(msgspec.json.decode(newer.read_bytes()) | {"format": 2}))
    for path, says in (
        (tmp_path / "nowhere", "is not a data directory: there is nothing"),
        (tmp_path / "file", "is not a segment of a log"),
        (tmp_path / "empty", "expected identity.json, wal and store, found none of them"),
        (directory, "has format 2, this version knows 1: upgrade foreshore"),
    ):
        result = wal(verb, path)
        assert (result.exit_code, result.stdout) == (3, "")
        assert says in result.stderr
        assert result.stderr.startswith("foreshore: ")


def test_arguments_that_cannot_be_meant_are_usage(left: list[Path]) -> None:
    for arguments, says in (
        (["dump", left[0], "--from-lsn", 9, "--to-lsn", 8], "expected a range"),
        (["dump", left[0], "--tx", "xyz"], "hexadecimal"),
        (["dump", left[0], "--partiton", 3], "--partition"),
        (["dump", left[0], "--partition", 70_000], "65534"),
        (["counters", left[0], left[0]], "both belong to node 'n1': name one directory per node"),
        (["dmp", left[0]], "dump"),
    ):
        result = wal(*arguments)
        assert result.exit_code == 2
        assert says in result.stderr


def test_several_logs_are_followed_in_the_order_of_time(left: list[Path]) -> None:
    counts = [len(wal("dump", path).stdout.splitlines()) for path in left]
    followed = wal("dump", *left, "--follow", "--limit", sum(counts))
    assert followed.exit_code == 0
    lines = [line.split() for line in followed.stdout.splitlines()]
    assert [sum(line[0] == f"node=n{n}" for line in lines) for n in (1, 2, 3)] == counts
    times = [line[2] for line in lines]
    assert times == sorted(times)


# Processes.


@pytest.mark.processes
def test_a_live_node_is_followed_and_not_disturbed(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as (node,):
        last = objects("dump", node.data)[-1]["lsn"]
        assert isinstance(last, int)
        with (
            subprocess.Popen(
                [
                    *FORESHORE,
                    "wal",
                    "dump",
                    str(node.data),
                    "--from-lsn",
                    str(last + 1),
                    "--type",
                    "update",
                    "--follow",
                    "--limit",
                    "3",
                ],
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env=environment(),
            ) as following,
            waiting(following, "end"),
        ):
            _write(node, 5)
            out, _ = following.communicate(timeout=PATIENCE_SECONDS)
        assert [line.split()[2] for line in out.splitlines()] == ["update"] * 3
        assert following.returncode == 0
        verified = foreshore("wal", "verify", node.data)
        assert verified.returncode == 0, verified.stdout
        assert "a node runs here" in verified.stdout
        counted = foreshore("wal", "counters", node.data)
        assert (counted.returncode, f"a node runs in {node.data}" in counted.stderr) == (0, True)


def _write(node: Node, keys: int) -> None:
    async def put() -> None:
        async with await aio.connect(node.address) as database:
            for at in range(keys):
                await database.namespace("acc").put(b"k%d" % at, b"v")

    asyncio.run(put())


@pytest.mark.processes
def test_a_reader_that_goes_away_ends_a_dump_quietly(left: list[Path]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [*FORESHORE, "wal", "dump", str(left[0])],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            env=environment(),
            timeout=PATIENCE_SECONDS,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.processes
def test_an_interrupt_is_no_traceback(left: list[Path]) -> None:
    with (
        subprocess.Popen(
            [*FORESHORE, "wal", "dump", str(left[0]), "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment(),
        ) as following,
        waiting(following, "end"),
    ):
        assert next_line(following, "record").startswith("lsn=1 ")
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=PATIENCE_SECONDS)
    assert (following.returncode, errors) == (130, "")


# Words.


@given(st.binary(max_size=50))
def test_a_word_is_printable_and_comes_back(data: bytes) -> None:
    said = word(data)
    assert said.isascii()
    assert said.isprintable()
    assert " " not in said
    assert bytes_of(said) == data


@given(st.text(max_size=50))
def test_a_clean_line_is_printable_and_printable_lines_are_left_alone(text: str) -> None:
    assert clean(text).isprintable()
    if text.isprintable():
        assert clean(text) == text
    quoted = '"' + "".join(c for c in text if c not in '"\\' and not 0xD800 <= ord(c) < 0xE000) + '"'
    assert msgspec.json.decode(clean(quoted).encode()) == quoted[1:-1]


def test_a_row_leaves_out_what_says_nothing_but_not_a_zero() -> None:
    row = {
        "node": "n1",
        "lwm": 0,
        "gaps": [],
        "in_doubt": None,
        "loading": False,
        "differs": True,
        "ranges": [[4, 1], [7, 2]],
    }
    assert plain(row) == "node=n1 lwm=0 differs ranges=(4,1),(7,2)"  # type: ignore[arg-type]  # a list of lists of ints
