"""Directories of nodes that are written to: keys on their way are compared by what the log says of each moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.offline.directory import read_directory
from engine.state.store import Entry
from tests.support.directories import append, copies, replace
from tests.support.reconciled import NOW_MS, fragment_of
from tools.reconcile import Report, check
from tools.wal.rows import DELETED, NOTHING, LogRows
from wal import records as r

KEY = b"k348"
NAME = fragment_of(KEY)


def written(directories: list[Path], values: dict[str, list[bytes | None]]) -> None:
    """More updates of one key, of which some nodes have more than others."""
    for directory in directories:
        with read_directory(directory) as state:
            lwm, epoch = state.fragments[NAME].counter.lwm, state.partitions[NAME[1]].epoch
        for at, value in enumerate(values[directory.name]):
            append(directory, [r.Update([r.Write(*NAME, epoch, lwm + at, [KEY], [value])])], now_ms=NOW_MS)
        append(directory, [r.Checkpoint(0)], now_ms=NOW_MS)


def checked(directories: list[Path]) -> Report:
    return check([str(path) for path in directories], grace_seconds=3600)


@pytest.mark.parametrize(
    "values",
    [
        {"n1": [b"a", b"b"], "n2": [b"a"], "n3": []},
        {"n1": [b"a", None, b"c"], "n2": [b"a", None], "n3": [b"a"]},
        {"n1": [None], "n2": [], "n3": [None]},
    ],
)
def test_a_key_that_is_written_meanwhile_is_compared_at_each_copys_own_counter(
    values: dict[str, list[bytes | None]], stopped: list[Path], tmp_path: Path
) -> None:
    directories = copies(stopped, tmp_path)
    written(directories, values)
    report = checked(directories)
    assert (report.exit_code, report.summary.unsettled.keys) == (0, 0)
    assert report.summary.keys == check([str(path) for path in stopped]).summary.keys


def test_what_the_asked_log_does_not_have_yet_stays_unsettled(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    written(directories, {"n1": [], "n2": [b"a"], "n3": [b"a"]})
    report = checked(directories)
    assert (report.exit_code, report.summary.unsettled.keys) == (0, 1)


def test_a_copy_that_is_not_what_the_log_says_is_never_called_settled(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    replace(directories[2], NAME, {KEY: Entry(1, 1, b"forged")})
    written(directories, {"n1": [b"a"], "n2": [b"a"], "n3": []})
    report = checked(directories)
    assert (report.summary.findings, report.summary.unsettled.keys) == ({}, 1)


def test_a_log_that_went_on_since_its_directory_was_folded_tells_of_later_updates_and_judges_no_row_by_them() -> None:
    def write(start: int, value: bytes | None) -> r.Update:
        return r.Update([r.Write(*NAME, 1, start, [KEY], [value])])

    log = LogRows(lambda _: True, {NAME: 1})
    log.take([write(0, b"a"), write(1, b"b")])
    log.beyond = True
    log.take([write(2, None), write(3, b"d")])
    rows = log.fragments[NAME]
    assert rows.judge(KEY, Entry(1, 2, b"b"), 0) == "", "the store was folded with no more than that"
    said = [rows.at(KEY, lambda counter, lwm=lwm: counter <= lwm, 0) for lwm in range(1, 5)]  # type: ignore[misc]
    assert [(one.counter, one.value != DELETED) for one in said if one] == [(1, True), (2, True), (3, False), (4, True)]
    assert rows.at(b"other", lambda _: True, 0) == NOTHING
    assert rows.at(b"other", lambda _: True, 7) is None, "it may have been written before this log begins"
    log.take([r.EpochStart(NAME[1], 2, [(NAME[0], 3)])])
    assert rows.at(KEY, lambda _: True, 0) == said[1], "what the next epoch does not continue was never said"
    log.take([r.FragmentClear(*NAME, "moved")])
    assert NAME not in log.fragments
