"""Copies that are wrong as a whole: one action, which the node that has them carries out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from engine.offline.directory import read_directory
from engine.turn.settings import Settings
from tests.support.commands import FORESHORE
from tests.support.damages import DAMAGES
from tests.support.directories import SEGMENT_BYTES, Nodes, append, copies
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reconciled import IN_DOUBT, NOW_MS, PARTITIONS, fragment_of
from tests.tools.reconcile.test_repair import planned, rows_of, run
from tools.reconcile.findings import Facts, Finding, Kind, Proof
from tools.reconcile.plans import Act, Rules, Strategy, make_plan
from tools.reconcile.saved_plan import read_plan
from wal import records as r

GONE: dict[str, Facts] = {"n1": {"lwm": 9, "hwm": 9}, "n2": {"lwm": 0, "hwm": 0}, "n3": {"lwm": 9, "hwm": 9}}
BEHIND = GONE | {"n2": {"lwm": 7, "hwm": 7}}
PARTED: dict[str, Facts] = {"n1": {"digest": "a"}, "n2": {"digest": "b"}, "n3": {"digest": "a"}}
ALL_PARTED = PARTED | {"n3": {"digest": "c"}}


def about(kind: Kind, copies: dict[str, Facts], on: str = "n2", key: str | None = None, **more: object) -> Finding:
    made = Finding(kind, 7, "acc", key, on.split(), [5, 9], copies=copies, primary="n2")
    return msgspec.structs.replace(made, **more)


HAVE: dict[str, Facts] = {"n1": {"epoch": 1, "counter": 5}, "n2": {"absent": True}, "n3": {"epoch": 1, "counter": 5}}
ROW = about(Kind.MISSING_ON, HAVE, key="k", proof=Proof.LOG, right={"epoch": 1, "counter": 5}, holders=["n1"])

CASES: dict[str, tuple[Strategy, list[Finding], list[tuple[str, str]]]] = {
    "a fragment that is gone": (
        Strategy.PROOF,
        [about(Kind.COUNTER_GAP, GONE), about(Kind.BEHIND, GONE), ROW],
        [("refetch", "n2"), ("with", "1"), ("with", "1")],
    ),
    "some counters are missing": (Strategy.PROOF, [about(Kind.COUNTER_GAP, BEHIND)], [("none", "n2")]),
    "a part cannot be read": (Strategy.PROOF, [about(Kind.UNREADABLE, {}), ROW], [("refetch", "n2"), ("with", "1")]),
    "a row of which peers have two versions": (
        Strategy.PROOF,
        [about(Kind.UNREADABLE, {}), msgspec.structs.replace(ROW, copies=HAVE | {"n3": {"absent": True}})],
        [("refetch", "n2"), ("refetch", "n2")],
    ),
    "a row of another copy as well": (
        Strategy.PROOF,
        [about(Kind.UNREADABLE, {}), msgspec.structs.replace(ROW, on=["n2", "n3"])],
        [("refetch", "n2"), ("refetch", "n2 n3")],
    ),
    "rows that do not add up, and none is told": (
        Strategy.PROOF,
        [about(Kind.CONTENTS_MISMATCH, {"n2": {"written": "1"}})],
        [("refetch", "n2")],
    ),
    "rows that do not add up, and one is told": (
        Strategy.PROOF,
        [about(Kind.CONTENTS_MISMATCH, {"n2": {"written": "1"}}), ROW],
        [("none", "n2"), ("refetch", "n2")],
    ),
    "rows that do not add up on two copies": (
        Strategy.PROOF,
        [about(Kind.CONTENTS_MISMATCH, {}), about(Kind.CONTENTS_MISMATCH, {}, on="n3")],
        [("none", "n2"), ("none", "n3")],
    ),
    "histories part, and nothing proves which counts": (
        Strategy.PROOF,
        [about(Kind.DIGEST_MISMATCH, PARTED)],
        [("none", "n2")],
    ),
    "histories part: the primary's counts": (
        Strategy.PRIMARY,
        [about(Kind.EPOCH_FORK, PARTED)],
        [("refetch", "n1 n3")],
    ),
    "histories part: that of most counts": (Strategy.MAJORITY, [about(Kind.EPOCH_FORK, PARTED)], [("refetch", "n2")]),
    "histories part, and no two agree": (Strategy.MAJORITY, [about(Kind.EPOCH_FORK, ALL_PARTED)], [("none", "n2")]),
    "a whole directory": (
        Strategy.PRIMARY,
        [Finding(Kind.UNREADABLE, on=["n2"]), Finding(Kind.UNREADABLE, 7, on=["n2"])],
        [("none", "n2"), ("none", "n2")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_copy_that_is_wrong_as_a_whole_is_one_action(case: str) -> None:
    strategy, findings, expected = CASES[case]
    actions = [*make_plan(lambda: findings, Rules(strategy=strategy))]
    assert [(str(a.action), str(a.by or " ".join(a.on))) for a in actions] == expected
    assert all(a.reason for a in actions)
    assert all(a.is_whole == (a.action is Act.REFETCH and a.key is None) and not a.removes for a in actions)


async def whole(nodes: Nodes) -> None:
    """Wait until every copy is in sync."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        for server in nodes.servers.values():
            while (found := server.node.core.topology) is None or any(len(p.in_sync) < 3 for p in found.placements):
                await asyncio.sleep(0.02)


