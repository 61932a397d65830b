"""Very many who wait for one key, of whom each lets go of it as soon as it has it."""

from __future__ import annotations

from engine.data.holdings import Key
from engine.data.locking import TOLD_MAX
from engine.data.locks import LockTable
from engine.protocol.requests import Done, Failed, Lock, Put, Reply, Request, Swap, Unlock
from engine.turn.events import Asked
from tests.engine.data.test_sessions import Alone
from wal.ids import TxId, tx_of

MANY = 3_000
KEY: Key = ("ns", b"k")
KEY_OF_ACC: Key = ("acc", b"k")


def test_who_lets_go_at_once_does_not_stand_on_those_before_it() -> None:
    table, told = LockTable(lambda *_: 0), list[int]()
    assert table.try_all(b"first", [KEY]) is None

    def granted(owner: TxId, number: int) -> None:
        table.give_up(owner, [KEY])
        told.append(number)

    for number in range(MANY):
        owner = b"%d" % number
        table.wait_all(owner, [KEY], 1 << 60, lambda o=owner, n=number: granted(o, n), lambda *_: None)  # type: ignore[misc]
    table.release(b"first")
    assert told == list(range(MANY)), "each in its turn, and when the one before it is done"
    assert table.idle


def held() -> tuple[Alone, TxId]:
    """A key, and whoever has it locked."""
    alone, owner = Alone(), tx_of(b"a client..", 900)
    alone.ask(Put(1, tx_of(b"a client..", 1), "acc", [b"k"], [b"v"]))
    alone.ask(Lock(2, owner, "acc", [b"k"], 60_000))
    return alone, owner


def stand_in_line(alone: Alone) -> None:
    """Very many wait to put what is there already."""
    ids = {n: tx_of(b"another...", n) for n in range(1, MANY + 1)}
    asked = [Swap(n, tx, "acc", b"k", "absent", None, b"w", within_ms=5_000) for n, tx in ids.items()]
    assert alone.turn([Asked(1, swap) for swap in asked]) == []


def begin(alone: Alone, request: Request) -> list[Reply]:
    """One turn, after which there is more to do."""
    node = alone.node
    effects = node.turn(node.core.now + 1, [Asked(1, request)])
    assert effects.wake_at == node.core.now
    return [reply for _, reply in effects.reply]


def test_who_may_not_put_what_is_there_already_is_told_so_however_many_there_are() -> None:
    """As where very many begin at once, and each would put the same thing on record first. It stopped the node."""
    alone, owner = held()
    stand_in_line(alone)
    told = alone.turn([Asked(1, Unlock(MANY + 1, owner))])
    assert Done(MANY + 1) in told
    assert [each for each in told if each != Done(MANY + 1)] == [Done(n, False, b"v") for n in range(1, MANY + 1)]
    assert alone.node.locks.idle


def test_so_many_are_told_in_as_many_turns_as_that_takes() -> None:
    alone, owner = held()
    stand_in_line(alone)
    node, told = alone.node, [len(begin(alone, Unlock(MANY + 1, owner)))]
    while not node.locks.idle:
        told.append(len(node.turn(node.core.now + 1, []).reply))
    assert max(told) <= TOLD_MAX + 1
    assert sum(told) == MANY + 1


def test_who_has_the_key_and_is_told_later_does_not_run_out_of_time() -> None:
    alone, owner = held()
    stand_in_line(alone)
    told = begin(alone, Unlock(MANY + 1, owner))
    told += alone.turn([], later_ms=6_000)
    assert Done(TOLD_MAX + 1, False, b"v") in told
    assert any(isinstance(each, Failed) for each in told), "those behind it do"
    assert alone.node.locks.idle


def test_who_asks_again_before_it_is_told_is_not_in_its_own_way() -> None:
    """The second one comes to nothing, and lets go of what the first was given."""
    alone, owner = held()
    stand_in_line(alone)
    begin(alone, Unlock(MANY + 1, owner))
    number = TOLD_MAX + 1
    again = Swap(MANY + 2, tx_of(b"another...", number), "acc", b"k", "absent", None, b"w")
    assert alone.node.locks.may_write(again.tx, KEY_OF_ACC), "it has the key, and is not told"
    told = alone.turn([Asked(1, again)])
    assert Done(number, False, b"v") in told
    assert Done(MANY + 2, False, b"v") in told
    assert alone.node.locks.idle


def test_so_many_readers_have_a_key_in_as_many_turns_as_that_takes() -> None:
    """And one who would write it, and came last, has it when they are done."""
    alone, owner = held()
    node, ids = alone.node, {n: tx_of(b"another...", n) for n in range(1, MANY + 2)}
    asked = [Asked(1, Lock(n, tx, "acc", [b"k"], 60_000, shared=n <= MANY)) for n, tx in ids.items()]
    assert alone.turn([*asked]) == []
    begin(alone, Unlock(MANY + 2, owner))
    told = sum(node.locks.holds(tx, KEY_OF_ACC) for tx in ids.values())
    assert told == TOLD_MAX + 1, "and one is yet to be told"
    assert len(alone.turn([])) == MANY - TOLD_MAX
    assert not node.locks.holds(ids[MANY + 1], KEY_OF_ACC)
    for n in range(1, MANY + 1):
        alone.turn([Asked(1, Unlock(MANY + 2 + n, ids[n]))])
    assert node.locks.may_write(ids[MANY + 1], KEY_OF_ACC)
