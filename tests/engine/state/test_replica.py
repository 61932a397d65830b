"""The one apply has a quick way for the commonest write: it must say and leave exactly what the general one does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.state import rows
from engine.state.ahead import AllAhead, work_out
from engine.state.encoding import BYTES_OF_WORK
from engine.state.loaded import Encoded, whole
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.chained import DIGEST_EVERY
from rebalance.fragment import CannotUndo, FragmentState
from rebalance.image import FragmentImage, PartitionImage, TakenFragment, pairs_of, take_down
from rebalance.partition import PartitionState
from tests.sim.planted.fault import replace, swapped
from wal import records as r
from wal.counters import CounterError
from wal.ids import DECISIONS, Fragment

NAMESPACES = ("acc", "bank", DECISIONS)
PARTITIONS = (3, 4)
KEYS = (b"a", b"b", b"c")
NEAR_A_DIGEST = DIGEST_EVERY - 3
"""Where an example begins, so that it soon passes a counter whose digest is kept."""
REFUSALS = (CounterError, CannotUndo, AssertionError, LookupError, ValueError)


class General(Replica):
    """A replica that never takes the quick way."""

    def apply_write(self, write: r.Write) -> bool:
        """As the general way has it."""
        return self._apply_write(write)


class Forethought(Replica):
    """A replica for which every write is worked out before it is applied."""

    def apply_write(self, write: r.Write) -> bool:
        """In the general way, which takes what was worked out."""
        for _ in work_out([write], self.ahead, self.fragments, self.watch):
            pass
        try:
            return self._apply_write(write)
        finally:
            self.ahead.clear()


class Move(msgspec.Struct, frozen=True):
    """What happens next to a fragment, relative to where it stands."""

    kind: str
    namespace: str
    partition: int
    jump: int  # from LWM to where the write begins
    lag: int  # from there down to what is settled
    epochs: int  # by how much the epoch differs from the newest
    origin: int
    keys: list[bytes]
    value: bytes | None
    tx: bytes


def often(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Mostly one thing."""
    return st.sampled_from((usual,) * 5 + others)


MOVES = st.builds(
    Move,
    kind=st.sampled_from(
        ("put",) * 8
        + ("undo", "clear", "close", "rows") * 2
        + ("history", "prepare", "outcome", "epoch", "ready", "checkpoint")
    ),
    namespace=often(*NAMESPACES),
    partition=often(*PARTITIONS),
    jump=often(0, -1, 1, 2),
    lag=st.sampled_from((0, 0, -1, 1, 2, 5)),
    epochs=often(0, 0, 0, 0, 0, 0, 0, -1, 1),
    origin=often(0, 9),
    keys=often([b"a"], [b"b"], [b"c"], [b"a", b"b"], list(KEYS)),
    value=often(b"value", b"", b"other", None),
    tx=st.sampled_from((b"", *(n.to_bytes(16, "big") for n in range(4)))),
)


def record_of(move: Move, replica: Replica) -> r.Record:
    """The move as a record, by how a replica stands. It only looks."""
    name = (move.namespace, move.partition)
    fragment = replica.fragments.get(name) or FragmentState(name)
    partition = replica.partitions.get(move.partition) or PartitionState(move.partition)
    lwm = fragment.counter.lwm
    newest = max(1, fragment.epochs[-1][0] if fragment.epochs else 1, partition.epoch)
    epoch = max(1, newest + move.epochs)
    start = max(0, lwm + move.jump)
    stable = max(0, start - move.lag)
    values = [move.value if move.namespace != DECISIONS else b"\x01"] * len(move.keys)
    write = r.Write(*name, epoch, start, move.keys, values, stable, move.tx, 0, move.origin)
    match move.kind:
        case "put":
            return r.Update([write])
        case "history":
            return r.History([write])
        case "prepare":
            return r.Prepare(move.tx, move.partition, epoch, [write], [], [move.partition], move.partition)
        case "outcome":
            held = list(partition.prepared.values())
            tx = held[0].tx if held else move.tx
            ranges = [(w.namespace, w.start, w.delta) for p in held[:1] for w in p.writes]
            return r.Outcome(tx, move.partition, epoch, move.value is not None, ranges)
        case "close":
            return r.NoOp(move.partition, epoch, [(move.namespace, start, len(move.keys))])
        case "epoch":
            return r.EpochStart(
                move.partition, newest + 1, [(ns, f.counter.lwm + 1) for ns, f in partition.fragments.items()]
            )
        case "undo":
            return r.Undo(*name, max(0, lwm - move.lag), [])
        case "clear":
            return r.FragmentClear(*name, "", move.value is None)
        case "rows":
            keys, counters = move.keys, [max(1, start + at) for at in range(len(move.keys))]
            if not fragment.loading:  # of what was undone a supplier tells what was so before
                keys = [key for key in keys if key in fragment.suspects]
                counters = [min(counter, fragment.stable) for counter in counters]
            return r.Preload(*name, [newest] * len(keys), counters[: len(keys)], keys, [move.value] * len(keys))
        case _:
            whole = max([lwm + 2, *(entry.counter for _, entry in replica.store.scan(name, b"", len(KEYS)))])
            return r.FragmentReady(*name, whole, 7, [(1, 1)], True)


