"""A transaction that ended in two ways: what is planned, and that it is made whole as far as a log proves what is right."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import aio
from engine.offline.directory import read_directory
from engine.offline.repair import Unrepaired
from engine.turn.settings import Settings
from tests.support.commands import reconcile
from tests.support.damages import DAMAGES
from tests.support.directories import SEGMENT_BYTES, Nodes, append, copies
from tests.support.reconciled import IN_DOUBT, NOW_MS, PARTITIONS, fragment_of
from tests.tools.reconcile.test_repair import planned
from tools.reconcile.apply import prepared_writes
from tools.reconcile.findings import Kind, Proof
from tools.reconcile.plans import Act
from tools.reconcile.saved_plan import read_plan
from wal import records as r
from wal.ids import EXPIRIES


def test_a_transaction_of_which_one_half_was_rolled_back_is_written_whole(stopped: list[Path], tmp_path: Path) -> None:
    """What the log has of the other half is written, and nothing over a key that was written or deleted since."""
    directories = copies(stopped, tmp_path / "live")
    DAMAGES["committed here and rolled back there, on all copies"].do(tmp_path / "live")
    where = fragment_of(b"k343")

    async def tell() -> None:
        nodes = Nodes(tmp_path / "live", Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES))
        report, plan = tmp_path / "report", tmp_path / "plan"
        await reconcile("check", *directories, "--out", report)
        assert await reconcile("plan", report, "-o", plan) == (0, "commit=1\n")
        (action,) = read_plan(plan)
        assert (action.partition, action.proof, action.source, len(action.records)) == (where[1], Proof.LOG, "n1", 1)
        told = await reconcile("apply", plan, *directories)
        assert (told[0], "it goes through the API: name a node with --at" in told[1]) == (4, True)
        try:
            await nodes.start()
            async with await aio.connect(",".join(s.address for s in nodes.servers.values())) as database:
                acc = database.namespace("acc")
                assert await acc.get(b"k343") == b"value of k343."
                code, said = await reconcile("apply", plan, *directories, "--at", nodes.servers["n1"].address)
                assert (code, said.splitlines()[0]) == (0, "changes=1 applied=1"), said
                assert "transactions=1 are whole now" in said
                assert await acc.get(b"k343") == b"half"
                for audit, left in (("newer", b"newer"), ("gone", None)):
                    await (acc.put(b"k343", left) if left is not None else acc.delete(b"k343"))
                    await nodes.settle()
                    again = (
                        "apply",
                        plan,
                        *directories,
                        "--at",
                        nodes.servers["n1"].address,
                        "--audit",
                        tmp_path / audit,
                    )
                    code, said = await reconcile(*again)
                    assert (code, said.splitlines()[0]) == (0, "changes=1 already=1"), said
                    assert await acc.get(b"k343") == left
        finally:
            await nodes.close()

    asyncio.run(tell())


def test_of_a_transaction_that_no_log_explains_nothing_is_written(stopped: list[Path], tmp_path: Path) -> None:
    for at, name in enumerate(("committed here and never heard of there", "voted here and committed there")):
        (tmp_path / str(at)).mkdir()
        directories = copies(stopped, tmp_path / str(at))
        DAMAGES[name].do(tmp_path / str(at))
        (action,) = planned(directories, tmp_path / str(at))
        assert (action.kind, action.action) == (Kind.TX_PARTIAL, Act.NONE)
        why = (
            "whoever ran the transaction must write the other half",
            "it asks when its nodes run; check again then",
        )
        assert action.reason.endswith(why[at])


def test_what_no_client_writes_is_not_written_for_one(stopped: list[Path], tmp_path: Path) -> None:
    """A value that was to expire has a row of the engine's own beside it: without that it would stay for ever."""
    (directory,) = copies(stopped[:1], tmp_path)
    writes = [r.Write(name, 3, 1, 900, [b"k"], [b"v"], 0, IN_DOUBT) for name in ("acc", EXPIRIES)]
    for held in (writes, writes[:1]):
        append(directory, [r.Prepare(IN_DOUBT, 3, 1, held, locks=[], participants=[3, 4], decision=4)], now_ms=NOW_MS)
    with read_directory(directory) as state:
        last = state.lsn
    assert prepared_writes(directory, last, IN_DOUBT.hex()) == writes[:1]
    with pytest.raises(Unrepaired, match=f"rows of {EXPIRIES} belong to {IN_DOUBT.hex()}, which no client writes"):
        prepared_writes(directory, last - 1, IN_DOUBT.hex())
    with pytest.raises(Unrepaired, match=r"does not have what .* prepared at LSN 1 any more: check again"):
        prepared_writes(directory, 1, IN_DOUBT.hex())
