"""Transactions in doubt, and transactions that ended in two ways."""

from __future__ import annotations

from engine.offline.directory import PartitionView, Prepared
from rebalance.results import ABORTED, COMMITTED
from tests.tools.reconcile.replicas import put, tx
from tools.reconcile.copies import Clock, Rules
from tools.reconcile.findings import Kind
from tools.reconcile.transactions import Decision, PartitionCopy, compare_transactions
from wal import records as r
from wal.ids import TxId

STILL = Rules()
BUSY = Rules(clocks=dict.fromkeys(("n1", "n2", "n3"), Clock(1_000_000, 1_000_000)), grace_ms=10_000)
PREPARE = r.Prepare(tx(1), 7, 3, [put(0, tx=tx(1), a="1")], [], [7, 9], 9)


def prepared(since_ms: int = 0) -> PartitionView:
    return PartitionView(3, {tx(1): Prepared(PREPARE, since_ms)}, {})


def ended(outcome: int) -> PartitionView:
    return PartitionView(3, {}, {tx(1): outcome})


def copies(*views: PartitionView) -> list[PartitionCopy]:
    return [PartitionCopy(f"n{at}", view) for at, view in enumerate(views, 1)]


def decided(outcome: int, *participants: int) -> dict[TxId, Decision]:
    return {tx(1): Decision(outcome, 9, list(participants or (7, 9)))}


def test_a_transaction_without_an_outcome_is_unresolved() -> None:
    compared = compare_transactions(7, copies(prepared(), prepared(), PartitionView()), "n1", {}, STILL)
    (finding,) = compared.findings
    assert (finding.kind, finding.partition, finding.on) == (Kind.TX_UNRESOLVED, 7, ["n1", "n2"])
    assert finding.tx == tx(1).hex()
    assert finding.detail == "prepared in epoch 3, with partitions 7,9; no decision is known"
    assert finding.copies == {
        "n1": {"prepared": True, "epoch": 3},
        "n2": {"prepared": True, "epoch": 3},
        "n3": {"unknown": True},
    }
    assert finding.where == "partition 7"


def test_an_outcome_that_did_not_arrive_is_told_with_the_decision() -> None:
    compared = compare_transactions(7, copies(prepared()), "n1", decided(COMMITTED), STILL)
    assert compared.findings[0].detail.endswith("partition 9 decided: committed")


def test_a_transaction_that_was_prepared_just_now_is_under_way() -> None:
    for since_ms in (995_000, 0):  # 0: nobody knows when, so it may have been just now
        compared = compare_transactions(7, copies(prepared(since_ms)), "n1", {}, BUSY)
        assert (compared.findings, compared.under_way) == ([], 1)
    compared = compare_transactions(7, copies(prepared(900_000)), "n1", {}, BUSY)
    assert [f.kind for f in compared.findings] == [Kind.TX_UNRESOLVED]


def test_copies_that_ended_a_transaction_in_two_ways_are_partial() -> None:
    compared = compare_transactions(7, copies(ended(COMMITTED), ended(COMMITTED), ended(ABORTED)), "n1", {}, STILL)
    (finding,) = compared.findings
    assert (finding.kind, finding.on) == (Kind.TX_PARTIAL, ["n3"])
    assert finding.detail == "elsewhere it was: committed"


def test_a_participant_that_contradicts_the_decision_is_partial_on_every_copy() -> None:
    compared = compare_transactions(7, copies(ended(ABORTED), ended(ABORTED)), "n1", decided(COMMITTED), STILL)
    (finding,) = compared.findings
    assert (finding.kind, finding.on, finding.detail) == (Kind.TX_PARTIAL, ["n1", "n2"], "partition 9 decided: committed")


def test_an_outcome_that_is_missing_proves_nothing() -> None:
    views = copies(ended(COMMITTED), PartitionView())
    assert compare_transactions(7, views, "n1", decided(COMMITTED), STILL).findings == []


def test_a_decision_about_other_partitions_says_nothing_here() -> None:
    views = copies(ended(COMMITTED), ended(COMMITTED))
    assert compare_transactions(7, views, "n1", decided(ABORTED, 8, 9), STILL).findings == []