def standing_of(replica: Replica) -> dict[str, Any]:
    """Everything that two replicas can differ in."""
    return {
        "fragments": {name: (_taken(f), str(f.counter), f.changed_for) for name, f in replica.fragments.items()},
        "results": {n: (p.results.items(), p.results.floor, p.prepared) for n, p in replica.partitions.items()},
        "rows": {name: replica.store.scan(name, b"", 10) for name in replica.fragments},
        "weight": replica.store.active_bytes,
    }


def _taken(fragment: FragmentState) -> TakenFragment:
    """A fragment as a checkpoint takes it down; in which order it has keys says nothing."""
    taken = take_down(fragment)
    return taken._replace(suspects=sorted(taken.suspects), tombstones=pairs_of(dict(sorted(taken.tombstones))))


def _stored(encoded: Encoded | None) -> FragmentImage | None:
    """The same as a checkpoint has it."""
    if encoded is None:
        return None
    image = msgspec.msgpack.decode(whole(encoded), type=FragmentImage)
    return msgspec.structs.replace(image, suspects=sorted(image.suspects), tombstones=sorted(image.tombstones))


def fold(replica: Replica, record: r.Record | None, lsn: int) -> object:
    """Fold a record, or take a checkpoint; what came of it."""
    try:
        if record is not None:
            return replica.apply(record)
        image = replica.begin_checkpoint(lsn, [])
        rows = {name: dict(rows) for name, rows in image.rows.items()}
        kept = image._replace(rows=rows, fragments={}), {name: _stored(data) for name, data in image.fragments.items()}
        replica.store.base.write(image)
        replica.store.thaw()
    except REFUSALS as error:
        return type(error)
    else:
        return kept


@given(st.lists(MOVES, min_size=15, max_size=40))
@settings(max_examples=120, deadline=None)
def test_the_quick_way_says_and_leaves_what_the_general_one_does(moves: list[Move]) -> None:
    _compare(Replica(LayeredStore(MemoryStore())), moves)


@given(st.lists(MOVES, min_size=15, max_size=40))
@settings(max_examples=120, deadline=None)
def test_what_is_worked_out_ahead_says_and_leaves_what_the_general_way_does(moves: list[Move]) -> None:
    _compare(Forethought(LayeredStore(MemoryStore())), moves)


class Foresight(Forethought):
    """The same, where something happens between that and the write."""

    def __init__(self, store: LayeredStore) -> None:
        super().__init__(store)
        self.working: list[tuple[r.Write, AllAhead, Iterator[int]]] = []

    def begin(self, write: r.Write) -> None:
        """Work a write out in part."""
        ahead: AllAhead = {}
        pieces = work_out([write], ahead, self.fragments, self.watch)
        for _ in islice(pieces, 2):
            pass
        self.working.append((write, ahead, pieces))

    def apply_write(self, write: r.Write) -> bool:
        """Of what was begun, from there on."""
        for begun, ahead, pieces in self.working:
            if begun is write:
                for _ in pieces:
                    pass
                self.ahead = ahead
                try:
                    return self._apply_write(write)
                finally:
                    self.ahead = {}
        return super().apply_write(write)


@given(st.lists(MOVES, min_size=15, max_size=40), st.integers(1, 3))
@settings(max_examples=120, deadline=None)
def test_what_happens_between_a_write_and_what_was_worked_out_of_it_makes_none_of_that_wrong(
    moves: list[Move], later: int
) -> None:
    _compare(Foresight(LayeredStore(MemoryStore())), moves, later)


