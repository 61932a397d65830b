"""One conversation that every store of checkpoints must hold, and one model that every view of it must match."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.state.layers import Moment
from engine.state.loaded import Encoded, Loaded
from engine.state.store import GONE, BaseStore, CheckpointImage, Entry, LayeredStore, Row
from engine.state.store_lmdb import LmdbStore
from engine.state.store_memory import MemoryStore
from engine.state.store_parts import PART_BYTES
from rebalance.contents import row_digest
from tests.support.images import loaded
from wal.ids import DECISIONS, KEY_BYTES_MAX, Fragment

Rows: TypeAlias = dict[Fragment, dict[bytes, Entry]]

ACC, BANK = ("acc", 7), ("acc", 8)
FRAGMENTS: list[Fragment] = [ACC, BANK, ("acc.x", 0), ("b", 16383), (DECISIONS, 7), ("n" * 64, 255)]
"""Neighbours in the order of keys: partitions beside each other, a namespace that begins with another, the longest."""
KEYS = [b"", b"\0", b"a", b"a\0", b"ab", b"b", b"\xff", b"\xff" * KEY_BYTES_MAX, b"k" * KEY_BYTES_MAX]


def image(
    lsn: int, rows: dict[Fragment, dict[bytes, Entry | None]] | None = None, cleared: list[Fragment] | None = None
) -> CheckpointImage:
    """A checkpoint of rows alone."""
    return CheckpointImage(lsn, {}, {}, {}, cleared or [], rows or {})


def entry(counter: int, value: bytes | None) -> Entry:
    """An entry of epoch 1."""
    return Entry(1, counter, value)


@pytest.fixture(params=["memory", "lmdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], BaseStore]:
    """Opens an empty store of each kind."""
    return MemoryStore if request.param == "memory" else lambda: LmdbStore(tmp_path / "store")


@pytest.fixture
def store(make: Callable[[], BaseStore]) -> Iterator[BaseStore]:
    """An empty store of each kind."""
    opened = make()
    yield opened
    opened.close()


def checkpoint(store: BaseStore, image: CheckpointImage) -> None:
    """Write, and let reads see it, as the node does."""
    store.write(image)
    store.renew()


# A conversation.


def test_an_empty_store_holds_nothing(store: BaseStore) -> None:
    assert store.load() == Loaded(0, {}, {}, {})
    assert store.get(ACC, b"k") is None
    assert store.scan(ACC, b"", 10) == []


def test_a_checkpoint_is_loaded_as_it_was_written(store: BaseStore) -> None:
    fragments = {fragment: b"state %d" % fragment[1] for fragment in FRAGMENTS}
    checkpoint(store, CheckpointImage(12, {"node": b"n", "höhe": b""}, dict(fragments), {0: b"", 16383: b"p"}, [], {}))
    assert store.load() == Loaded(12, {"node": b"n", "höhe": b""}, fragments, {0: b"", 16383: b"p"})


def test_states_that_come_in_pieces_are_stored_as_one(store: BaseStore) -> None:
    """However the pieces fall into the parts in which a checkpoint is handed over."""
    pieces = [bytes([number]) * (PART_BYTES // 3) for number in range(8)]
    states: dict[Fragment, Encoded | None] = {ACC: pieces[:5], BANK: b"small", ("new", 1): pieces[5:]}
    large = CheckpointImage(1, {"a": pieces[1:4], "b": b"1"}, states, {3: pieces[2:], 4: pieces[:1]}, [], {})
    checkpoint(store, large)
    assert store.load() == loaded(large)


def test_a_later_checkpoint_replaces_what_it_names_and_keeps_the_rest(store: BaseStore) -> None:
    checkpoint(store, CheckpointImage(1, {"a": b"1", "b": b"1"}, {ACC: b"1", BANK: b"1"}, {1: b"1", 2: b"1"}, [], {}))
    checkpoint(store, CheckpointImage(2, {"b": b"2"}, {ACC: None, ("new", 1): b"2"}, {2: b"2"}, [], {}))
    assert store.load() == Loaded(2, {"a": b"1", "b": b"2"}, {BANK: b"1", ("new", 1): b"2"}, {1: b"1", 2: b"2"})


def test_a_tombstone_is_an_entry_and_an_empty_value_is_not_a_tombstone(store: BaseStore) -> None:
    checkpoint(store, image(1, {ACC: {b"deleted": entry(1, None), b"empty": entry(2, b"")}}))
    assert store.get(ACC, b"deleted") == Entry(1, 1, None)
    assert store.get(ACC, b"empty") == Entry(1, 2, b"")
    assert store.scan(ACC, b"", 10) == [(b"deleted", entry(1, None)), (b"empty", entry(2, b""))]


@pytest.mark.parametrize("removal", [None, GONE])
def test_a_removed_key_is_not_there_any_more(store: BaseStore, removal: Entry | None) -> None:
    checkpoint(store, image(1, {ACC: {b"a": entry(1, b"a"), b"b": entry(2, b"b")}}))
    checkpoint(store, image(2, {ACC: {b"a": removal, b"never": removal}}))
    assert store.get(ACC, b"a") is None
    assert store.get(ACC, b"never") is None
    assert store.scan(ACC, b"", 10) == [(b"b", entry(2, b"b"))]


def test_a_fragment_is_cleared_before_its_rows_come_and_its_neighbours_stay(store: BaseStore) -> None:
    rows: dict[bytes, Entry | None] = {key: entry(1, key) for key in KEYS}
    checkpoint(store, image(1, {fragment: dict(rows) for fragment in FRAGMENTS}))
    checkpoint(store, image(2, {ACC: {b"new": entry(2, b"2")}}, [ACC, ("acc.x", 0), ("never", 1)]))
    assert store.scan(ACC, b"", 10) == [(b"new", entry(2, b"2"))]
    assert store.scan(("acc.x", 0), b"", 10) == []
    for fragment in (BANK, ("b", 16383), (DECISIONS, 7), ("n" * 64, 255)):
        assert store.scan(fragment, b"", 100) == [(key, entry(1, key)) for key in sorted(KEYS)]


def test_a_scan_is_ascending_begins_at_its_start_and_ends_at_its_limit(store: BaseStore) -> None:
    checkpoint(store, image(1, {ACC: {key: entry(1, key) for key in KEYS}, BANK: {b"other": entry(1, b"")}}))
    rows: list[Row] = [(key, entry(1, key)) for key in sorted(KEYS)]
    assert store.scan(ACC, b"", 100) == rows
    assert store.scan(ACC, b"a\0", 3) == rows[rows.index((b"a\0", entry(1, b"a\0"))) :][:3]
    assert store.scan(ACC, b"a\0\0", 1) == [(b"ab", entry(1, b"ab"))]
    assert store.scan(ACC, b"\xff" * KEY_BYTES_MAX + b"\0", 1) == []
    assert store.scan(ACC, b"", 0) == []


def test_what_is_held_of_some_keys_is_what_a_scan_tells_of_them(store: BaseStore) -> None:
    rows: dict[bytes, Entry | None] = {key: entry(number + 1, key) for number, key in enumerate(sorted(KEYS))}
    rows[b"deleted"] = Entry(1, 99, None)
    checkpoint(store, image(1, {ACC: rows, BANK: {b"elsewhere": entry(1, b"v")}}))
    told = dict(store.digests(ACC, b"", 100))
    assert told.keys() == rows.keys()
    for wanted in (sorted(rows), sorted(rows)[::2], [b"deleted"], [b"elsewhere"], [b"", b"deleted", b"nobody"], []):
        assert store.held(ACC, wanted) == [(key, told[key]) for key in wanted if key in told]
    assert store.held(("nobody", 3), [b"a"]) == []


def test_a_scan_down_begins_below_its_start(store: BaseStore) -> None:
    rows: dict[bytes, Entry | None] = {b"k%02d" % number: entry(number + 1, b"v") for number in range(20)}
    checkpoint(store, image(1, {ACC: rows, BANK: {b"z": entry(1, b"v")}}))
    assert [key for key, _ in store.scan(ACC, b"k05", 3, down=True)] == [b"k04", b"k03", b"k02"]
    assert [key for key, _ in store.scan(ACC, b"\xff", 2, down=True)] == [b"k19", b"k18"]
    assert [key for key, _ in store.scan(ACC, b"k02", 9, down=True)] == [b"k01", b"k00"]
    assert not store.scan(ACC, b"k00", 9, down=True)
    assert not store.scan(("nobody", 3), b"\xff", 9, down=True)


def test_large_values_and_large_numbers_come_back(store: BaseStore) -> None:
    value = bytes(range(256)) * 4096
    checkpoint(store, image((1 << 64) - 1, {ACC: {b"k": Entry((1 << 64) - 1, (1 << 64) - 1, value)}}))
    assert store.load().lsn == (1 << 64) - 1
    assert store.get(ACC, b"k") == Entry((1 << 64) - 1, (1 << 64) - 1, value)


def test_many_rows_of_one_fragment_arrive_in_order(store: BaseStore) -> None:
    changes: dict[bytes, Entry | None] = {b"%d" % (n * 7919 % 40_000): entry(n + 1, b"v") for n in range(40_000)}
    checkpoint(store, image(1, {ACC: changes}))
    assert store.scan(ACC, b"", 50_000) == sorted(changes.items())


# The layers over it.


def test_a_copy_in_memory_and_its_original_go_their_own_ways() -> None:
    store = MemoryStore()
    checkpoint(store, image(1, {ACC: {b"a": entry(1, b"1")}, BANK: {b"b": entry(1, b"1")}}))
    twin = store.copy()
    again = twin.copy()
    checkpoint(store, image(2, {ACC: {b"a": entry(2, b"2")}}))
    checkpoint(twin, image(2, {ACC: {b"c": entry(3, b"3")}}, [BANK]))
    assert store.scan(ACC, b"", 9) == [(b"a", entry(2, b"2"))]
    assert twin.scan(ACC, b"", 9) == [(b"a", entry(1, b"1")), (b"c", entry(3, b"3"))]
    assert again.scan(ACC, b"", 9) == [(b"a", entry(1, b"1"))]
    assert [len(each.scan(BANK, b"", 9)) for each in (store, twin, again)] == [1, 0, 1]


def test_a_layered_scan_of_nothing_asks_for_nothing(store: BaseStore) -> None:
    layered = LayeredStore(store)
    layered.set(ACC, b"k", entry(1, b"v"))
    assert layered.scan(ACC, b"", 0) == []


def test_reads_are_the_same_before_while_and_after_a_checkpoint_is_written(store: BaseStore) -> None:
    layered = LayeredStore(store)
    layered.set(ACC, b"a", entry(1, b"a"))
    layered.set(ACC, b"b", entry(2, b"b"))
    wanted = [(b"a", entry(1, b"a")), (b"b", entry(2, b"b"))]
    assert layered.scan(ACC, b"", 10) == wanted
    cleared, rows = layered.freeze()
    assert layered.scan(ACC, b"", 10) == wanted
    store.write(image(1, {fragment: dict(changes) for fragment, changes in rows.items()}, list(cleared)))
    assert layered.scan(ACC, b"", 10) == wanted
    layered.thaw()
    assert layered.scan(ACC, b"", 10) == wanted
    assert store.scan(ACC, b"", 10) == wanted


class LayeredModel(RuleBasedStateMachine):
    """A layered store beside plain dicts: what was applied, what the last checkpoint holds, what one under way will."""

    fragments = st.sampled_from(FRAGMENTS[:4])
    keys = st.sampled_from(KEYS)
    values = st.one_of(st.none(), st.sampled_from([b"", b"v", b"w" * 5000]))

    def __init__(self) -> None:
        super().__init__()
        self.base = self.open()
        self.layered = LayeredStore(self.base)
        self.now: Rows = {}
        self.frozen: Rows | None = None
        self.image: CheckpointImage | None = None
        self.written: Rows = {}
        self.states = Loaded(0, {}, {}, {})
        self.counter = 0
        self.moments: list[tuple[Moment[Entry], list[int]]] = []  # each with how many rows there were, then and since

    def open(self) -> BaseStore:
        """An empty store."""
        return MemoryStore()

    def reopen(self) -> BaseStore:
        """The same store, as a restart finds it."""
        assert isinstance(self.base, MemoryStore)
        return self.base.copy()

    # What a node does.

    @rule(fragment=fragments, key=keys, value=values)
    def apply(self, fragment: Fragment, key: bytes, value: bytes | None) -> None:
        self.counter += 1
        self.layered.set(fragment, key, entry(self.counter, value))
        self.layered.weigh(len(key) + len(value or b""))
        self.now.setdefault(fragment, {})[key] = entry(self.counter, value)

    @rule(fragment=fragments, key=keys)
    def remove(self, fragment: Fragment, key: bytes) -> None:
        self.layered.set(fragment, key, GONE)
        self.now.get(fragment, {}).pop(key, None)

    @rule(fragment=fragments)
    def clear(self, fragment: Fragment) -> None:
        self.layered.clear(fragment)
        self.now.pop(fragment, None)

    @rule(fragment=fragments)
    def pack(self, fragment: Fragment) -> None:
        """Nothing comes to it for now."""
        self.layered.pack(fragment)

    @precondition(lambda self: self.frozen is None)
    @rule(drop=st.booleans())
    def begin_checkpoint(self, drop: bool) -> None:
        cleared, rows = self.layered.freeze()
        assert self.layered.active_bytes == 0
        self.frozen = {fragment: dict(rows) for fragment, rows in self.now.items()}
        self.counter += 1
        stamp = b"%d" % self.counter
        fragments: dict[Fragment, bytes | None] = {f: None if drop and f == ACC else stamp for f in FRAGMENTS[:2]}
        changes = {fragment: dict[bytes, Entry | None](rows) for fragment, rows in rows.items()}
        self.image = CheckpointImage(self.counter, {"node": stamp}, fragments, {self.counter % 5: stamp}, cleared, changes)

    @precondition(lambda self: self.image is not None)
    @rule()
    def write_checkpoint(self) -> None:
        image = self.image
        assert image is not None
        assert self.frozen is not None
        self.base.write(image)
        self.written, self.image = self.frozen, None
        now, before = loaded(image), self.states
        fragments = {f: s for f, s in before.fragments.items() if f not in image.fragments} | now.fragments
        self.states = Loaded(image.lsn, now.node, fragments, before.partitions | now.partitions)

    @precondition(lambda self: self.frozen is not None and self.image is None)
    @rule()
    def end_checkpoint(self) -> None:
        self.layered.thaw()
        self.frozen = None

    @rule()
    def restart(self) -> None:
        """What was applied since the last checkpoint is the log's to bring back."""
        self.base = self.reopen()
        self.layered = LayeredStore(self.base)
        self.moments = []
        self.now = {fragment: dict(rows) for fragment, rows in self.written.items()}
        self.frozen = self.image = None
        assert self.base.load() == self.states

    # What it must see.

    @rule(fragment=fragments, start=keys, limit=st.integers(0, 12))
    def scan(self, fragment: Fragment, start: bytes, limit: int) -> None:
        wanted = sorted(row for row in self.now.get(fragment, {}).items() if row[0] >= start)
        assert self.layered.scan(fragment, start, limit) == wanted[:limit]

    @rule(fragment=fragments, start=keys, limit=st.integers(1, 12))
    def glances_tell_the_same(self, fragment: Fragment, start: bytes, limit: int) -> None:
        rows = self.now.get(fragment, {})
        digests, passed = list[tuple[bytes, int]](), list[bytes]()
        at: bytes | None = start
        while at is not None:
            glance = self.layered.digests(fragment, at, limit)
            digests += glance.found
            at = glance.next
        at = start
        while at is not None:
            glance = self.layered.keys(fragment, at, limit)
            passed += [key for key, _ in glance.found]
            at = glance.next
        live = sorted(
            (key, row_digest(key, entry)) for key, entry in rows.items() if key >= start and entry.value is not None
        )
        assert [found for found in digests if found[1]] == live
        assert [key for key in passed if key in rows] == sorted(key for key in rows if key >= start)
        assert len(passed) == len(dict.fromkeys(passed)), "each key once"

    def rows_of(self, fragment: Fragment) -> int:
        """How many rows there are."""
        return sum(entry.value is not None for entry in self.now.get(fragment, {}).values())

    @invariant()
    def time_goes_on(self) -> None:
        for moment, since in self.moments:
            since.append(self.rows_of(moment.fragment))

    @rule(fragment=fragments, below=keys, limit=st.integers(1, 12))
    def scan_down(self, fragment: Fragment, below: bytes, limit: int) -> None:
        wanted = sorted((row for row in self.now.get(fragment, {}).items() if row[0] < below), reverse=True)
        found: list[Row] = []
        at: bytes | None = below
        while at is not None:
            page = self.layered.page(fragment, at, limit, down=True)
            found += page.rows
            at = page.next
        assert found == wanted

    @invariant()
    def every_key_is_what_was_applied_last(self) -> None:
        for fragment in FRAGMENTS[:4]:
            rows = self.now.get(fragment, {})
            assert self.layered.scan(fragment, b"", 100) == sorted(rows.items())
            for key in KEYS:
                assert self.layered.get(fragment, key) == rows.get(key)

    @invariant()
    def the_digest_is_that_of_the_rows(self) -> None:
        for fragment in FRAGMENTS[:4]:
            walk = self.layered.walk(fragment)()
            if walk is None:
                assert fragment not in self.base.load().fragments, "where there is a state, there is a digest"
                continue
            while not walk.done:
                assert walk.step(2) > 0
            assert walk.digest == sum(row_digest(*row) for row in self.now.get(fragment, {}).items()) % (1 << 64)

    @rule(fragment=fragments, most=st.integers(1, 3))
    def begin_to_count(self, fragment: Fragment, most: int) -> None:
        self.layered.count(fragment, most)

    @precondition(lambda self: len(self.moments) < 4)
    @rule(fragment=fragments)
    def note_a_moment(self, fragment: Fragment) -> None:
        self.moments.append((self.layered.moment(fragment), [self.rows_of(fragment)]))

    @rule(most=st.integers(1, 3), at=st.integers(0, 3))
    def count_as_of_a_moment(self, most: int, at: int) -> None:
        if at >= len(self.moments):
            return
        moment, since = self.moments[at]
        passed = self.layered.passed(moment)
        count, work = self.layered.counted(moment, most)
        if work > most:
            assert count is None
            return
        if count is None:
            assert moment.fragment not in self.base.load().fragments, "where there is a state, there is a count"
        else:
            assert count in (since if passed else since[:1])
        del self.moments[at]

    @rule(fragment=fragments)
    def the_count_is_that_of_the_rows(self, fragment: Fragment) -> None:
        looked = 0
        while (found := self.layered.count(fragment, 2))[1] > 2:
            looked += 1
        count, work = found
        if count is None:
            assert fragment not in self.base.load().fragments, "where there is a state, there is a count"
        else:
            assert count == self.rows_of(fragment)
        assert self.layered.least(fragment) <= self.rows_of(fragment)
        assert self.layered.count(fragment, 2) == (count, 0), f"looked up twice, after {looked} pieces and {work}"

    @precondition(lambda self: self.frozen is None)
    @invariant()
    def the_base_is_the_last_checkpoint(self) -> None:
        for fragment in FRAGMENTS[:4]:
            assert self.base.scan(fragment, b"", 100) == sorted(self.written.get(fragment, {}).items())

    def teardown(self) -> None:
        self.base.close()


class LmdbModel(LayeredModel):
    """The same, over files."""

    def open(self) -> BaseStore:
        self.directory = Path(tempfile.mkdtemp(prefix="store-"))
        return LmdbStore(self.directory / "store", map_bytes=1 << 16)

    def reopen(self) -> BaseStore:
        self.base.close()
        return LmdbStore(self.directory / "store", map_bytes=1 << 16)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


TestLayeredOverMemory = LayeredModel.TestCase
TestLayeredOverMemory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLayeredOverLmdb = LmdbModel.TestCase
TestLayeredOverLmdb.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
