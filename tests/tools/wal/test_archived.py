"""Directories whose old segments are archives: every question has the answer that it has where they are segments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.turn.settings import Settings
from tests.support.commands import objects, wal
from tests.support.directories import archive, build, copies
from tests.support.reconciled import PARTITIONS, story
from tools.reconcile import check
from wal import list_segments, read


@pytest.fixture(scope="session")
def in_segments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The directories of three nodes that were stopped, with small segments."""
    settings = Settings(partitions=PARTITIONS, wal_segment_bytes=8 << 10)
    return build(tmp_path_factory.mktemp("segments"), story, settings=settings, stop=True)


@pytest.fixture(scope="session")
def archived(in_segments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same with archives, but for the last segment of each."""
    directories = copies(in_segments, tmp_path_factory.mktemp("archives"))
    for directory in directories:
        archive(directory)
    return directories


def said(verb: str, directories: Sequence[Path], *arguments: object) -> tuple[int, str, str]:
    """The exit code and what is said, but for where the directories are and what segments are called."""
    result = wal(verb, *arguments, *directories)
    out, errors = (
        text.replace(str(directories[0].parent), "").replace(".walz", ".wal") for text in (result.stdout, result.stderr)
    )
    return result.exit_code, out, errors


def test_the_old_segments_are_archives(in_segments: list[Path], archived: list[Path]) -> None:
    for plain, twin in zip(in_segments, archived, strict=True):
        infos = list_segments(twin / "wal")
        assert len(infos) > 3
        assert [info.archived for info in infos] == [True] * (len(infos) - 1) + [False]
        assert [info.first_lsn for info in infos] == [info.first_lsn for info in list_segments(plain / "wal")]


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("dump", []),
        ("dump", ["--json", "--values", "full", "--jobs", 2]),
        ("dump", ["--reverse", "--type", "prepare"]),
        ("dump", ["--key", "k3", "--from-lsn", 20]),
        ("key", ["acc", "k3"]),
        ("key", ["acc", "k5", "--json"]),
        ("tx", ["--last", 5]),
        ("tx", ["--last", 2, "--json"]),
        ("counters", []),
        ("history", []),
        ("verify", ["--logic", "--audit"]),
        ("verify", ["--logic", "--jobs", 2]),
    ],
)
def test_every_question_has_the_same_answer(
    verb: str, arguments: list[object], in_segments: list[Path], archived: list[Path]
) -> None:
    known = said(verb, in_segments, *arguments)
    assert known[0] == 0
    assert known[1]
    assert _less(verb, said(verb, archived, *arguments)) == _less(verb, known)


def _less(verb: str, told: tuple[int, str, str]) -> tuple[int, str, str]:
    """History says how many bytes would be read, which is what archives are for."""
    return (told[0], re.sub(r" bytes=\d+", "", told[1]), told[2]) if verb == "history" else told


def test_a_log_does_not_differ_from_its_archives(in_segments: list[Path], archived: list[Path]) -> None:
    result = wal("diff", in_segments[0], archived[1])
    assert result.exit_code == 0
    assert result.stderr.endswith(" differing=0\n")
    assert result.stdout == wal("diff", *in_segments[:2]).stdout
    counted = [objects("stat", directory)[1:] for directory in (in_segments[0], archived[0])]
    assert counted[0] == counted[1]


def test_a_reconciliation_reads_both(in_segments: list[Path], archived: list[Path]) -> None:
    mixed = check([str(path) for path in (in_segments[0], *archived[1:])])
    plain = check([str(path) for path in in_segments])
    assert (mixed.exit_code, mixed.findings_bytes()) == (plain.exit_code, plain.findings_bytes()) == (0, b"")


@pytest.mark.parametrize("where", [0.2, 0.5, 0.8])
def test_damage_in_an_archive_says_which_records_it_costs(where: float, archived: list[Path], tmp_path: Path) -> None:
    """As damage in a segment does; what it names is what is not there, and nothing else is missing."""
    (directory,) = copies(archived[:1], tmp_path)
    info = list_segments(directory / "wal")[1]
    known = {block.first_lsn + at for block in read(directory / "wal") for at in range(len(block.records))}
    file = directory / "wal" / info.name
    data = bytearray(file.read_bytes())
    data[int(where * len(data))] ^= 1
    file.write_bytes(data)
    result = wal("dump", directory)
    assert result.exit_code == 5
    assert f"damaged segment={info.name} " in result.stderr
    lost = known - {int(line.partition(" ")[0].removeprefix("lsn=")) for line in result.stdout.splitlines()}
    told = {
        lsn
        for first, last in re.findall(r"the records from LSN (\d+) to (\d+)", result.stderr)
        for lsn in range(int(first), int(last) + 1)
    }
    assert lost == told
    assert lost == set(range(min(lost), max(lost) + 1))
    assert info.first_lsn <= min(lost)
    assert max(lost) <= info.last_lsn
    verified = wal("verify", directory)
    assert verified.exit_code == 5
    assert "DAMAGED" in verified.stdout


def test_an_archive_that_is_gone_is_a_missing_segment(archived: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(archived[:1], tmp_path)
    info = list_segments(directory / "wal")[1]
    (directory / "wal" / info.name).unlink()
    result = wal("verify", directory)
    assert result.exit_code == 6
    assert f"the records from LSN {info.first_lsn} to {info.last_lsn}" in result.stdout
