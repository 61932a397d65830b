"""A disk that is full, and one that errs: the node stops and says so, the others go on, and it comes back after repair."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from engine import aio
from tests.crash.journal import Journal
from tests.crash.load import Load
from tests.crash.processes import Cluster, eventually
from tests.crash.run import check_directories
from tests.support.patience import PATIENCE_SECONDS
from tools.local_cluster import NodeProcess

FAILING = "n2"
GOES_ON_OPERATIONS = 200


class FailingCluster(Cluster):
    """A cluster, one node of which has a disk that fails when it is told to."""

    @property
    def control(self) -> Path:
        """The file that says what is the matter with the disk."""
        return self.directory / "disk"

    def make(self, name: str, options: Sequence[str]) -> NodeProcess:
        node = super().make(name, options)
        if name == FAILING:
            node.program = ("-m", "tests.crash.failing_node", str(self.control))
        return node


async def _break_and_repair(cluster: FailingCluster, journal: Journal, trouble: str) -> int | None:
    """Load, a disk that fails under it, load, a disk that is well again; the exit code of the node that stopped."""
    await cluster.form()
    async with await aio.connect(cluster.addresses, timeout=5.0) as database:
        load = Load(database, journal, Random(1))
        await load.set_up()
        load.begin()
        try:
            await _more(load)
            cluster.control.write_text(trouble, encoding="ascii")
            ended = await cluster.node(FAILING).ended(PATIENCE_SECONDS)
            assert ended, f"the node runs on with a disk that is {trouble}"
            await _more(load)
            code = cluster.node(FAILING).exit_code
            cluster.control.unlink()
            cluster.start(FAILING)
            await cluster.healthy()
            await _more(load)
        finally:
            await load.stop()
        await load.read_everything()
        assert load.judge() == []
    await cluster.quiet()
    return code


async def _more(load: Load) -> None:
    """Wait until so many more operations were acknowledged."""
    wanted = load.journal.answers["ok"] + GOES_ON_OPERATIONS

    async def missing() -> list[str]:
        load.check_alive()
        done = load.journal.answers["ok"]
        return [] if done >= wanted else [f"{wanted - done} more operations were expected"]

    await eventually(missing, 60.0, "the cluster does not go on")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("trouble", "says", "exit_code"),
    [
        ("full", "No space left on device (ENOSPC): free some space and start the node again", 3),
        ("sync", "Input/output error (EIO); the node stopped, as nobody knows what the disk holds: see to the disk", 3),
    ],
)
def test_a_node_whose_disk_fails_stops_and_the_others_go_on(
    tmp_path: Path, trouble: str, says: str, exit_code: int
) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal, FailingCluster(tmp_path, ["n1", "n2", "n3"]) as cluster:
        assert asyncio.run(_break_and_repair(cluster, journal, trouble)) == exit_code
        log = cluster.node(FAILING).log.read_text(encoding="utf-8")
        assert log.count(says) == 1, "it is told once"
        assert "Traceback" not in log
        assert re.search(r"^\d\d:\d\d:\d\d\.\d+ ends: ", log, re.MULTILINE), "the time of its end is told"
        for name in cluster.names:
            cluster.kill(name)
        check_directories([cluster.node(name).data for name in cluster.names])
