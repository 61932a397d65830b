"""What a participant must not be talked into, told with one node that is its own cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.data.holdings import LET_GO_MAX
from engine.messages import AskMap, Finish, Message, Part, PrepareParts, Resolve
from engine.node.node import Node
from engine.protocol.requests import CommitTx, Done, Get, KeepSessions, Put, Values
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.transactions.commits import Phase, Transaction
from engine.transactions.doubts import Doubt
from engine.turn.effects import Effects
from engine.turn.events import Asked, Received
from engine.turn.settings import Settings
from rebalance.ports import MS, Shipped
from wal import records as r
from wal.ids import DECISIONS, partition_of, tx_of

KEYS = (b"a", b"b")


def lone_node(partitions: int = 2) -> Node:
    """A cluster of one, formed and serving, without backups."""
    settings = Settings(cluster="test", partitions=partitions, backups=0)
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


def said(node: Node, message: Message) -> Received:
    """What the one member of its cluster says to itself, as the life that the map lists."""
    assert node.core.topology is not None
    (member,) = node.core.topology.members
    return Received(member.node, member.allocation, member.incarnation, message)


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
    run(node, [said(node, late)])
    for number in numbers:
        assert not node.core.replica.partition(number).prepared, "a message that came late began it once more"


def test_a_copy_that_has_not_heard_of_the_end_of_the_first_leads_with_two_prepared_transactions_of_one_key() -> None:
    """Both want the key, and the second has it: it was prepared when the first was over. They end in either order."""
    for order in ((0, 1), (1, 0)):
        node = lone_node()
        number, session = partition_of(b"a", 2), b"a session."
        local, fence = node.core.local[number], node.core.version
        run(node, [Asked(1, Put(1, tx_of(session, 1), "acc", [b"a"], [b"old"]))])
        txs = [tx_of(session, 2), tx_of(session, 3)]
        for start, tx, value in ((1, txs[0], b"first"), (2, txs[1], b"second")):
            write = r.Write("acc", number, local.epoch, start, [b"a"], [value], tx=tx)
            node.core.replica.apply(r.Prepare(tx, number, local.epoch, [write], [], [number], number))
        assert list(node.participant.holding(number)), "a new primary has yet to hold them"
        node.participant.activated(local)
        assert not answers(run(node, [Asked(1, Get(2, "acc", [b"a"]))])), "what the key holds is not known yet"
        found: list[object] = []
        for at in order:
            found += answers(run(node, [said(node, Finish(fence, txs[at], True, [number], node.core.era))]))
        found += answers(run(node, []))
        assert not node.core.replica.partition(number).prepared
        found += answers(run(node, [Asked(1, Get(3, "acc", [b"a"]))]))
        assert [reply.values[0][2] for reply in found if isinstance(reply, Values)] == [b"second"] * 2, order
        done = answers(run(node, [Asked(1, Put(4, tx_of(session, 4), "acc", [b"a"], [b"new"]))]))
        assert done == [Done(4, version=node.core.version_number)], "nobody has the key any more"


def test_a_vote_that_wrote_nothing_is_ended_when_all_copies_have_it_and_then_at_once() -> None:
    """Its end may be forgotten before a copy that is late takes the prepare: that would be in doubt there for ever. But
    what it has read is held until then, and whoever wants to write that does not wait for the end to be said again."""
    node, tx = lone_node(), tx_of(b"a session.", 1)
    number, shipped = partition_of(b"a", 2), list[Shipped]()
    fence, prepared, ship = node.core.version, node.core.replica.partition(number).prepared, node.replication.ship
    node.replication.ship = lambda operation, local: shipped.append(operation)  # type: ignore[method-assign]
    part = Part(number, [], [], [("acc", b"a", 0, 0)])
    run(node, [said(node, PrepareParts(fence, tx, tx, True, [part], [0, 1], 1 - number))])
    assert node.locks.holds(tx, ("acc", b"a"))
    (vote,) = shipped
    for _ in range(2):
        run(node, [said(node, Finish(fence, tx, False, [number], node.core.era))])
        assert (shipped, list(prepared)) == ([vote], [tx])
    node.replication.ship = ship  # type: ignore[method-assign]
    vote.counted()
    run(node, [])
    assert not prepared
    assert node.locks.idle


def test_where_nobody_is_waited_for_a_transaction_of_several_partitions_is_one_turn_and_one_block() -> None:
    node, tx = lone_node(), tx_of(b"a session.", 1)
    decision = partition_of(KEYS[0], 2)
    effects = node.turn(node.core.now + 1, [Asked(1, CommitTx(7, tx, tx, True, [("acc", list(KEYS), [b"v"] * 2)], [], []))])
    assert [type(record) for record in effects.log if not isinstance(record, r.Claimed)] == [
        r.Prepare,
        r.Prepare,
        r.Update,
        r.Outcome,
        r.Outcome,
    ]
    assert not effects.early, "nothing may leave that rests on what is on no disk yet"
    assert [reply for _, reply in effects.reply] == [Done(7)]
    assert not node.core.to_self
    assert not any(node.core.replica.partition(number).prepared for number in (0, 1))
    assert node.core.replica.store.get((DECISIONS, decision), tx) is not None


def test_what_is_prepared_a_moment_ago_is_in_doubt_and_no_trouble() -> None:
    """Under load some commit always waits for its outcome: `cluster status` said of a healthy cluster that it is not."""
    node = lone_node()
    tx, began = bytes(16), node.core.now
    node.participant._doubts[tx, 0] = Doubt(began, began, None, tx)
    node.core.now = began + (node.core.settings.in_doubt_ms - 1) * MS
    assert (node.admin.status()["in_doubt"], node.admin.status()["overdue"]) == ([tx.hex()], [])
    node.core.now += MS
    assert node.admin.status()["overdue"] == [tx.hex()]


class Unread(list[int]):
    """Participants that nobody looks through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("each of thousands who are in doubt names them all")


