"""Many keys that nobody has are taken together, and come to what they would one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data import holdings, locks
from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.data.waiter import Waiter
from wal.ids import TxId, partition_of, partitions_of

KEYS: list[Key] = [("n", bytes([at])) for at in range(12)]
OWNERS = (b"a", b"b", b"c")
some = st.lists(st.sampled_from(KEYS), max_size=8)
DEEDS = ["try", "wait", "read", "release", "pend", "unpend", "pin", "vote", "unpin", "over", "give"]
step = st.tuples(st.sampled_from(DEEDS), st.sampled_from(OWNERS), some, some)


def _place(key: bytes) -> int:
    return key[0] % 3


def _say(steps: Sequence[tuple[str, TxId, list[Key], list[Key]]], *, in_pieces: bool = False) -> list[object]:
    """What a table answers to each step, and what it holds after it."""
    table, said = LockTable(lambda _, key: _place(key)), list[object]()
    pending: list[Key] = []
    for number, (what, owner, keys, reads) in enumerate(steps):
        if what == "try":
            said.append(table.try_all(owner, keys, reads))
        elif what in ("wait", "read"):

            def granted(number: int = number) -> None:
                said.append(("granted", number))

            def expired(held: str, ring: object, number: int = number) -> None:
                said.append(("expired", number, held, ring))

            if in_pieces:
                waiter = Waiter(owner, keys, 1 << 60, granted, expired, shared=what == "read")
                assert all(count == 1 for count in table.standing(waiter))
            else:
                table.wait_all(owner, keys, 1 << 60, granted, expired, shared=what == "read")
        elif what == "release":
            for _ in table.leaving(owner):
                pass
        elif what == "pend":
            for key in keys:
                if not table.busy(key):
                    table.pend(key)
                    pending.append(key)
        elif what in ("pin", "vote"):
            mine = [key for key in dict.fromkeys(keys) if table.may_write(owner, key)]
            table.pin(owner, mine, [key for key in reads if table.holds(owner, key)], in_doubt=what == "vote")
        elif what == "unpin" and not any(map(table.in_doubt, (*keys, *reads))):
            table.unpin(owner, keys, reads)
        elif what == "over":
            table.release(owner, list(dict.fromkeys(keys)) if reads else None)
        elif what == "give":
            table.give_up(owner, list(dict.fromkeys(keys)) if reads else None)
        elif pending:
            table.unpend(pending.pop())
        said.append([(o, table.is_owner(o), table.counted(o), sorted(table.keys_of(o))) for o in OWNERS])
        said.append(table.owners(0, len(OWNERS)))
        said.append([sorted(table.held_in(at, 0, 100)) for at in range(3)])
        said.append([(o, table.may_write(o, key), table.holds(o, key)) for o in OWNERS for key in KEYS])
        said.append([(o, table.is_pinned(o, key), table.in_doubt(key)) for o in OWNERS for key in KEYS])
        said.append([sorted(table.keys_in_doubt(at)) for at in range(3)])
        said.append([sorted(table.waits_of(o)) for o in OWNERS])
        said.append([table.busy_any(keys), any(map(table.busy, keys)), len(table)])
    return said


@settings(max_examples=300)
@given(st.lists(step, max_size=30))
def test_together_comes_to_what_one_by_one_does(steps: list[tuple[str, TxId, list[Key], list[Key]]]) -> None:
    one_by_one = _say(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "MANY_KEYS", 1)
        patch.setattr(holdings, "MANY_KEYS", 1)
        assert _say(steps) == one_by_one
        patch.setattr(locks, "STANDING_MAX", 1)
        assert _say(steps, in_pieces=True) == one_by_one


def test_who_stands_in_line_in_pieces_has_nothing_before_it_has_all() -> None:
    table, told = LockTable(lambda _, __: 0), list[object]()
    keys = [("n", b"%d" % at) for at in range(2 * locks.STANDING_MAX + 1)]
    table.wait_all(b"first", [keys[0]], 10, lambda: told.append("first"), lambda *_: None)
    waiter = Waiter(b"many", keys, 10, lambda: told.append("many"), lambda held, _: told.append(held), shared=False)
    pieces = table.standing(waiter)
    assert next(pieces) == locks.STANDING_MAX
    assert list(table.waits_of(b"many")) == [(b"first", keys[0], False)]
    table.release(b"first")
    assert told == ["first"], "it has all that it has asked for, and that is not all"
    assert list(pieces) == [locks.STANDING_MAX, 1]
    assert told == ["first", "many"]
    assert table.waiters == 0


@pytest.mark.parametrize("why", ["its time is over", "it gives way", "its partition is gone"])
def test_who_is_given_up_while_it_stands_in_line_asks_for_nothing_more(why: str) -> None:
    table, told = LockTable(lambda _, __: 0), list[object]()
    keys = [("n", b"%d" % at) for at in range(2 * locks.STANDING_MAX)]
    waiter = Waiter(b"many", keys, 10, lambda: told.append("many"), lambda *_: told.append("given up"), shared=False)
    pieces = table.standing(waiter)
    next(pieces)
    if why == "its time is over":
        table.expire(11)
    elif why == "it gives way":
        table.give_way(b"many", ())
    else:
        table.drop({0})
    assert list(pieces) == []
    assert told == ["given up"]
    assert table.idle
    assert not table.is_owner(b"many")


TAGS = st.sampled_from([b"", b"{}", b"{a}", b"{b}", b"{a", b"a}", b"{{a}", b"x{a}", b"{}a}"])


@given(st.lists(st.tuples(TAGS, st.binary(max_size=3), TAGS).map(b"".join), max_size=6), TAGS)
def test_where_many_keys_lie(keys: list[bytes], tag: bytes) -> None:
    for some_keys in (keys, [tag + key for key in keys]):
        assert partitions_of(some_keys, 1_024) == [partition_of(key, 1_024) for key in some_keys]
