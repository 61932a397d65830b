"""A put of very many keys in very many partitions: no turn looks at all of them, and what comes between is not missed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.data.admission import Admission
from engine.data.locks import LockTable
from engine.data.under_way import UnderWay
from engine.data.writes import LOOKED_AT_ONCE, LOOKED_OF_WORK
from engine.protocol.requests import Done, Lock, Put, Reply, Unlock, Values
from engine.turn.events import Asked, Event
from rebalance.ports import WORK_MAX
from tests.engine.data.test_sessions import ANN, BOB, Alone
from tests.support.called import called
from wal.ids import tx_of

PARTITIONS = 16_384
KEYS = 24_000
"""They lie in three of four of the partitions."""
LOOKED_MAX = (WORK_MAX + LOOKED_AT_ONCE) * LOOKED_OF_WORK
"""Parts that one turn looks at: two thirds of them."""


def put(number: int, tx: int, *, keys: int = KEYS) -> Put:
    """A request for so many of the keys."""
    return Put(number, tx_of(ANN, tx), "acc", [b"%d" % at for at in range(keys)], [b"v"] * keys)


def turns(alone: Alone, events: list[Event], replies: list[Reply]) -> Iterator[int]:
    """Turns until nothing more happens by itself at this moment; of each, how many parts it looked at in one way."""
    now = alone.node.core.now + 1
    ways = [Admission.is_new, Admission.may_serve, UnderWay._join, LockTable.busy_any, LockTable.give_up]
    codes = [way.__code__ for way in ways]
    while True:
        with called(*codes) as looked:
            effects = alone.node.turn(now, events)
        replies += [reply for _, reply in effects.reply]
        yield max(looked.values(), default=0)
        events = []
        if effects.wake_at is None or effects.wake_at > now + 1:
            return
        now += 1


def written(alone: Alone) -> int:
    """How many updates there are in all of its partitions."""
    return sum(fragment.counter.lwm for _, fragment in alone.node.core.replica.fragments.items())


@pytest.fixture
def alone() -> Alone:
    """A node that answered a put of two thirds of the keys."""
    alone, replies = Alone(PARTITIONS), list[Reply]()
    first = put(1, 1, keys=2 * KEYS // 3)
    assert max(turns(alone, [Asked(1, first)], replies)) <= LOOKED_MAX
    assert [type(reply) for reply in replies] == [Done]
    assert written(alone) == 2 * KEYS // 3
    return alone


def test_what_was_answered_in_all_partitions_is_found_in_pieces(alone: Alone) -> None:
    replies, before = list[Reply](), written(alone)
    assert max(turns(alone, [Asked(1, put(2, 1))], replies)) <= LOOKED_MAX
    assert [type(reply) for reply in replies] == [Done]
    assert 0 < written(alone) - before < KEYS // 3, "what lies where nothing was executed under that id"


def test_a_put_is_asked_again_while_its_parts_are_looked_at(alone: Alone) -> None:
    """Both are answered, and each part is written once."""
    replies, before = list[Reply](), written(alone)
    assert max(turns(alone, [Asked(1, put(2, 2)), Asked(2, put(3, 2))], replies)) <= LOOKED_MAX
    assert sorted(reply.id for reply in replies if isinstance(reply, Done)) == [2, 3]
    assert written(alone) - before == KEYS


def test_a_put_of_which_half_was_answered_waits_for_a_lock_and_is_written_when_it_is_free(alone: Alone) -> None:
    replies, locker = list[Reply](), tx_of(BOB, 1)
    key = b"%d" % (KEYS - 1)
    list(turns(alone, [Asked(3, Lock(1, locker, "acc", [key], 60_000))], replies))
    assert isinstance(replies.pop(), Values)
    before = written(alone)
    assert max(turns(alone, [Asked(1, put(2, 2))], replies)) <= LOOKED_MAX
    assert (replies, written(alone)) == ([], before), "it waits as a whole"
    assert max(turns(alone, [Asked(3, Unlock(2, locker))], replies)) <= LOOKED_MAX
    assert {type(reply) for reply in replies} == {Done}
    assert written(alone) - before == KEYS
    assert alone.node.locks.idle, "it lets go of all of it"


def test_somebody_locks_a_key_after_it_was_looked_at(alone: Alone) -> None:
    """It is seen when its part is issued: the request is asked anew, and waits; no part is issued twice."""
    replies, locker = list[Reply](), tx_of(BOB, 1)
    before, walk = written(alone), turns(alone, [Asked(1, put(2, 2))], replies)
    while written(alone) == before:
        next(walk)
    assert written(alone) - before < KEYS // 2, "the last parts were looked at, and are not issued yet"
    list(turns(alone, [Asked(3, Lock(1, locker, "acc", [b"%d" % (KEYS - 1)], 60_000))], replies))
    assert [type(reply) for reply in replies] == [Values], "the put waits"
    assert max(turns(alone, [Asked(3, Unlock(2, locker))], replies)) <= LOOKED_MAX
    assert 2 in [reply.id for reply in replies if isinstance(reply, Done)]
    assert written(alone) - before == KEYS
    assert alone.node.locks.idle, "it lets go of all of it"