def _is_of_one_history(record: r.Record | None, replica: Replica) -> bool:
    """Whether what is written follows, epoch by epoch, what lies at lower counters."""
    writes: list[r.Write] = []
    if isinstance(record, r.Update | r.History):
        writes = record.writes
    elif isinstance(record, r.Outcome) and (held := replica.partition(record.partition).prepared.get(record.tx)):
        writes = held.writes
    for write in writes:
        there = [(entry.counter, entry.epoch) for _, entry in replica.store.scan(write.fragment, b"", 10)]
        there += [(each.end, each.epoch) for each in replica.fragment(write.fragment).tail()]
        if any(e > write.epoch if counter <= write.start else e < write.epoch for counter, e in there):
            return False
    return True


def _compare(other: Replica, moves: list[Move], later: int = 0) -> None:
    """`later`: writes come so many moves after they were decided."""
    general = General(LayeredStore(MemoryStore()))
    for namespace in NAMESPACES:
        for partition in PARTITIONS:
            for replica in (other, general):
                replica.apply(r.FragmentReady(namespace, partition, NEAR_A_DIGEST, 7, [(1, 1)], True))
    waiting: deque[r.Record | None] = deque([None] * later)
    for lsn, move in enumerate(moves, 1):
        record = record_of(move, general) if move.kind != "checkpoint" else None
        if later and isinstance(record, r.Update):
            assert isinstance(other, Foresight)
            for write in record.writes:
                other.begin(write)
            waiting.append(record)
            record = waiting.popleft()
        if not _is_of_one_history(record, general):
            return  # no node writes that
        other_said, general_said = fold(other, record, lsn), fold(general, record, lsn)
        assert other_said == general_said, record
        if isinstance(general_said, type):
            return  # a record that no node writes: it stops one
        assert standing_of(other) == standing_of(general), record
        other.check()


def test_a_record_after_a_fragment_has_gone_finds_both_replicas_alike() -> None:
    """What the helper of the property looked at, it made, in one of the two replicas only."""
    quick, general = Replica(LayeredStore(MemoryStore())), General(LayeredStore(MemoryStore()))
    name: Fragment = ("acc", 3)
    for replica in (quick, general):
        replica.apply(r.FragmentReady(*name, NEAR_A_DIGEST, 7, [(1, 1)], True))
    for lsn, (kind, value) in enumerate([("clear", None), ("outcome", b"value")], 1):
        record = record_of(Move(kind, *name, 0, 0, 0, 0, [b"a"], value, b""), general)
        assert fold(quick, record, lsn) == fold(general, record, lsn)
    assert name not in general.fragments
    assert standing_of(quick) == standing_of(general)


def test_the_quick_way_is_taken_by_single_puts_that_follow_each_other() -> None:
    taken: list[int] = []

    class Watched(Replica):
        def _apply_write(self, write: r.Write) -> bool:
            taken.append(write.start)
            return super()._apply_write(write)

    replica = Watched(LayeredStore(MemoryStore()))
    name: Fragment = ("acc", 3)
    for start in range(5):
        replica.apply(r.Update([r.Write(*name, 1, start, [b"k%d" % start], [b"v"], start, start.to_bytes(16, "big"))]))
    assert taken == [0], "only the first write of a fragment makes it"
    assert replica.fragments[name].stable == 4
    assert replica.store.get(name, b"k4") is not None
    assert len(replica.partition(3).results.items()) == 5


def test_looking_up_a_fragment_or_a_partition_creates_nothing() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    assert replica.fragment(("acc", 3)).counter.lwm == 0
    assert (replica.partition(3).epoch, replica.partition(3).prepared) == (0, {})
    assert (dict(replica.fragments), replica.namespaces, replica.partitions) == ({}, {}, {})
    copy = replica.ensure_fragment(("acc", 3))
    assert replica.fragment(("acc", 3)) is copy
    assert replica.partition(3).fragments == {"acc": copy}


def test_what_was_worked_out_after_another_history_comes_to_what_is_so_after_this_one() -> None:
    before, other = (r.Write("n", 3, 1, 0, [b"a"], [value], tx=bytes(16)) for value in (b"this", b"another"))
    write = r.Write("n", 3, 1, 1, [b"b", b"c"], [b"1", None])
    plain, ahead, elsewhere = (Replica(LayeredStore(MemoryStore())) for _ in range(3))
    for replica, first in ((plain, before), (ahead, before), (elsewhere, other)):
        replica.apply_write(first)
    for _ in work_out([write], ahead.ahead, elsewhere.fragments, ahead.watch):
        pass
    plain.apply_write(write)
    ahead._apply_write(write)
    assert not ahead.ahead, "it was taken"
    assert ahead.fragments["n", 3].digest == plain.fragments["n", 3].digest
    elsewhere.apply_write(write)
    assert elsewhere.fragments["n", 3].digest != plain.fragments["n", 3].digest


