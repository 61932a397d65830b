"""What a participant must not be talked into, told with one node that is its own cluster."""

from __future__ import annotations

from engine.messages import Part, PrepareParts
from engine.node.node import Node
from engine.protocol.requests import CommitTx, Done, KeepSessions
from engine.state.replica import Replica
from engine.state.store import LayeredStore, MemoryStore
from engine.turn.effects import Effects
from engine.turn.events import Asked, Received
from engine.turn.settings import Settings
from wal import records as r
from wal.ids import partition_of, tx_of

KEYS = (b"a", b"b")


def lone_node() -> Node:
    """A cluster of one, formed and serving, without backups."""
    settings = Settings(cluster="test", partitions=2, backups=0)
    node = Node(settings, Replica(LayeredStore(MemoryStore())), node="n1", allocation="d1", address="n1:1", durable_lsn=0)
    node.turn(1, [])
    assert node.formation.form(1, 0, "c1", ["n1"]) == ""
    run(node, [])
    assert node.core.serving
    return node


def run(node: Node, events: list[Asked | Received]) -> list[Effects]:
    """Turns until nothing more is said to itself."""
    effects = [node.turn(node.core.now + 1, events)]
    while node.core.to_self:
        effects.append(node.turn(node.core.now + 1, []))
    return effects


def test_an_ended_transaction_does_not_begin_again_when_its_result_is_forgotten() -> None:
    node = lone_node()
    numbers = [partition_of(key, 2) for key in KEYS]
    assert sorted(numbers) == [0, 1], "the keys lie in different partitions"
    session = b"a session."
    tx = tx_of(session, 1)
    request = CommitTx(7, tx, tx, True, [("acc", list(KEYS), [b"old", b"old"])], [], [])
    answers = [reply for effects in run(node, [Asked(1, request)]) for _, reply in effects.reply]
    assert answers == [Done(7)]
    run(node, [Asked(1, KeepSessions(8, [(session, 1)]))])
    for number in numbers:
        node.core.replica.apply(r.Forget(number, 1, [(session, 1)]))
        assert node.core.replica.partition(number).results.get(tx) is None, "its result is forgotten"
    parts = [Part(n, [("acc", [key], [b"old"])], [], []) for n, key in zip(numbers, KEYS, strict=True)]
    late = PrepareParts(node.core.version, tx, tx, True, parts, sorted(numbers), numbers[0])
    run(node, [Received("n1", "d1", 0, late)])
    for number in numbers:
        assert not node.core.replica.partition(number).prepared, "a message that came late began it once more"
