"""Very many who wait for one key, of whom each lets go of it as soon as it has it."""

from __future__ import annotations

from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.protocol.requests import Done, Lock, Put, Swap, Unlock
from engine.turn.events import Asked
from tests.engine.data.test_sessions import Alone
from wal.ids import TxId, tx_of

MANY = 3_000
KEY: Key = ("ns", b"k")


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


def test_who_may_not_put_what_is_there_already_is_told_so_however_many_there_are() -> None:
    """As where very many begin at once, and each would put the same thing on record first. It stopped the node."""
    alone, owner = Alone(), tx_of(b"a client..", 900)
    alone.ask(Put(1, tx_of(b"a client..", 1), "acc", [b"k"], [b"v"]))
    alone.ask(Lock(2, owner, "acc", [b"k"], 60_000))
    asked = [Swap(n, tx_of(b"another...", n), "acc", b"k", "absent", None, b"w") for n in range(1, MANY + 1)]
    assert alone.turn([Asked(1, swap) for swap in asked]) == []
    *told, unlocked = alone.turn([Asked(1, Unlock(MANY + 1, owner))])
    assert told == [Done(n, False, b"v") for n in range(1, MANY + 1)]
    assert unlocked == Done(MANY + 1)
    assert alone.node.locks.idle