def test_what_is_prepared_is_taken_down_when_it_ends_and_encoded_by_its_bytes() -> None:
    """Of a large transaction much ends in one turn: what a checkpoint has to keep of it is not encoded in that."""
    replica = Replica(LayeredStore(MemoryStore()))
    for number in PARTITIONS:
        write = r.Write("acc", number, 1, 0, [b"a"], [bytes(1 << 20)], tx=b"t" * 16)
        replica.apply(r.EpochStart(number, 1, []))
        replica.apply(r.Prepare(b"t" * 16, number, 1, [write], [], list(PARTITIONS), 3))
    image = replica.freeze(7, [])
    encoded = replica.changes.encoded
    for number in PARTITIONS:
        replica.apply(r.Outcome(b"t" * 16, number, 1, True, [("acc", 0, 1)]))
        assert not replica.partition(number).prepared
    assert replica.changes.encoded == encoded, "nothing yet"
    works = [work for work in replica.changes.pieces() if work >= (1 << 20) // BYTES_OF_WORK]
    assert len(works) == len(PARTITIONS), "it is work by its bytes"
    for number in PARTITIONS:
        kept = msgspec.msgpack.decode(whole(image.partitions[number]), type=PartitionImage)
        assert [prepare.tx for prepare in kept.prepared] == [b"t" * 16], "as it was"


@given(st.lists(MOVES, min_size=15, max_size=40))
@settings(max_examples=150)
def test_rows_of_a_transfer_put_all_at_once_are_what_they_are_put_one_by_one(moves: list[Move]) -> None:
    quick, slow = (Replica(LayeredStore(MemoryStore())) for _ in range(2))
    for lsn, move in enumerate(moves, 1):
        record = record_of(move, quick) if move.kind != "checkpoint" else None
        came = fold(quick, record, lsn)
        with swapped(rows, "has_none_of", lambda *_: False):
            assert fold(slow, record, lsn) == came
        if isinstance(came, type):
            return
        assert standing_of(quick) == standing_of(slow)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_rows_that_fill_a_copy_are_not_looked_up_one_by_one(checkpointed: bool) -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(r.FragmentClear("acc", 7, "in full"))
    replica.apply(r.Preload("acc", 7, [1, 1], [1, 2], [b"a", b"b"], [b"1", b"2"]))
    if checkpointed:
        assert not isinstance(fold(replica, None, 1), type)
    replace(replica.store, "get", lambda *_: pytest.fail("a row was looked up"))
    replica.apply(r.Preload("acc", 7, [1, 1], [3, 4], [b"c", b"d"], [b"3", b"4"]))
    assert [key for key, _ in replica.store.scan(("acc", 7), b"", 9)] == [b"a", b"b", b"c", b"d"]


NEWER = r.Update([r.Write("acc", 7, 1, at, [key], [b"newer"]) for at, key in enumerate((b"i", b"j", b"k"))])


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    "brought",
    [
        r.Preload("acc", 7, [1, 1], [1, 2], [b"a", b"k"], [b"1", b"older"]),
        r.Preload("acc", 7, [1, 1], [9, 8], [b"a", b"a"], [b"newer", b"older"]),
        r.Preload("acc", 7, [1, 1], [8, 9], [b"a", b"b"], [b"1", None]),
        r.Preload("acc", 7, [1, 1], [8, 9], [b"a", b"in doubt"], [b"1", b"2"]),
    ],
    ids=["older-than-what-stands", "a-key-twice", "a-delete", "in-doubt"],
)
def test_rows_are_put_one_by_one_where_that_is_not_the_same(brought: r.Preload, checkpointed: bool) -> None:
    quick, slow = (Replica(LayeredStore(MemoryStore())) for _ in range(2))
    for replica, looks in ((quick, rows.has_none_of), (slow, lambda *_: False)):
        replica.apply(NEWER)
        if checkpointed:
            assert not isinstance(fold(replica, None, 1), type)
        if brought.keys[1] == b"in doubt":
            replica.fragments["acc", 7].doubt({b"in doubt": 0})
        with swapped(rows, "has_none_of", looks):
            replica.apply(brought)
    assert standing_of(quick) == standing_of(slow)
    assert quick.fragments["acc", 7].suspects == slow.fragments["acc", 7].suspects
    found = [replica.store.count(("acc", 7), 99) for replica in (quick, slow)]
    assert found[0] == found[1]
