"""The digest of contents: whatever happened to a copy, it is that of the rows which the copy has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.state.held import Held
from engine.state.replica import Replica
from engine.state.store import CheckpointImage, Entry, LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.contents import HASHED_MAX, HASHED_OF_WORK, row_digest
from tests.engine.state.test_replica import MOVES, NAMESPACES, NEAR_A_DIGEST, PARTITIONS, Move, fold, record_of
from wal import records as r
from wal.ids import Fragment

NAME: Fragment = ("acc", 7)


def put(start: int, key: bytes, value: bytes | None, epoch: int = 1, stable: int = 0) -> r.Update:
    """One update of one key."""
    return r.Update([r.Write(*NAME, epoch, start, [key], [value], stable)])


def digest(replica: Replica, name: Fragment = NAME, *, rows_at_once: int = 3) -> int:
    """What the copy says that it contains."""
    walk = replica.store.walk(name)()
    assert walk is not None
    while not walk.done:
        assert 0 < walk.step(rows_at_once) <= rows_at_once
    found = replica.store.walked(walk)
    assert found is not None
    return found


def recomputed(replica: Replica, name: Fragment = NAME) -> int:
    """The same from its rows."""
    return sum(row_digest(*row) for row in replica.store.scan(name, b"", 1 << 20)) % (1 << 64)


@given(st.lists(st.tuples(MOVES, st.integers(0, 3)), min_size=15, max_size=40))
@settings(max_examples=120)
def test_after_any_history_it_is_that_of_the_rows(moves: list[tuple[Move, int]]) -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    for namespace in NAMESPACES:
        for partition in PARTITIONS:
            replica.apply(r.FragmentReady(namespace, partition, NEAR_A_DIGEST, 7, [(1, 1)], True))
    for lsn, (move, row) in enumerate(moves, 1):
        if move.kind in ("ready", "clear") and row:  # rows of a transfer, or fetched after an undo; counter 0: no such key
            counters = [0 if row == 1 else NEAR_A_DIGEST + row] * len(move.keys)
            rows = r.Preload(
                move.namespace, move.partition, [1] * len(move.keys), counters, move.keys, [move.value] * len(move.keys)
            )
            fold(replica, rows, lsn)
        record = record_of(move, replica) if move.kind != "checkpoint" else None
        if isinstance(fold(replica, record, lsn), type):
            return  # a record that no node writes: it stops one
        for name in replica.fragments:
            assert digest(replica, name) == recomputed(replica, name), record


def test_the_order_of_arrival_and_the_way_of_arriving_leave_no_trace() -> None:
    copies = [Replica(LayeredStore(MemoryStore())) for _ in range(4)]
    writes = [put(0, b"a", b"1"), put(1, b"b", b"2"), put(2, b"a", b"3"), put(3, b"c", b"4"), put(4, b"c", None)]
    orders = [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)]
    for copy, order in zip(copies, orders, strict=False):
        for at in order:
            copy.apply(writes[at])
    copies[3].apply(r.FragmentClear(*NAME, "in full"))
    copies[3].apply(r.Preload(*NAME, [1, 1], [2, 3], [b"b", b"a"], [b"2", b"3"]))
    copies[3].apply(r.FragmentReady(*NAME, 5, 7, [(1, 1)], True))
    entries = {b"a": Entry(1, 3, b"3"), b"b": Entry(1, 2, b"2")}
    assert {digest(copy) for copy in copies} == {sum(row_digest(*row) for row in entries.items()) % (1 << 64)}


def test_a_row_that_a_transfer_lost_shows_although_the_history_was_taken_over() -> None:
    whole, short = Replica(LayeredStore(MemoryStore())), Replica(LayeredStore(MemoryStore()))
    whole.apply(put(0, b"a", b"1"))
    whole.apply(put(1, b"b", b"2"))
    fragment = whole.fragment(NAME)
    short.apply(r.FragmentClear(*NAME, "in full"))
    short.apply(r.Preload(*NAME, [1], [1], [b"a"], [b"1"]))
    short.apply(r.FragmentReady(*NAME, fragment.counter.lwm, fragment.digest, list(fragment.epochs), True))
    assert short.fragment(NAME).digest == fragment.digest
    assert digest(short) != digest(whole)


def test_an_undo_is_done_with_when_the_rows_are_fetched() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(put(0, b"a", b"1"))
    before = digest(replica)
    replica.apply(put(1, b"a", b"undone"))
    replica.apply(put(2, b"b", b"undone"))
    replica.apply(r.Undo(*NAME, 1, [b"a", b"b"]))
    assert digest(replica) != before, "the rows are what they were: suspects"
    replica.apply(r.Preload(*NAME, [1, 0], [1, 0], [b"a", b"b"], [b"1", None]))
    assert digest(replica) == before


def test_what_is_prepared_is_not_contained() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(put(0, b"a", b"1"))
    before = digest(replica)
    tx = bytes(16)
    replica.apply(r.Prepare(tx, 7, 1, [r.Write(*NAME, 1, 1, [b"a"], [b"2"], 0, tx)], [], [7], 7))
    assert digest(replica) == before
    replica.apply(r.Outcome(tx, 7, 1, True, [("acc", 1, 1)]))
    assert digest(replica) == recomputed(replica) != before


def test_a_walk_sees_what_was_there_when_it_began_and_notices_a_checkpoint() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    for at in range(10):
        replica.apply(put(at, b"%d" % at, b"v"))
    wanted = digest(replica)
    walk = replica.store.walk(NAME)()
    assert walk is not None
    walk.step(4)
    replica.apply(put(10, b"9", b"w"))  # which does not reach it
    walk.step(6)
    assert replica.store.walked(walk) == wanted
    image = replica.begin_checkpoint(1, [])
    late = replica.store.walk(NAME)()
    assert late is not None
    write(replica, image)
    late.step(20)
    assert replica.store.walked(late) is None, "the store below is another than when it began"
    assert digest(replica) == recomputed(replica)


def test_what_a_hundred_fragments_contain_is_looked_up_below_when_it_is_summed_up() -> None:
    """A batch may ask about so many partitions at once, and each look is a search through the store."""

    class Asked(MemoryStore):
        asked = 0

        def contents(self, fragment: Fragment) -> int | None:
            self.asked += 1
            return super().contents(fragment)

    base = Asked()
    replica = Replica(LayeredStore(base))
    replica.apply(put(0, b"a", b"v"))
    write(replica, replica.begin_checkpoint(1, []))
    replica.apply(put(1, b"b", b"v"))
    wanted, base.asked = recomputed(replica), 0
    begin, late = replica.store.walk(NAME), replica.store.walk(NAME)
    assert base.asked == 0
    replica.apply(put(2, b"a", b"w"))  # which does not reach it
    walk = begin()
    assert walk is not None
    walk.step(10)
    assert replica.store.walked(walk) == wanted
    write(replica, replica.begin_checkpoint(2, []))
    overtaken = late()
    assert overtaken is not None
    overtaken.step(10)
    assert overtaken.done
    assert replica.store.walked(overtaken) is None, "the store below is another than when it began"


def test_two_checkpoints_after_which_the_store_contains_what_it_did_are_noticed() -> None:
    """The walk would find below what it has above, and take it away again; then that is deleted, and its digest with it."""
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(put(0, b"stays", b"v"))
    write(replica, replica.begin_checkpoint(1, []))
    kept = replica.store.base.contents(NAME)
    replica.apply(put(1, b"for a while", b"v"))
    walk = replica.store.walk(NAME)()
    assert walk is not None
    write(replica, replica.begin_checkpoint(2, []))
    walk.step(10)
    replica.apply(put(2, b"for a while", None))
    write(replica, replica.begin_checkpoint(3, []))
    assert replica.store.base.contents(NAME) == kept
    assert walk.done
    assert replica.store.walked(walk) is None


def write(replica: Replica, image: CheckpointImage) -> None:
    """The checkpoint is written, and is over."""
    replica.store.base.write(image)
    replica.store.thaw()


KEYS = st.sets(st.integers(0, 400), max_size=120)
IN_A_ROW = st.builds(range, st.integers(0, 400), st.integers(0, 900))


@given(KEYS, IN_A_ROW, KEYS, IN_A_ROW, st.sampled_from((7, 60, 1_000)))
@settings(max_examples=100)
def test_close_together_or_far_apart_the_store_below_is_taken_into_account(
    some: set[int], more: range, others: set[int], others_more: range, at_once: int
) -> None:
    stored, changed = some | set(more), others | set(others_more)
    base = MemoryStore()
    rows = {b"%04d" % key: Entry(1, key + 1, b"old") for key in sorted(stored)}
    base.write(CheckpointImage(1, {}, {NAME: b"state"}, {}, [], {NAME: rows}))
    store = LayeredStore(base)
    for key in sorted(changed, key=lambda key: key * 7 % 997):  # in no order of theirs
        store.put(NAME, b"%04d" % key, Entry(2, key + 1, b"new"))
        rows[b"%04d" % key] = Entry(2, key + 1, b"new")
    walk = store.walk(NAME)()
    assert walk is not None
    while not walk.done:
        walk.step(at_once)
    assert walk.digest == sum(row_digest(*row) for row in rows.items()) % (1 << 64)


class Watched(MemoryStore):
    """A store of 3,000 rows that says which of them were read, and which keys looked up alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = {b"%05d" % key: Entry(1, key + 1, b"v") for key in range(3_000)}
        self.write(CheckpointImage(1, {}, {NAME: b"state"}, {}, [], {NAME: dict(self.rows)}))
        self.renew()
        self.read = 0
        self.looked_up: list[bytes] = []

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        self.looked_up.append(key)
        return super().get(fragment, key)

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        found = super().digests(fragment, start, limit)
        self.read += len(found)
        return found


