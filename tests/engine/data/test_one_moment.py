"""Whether what an optimistic transaction has read was so at one moment, told with one node that is its own cluster."""

from __future__ import annotations

from engine.protocol.requests import Check, Code, CommitTx, Done, Failed, Lock, Unlock, Values
from tests.engine.node.test_inquiry import ask
from tests.engine.transactions.test_participant import lone_node
from wal.ids import tx_of

ANN, BOB = (tx_of(b"a session.", number) for number in (1, 2))
KEYS = [b"a", b"b"]


def test_a_lock_is_nothing_to_who_goes_on_and_what_is_in_doubt_is() -> None:
    node = lone_node()
    (done,) = ask(node, CommitTx(1, ANN, ANN, True, [("acc", KEYS, [b"1", b"1"])], [], []))
    assert done == Done(1)
    (held,) = ask(node, Lock(2, BOB, "acc", KEYS, 1_000))
    assert isinstance(held, Values)
    reads = [("acc", key, epoch, counter) for key, (epoch, counter, _) in zip(KEYS, held.values, strict=True)]
    assert ask(node, Check(3, ANN, [], reads, going_on=True)) == [Done(3)]
    (ended,) = ask(node, Check(4, ANN, [], reads))
    assert isinstance(ended, Failed)
    assert "is locked by" in ended.message, "a lock may be told to whoever ends: its owner stood before it"

    writes = [("acc", KEYS, list[bytes | None]([b"2", b"2"]))]
    assert ask(node, CommitTx(5, BOB, BOB, False, writes, [], [], prepare_only=True)) == [Done(5)]
    (doubted,) = ask(node, Check(6, ANN, [], reads, going_on=True))
    assert isinstance(doubted, Failed)
    assert (doubted.code, doubted.retryable) == (Code.CONFLICT, True)
    assert ask(node, Unlock(7, BOB)) == [Done(7)]
    assert ask(node, Check(8, ANN, [], reads, going_on=True)) == [Done(8)], "it was rolled back"


def test_who_goes_on_keeps_its_locks_and_who_ends_gives_them_up() -> None:
    node = lone_node()
    ask(node, Lock(1, ANN, "acc", [b"a"], 1_000))
    assert ask(node, Check(2, ANN, [("acc", b"a")], [], going_on=True)) == [Done(2)]
    assert len(node.locks) == 1
    assert ask(node, Check(3, ANN, [("acc", b"a")], [])) == [Done(3)]
    assert len(node.locks) == 0
