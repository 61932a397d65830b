"""Looking something up creates nothing: what a copy has is what was written to it, whoever asked for whatever."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from engine.protocol.requests import Admin, Check, Get, KeepCut, KeepLocks, KeepSessions, Lock, Request, Scan, Swap, Unlock
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.events import Asked
from tests.engine.transactions.test_participant import lone_node, run
from wal.ids import tx_of

ROOT = Path(__file__).parents[3]
TX = tx_of(b"a session.", 1)
READS: list[Request] = [
    Get(1, "nowhere", [b"a", b"b"]),
    Get(1, "nowhere", [b"a"], stale=True),
    Scan(1, "nowhere", [0, 1], b"", None, limit=10),
    Scan(1, "nowhere", [0, 1], b"", None, limit=10, stale=True),
    Scan(1, "nowhere", [0, 1], b"", None, limit=10, marks=True),
    Lock(1, TX, "nowhere", [b"a", b"b"], timeout_ms=10),
    Lock(1, TX, "nowhere", [b"a"], timeout_ms=10, shared=True),
    Check(1, TX, [], [("nowhere", b"a", 0, 0)]),
    Swap(1, TX, "nowhere", b"a", "equals", b"old", b"new"),
    KeepLocks(1, [TX]),
    KeepSessions(1, [(b"a session.", 0)]),
    KeepCut(1, (1, 1), b"holder"),
    Unlock(1, TX),
    Admin(1, "status", {}),
]


def has(replica: Replica) -> tuple[object, ...]:
    """The names of all that is here."""
    inside = {number: list(state.fragments) for number, state in replica.partitions.items()}
    return list(replica.fragments), list(replica.namespaces), inside, list(replica.tails), list(replica.changes.fragments)


def test_what_is_not_there_is_nobodys_however_often_it_is_looked_up() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    before = has(replica)
    fragment, partition = replica.fragment(("nowhere", 3)), replica.partition(3)
    assert fragment.counter.lwm == 0
    assert not partition.results.get(TX)
    fragment.counter.reserve(5)
    partition.epoch = 7
    assert has(replica) == before
    assert replica.fragment(("nowhere", 3)).counter.hwm == 0, "what was done to it was done to nobody's"
    assert replica.partition(3).epoch == 0
    replica.ensure_fragment(("nowhere", 3))
    assert has(replica) != before, "a change of what is here shows"


@pytest.mark.parametrize("request_", READS, ids=lambda r: type(r).__name__)
def test_who_reads_leaves_nothing_behind(request_: Request) -> None:
    node = lone_node()
    before = has(node.core.replica)
    replies = [reply for effects in run(node, [Asked(1, request_)]) for _, reply in effects.reply]
    assert replies, "it was answered"
    assert has(node.core.replica) == before


CREATES = {
    "engine/state/replica.py": "a record says so",
    "engine/data/under_way.py": "a counter is reserved for a write",
    "engine/data/deletes.py": "the same for a delete by the primary itself",
    "engine/transactions/commits.py": "the same for the parts of a transaction",
    "engine/transactions/deciding.py": "the same for its decision",
}
"""Who makes a fragment be there, and for what."""


def makes(text: str) -> list[int]:
    """The lines of a module which make a fragment or a partition be there, or put one among those of a replica."""
    found: list[int] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="ensure_fragment" | "_ensure_partition")):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="setdefault", value=inside)) if _of_replica(inside):
                found.append(node.lineno)
            case ast.Subscript(value=inside, ctx=ast.Store()) if _of_replica(inside):
                found.append(node.lineno)
    return found


def _of_replica(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="fragments" | "partitions", value=owner):
            return ast.unparse(owner).rpartition(".")[2] in ("replica", "self")
    return False


def test_only_who_writes_makes_a_fragment_be_there() -> None:
    for line in (
        "core.replica.ensure_fragment(name)",
        "self.core.replica.fragments.setdefault(name, FragmentState(name))",
        "replica.partitions[3] = PartitionState(3)",
    ):
        assert makes(line) == [1], line
    for line in ("core.replica.fragment(name)", "core.replica.fragments.get(name)", "state.fragments[name] = 1"):
        assert makes(line) == [], line
    found = {
        str(file.relative_to(ROOT))
        for package in ("rebalance", "engine")
        for file in sorted((ROOT / package).rglob("*.py"))
        if file.name != "freezing.py" and makes(file.read_text(encoding="utf-8"))
    }
    assert found == set(CREATES)
