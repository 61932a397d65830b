"""Directories of nodes that are written to: keys on their way are compared by what the log says of each moment."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from engine.offline.directory import read_directory
from engine.state.store import Entry
from tests.support.commands import FORESHORE, environment
from tests.support.directories import append, copies, replace
from tests.support.exposition import exposed
from tests.support.patience import PATIENCE_SECONDS, next_line, waiting
from tests.support.reconciled import NOW_MS, fragment_of
from tests.tools.reconcile.live import HOT, KEYS, check_beside_writers
from tools.reconcile import Report, check, in_this_process
from tools.reconcile.findings import KINDS
from tools.reconcile.plan import Share
from tools.reconcile.watch import metrics
from tools.wal.rows import DELETED, NOTHING, LogRows
from wal import records as r

A = TypeVar("A")
B = TypeVar("B")

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


class Later:
    """An engine; after the first comparison something happens to the directories."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.asked: list[Share] = []
        self._happens = happens

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        found = in_this_process(function, items)
        shares = [item for item in items if isinstance(item, Share)]
        if shares and not self.asked:
            self._happens()
        self.asked += shares
        return found


def test_what_was_unsettled_is_looked_at_again_and_nothing_else(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    written(directories, {"n1": [], "n2": [b"a"], "n3": [b"a"]})
    paths = [str(path) for path in directories]
    later = Later(lambda: written(directories, {"n1": [b"a"], "n2": [], "n3": []}))
    report = check(paths, engine=later, grace_seconds=3600, recheck=3)
    assert (report.exit_code, report.summary.unsettled.keys) == (0, 0)
    assert report.summary.keys == check([str(path) for path in stopped]).summary.keys
    assert [share.keys for share in later.asked] == [{}, {NAME: [KEY]}], "one look was enough"


def test_a_difference_that_a_second_look_finds_stands_in_its_place(stopped: list[Path], tmp_path: Path) -> None:
    """n3 has another value of the key than its log says, and of two keys beside it; the first look could not tell."""
    directories = copies(stopped, tmp_path)
    written(directories, {"n1": [], "n2": [b"a"], "n3": [b"a"]})
    with read_directory(directories[2]) as state:
        others = [key for key, _ in state.rows(NAME, lambda _key, _what: None)]
    beside: dict[bytes, Entry | None] = {key: Entry(1, 1, b"forged") for key in (others[0], others[-1]) if key != KEY}
    replace(directories[2], NAME, beside)

    def happens() -> None:
        written(directories, {"n1": [b"other"], "n2": [], "n3": []})

    report = check([str(path) for path in directories], engine=Later(happens), grace_seconds=3600, recheck=1)
    found = [(str(f.kind), f.key) for f in report.decoded() if f.key is not None]
    keys = [key for _, key in found]
    assert keys == sorted(keys, key=str)
    assert KEY.decode() in keys
    assert report.summary.kept == len(list(report.decoded())) == sum(report.summary.findings.values())
    assert report.summary.unsettled.keys == 0


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


@pytest.mark.processes
@pytest.mark.slow
def test_no_key_stays_uncompared_under_load(tmp_path: Path) -> None:
    """Three nodes that are written to all the while, hot keys among cold ones, and some deleted; no false alarm either."""
    found = check_beside_writers(tmp_path / "nodes", checks=2, rate=0)
    assert (found.checks, found.false_alarms, found.uncompared) == (2, 0, 0), str(found)
    assert found.keys_min > KEYS - HOT, "of the hot ones any may be deleted at that moment, of the others none"
    assert found.written > 0


def test_watching_costs_digests_and_serves_what_it_found(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    words = ["reconcile", "watch", *map(str, directories), "--every", "0", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*FORESHORE, *words], stdout=subprocess.PIPE, text=True)
    try:
        address = next_line(process, "address").split()[-1]
        assert " consistent findings=0 " in next_line(process, "verdict")
        replace(directories[2], NAME, {KEY: Entry(1, 1, b"forged")})
        line = next(line for line in iter(lambda: next_line(process, "difference"), "") if " differences " in line)
        assert " VERSION_MISMATCH=1 " in line
        where = urlsplit(address)
        silent = [socket.create_connection((where.hostname, where.port)) for _ in range(20)]
        with urllib.request.urlopen(f"{address}?x=1", timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
        for one in silent:
            one.settimeout(PATIENCE_SECONDS)
            assert one.recv(1) == b"", "who says nothing is hung up on"
            one.close()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address.removesuffix("metrics"), timeout=PATIENCE_SECONDS)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    samples = exposed(text)
    assert samples["foreshore_reconcile_findings"]['kind="VERSION_MISMATCH"'] == 1
    assert samples["foreshore_reconcile_verdict"]['verdict="differences"'] == 1
    assert samples["foreshore_reconcile_fragments_by_digest"][""] >= samples["foreshore_reconcile_fragments"][""] - 2
    assert samples["foreshore_reconcile_checks_total"][""] >= 2


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_who_is_told_to_end_leaves_no_file_and_no_process(stopped: list[Path], tmp_path: Path, name: str) -> None:
    """A timer of systemd, `timeout` or a closed terminal ends a check so: what lay in /tmp for it may be a whole log."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ["reconcile", "watch", *map(str, stopped), "--every", "0", "--listen", "127.0.0.1:0"]
    with (
        subprocess.Popen(
            [*FORESHORE, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(TMPDIR=str(temporary)),
        ) as process,
        waiting(process, "end"),
    ):
        next_line(process, "address")
        next_line(process, "verdict")
        assert list(temporary.iterdir()) != []
        process.send_signal(signal.Signals[name])
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (-signal.Signals[name], "foreshore: interrupted\n")
    assert list(temporary.iterdir()) == []


TOLD_TWICE = """
import os, signal
from tools.terminal import end_of, put_away

def command():
    try:
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        os.kill(os.getpid(), signal.SIGHUP)
        print("put away")

with put_away():
    end_of(command)
"""


def test_who_is_told_to_end_once_more_while_it_puts_away_what_it_began_does_so() -> None:
    """By a terminal that is closed: the kernel tells all, then the shell does; `timeout` tells its child, and its group."""
    ended = subprocess.run(
        [sys.executable, "-c", TOLD_TWICE], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGHUP, "put away\n")


def test_what_is_served_is_what_prometheus_reads(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    replace(directories[2], NAME, {KEY: Entry(1, 1, b"forged")})
    summary = check([str(path) for path in directories]).summary
    found = exposed(metrics(summary, 3, 1.25))
    assert set(found) == {
        f"foreshore_reconcile_{name}"
        for name in ("findings", "unsettled_keys", "keys", "fragments", "fragments_by_digest", "verdict", "seconds")
    } | {"foreshore_reconcile_checks_total"}
    assert found["foreshore_reconcile_findings"] == {f'kind="{k}"': summary.findings.get(k, 0) for k in KINDS}
    assert found["foreshore_reconcile_verdict"]['verdict="differences"'] == 1
    assert found["foreshore_reconcile_seconds"] == {"": 1.25}
