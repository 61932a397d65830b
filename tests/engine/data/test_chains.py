"""Those who wait for one key are executed one on another when it is free: in one record, and as if each were alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.chains import CHAIN_BYTES_MAX, CHAIN_MAX
from engine.data.concerns import work_of
from engine.protocol.requests import Code, Done, Failed, Lock, Put, Remap, Reply, Request, Swap, Unlock, Values
from engine.turn.events import Asked
from rebalance.ports import Shipped
from tests.engine.data.test_sessions import Alone
from wal import records as r
from wal.ids import TxId, tx_of

OWNER = tx_of(b"a holder..", 1)


def tx(number: int) -> TxId:
    return tx_of(b"in line...", number)


def add(number: int, by: bytes = b"1", *, ttl_ms: int = 0) -> Swap:
    return Swap(number, tx(number), "acc", b"k", "always", None, by, how="add", ttl_ms=ttl_ms)


def let_on(alone: Alone, *asked: Request) -> list[Reply]:
    """A transaction holds the key while all of this is asked for, and gives it up; what they are told, in their order."""
    alone.ask(Lock(900, OWNER, "acc", [b"k"], 60_000))
    assert alone.turn([Asked(1, request) for request in asked]) == []
    alone.records.clear()
    told = {reply.id: reply for reply in alone.turn([Asked(1, Unlock(901, OWNER))])}
    assert alone.node.locks.idle
    assert told.pop(901) == Done(901)
    return [told[number] for number in sorted(told)]


def updates(alone: Alone) -> list[list[bytes | None]]:
    """What each record writes to the key."""
    found = [record.writes for record in alone.records if isinstance(record, r.Update)]
    return [[write.values[0] for write in writes if write.namespace == "acc"] for writes in found]


def sums(told: list[Reply]) -> list[bytes | None]:
    """What each was told."""
    assert all(isinstance(each, Done) and each.applied for each in told), told
    return [each.found for each in told if isinstance(each, Done)]


def test_they_are_one_record_in_which_each_has_an_id_and_an_answer() -> None:
    alone = Alone()
    assert sums(let_on(alone, add(1), add(2, b"10"), add(3))) == [b"1", b"11", b"12"]
    assert updates(alone) == [[b"1", b"11", b"12"]]
    (writes,) = [record.writes for record in alone.records if isinstance(record, r.Update)]
    assert [(write.tx, write.answer) for write in writes] == [(tx(1), b"1"), (tx(2), b"11"), (tx(3), b"12")]
    assert [alone.ask(add(number)) for number in (1, 2, 3)] == [
        Done(number, True, told) for number, told in zip((1, 2, 3), (b"1", b"11", b"12"), strict=True)
    ]
    assert alone.value() == b"12"


def test_a_put_stands_in_line_among_them() -> None:
    alone = Alone()
    told = let_on(alone, add(1), Put(2, tx(2), "acc", [b"k"], [b"100"]), add(3))
    assert sums(told) == [b"1", None, b"101"]
    assert updates(alone) == [[b"1", b"100", b"101"]]


def test_a_put_of_several_keys_ends_it_and_so_does_a_transaction() -> None:
    alone = Alone()
    told = let_on(alone, add(1), Put(2, tx(2), "acc", [b"k", b"l"], [b"100", b"l"]), add(3))
    assert sums(told) == [b"1", None, b"101"]
    assert updates(alone) == [[b"1"], [b"100"], [b"101"]]
    alone = Alone()
    locked, other = Lock(2, tx(20), "acc", [b"k"], 60_000), Unlock(4, tx(20))
    alone.ask(Lock(900, OWNER, "acc", [b"k"], 60_000))
    alone.turn([Asked(1, request) for request in (add(1), locked, add(3))])
    told = alone.turn([Asked(1, Unlock(901, OWNER))])
    assert {reply.id for reply in told} == {901, 1, 2}, "the transaction has what the first one wrote"
    assert [reply.values[0][2] for reply in told if isinstance(reply, Values)] == [b"1"]
    assert sums([each for each in alone.turn([Asked(1, other)]) if each.id == 3]) == [b"2"]


def test_so_many_and_so_many_bytes_are_one_record_at_most() -> None:
    alone = Alone()
    told = let_on(alone, *[add(number) for number in range(1, CHAIN_MAX + 11)])
    assert sums(told) == [b"%d" % number for number in range(1, CHAIN_MAX + 11)]
    assert [len(written) for written in updates(alone)] == [CHAIN_MAX, 10]
    alone, large = Alone(), b"x" * (CHAIN_BYTES_MAX // 2)
    let_on(alone, *[Swap(n, tx(n), "acc", b"k", "always", None, large, how="append") for n in range(1, 6)])
    assert [len(written) for written in updates(alone)] == [2, 1, 1, 1], "each value has all of those before"


def test_a_record_of_many_is_as_much_work_for_a_copy_as_if_they_were_many() -> None:
    alone = Alone()
    let_on(alone, *[add(number) for number in range(1, 101)])
    (record,) = [record for record in alone.records if isinstance(record, r.Update)]
    assert work_of(record) >= len(record.writes)


def test_a_condition_is_looked_at_where_its_turn_is() -> None:
    alone = Alone()

    def swap(number: int, when: str, old: bytes | None, new: bytes) -> Swap:
        return Swap(number, tx(number), "acc", b"k", when, old, new)

    taken = swap(1, "absent", None, b"1"), swap(2, "absent", None, b"2"), swap(3, "equals", b"1", b"3")
    told = let_on(alone, *taken, swap(4, "equals", b"1", b"4"), add(5))
    said = [(each.id, each.applied, each.found) for each in told if isinstance(each, Done)]
    assert said == [(1, True, None), (2, False, b"1"), (3, True, None), (4, False, b"3"), (5, True, b"4")]
    assert updates(alone) == [[b"1", b"3", b"4"]]
    assert alone.ask(swap(2, "absent", None, b"2")) == Done(2, False, b"4"), "it is not made, and so not on record"


def test_what_is_no_number_is_refused_to_who_adds_to_it_and_to_nobody_else() -> None:
    alone = Alone()
    told = let_on(alone, add(1), Put(2, tx(2), "acc", [b"k"], [b"x"]), add(3), Put(4, tx(4), "acc", [b"k"], [b"7"]), add(5))
    assert isinstance(told[2], Failed)
    assert told[2].code == Code.USAGE
    assert sums([told[0], told[4]]) == [b"1", b"8"]


def test_who_asked_twice_is_executed_once() -> None:
    alone = Alone()
    twice = add(1), add(2), Swap(3, tx(2), "acc", b"k", "always", None, b"1", how="add")
    first = Swap(4, tx(1), "acc", b"k", "always", None, b"1", how="add")
    assert sums(let_on(alone, *twice, first)) == [b"1", b"2", b"2", b"1"]
    assert alone.value() == b"2"


def test_each_that_is_to_expire_says_so_beside_itself() -> None:
    alone = Alone()
    assert sums(let_on(alone, add(1, ttl_ms=1_000), add(2), add(3, ttl_ms=5_000))) == [b"1", b"2", b"3"]
    (record,) = [record for record in alone.records if isinstance(record, r.Update)]
    assert [write.namespace for write in record.writes] == ["acc", "~ttl", "acc", "acc", "~ttl"]
    alone.idle(2_000)
    assert alone.value() == b"3", "the first one's time concerns what it wrote"
    alone.idle(5_000)
    assert alone.value() is None


def _asked(number: int) -> st.SearchStrategy[Request]:
    values, ttls = st.sampled_from([b"1", b"2", b"x"]), st.sampled_from([0, 0, 50])
    conditions = st.sampled_from(["absent", "present", "equals", "always"])
    kinds = st.sampled_from(["set", "exchange", "append", "keep"])

    def swap(when: str, old: bytes, new: bytes, how: str, ttl_ms: int) -> Request:
        return Swap(number, tx(number), "acc", b"k", when, old if when == "equals" else None, new, how=how, ttl_ms=ttl_ms)

    def put(value: bytes | None, ttl_ms: int) -> Request:
        return Put(number, tx(number), "acc", [b"k"], [value], ttl_ms=ttl_ms if value is not None else 0)

    added = st.builds(lambda by, ttl_ms: add(number, by, ttl_ms=ttl_ms), st.sampled_from([b"1", b"-3"]), ttls)
    return added | st.builds(swap, conditions, values, values, kinds, ttls) | st.builds(put, st.none() | values, ttls)


@given(st.integers(2, 8).flatmap(lambda many: st.tuples(*[_asked(number) for number in range(1, many + 1)])))
@settings(deadline=None)
def test_each_is_told_and_leaves_what_it_would_alone(asked: tuple[Request, ...]) -> None:
    together, apart = Alone(), Alone()
    apart.node.locks.take_along = lambda key: None  # type: ignore[method-assign]
    told = let_on(together, *asked), let_on(apart, *asked)
    assert told[0] == told[1]
    states = [alone.node.core.replica for alone in (together, apart)]
    one, other = ({name: (str(f.counter), f.digest) for name, f in state.fragments.items()} for state in states)
    assert one == other
    assert together.value() == apart.value()
    assert together.known() == apart.known()


@pytest.mark.parametrize("lost", [True, False])
def test_all_are_told_whether_it_counts_or_is_another_primarys(lost: bool) -> None:
    """Who was not made, and so has only read what the others wrote, too."""
    alone, shipped = Alone(), list[Shipped]()
    node = alone.node
    node.writes.replication.ship = lambda operation, local: shipped.append(operation)  # type: ignore[method-assign]
    alone.ask(Lock(900, OWNER, "acc", [b"k"], 60_000))
    alone.turn([Asked(1, each) for each in (add(1), add(2), Swap(3, tx(3), "acc", b"k", "absent", None, b"x"))])
    assert alone.turn([Asked(1, Unlock(901, OWNER))]) == [Done(901)], "nobody is told of what does not count"
    (chain,) = shipped
    node.core.effects.reply.clear()
    (chain.abandoned if lost else chain.counted)()
    told = {reply.id: reply for _, reply in node.core.effects.reply}
    assert sorted(told) == [1, 2, 3]
    if lost:
        version = node.core.version
        assert list(told.values()) == [Remap(1, version, True), Remap(2, version, True), Remap(3, version)]
    else:
        assert told[3] == Done(3, False, b"2")
    assert not node.writes.under_way
    assert node.locks.idle
    assert not node.locks.is_pending(("acc", b"k"))
