"""The whole way beside nodes that run and are written to: damage, check, plan, apply, and copies that agree.

The stores of running nodes are damaged behind their backs. Whoever applies is killed at random moments and begins again,
and so is a node. What cannot be done while they run is said, and done while they are stopped.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec
import pytest

import engine
from engine.state.store import Entry
from engine.state.store_envelope import ROWS, fragment_key, seal_rows
from tests.support.commands import FORESHORE, Node, environment, foreshore
from tests.support.directories import NODES, copies
from tests.support.patience import PATIENCE_SECONDS, joined
from tests.support.reconciled import fragment_of
from tests.tools.reconcile.test_repair import rows_of
from tools.reconcile.findings import Finding, Kind
from tools.reconcile.report import Summary
from wal.ids import Fragment

ROUNDS = 6
KILLS = 4
AT_ITS_START = 0.05
"""Seconds, in which no machine is done with it."""
WRITTEN = b"written meanwhile "


class Cluster:
    """Three processes over directories that are there, and how they are told from each other's side."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes: dict[str, Node] = {}

    def start(self, name: str) -> None:
        """Start one, or start it again."""
        (self.root / f"{name}.ready").unlink(missing_ok=True)
        seeds = [node.address for other, node in self.nodes.items() if other != name]
        self.nodes[name] = Node(self.root, name, "--anti-entropy-ms", 0, seeds=seeds)  # which would mend it by itself
        assert self.nodes[name].address

    @property
    def at(self) -> str:
        """Where they listen."""
        return ",".join(node.address for node in self.nodes.values())

    def start_all(self) -> None:
        """Start all of them, and wait until all copies are in sync."""
        self.nodes = {}
        for name in NODES:
            self.start(name)
        until = time.monotonic() + PATIENCE_SECONDS
        while "every copy is in sync" not in (told := foreshore("cluster", "status", self.nodes["n1"].address)).stdout:
            assert time.monotonic() < until, told.stdout + told.stderr
            time.sleep(0.1)

    def stop_all(self) -> None:
        """Stop all of them in good order."""
        for node in self.nodes.values():
            node.signal(signal.SIGTERM)
        assert [node.ended() for node in self.nodes.values()] == [0, 0, 0]

    @contextmanager
    def running(self) -> Iterator[None]:
        """They run for as long as this lasts, and then stop."""
        try:
            self.start_all()
            yield
            self.stop_all()
        finally:
            for node in self.nodes.values():
                node.kill()


@contextmanager
def written(at: str, done: dict[bytes, bytes]) -> Iterator[None]:
    """Somebody writes all the while, after who wrote before; `done` is what was acknowledged last."""
    over, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with engine.connect(at) as database:
                acc, turn = database.namespace("acc"), 0
                while not over.wait(0.02):
                    turn += 1
                    key, value = b"w%d" % (turn % 50), WRITTEN + b"%d" % turn
                    try:
                        acc.put(key, value)
                    except (engine.CommitUnknown, engine.Unavailable):
                        done.pop(key, None)  # it may be there or not
                        continue
                    done[key] = value
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        joined(thread)
    for error in failed:
        raise error


def checked(directories: list[Path], report: Path) -> Summary:
    """A check beside the nodes."""
    told = foreshore("reconcile", "check", *directories, "--out", report, "--recheck", 30, "--delay", 0.1, "--json")
    assert told.returncode in (0, 1), told.stdout + told.stderr
    return msgspec.json.decode(told.stdout.splitlines()[-1], type=Summary)


def told_of(report: Path) -> list[tuple[str, str, str]]:
    """Which row of which node a report says is wrong."""
    lines = (report / "findings.jsonl").read_bytes().splitlines()
    found = [msgspec.json.decode(line, type=Finding) for line in lines]
    return [(node, f.namespace, f.key or "") for f in found if f.kind is not Kind.CONTENTS_MISMATCH for node in f.on]


