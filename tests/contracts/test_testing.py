"""`engine.testing`: real nodes for an application's tests, which can be killed, stopped, paused and brought back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import engine
from engine.testing import Cluster, cluster
from tests.support.patience import PATIENCE_SECONDS, next_line

pytestmark = pytest.mark.processes


@engine.transactional
def deposit(tx: engine.Transaction, name: str, amount: int) -> int:
    """An application's function, which is to survive the loss of any node."""
    inside = tx.namespace("accounts", codec="json")
    balance: int = inside.get(name, 0) + amount
    inside.put(name, balance)
    return balance


def test_an_applications_function_survives_each_node(foreshore_cluster: Callable[..., Cluster]) -> None:
    nodes = foreshore_cluster(3, timeout=PATIENCE_SECONDS)
    assert repr(nodes) == "<Cluster n1 running, n2 running, n3 running>"
    with nodes.connect(timeout=PATIENCE_SECONDS) as db:
        expected = 0
        for name in nodes.names:
            expected += 1
            assert deposit(db, "ann", 1) == expected
            nodes.kill(name)
            assert nodes.state(name) == "dead"
            expected += 1
            assert deposit(db, "ann", 1) == expected
            nodes.restart(name)
            nodes.wait_until_whole()


def test_a_node_is_paused_stopped_and_loses_its_disk(tmp_path: Path) -> None:
    with cluster(3, directory=tmp_path / "nodes", timeout=PATIENCE_SECONDS, partitions=8) as nodes:
        with nodes.connect(timeout=PATIENCE_SECONDS) as db:
            ns = db.namespace("a", codec="json")
            ns["k"] = 1
            nodes.pause("n1")
            assert nodes.state("n1") == "paused"
            ns["k"] = 2
            nodes.resume("n1")
            nodes.wait_until_whole()
            nodes.stop("n2")
            ns["k"] = 3
            nodes.wipe("n2")
            nodes.restart("n2")
            nodes.wait_until_whole()
            assert ns["k"] == 3
        refused: list[tuple[Callable[[], None], str]] = [
            (lambda: nodes.kill("n7"), r"there is no node 'n7': expected one of n1, n2, n3"),
            (lambda: nodes.resume("n1"), "n1 is not paused"),
            (lambda: nodes.restart("n1"), "n1 is running: expected a node that was killed or stopped"),
            (lambda: nodes.wipe("n1"), "n1 is running: kill it first"),
        ]
        for wrong, says in refused:
            with pytest.raises(engine.UsageError, match=says):
                wrong()
        nodes.kill("n1")
        with pytest.raises(engine.UsageError, match="n1 does not run"):
            nodes.kill("n1")
        (nodes.directory / "n1" / "identity.json").write_text("{")
        with pytest.raises(
            engine.Error, match=r"node n1 ended at its start; it said:\n(.*\n)*CorruptionError: .* cannot be read"
        ):
            nodes.restart("n1")
    assert (tmp_path / "nodes" / "n1" / "identity.json").exists(), "a directory that was given stays"


def _members(nodes: Cluster, name: str) -> set[str]:
    status = nodes._status(name)
    return {member["node"] for member in status["members"]} if status is not None else set(nodes.names)


def test_a_side_without_a_majority_refuses_and_comes_back(foreshore_cluster: Callable[..., Cluster]) -> None:
    nodes = foreshore_cluster(3, timeout=PATIENCE_SECONDS)
    with nodes.connect(timeout=PATIENCE_SECONDS) as db:
        ns = db.namespace("a", codec="json")
        ns["k"] = 1
        nodes.partition(["n1"], ["n2", "n3"])
        nodes._wait(lambda: (nodes._status("n1") or {}).get("quorum") is False, "n1 thinks that it has a majority")
        nodes._wait(lambda: "n1" not in _members(nodes, "n2"), "n1 is not left out")
        ns["k"] = 2
        nodes.kill("n1")
        nodes.restart("n1")
        ns["k"] = 3
        nodes.pause("n1")
        nodes.heal()
        nodes.resume("n1")
        nodes.wait_until_whole()
        assert ns["k"] == 3
        refused: list[tuple[Callable[[], None], str]] = [
            (lambda: nodes.partition("n1"), "a side is 'n1': expected names of nodes in a list"),
            (lambda: nodes.partition(["n1"], ["n1"]), "n1 is on two sides"),
            (lambda: nodes.partition(["n9"]), "there is no node 'n9'"),
        ]
        for wrong, says in refused:
            with pytest.raises(engine.UsageError, match=says):
                wrong()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, says in (
        ({"nodes": 0}, "nodes is 0: expected 1 to 9"),
        ({"directory": tmp_path}, "is not empty: expected a directory for new nodes"),
        ({"directory": tmp_path / "file"}, "file cannot be made: File exists; expected a directory"),
        ({"partitions": 3}, "partitions is 3: expected a power of two"),
        ({"partition": 4}, "unknown setting 'partition': did you mean 'partitions'"),
    ):
        with pytest.raises(engine.UsageError, match=says), cluster(**arguments):
            pass


STORY = """
import time
from engine.testing import cluster
with cluster(1) as nodes:
    print(nodes._nodes["n1"]._popen.pid, flush=True)
    time.sleep(600)
"""


def test_no_node_outlives_who_started_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STORY],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = int(next_line(parent, "id of its node"))
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=PATIENCE_SECONDS)
    until = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_child_that_leaves_the_block_ends_nothing_of_its_parents(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(1))
        given = stack.enter_context(cluster(1, directory=tmp_path / "given"))
        if (child := os.fork()) == 0:
            try:
                stack.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        for made in (nodes, given):
            assert made.directory.is_dir()
            assert made.state("n1") == "running"
            with made.connect() as db:
                db.namespace("ns")[b"k"] = b"1"
    assert not nodes.directory.exists()
