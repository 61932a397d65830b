"""What a transfer of one large partition takes of memory, on either side, above what its nodes have at rest."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from engine.client.admin import ask
from tools.bench.cluster import NAMESPACE, counted
from tools.bench.figures import Measured, Setting
from tools.bench.transfer import PATIENCE_SECONDS, fill, holds_all, is_member, one_node
from tools.local_cluster import LocalCluster, NodeProcess, until

VALUE_BYTES = 10_737
"""200,000 of them, which is what there is by default, are 2 GiB."""
LOOK_SECONDS = 0.02
REST_SECONDS = 3.0
MIB = 1 << 20


def anonymous_of(pid: int) -> tuple[int, int]:
    """Bytes that are no file's, of a process and of the processes that it started: a checkpoint is written by one.

    LMDB's pages are a file's, and the kernel takes them back when memory is short.
    """
    children = [child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(task).split()]
    return _anonymous(pid), sum(_anonymous(int(child)) for child in children)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # a thread, or a process, that has ended


def _anonymous(pid: int) -> int:
    lines = _read(Path(f"/proc/{pid}/status")).splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)


async def transfer_memory(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """One partition, which a node has that is at rest, is copied to an empty one."""
    rows = setting.updates
    async with one_node(setting, figure, ["--partitions", "1"]) as (cluster, database):
        setting.say(f"{figure}: one partition of {rows * VALUE_BYTES / MIB:,.0f} MiB")
        await fill(database.namespace(NAMESPACE), rows, b"v" * VALUE_BYTES)
        source = cluster.nodes["n1"]
        await _rests(cluster, source)
        source.kill()  # what it had in memory to take the rows is no part of what it has at rest
        await cluster.start("n1").ready()
        await until(lambda: cluster.healthy(1), PATIENCE_SECONDS, "the node does not come back")
        node = cluster.start("n2")
        await node.ready()
        await until(lambda: is_member(cluster, "n2"), PATIENCE_SECONDS, "the new node was not let in")
        await _rests(cluster, source)
        sides = {"supplier": source, "demander": node}
        before = {side: anonymous_of(process.pid) for side, process in sides.items()}
        most, writers = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0)
        over, began = asyncio.Event(), time.perf_counter()

        async def watch() -> None:
            while not over.is_set():
                for side, process in sides.items():
                    own, children = anonymous_of(process.pid)
                    most[side] = max(most[side], own + children - sum(before[side]))
                    writers[side] = max(writers[side], children - before[side][1])
                await asyncio.sleep(LOOK_SECONDS)

        watching = asyncio.create_task(watch())
        await ask(source.address, "baseline", nodes=["n1", "n2"])
        await until(lambda: holds_all(cluster, node), PATIENCE_SECONDS, "the new node did not get everything")
        seconds = time.perf_counter() - began
        over.set()
        await watching
        await counted(cluster, rows)
    return [
        Measured(
            figure=figure,
            what=f"memory above rest of the {side} of one partition of {rows * VALUE_BYTES / MIB:,.0f} MiB, the most",
            value=round(most[side] / MIB, 1),
            unit="MiB",
            goal=goal,
            at_most=True,
            counted=rows,
            seconds=round(seconds, 3),
            parts={
                "at rest MiB": round(sum(before[side]) / MIB, 1),
                "of it the most of the writer of checkpoints MiB": round(writers[side] / MIB, 1),
            },
        )
        for side in sides
    ]


async def _rests(cluster: LocalCluster, node: NodeProcess) -> None:
    """Nothing is left of it that is not in its checkpoint."""
    await ask(node.address, "checkpoint")
    await asyncio.sleep(REST_SECONDS)

    async def written() -> bool:
        return not (await cluster.status(node))["checkpointing"]

    await until(written, PATIENCE_SECONDS, "a checkpoint does not end")