def test_whole_fragments_are_taken_anew_by_the_nodes_that_run(stopped: list[Path], tmp_path: Path) -> None:
    """One is gone from the store of n2; of another n3 has a history of its own. First the plan is made, then nodes run."""
    directories = copies(stopped, tmp_path / "live")
    DAMAGES["a fragment that is gone from one store"].do(tmp_path / "live")
    namespace, number = name = fragment_of(b"k350")
    other = next(key for key, _ in rows_of(stopped[0])[name] if key != b"k350")
    for directory in directories:
        with read_directory(directory) as state:
            began, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
        mine = b"of its own" if directory.name == "n3" else b"of all"
        for at, (key, value) in enumerate([(b"k350", mine), (other, b"after")]):
            stable = began + at * 2
            write = r.Write(namespace, number, epoch, began + at, [key], [value], stable, IN_DOUBT)
            append(directory, [r.Update([write])], now_ms=NOW_MS)
    actions = planned(directories, tmp_path, "--strategy", "majority")
    wholes = [(a.namespace, a.partition, *a.on) for a in actions if a.is_whole]
    assert wholes == sorted([(*fragment_of(b"k345"), "n2"), (*name, "n3")], key=lambda x: x[1])
    assert [(a.action, a.kind, a.reason) for a in actions if not a.is_whole and a.action is not Act.WITH] == []
    here = run("apply", tmp_path / "plan", *directories)
    assert (here.exit_code, "start it, and apply again with --at HOST:PORT" in here.stderr) == (4, True)

    async def tell() -> None:
        nodes = Nodes(tmp_path / "live", Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES))
        try:
            await nodes.start()
            await whole(nodes)
            at = next(iter(nodes.servers.values())).address
            process = await asyncio.create_subprocess_exec(
                *FORESHORE, *map(str, ("reconcile", "apply", tmp_path / "plan", *directories, "--at", at)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE_SECONDS):
                told, _ = await process.communicate()
            assert (process.returncode, told.decode().splitlines()[0]) == (0, "changes=2 applied=2"), told
        finally:
            await nodes.close()

    asyncio.run(tell())
    assert [rows_of(directory) for directory in directories[1:]] == [rows_of(directories[0])] * 2
    assert dict(rows_of(directories[2])[name])[b"k350"].value == b"of all"
    assert run("check", *directories).exit_code == 0
    assert len(read_plan(tmp_path / "plan")) >= 2
