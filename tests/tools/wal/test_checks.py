"""`foreshore wal verify` and `counters`: what is damaged, where, and what to do; which copies differ."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.support.commands import damage_log, objects, wal
from tests.support.damages import DAMAGES
from tests.support.directories import copies, flip
from tests.support.reconciled import fragment_of
from tests.wal.logs import filled, update
from tests.wal.test_reader import footer_of, tell
from wal import Block, inspect, list_segments

# Verify.


def test_an_index_that_lies_is_found_by_logic_and_that_it_was_not_looked_for_is_said(tmp_path: Path) -> None:
    disk = filled([[update(n, 60)] for n in range(1, 61)])
    name = disk.names()[0]
    header, trailer, index = footer_of(disk, name)
    index.fragments["acc", 0].low = 2
    tell(disk, name, header, trailer, index)
    for one in disk.names():
        (tmp_path / one).write_bytes(disk.image(one))
    unsaid = "not checked: whether what it says can be, and its footers tell of all that is in it, with --logic"
    plain = wal("verify", tmp_path)
    assert (plain.exit_code, unsaid in plain.stdout) == (0, True)
    for jobs in (1, 2):
        looked = wal("verify", tmp_path, "--logic", "--jobs", str(jobs))
        assert (looked.exit_code, unsaid in looked.stdout) == (1, False)
        assert f"index segment={name}" in looked.stdout


def test_verify_of_whole_directories_says_what_was_checked(left: list[Path]) -> None:
    for reference in ([], ["--reference"]):
        result = wal("verify", *left, *reference)
        assert result.exit_code == 0
        assert result.stdout.count(": whole\n") == 3
    *_, last = objects("verify", left[0])
    assert last["verdict"] == "whole"
    checked = last["checked"]
    assert isinstance(checked, list)
    assert checked[0]["records"] == len(objects("dump", left[0]))


def test_verify_names_what_stands_in_a_log_and_is_none_of_its_files(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    log = directory / "wal"
    for ours in ("next.segment", "kept.json", "next.segment.tmp", "00000000000000000001.notes", "x.wal.lost.2"):
        (log / ours).touch()
    assert "not read" not in wal("verify", directory).stdout
    (log / "old segments").mkdir()
    (log / "foo.wal").write_bytes(b"?")
    for place in (directory, log):
        told = wal("verify", place, "--log-only")
        assert told.exit_code == 0, "a node passes over them, too"
        assert "not read, because no log has anything of this name: 'foo.wal', 'old segments'; a segment" in told.stdout
    *_, last = objects("verify", directory)
    assert "'foo.wal'" in str(last["notes"])
    assert "not read" not in wal("verify", directory, "--store-only").stdout


def test_verify_tells_where_a_log_is_damaged_and_what_to_do(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    name = damage_log(directory)
    result = wal("verify", directory)
    assert result.exit_code == 5
    assert f"{directory}: damaged segment={name} offset=256 lsn=1: " in result.stdout
    assert "costs the records from LSN 1" in result.stdout
    assert f"{directory}: DAMAGED. Stop the node, move {directory} away" in result.stdout
    assert f"`foreshore node start --data {directory} --accept-loss`" in result.stdout
    first, *_ = (msgspec.json.decode(line) for line in wal("verify", directory, "--json").stdout.splitlines())
    assert (first["finding"]["segment"], first["finding"]["offset"], first["finding"]["damage"]) == (name, 256, True)
    assert wal("verify", directory / "wal" / name).exit_code == 5


def test_a_torn_tail_is_no_damage_and_nobody_knows_from_here_whether_it_was_promised(
    left: list[Path], tmp_path: Path
) -> None:
    (directory,) = copies(left[:1], tmp_path)
    segment = directory / "wal" / list_segments(directory / "wal")[0].name
    whole = segment.read_bytes()
    blocks = [block for block in inspect(directory / "wal") if isinstance(block, Block)]
    (last,) = (block for block in blocks if b"\xc4\x02b2" in whole[block.offset : block.offset + block.bytes])
    torn = last.offset + last.bytes // 2  # of the last write, and what came to the log behind it, if anything did
    segment.write_bytes(whole[:torn] + bytes(len(whole) - torn))
    result = wal("verify", directory)
    assert result.exit_code == 4
    assert ": torn segment=" in result.stdout
    assert f"whether that was promised its peers know: `foreshore wal verify {directory} --against`" in result.stdout
    asked = wal("verify", "--against", directory, *left[1:])
    assert asked.exit_code == 4
    assert ": owes bank/14 counters=1..1: n2 has what is missing here; it may have been acknowledged" in asked.stdout

    begun = blocks[-1].offset + blocks[-1].bytes
    segment.write_bytes(whole[:begun] + b"\x01\x02\x03" + whole[begun + 3 :])  # of a block that nobody was told of
    assert wal("verify", directory).exit_code == 4
    asked = wal("verify", "--against", directory, *left[1:])
    assert asked.exit_code == 0, asked.stdout
    assert "against n2, n3: nothing lost" in asked.stdout


def test_verify_tells_which_rows_of_a_store_are_damaged(checkpointed: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(checkpointed[:1], tmp_path)
    assert flip(directory, b"value of k301.")
    result = wal("verify", directory)
    assert result.exit_code == 5
    assert "key b'k301'" in result.stdout
    assert "DAMAGED" in result.stdout


def test_verify_walks_the_pages_before_anything_trusts_them(checkpointed: list[Path], tmp_path: Path) -> None:
    first, second = copies(checkpointed[:2], tmp_path)
    with (first / "store" / "data.mdb").open("r+b") as file:
        file.truncate(20_000)
    (second / "store" / "data.mdb").write_bytes(b"no store at all")
    for directory in (first, second):
        result = wal("verify", directory)
        assert result.exit_code == 5, result.stdout
        assert f"{directory}: damaged " in result.stdout
        counted = wal("counters", directory)
        assert (counted.exit_code, counted.stdout) == (5, "")


def test_a_log_that_does_not_reach_its_store_is_damage(checkpointed: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(checkpointed[:1], tmp_path)
    for file in (directory / "wal").iterdir():
        file.unlink()
    result = wal("verify", directory)
    assert result.exit_code == 6
    assert "has no segment: a node that was ever started has one" in result.stdout
    assert "the checkpoint ends at LSN" in wal("counters", directory).stderr
    (directory / "wal").rmdir()
    assert "has no log: expected its directory wal" in wal("verify", directory).stdout


# Counters.


def test_copies_that_agree_are_not_marked(left: list[Path]) -> None:
    rows = objects("counters", *left)
    assert {row["node"] for row in rows} == {"n1", "n2", "n3"}
    assert all(row["copy"] == "OWNING" and not row["differs"] and row["gaps"] == [] for row in rows)
    by_fragment: dict[object, set[object]] = {}
    for row in rows:
        by_fragment.setdefault(row["fragment"], set()).add((row["lwm"], row["digest"]))
    assert all(len(stands) == 1 for stands in by_fragment.values())
    assert " differing=0" in wal("counters", *left).stderr
    _, partition = fragment_of(b"k3")
    some = objects("counters", *left, "--namespace", "acc", "--partition", partition)
    assert [row["fragment"] for row in some] == [f"acc/{partition}"] * 3


def test_gaps_and_who_holds_them_are_shown_and_copies_that_differ_are_marked(left: list[Path], tmp_path: Path) -> None:
    directories = copies(left, tmp_path)
    DAMAGES["a transaction in doubt"].do(tmp_path)
    name = "{}/{}".format(*fragment_of(b"k320"))
    result = wal("counters", *directories)
    assert result.exit_code == 1
    marked = [line for line in result.stdout.splitlines() if line.endswith(" differs")]
    assert [line.split()[:2] for line in marked] == [[f"fragment={name}", f"node={node}"] for node in ("n1", "n2", "n3")]
    assert " gaps=(" in marked[0]
    assert f" in_doubt={b'in doubt for now'.hex()} " in marked[0]
    assert " gaps=" not in marked[2]
    assert " differing=1" in result.stderr
    limited = wal("counters", *directories, "--limit", 1)
    assert (limited.exit_code, len(limited.stdout.splitlines())) == (1, 1), "what is not shown is still compared"


def test_directories_of_two_clusters_are_not_compared(left: list[Path], tmp_path: Path) -> None:
    directories = copies(left[:2], tmp_path)
    identity = directories[1] / "identity.json"
    identity.write_bytes(msgspec.json.encode(msgspec.json.decode(identity.read_bytes()) | {"cluster": "other"}))
    result = wal("counters", *directories)
    assert (result.exit_code, "clusters foreshore, other" in result.stderr) == (2, True)


def test_a_part_of_a_directory_is_checked_by_itself_if_that_is_said(checkpointed: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(checkpointed[:1], tmp_path)
    for part, option in (("wal", "--log-only"), ("store", "--store-only")):
        told = wal("verify", directory / part).stdout
        assert f"this is all of {directory}, of which a part was named: {option} checks that alone" in told
        assert "store_lsn=" in told
        assert told.endswith(": whole\n")
    alone = wal("verify", directory, "--log-only").stdout
    assert "store_lsn=" not in alone
    assert alone.endswith(": the log by itself is whole\n")
    assert "log=" not in wal("verify", directory, "--store-only").stdout
    assert flip(directory, b"value of k301.") > 0
    assert [wal("verify", directory, *only).exit_code for only in ([], ["--log-only"], ["--store-only"])] == [5, 0, 5]
    damage_log(directory)
    assert wal("verify", directory, "--log-only").exit_code == 5
    (segment, *_) = sorted((directory / "wal").glob("*.wal"))
    refused = wal("verify", segment, "--store-only")
    assert (refused.exit_code, refused.stdout) == (3, ""), "nothing of it was checked, so nothing is whole"
    for beside in ("--store-only", "--logic", "--audit"):
        refused = wal("verify", directory, "--log-only", beside)
        assert refused.exit_code == 2
        assert "check one of the two by itself" in refused.stderr
