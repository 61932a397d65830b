"""What can be said about transactions from files: who is still in doubt, and who ended them in two ways. Pure.

Outcomes are final, so two outcomes of one transaction contradict each other whenever they were read. An outcome that is
*missing* proves nothing: a copy that took its history from another one has the writes and not the votes, and results
are forgotten in time. So `TX_PARTIAL` is said only of a contradiction, and a lost write shows as what it is in the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from engine.offline.directory import PartitionView
from rebalance.results import COMMITTED
from tools.reconcile.copies import Rules
from tools.reconcile.findings import RECORD, Facts, Finding, Kind, Proof
from tools.reconcile.logs import Torn
from tools.reconcile.votes import right_one
from wal.ids import NodeId, TxId, tx_name, whole_of


class Decision(msgspec.Struct, frozen=True):
    """A decision record that every in-sync copy of its partition holds: the transaction's one outcome."""

    outcome: int
    partition: int
    participants: list[int]


class PartitionCopy(NamedTuple):
    """One node's copy of a partition."""

    node: NodeId
    view: PartitionView


class ComparedTransactions(msgspec.Struct):
    """What came of one partition."""

    findings: list[Finding] = []
    under_way: int = 0


def compare_transactions(
    number: int,
    copies: Sequence[PartitionCopy],
    primary: NodeId | None,
    decisions: Mapping[TxId, Decision],
    rules: Rules,
    *,
    in_sync: Collection[NodeId] = (),
    ended: Mapping[TxId, Mapping[int, bool]] = MappingProxyType({}),
    torn: Sequence[Torn] = (),
) -> ComparedTransactions:
    """Compare what the copies of a partition say of transactions; findings are in the order of their ids.

    In doubt are those that the `in_sync` copies hold; where there is none, those that any does. `ended`: how transactions
    in doubt ended in other partitions; `torn`: those told of here that ended in two ways.
    """
    compared = ComparedTransactions()
    holding = [c for c in copies if c.node in in_sync or not in_sync]
    for tx in sorted({tx for c in holding for tx in c.view.prepared}):
        on = [c for c in holding if tx in c.view.prepared]
        if any(rules.under_way(c.node, c.view.prepared[tx].since_ms) for c in on):
            compared.under_way += 1
        else:
            compared.findings.append(
                _unresolved(number, tx, copies, on, decision=decisions.get(whole_of(tx)), ended=ended.get(whole_of(tx), {}))
            )
    for one in torn:
        compared.findings.append(_in_two_ways(number, one))
    known = {one.tx for one in torn}
    for tx in sorted(tx for tx in _contradicted(number, copies, decisions) if tx not in known):
        compared.findings += _partial(number, tx, copies, primary, decisions.get(tx))
    return compared


def _in_two_ways(number: int, one: Torn) -> Finding:
    """It ended in two ways, in two partitions; every copy may agree on that."""
    copies: dict[NodeId, Facts] = {node: {f"p{p}": word for p, word in words.items()} for node, words in one.said.items()}
    by_word: dict[str, list[int]] = {}
    for p, word in sorted({(p, word) for words in one.said.values() for p, word in words.items()}):
        by_word.setdefault(word, []).append(p)
    detail = "; ".join(f"{word} in partition {','.join(map(str, where))}" for word, where in sorted(by_word.items()))
    evidence: dict[NodeId, Facts] = {}
    for node, lsns in one.undone.items():
        evidence[node] = {"record": "prepare"}
        evidence[node] |= {f"{RECORD}{p}": lsn for p, lsn in lsns.items()}
    return Finding(
        Kind.TX_PARTIAL,
        number,
        on=one.on,
        tx=tx_name(one.tx),
        copies=copies,
        detail=detail,
        proof=Proof.LOG if evidence else None,
        right={"committed": True} if evidence else {},
        evidence=evidence,
    )


def _unresolved(
    number: int,
    tx: TxId,
    copies: Sequence[PartitionCopy],
    on: Sequence[PartitionCopy],
    decision: Decision | None,
    ended: Mapping[int, bool],
) -> Finding:
    record = on[0].view.prepared[tx].record
    partitions = ",".join(map(str, dict.fromkeys(record.participants)))
    said = f"partition {record.decision} decided: {_name(decision.outcome)}" if decision else "no decision is known"
    committed = [p for p, commit in sorted(ended.items()) if commit and p != number]
    rolled_back = [p for p, commit in sorted(ended.items()) if not commit and p != number]
    if committed:
        said = f"partition {','.join(map(str, committed))} committed it"
    elif rolled_back and decision is None:
        said = f"partition {','.join(map(str, rolled_back))} rolled it back"
    return Finding(
        Kind.TX_PARTIAL if committed else Kind.TX_UNRESOLVED,
        number,
        on=[c.node for c in on],
        tx=tx_name(tx),
        copies={c.node: _facts(c, tx) for c in copies},
        detail=f"prepared in epoch {record.issued}, with partitions {partitions}; {said}",
    )


def _contradicted(number: int, copies: Sequence[PartitionCopy], decisions: Mapping[TxId, Decision]) -> Iterator[TxId]:
    if not copies:
        return
    first = copies[0].view.results
    known: dict[TxId, int] | None = None
    for copy in copies[1:]:
        results = copy.view.results
        if results == first:
            continue
        known = dict(first) if known is None else known
        for tx, outcome in results.items():
            if known.setdefault(tx, outcome) != outcome:
                yield tx
    for tx, decision in decisions.items():
        if number in decision.participants or number == decision.partition:
            found = {c.view.results.get(tx) for c in copies}
            if found - {None, decision.outcome}:
                yield tx


def _partial(
    number: int, tx: TxId, copies: Sequence[PartitionCopy], primary: NodeId | None, decision: Decision | None
) -> Iterator[Finding]:
    found = [(c.node, c.view.results[tx]) for c in copies if tx in c.view.results]
    right = decision.outcome if decision is not None else right_one(found, primary)
    on = [node for node, outcome in found if outcome != right]
    if not on:
        return
    by = f"partition {decision.partition} decided" if decision is not None else "elsewhere it was"
    yield Finding(
        Kind.TX_PARTIAL,
        number,
        on=on,
        tx=tx_name(tx),
        copies={c.node: _facts(c, tx) for c in copies},
        detail=f"{by}: {_name(right)}",
    )


def _facts(copy: PartitionCopy, tx: TxId) -> Facts:
    if tx in copy.view.results:
        return {_name(copy.view.results[tx]): True}
    prepared = copy.view.prepared.get(tx)
    return {"prepared": True, "epoch": prepared.record.epoch} if prepared is not None else {"unknown": True}


def _name(outcome: int) -> str:
    return "committed" if outcome == COMMITTED else "aborted"