def test_who_is_in_doubt_of_what_is_known_is_told_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While all are told, and later: very many are in doubt in one turn, and each names very many."""
    node, tx = lone_node(), tx_of(b"a session.", 1)
    decision, other = sorted(range(2), key=lambda number: number != partition_of(KEYS[0], 2))
    run(node, [Asked(1, CommitTx(7, tx, tx, True, [("acc", list(KEYS), [b"v"] * 2)], [], []))])
    doubt = Resolve(node.core.fence, tx, decision, other, Unread([0, 1]))
    node.coordinator.active[tx] = running = Transaction(tx, decision, [0, 1], node.core.now)
    running.phase, running.commit = Phase.FINISHING, True
    heard: list[object] = []
    monkeypatch.setattr(node.core, "tell", lambda _, message: heard.append(message))
    for known in (running, None):
        if known is None:
            del node.coordinator.active[tx]
        node.coordinator.on_resolve("n2", doubt)
    assert [type(message) for message in heard] == [Finish, Finish]


def test_what_a_node_sends_itself_waits_for_the_next_turn_whatever_it_is() -> None:
    node = lone_node()
    ask = AskMap(node.core.version)
    node.core.send("n1", ask)
    assert (node.core.to_self, node.core.told) == ([ask], [])
    node.core.tell("n1", ask)
    assert (node.core.to_self, node.core.told) == ([ask], [ask])


def answers(effects: list[Effects]) -> list[object]:
    """What clients were told."""
    return [reply for each in effects for _, reply in each.reply]


def test_many_partitions_that_are_led_again_are_served_when_what_was_held_there_is_let_go_of() -> None:
    """None waits for that in a turn of its own, in which nothing is let go of."""
    node, count = lone_node(64), 32_000
    node.locks.pin(b"owner", [("acc", b"%d" % at) for at in range(count)])
    node.core.begin_turn()
    node.locks.drop(range(64))
    assert node.locks.goes(0), "in pieces"
    served: list[int] = []

    def serve(number: int) -> Iterator[int]:
        yield from node.participant.holding(number)
        served.append(number)

    for number in range(64):
        node.core.in_pieces(serve(number))
    turns = 0
    while len(served) < 64:
        node.turn(node.core.now + 1, [])
        turns += 1
        assert turns <= count // LET_GO_MAX
    assert not len(node.locks)