def test_of_keys_that_are_there_no_other_row_is_read_however_close_together_they_lie() -> None:
    below = Watched()
    for apart in (1, 2, 10, 100):
        keys = list(below.rows)[::apart]
        assert Held(below, NAME)(keys[::-1]) == sum(row_digest(key, below.rows[key]) for key in keys)
    assert (below.read, below.looked_up) == (0, [])


def test_keys_that_are_new_are_not_looked_up_one_by_one_because_others_were_not() -> None:
    below = Watched()
    new, changed = [b"%05d" % key for key in range(5_000, 9_000)], list(below.rows)[:300]
    held = Held(below, NAME)
    assert held([*new, *changed]) == sum(row_digest(key, below.rows[key]) for key in changed)
    assert not below.looked_up
    far_apart = [key + b"-" for key in below.rows][::50]
    assert held(far_apart) == 0
    assert len(below.looked_up) > len(far_apart) // 2


def test_what_is_large_is_summed_up_in_pieces_and_is_work() -> None:
    store = LayeredStore(MemoryStore())
    replica, value = Replica(store), bytes(HASHED_MAX // 4)
    for start in range(10):
        replica.apply(put(start, b"large-%d" % start, value))
    walk = store.walk(NAME)()
    assert walk is not None
    works = []
    while not walk.done:
        works.append(walk.step(500))
    assert works == [5 + 5 * len(value) // HASHED_OF_WORK] * 2, "the row with which it is too much ends a piece"
    assert store.walked(walk) == recomputed(replica)