def killed(command: list[str], seconds: float) -> bool:
    """Begin it, and kill it after a while; whether it had not ended by then."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        return True
    return False


def ended(command: list[str]) -> int:
    """Its exit code."""
    told = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False, env=environment()
    )
    assert told.returncode in (0, 1, 4), told.stdout + told.stderr
    return told.returncode


def of_before(rows: dict[Fragment, list[tuple[bytes, Entry]]]) -> dict[Fragment, list[tuple[bytes, Entry]]]:
    """Rows that nobody wrote since, of what clients see."""
    return {
        name: kept
        for name, found in rows.items()
        if not name[0].startswith("~") and (kept := [row for row in found if not row[0].startswith(b"w")])
    }


def damage(directories: list[Path], draw: random.Random) -> set[tuple[str, str, str]]:
    """Rows that are forged, older, lost or back again, on two of three nodes in each partition, while these run."""
    rows = rows_of(directories[0])
    changes: dict[tuple[Path, Fragment], dict[bytes, Entry | None]] = {}
    done: set[tuple[str, str, str]] = set()
    for name, found in rows.items():
        if name[0].startswith("~"):
            continue
        for directory in directories[:2] if name[1] % 2 else directories[1:]:
            for key, entry in draw.sample(found, min(2, len(found))):
                forged = msgspec.structs.replace(entry, value=b"forged %d" % draw.randrange(3))
                way = draw.choice([None, forged, msgspec.structs.replace(entry, value=None)])
                changes.setdefault((directory, name), {})[key] = way
                done.add((directory.name, name[0], key.decode()))
            if name[0] == "acc":
                nowhere = directory.name.encode() + b" has %d"
                key = next(key for key in map(nowhere.__mod__, range(10_000)) if fragment_of(key) == name)
                changes[directory, name][key] = Entry(1, 1, b"else")
                done.add((directory.name, name[0], key.decode()))
    for (directory, name), into in changes.items():
        behind_its_back(directory, name, into)
    return done


def behind_its_back(directory: Path, name: Fragment, changes: dict[bytes, Entry | None]) -> None:
    """Change rows in the store of a node that runs, with right checksums."""
    removed: list[bytes] = []
    with lmdb.open(str(directory / "store"), map_size=1 << 30, max_dbs=4) as env:
        rows = env.open_db(ROWS)
        with env.begin(write=True) as txn:
            for key, row in seal_rows(fragment_key(name), dict(changes), removed):
                txn.put(key, row, db=rows)
            for key in removed:
                txn.delete(key, db=rows)


@pytest.mark.slow
@pytest.mark.processes
def test_copies_beside_nodes_that_run_are_made_to_agree_whoever_is_killed_meanwhile(
    stopped: list[Path], tmp_path: Path
) -> None:
    draw, before = random.Random(6), rows_of(stopped[0])
    directories = copies(stopped, tmp_path)
    cluster, kills, rounds = Cluster(tmp_path), 0, 0
    acknowledged: dict[bytes, bytes] = {}
    with cluster.running():
        damaged = damage(directories, draw)
        while True:
            with written(cluster.at, acknowledged):
                found = checked(directories, tmp_path / f"report{rounds}")
                if not found.exit_code:
                    break
                if not rounds:
                    assert set(told_of(tmp_path / "report0")) == damaged
                plan = tmp_path / f"plan{rounds}"
                foreshore("reconcile", "plan", tmp_path / f"report{rounds}", "-o", plan)
                apply = [*FORESHORE, "reconcile", "apply", str(plan), *map(str, directories)]
                for seconds in (AT_ITS_START, *(draw.uniform(0.3, 3) for _ in range(KILLS))):
                    kills += killed([*apply, "--at", cluster.at], seconds)
                if not rounds:
                    cluster.nodes["n3"].kill()
                    kills += killed([*apply, "--at", cluster.at], draw.uniform(0.5, 2))
                    cluster.start("n3")
                left = ended([*apply, "--at", cluster.at])
            if left == 4:  # no peer is right in all rows: so it says, and what to do
                cluster.stop_all()
                assert ended(apply) in (0, 4)
                cluster.start_all()
            rounds += 1
            assert rounds < ROUNDS, found
        assert (rounds > 0, kills > 0) == (True, True)
    after = [rows_of(directory) for directory in directories]
    assert after[1:] == after[:1] * 2
    assert of_before(after[0]) == of_before(before)
    have = {key: entry.value for name, rows in after[0].items() if name[0] == "acc" for key, entry in rows}
    assert acknowledged
    assert {key: have[key] for key in acknowledged} == acknowledged
    assert foreshore("reconcile", "check", *directories).returncode == 0
