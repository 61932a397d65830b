"""Who reads stores may die of a bad page, and the check goes on; equal digests cost no rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import read_directory
from tests.support.damages import DAMAGES
from tests.support.directories import append, copies
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reconciled import NOW_MS, fragment_of
from tools.reconcile import check, in_this_process
from tools.reconcile.children import NICENESS, InChildren, WorkerDied
from tools.reconcile.copies import Level
from tools.reconcile.plan import Share
from tools.reconcile.share import check_share
from tools.reconcile.task import ShareResult
from wal import records as r

A = TypeVar("A")
B = TypeVar("B")


def squared(number: int) -> int:
    """A task: some of them fail in the ways that tasks fail."""
    match number:
        case -1:
            os.kill(os.getpid(), signal.SIGKILL)
        case -2:
            raise UsageError("a mistake of the caller")
        case -3:
            raise CorruptionError("a damaged file")
    return number * number


def test_children_say_what_one_process_says_in_the_order_of_the_list() -> None:
    for at_once in (1, 3, 100):
        assert list(InChildren(at_once)(squared, range(20))) == in_this_process(squared, range(20))
    assert list(InChildren()(squared, [])) == []


def niceness(_: int) -> int:
    """A task: how willingly it waits."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_children_wait_for_nodes_that_run_beside_them() -> None:
    assert list(InChildren(2)(niceness, range(3))) == [min(19, niceness(0) + NICENESS)] * 3


def test_what_ends_a_child_is_told() -> None:
    with pytest.raises(WorkerDied, match="ended by SIGKILL"):
        list(InChildren(2)(squared, [1, -1, 2]))
    with pytest.raises(UsageError, match="a mistake of the caller"):
        list(InChildren()(squared, [1, -2]))
    with pytest.raises(CorruptionError, match="a damaged file"):
        list(InChildren()(squared, [-3]))


INTERRUPTED = """
import os, signal
from tests.tools.reconcile.test_scale import squared
from tools.reconcile.children import InChildren, uninterrupted
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    list(InChildren()(squared, [-1, -2]))
except KeyboardInterrupt:
    print("a check was interrupted")
try:
    with uninterrupted():
        if not os.fork():
            os._exit(0)
except KeyboardInterrupt:
    print("a fork was interrupted")
"""


def test_an_interrupt_that_comes_while_a_process_forks_is_heard() -> None:
    """Python drops what is raised by a hook at a fork: one `foreshore reconcile watch` in twenty went on after Ctrl-C."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (ended.stdout, ended.stderr) == ("a check was interrupted\na fork was interrupted\n", "")


class Fragile:
    """An engine whose worker dies whenever it would read the store of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        for item in items:
            if isinstance(item, Share) and self._directory in item.directories.values():
                raise WorkerDied("a page was bad")
        return in_this_process(function, items)


def test_a_worker_that_dies_of_a_bad_page_costs_that_directory_and_no_other(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    with (directories[1] / "store" / "data.mdb").open("r+b") as file:
        for page in range(3, file.seek(0, os.SEEK_END) // 4096):
            file.seek(page * 4096 + 10)
            file.write(b"\xff" * 6)  # flags, and where the page's free space is
    report = check([str(path) for path in directories], engine=Fragile(directories[1]))
    assert [(f.kind, f.on, f.key) for f in report.decoded()] == [
        ("UNREADABLE", ["n2"], None),
        ("VALUE_MISMATCH", ["n1"], "k302"),
    ]
    assert f"{directories[1]} cannot be read" in report.summary.incomplete
    with pytest.raises(WorkerDied):
        check([str(path) for path in stopped], engine=Fragile(stopped[0]))


def test_children_give_the_same_report(stopped: list[Path], tmp_path: Path) -> None:
    DAMAGES["several rows"].do(copies(stopped, tmp_path)[0].parent)
    directories = [str(tmp_path / path.name) for path in stopped]
    here = check(directories, engine=in_this_process)
    there = check(directories, engine=InChildren(2), shares=3)
    assert (here.findings_bytes(), here.summary_bytes()) == (there.findings_bytes(), there.summary_bytes())


class NoRows:
    """An engine that counts the keys that were read."""

    def __init__(self) -> None:
        self.keys = 0

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        found = in_this_process(function, items)
        if function is check_share:
            self.keys += sum(t.keys for x in found if isinstance(x, ShareResult) for t in x.counts.namespaces.values())
        return found


def test_equal_digests_cost_no_rows_and_the_report_says_so(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    counted = NoRows()
    report = check([str(path) for path in directories], level=Level.DIGEST, engine=counted)
    summary = report.summary
    assert (report.exit_code, counted.keys, summary.keys) == (0, 0, 0)
    assert summary.by_digest == summary.fragments == check([str(path) for path in stopped]).summary.fragments
    assert summary.level is Level.DIGEST


@pytest.mark.parametrize(
    "name", ["a forged value", "several rows", "a copy one counter behind", "a fragment that is gone from one store"]
)
def test_what_differs_in_its_digests_is_found_by_them(name: str, stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES[name].do(tmp_path)
    paths = [str(path) for path in directories]
    whole, brief = check(paths), check(paths, level=Level.DIGEST)
    assert brief.findings_bytes() == whole.findings_bytes()
    assert 0 < brief.summary.by_digest < brief.summary.fragments


def test_what_was_applied_since_a_checkpoint_counts_in_its_digest(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    name = fragment_of(b"k347")
    for directory in directories:
        with read_directory(directory) as state:
            before = state.contents(name)
            lwm, epoch = state.fragments[name].counter.lwm, state.partitions[name[1]].epoch
        append(directory, [r.Update([r.Write(*name, epoch, lwm, [b"k347"], [b"new"])])], now_ms=NOW_MS)
        with read_directory(directory) as state:
            assert state.contents(name) not in (before, None)
    report = check([str(path) for path in directories], level=Level.DIGEST)
    assert (report.exit_code, report.summary.by_digest) == (0, report.summary.fragments)
