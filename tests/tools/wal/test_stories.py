"""`foreshore wal key` and `wal tx` over real directories: what they find, and how little they read for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.commands import objects, wal
from tests.support.counting_disk import CountingDisk
from tests.support.directories import append, copies, zero_last_blocks
from tests.support.memory_disk import MemoryDisk
from tests.support.reconciled import NOW_MS, fragment_of
from tests.wal.logs import open_log
from tests.wal.test_parts import written
from tools.wal.copy_at_rest import AtRest
from tools.wal.story import Story
from wal import Block, DirectoryDisk, LogSettings, inspect, read
from wal.footer import speaking_of
from wal.ids import partition_of
from wal.records import (
    EpochStart,
    Forget,
    FragmentClear,
    FragmentReady,
    Outcome,
    Preload,
    Prepare,
    Record,
    Update,
    Write,
)
from wal.summary import SUMMARY_FROM_BYTES


def told(*arguments: object) -> list[dict[str, Any]]:
    """What a story says in JSON, whatever its exit code."""
    return [msgspec.json.decode(line) for line in wal(*arguments, "--json").stdout.splitlines()]


# A key.


def test_a_key_is_told_with_its_transaction_on_every_node(left: list[Path]) -> None:
    *rows, last = told("key", "acc", "k1", *left)
    verdict = last["verdict"]
    assert [row["change"]["op"] for row in rows] == ["put", "put"]
    first, second = (row["change"] for row in rows)
    assert not first["prepared"]
    assert second["prepared"]
    assert {seen["node"] for seen in second["seen"]} == {"n1", "n2", "n3"}
    assert all(seen["stands_from"] > seen["lsn"] for seen in second["seen"]), "it stands from its outcome on"
    assert verdict["last"]["tx"] == second["tx"]
    assert (verdict["differ"], set(verdict["stands"].values())) == ([], {f"1.{second['counter']}"})
    lines = wal("key", "acc", "k1", *left, "--values", "full").stdout.splitlines()
    assert r"put 16B:of\x20a\x20transaction" in lines[1]
    assert lines[-1].endswith(" stands on n1, n2, n3")


def test_a_deleted_key_was_something_before(left: list[Path]) -> None:
    changes = [row["change"] for row in told("key", "acc", "k7", *left) if "change" in row]
    assert [change["op"] for change in changes] == ["put", "delete"]
    then = wal("key", "acc", "k7", left[0], "--at", f"1.{changes[1]['counter'] - 1}", "--values", "full").stdout
    assert r"put 12B:value\x20of\x20k7." in then
    (seen,) = [seen for seen in changes[1]["seen"] if seen["node"] == "n1"]
    assert "put 12B" in wal("key", "acc", "k7", left[0], "--at", seen["lsn"] - 1).stdout
    assert " delete " in wal("key", "acc", "k7", left[0], "--at", seen["lsn"]).stdout
    assert " delete " in wal("key", "acc", "k7", left[0], "--at", "-0s").stdout
    assert "nothing here tells" in wal("key", "acc", "k7", left[0], "--at", "2001-01-01").stdout


def test_a_copy_that_lost_a_write_is_named_with_where_it_parts(left: list[Path], tmp_path: Path) -> None:
    directories = copies(left, tmp_path)
    _, partition = fragment_of(b"k1")
    write = Write("acc", partition, 1, 100, [b"k1"], [b"only here"], 100, b"t" * 16)
    append(directories[1], [Update([write])], now_ms=NOW_MS)
    result = wal("key", "acc", "k1", *directories)
    assert result.exit_code == 1
    before = told("key", "acc", "k1", left[0])[-1]["verdict"]["stands"]["n1"]
    name = f"acc/{partition} key k1"
    assert result.stdout.splitlines()[-3:-1] == [
        f"{name}: DIFFERS on {node}: {before} (put 16B) stands there" for node in ("n1", "n3")
    ]
    assert "parts at 1.101, which n2 has in LSN " in result.stdout.splitlines()[-1]
    assert result.stdout.splitlines()[-1].endswith(" and n1, n3 has not")


def test_what_the_log_does_not_reach_is_what_the_store_has(checkpointed: list[Path]) -> None:
    change = told("key", "acc", "k1", checkpointed[0])[0]["change"]
    assert change["op"] == "put"
    assert wal("key", "acc", "k1", *checkpointed).exit_code == 0


# How little is read.


def test_a_story_reads_footers_and_the_blocks_that_they_name() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=1 << 16, total_bytes=1 << 24))
    counters = [0] * 64
    for n in range(6_000):
        key = b"key-%d" % (n % 3_000)
        at = partition_of(key, 64)
        log.append([Update([Write("acc", at, 1, counters[at], [key], [b"v" * 100])])], now_ms=n, durable=False)
        counters[at] += 1
    at = partition_of(b"key-7", 64)
    transfer: list[Record] = [FragmentClear("acc", at, "behind"), Preload("acc", at, [1], [1], [b"key-7"], [b"came"])]
    log.append([*transfer, FragmentReady("acc", at, 1, 0, [(1, 1)], True)], now_ms=7_000, durable=True)
    for n in range(2_000):
        log.append([Update([Write("acc", (at + 1) % 64, 1, 9_000 + n, [b"x"], [b"v" * 100])])], now_ms=n, durable=False)
    log.close()
    whole, few = CountingDisk(disk), CountingDisk(disk)
    stories: list[Story] = []
    for counted, ask in ((whole, None), (few, speaking_of([("acc", at)]))):
        story = Story(("acc", at), b"key-7", keep=True)
        reading = story.reading("n1", AtRest())
        for found in inspect(counted, choose=reading.choose, ask=ask):
            assert isinstance(found, Block)
            reading.take(found)
        reading.end()
        stories.append(story)
    scanned, read = ([(change.name, [seen.lsn for seen in change.seen]) for change in story.changes] for story in stories)
    assert scanned == read
    assert [event.what for event in stories[1].events] == ["cleared: behind", "caught up in full to counter 1"]
    assert stories[1].readings["n1"].stands is not None
    assert few.bytes_read < whole.bytes_read / 5


def test_a_story_out_of_parts_of_blocks_is_that_of_all_of_them() -> None:
    """Of updates, and of prepares that another block commits or rolls back."""
    disk, log, _ = written()
    log.close()
    keys: dict[tuple[bool, int], list[bytes]] = {}
    for block in read(disk):
        for record in block.records:
            for write in record.writes if isinstance(record, Update | Prepare) else ():
                keys.setdefault((isinstance(record, Prepare), write.partition), []).append(write.keys[0])
    told = 0
    for (prepared, at), some in sorted(keys.items()):
        for key in some[:: 1 + len(some) // 2] if at % 7 == 0 or prepared else ():
            stories = [_story(disk, at, key, by_parts=by_parts) for by_parts in (False, True)]
            assert stories[0] == stories[1] != []
            told += 1
    assert told > 60


def _story(disk: MemoryDisk, at: int, key: bytes, *, by_parts: bool) -> list[object]:
    story = Story(("acc", at), key, keep=True)
    reading = story.reading("n1", AtRest())
    by_index = reading.ask.__self__._spoken_of  # type: ignore[attr-defined]
    for found in inspect(disk, choose=reading.choose, ask=by_index if by_parts else None):
        assert isinstance(found, Block)
        reading.take(found)
    reading.end()
    return [(change.name, change.prepared, change.value, change.seen) for change in story.changes]


# A transaction.


def test_a_transaction_is_told_from_its_votes_to_its_end(left: list[Path]) -> None:
    prepared = next(item for item in objects("dump", left[0], "--type", "prepare"))
    tx = str(prepared["tx"])
    (whole,) = told("tx", tx, *left)
    assert (whole["end"], whole["where"]) == ("committed", "everywhere")
    steps = [(step["what"], step["node"]) for step in whole["steps"]]
    for what in ("prepare", "commit"):
        assert sorted(node for said, node in steps if said == what) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    assert sorted(node for said, node in steps if said == "decide") == ["n1", "n2", "n3"]
    assert [step["time_ms"] for step in whole["steps"]] == sorted(step["time_ms"] for step in whole["steps"])
    assert told("tx", tx[:24], *left, "--last", 1) == told("tx", tx[:24], *left, "--last", 1)
    lines = wal("tx", tx.upper(), *left).stdout.splitlines()
    assert lines[-1] == f"tx={tx}: committed everywhere"


def test_a_beginning_or_the_last_so_many_find_a_transaction(left: list[Path]) -> None:
    tx = str(next(item for item in objects("dump", left[0], "--type", "prepare"))["tx"])
    assert tx in {one["tx"] for one in told("tx", tx[:21], *left)}, "also half a byte"
    newest = told("tx", "--last", 2, *left)
    assert len(newest) == 2
    result = wal("tx", tx[:20], *left)
    assert result.exit_code == 0
    assert wal("tx", "f" * 32, *left).exit_code == 1


def forgetting_log(path: Path, *, segment_bytes: int) -> Path:
    """A session's transactions, some of them prepared, and what partitions forget of it, in many segments or few."""
    log = open_log(DirectoryDisk(path), LogSettings(segment_bytes=segment_bytes, total_bytes=1 << 26))
    counters = [0] * 8
    for n in range(6_000):
        at, tx = n % 8, b"session---" + n.to_bytes(6, "big")
        write = Write("acc", at, 1, counters[at], [b"key-%d" % n], [b"v" * 200], 0, tx)
        counters[at] += 1
        prepare = Prepare(tx, at, 1, [write], [], [at, (at + 1) % 8], at)
        records: list[Record] = [Update([write])] if n % 5 else [prepare]
        if n % 5 == 0 and n % 10:
            records.append(Outcome(tx, at, 1, True, [("acc", write.start, 1)]))
        if n % 400 == 399:
            records += [Forget(partition, 1, [(b"session---", n)]) for partition in (n // 400 % 8, 5)]
        if n == 5_500:
            records += [EpochStart(partition, 2, []) for partition in range(4)]
        log.append(records, now_ms=NOW_MS + n, durable=False)
    log.close()
    return path


@pytest.mark.parametrize("n", [7, 1_005, 1_010, 3_013, 5_992])
def test_a_transaction_is_told_alike_by_footers_and_without_and_each_partition_forgets_it_once(
    n: int, tmp_path: Path
) -> None:
    small, large = (forgetting_log(tmp_path / str(size), segment_bytes=size) for size in (64 << 10, SUMMARY_FROM_BYTES))
    tx = (b"session---" + n.to_bytes(6, "big")).hex()
    without, by_footers = (
        msgspec.json.decode(wal("tx", tx, log, "--json").stdout.replace(str(log), "n1")) for log in (small, large)
    )
    assert by_footers == without
    forgotten = [step["partition"] for step in by_footers["steps"] if step["what"] == "forgotten"]
    assert len(forgotten) == len(set(forgotten))
    assert {*forgotten} <= {n % 8, (n + 1) % 8}
    assert {"prepare", "update"} & {step["what"] for step in by_footers["steps"]}
    assert by_footers["end"] == ("committed" if n % 10 else "unknown" if n % 8 < 4 else "in doubt")


def test_a_transaction_whose_outcome_is_lost_is_in_doubt_there(left: list[Path], tmp_path: Path) -> None:
    directories = copies(left, tmp_path)
    tx = str(next(item for item in objects("dump", left[0], "--type", "prepare"))["tx"])
    outcomes = [item for item in told("dump", left[2], "--type", "outcome") if item["tx"] == tx]
    behind = len([1 for block in _blocks(left[2]) if block >= outcomes[0]["lsn"]])
    zero_last_blocks(directories[2], behind)
    result = wal("tx", tx, *directories)
    assert result.stdout.splitlines()[-1].startswith(f"tx={tx}: in doubt on n3:p")
    assert result.exit_code in {1, 4}


def _blocks(directory: Path) -> list[int]:
    return [found.last_lsn for found in inspect(directory / "wal") if isinstance(found, Block)]


@pytest.mark.parametrize("verb", [["key", "acc", "k1"], ["tx", "--last", "3"]])
def test_stories_write_nothing_and_say_what_is_damaged(verb: list[str], left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    before = {path: path.read_bytes() for path in directory.rglob("*.wal")}
    assert wal(*verb, directory).exit_code == 0
    assert {path: path.read_bytes() for path in directory.rglob("*.wal")} == before
    (segment,) = before
    data = bytearray(before[segment])
    data[300] ^= 1
    segment.write_bytes(data)
    result = wal(*verb, directory)
    assert result.exit_code == 5
    assert "damaged segment=" in result.stderr


def _opened(of: Path) -> list[str]:
    """The files of directories that this process has open; what other tests have left running opens sockets at any time."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was the one that lists them
            found.append(os.readlink(descriptor))
    return [file for file in found if Path(file).is_relative_to(of)]


def test_readers_give_back_what_they_open(left: list[Path]) -> None:
    verbs = (["dump"], ["dump", "--last", 1], ["dump", "--limit", 1], ["stat"], ["segments"], ["verify"], ["history"])
    stories = (["key", "acc", "k1"], ["tx", "--last", 1], ["diff", left[1]])
    with next(left[0].rglob("*.wal")).open("rb") as file:
        assert _opened(left[0].parent) == [file.name], "what is open is found"
    for verb in (*verbs, *stories):
        for _ in range(3):
            assert wal(*verb, left[0]).exit_code == 0
        assert _opened(left[0].parent) == [], verb


def test_an_id_is_taken_as_an_application_was_told_it(left: list[Path]) -> None:
    """`Transaction.id` and the errors end in the partition that decides."""
    name = str(next(item for item in objects("dump", left[0], "--type", "prepare"))["tx"])
    assert wal("tx", f"{name}@7", *left).stdout == wal("tx", name, *left).stdout != ""
    assert wal("dump", "--tx", f"{name}@12", left[0]).stdout == wal("dump", "--tx", name, left[0]).stdout
    assert wal("tx", f"{name}@x", *left).exit_code == 2


def test_a_partition_that_the_key_is_not_in_is_told_from_a_key_that_never_was(left: list[Path]) -> None:
    right = wal("key", "acc", "k1", left[0])
    there = int(right.stdout.splitlines()[-1].split("/")[1].split(" ")[0])
    wrong = wal("key", "acc", "k1", "--partition", there + 1, left[0])
    assert wrong.exit_code == 1
    assert f"this key is in partition {there}: without --partition it is looked for there" in wrong.stderr
    assert "in partition" not in wal("key", "acc", "never", left[0]).stderr


def test_whoever_names_the_directory_of_data_directories_is_told_which_are_in_it(left: list[Path]) -> None:
    for verb in (["verify"], ["tx", "abcd"]):
        result = wal(*verb, left[0].parent)
        assert result.exit_code == 3
        assert result.stderr.endswith(f"; did you mean {' '.join(map(str, left))}?\n")
