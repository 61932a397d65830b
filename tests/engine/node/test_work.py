"""Work that grows with what is asked, and not with its square: what is walked is counted, twice as much for twice as much.

Nothing here looks at a clock. Each test does a thing at one size and at twice the size.
"""

from __future__ import annotations

import pytest

from engine.data.counting import WALKED_ROWS, Counting, count_at, count_of
from engine.data.holdings import Key
from engine.data.kept import Kept
from engine.data.locks import RELEASED_MAX, LockTable
from engine.data.parts import Keys
from engine.data.scans import Scanning
from engine.protocol.requests import Scan
from engine.state.ahead import LARGE_KEYS
from engine.state.store import LOOKED_MAX, SORTED_MAX, CheckpointImage, Entry, LayeredStore, Page
from engine.state.store_memory import MemoryStore
from wal.ids import Fragment


class Counted:
    """How often something was looked at."""

    def __init__(self) -> None:
        self.times = 0

    def place(self, key: bytes) -> int:
        """The partition of a key, as a lock table asks for it."""
        self.times += 1
        return int.from_bytes(key[:2], "big")


def _ended(keys: int, partitions: int) -> int:
    """How often keys were looked at while a prepared transaction ended, partition by partition."""
    counted = Counted()
    table = LockTable(lambda _, key: counted.place(key))
    held: dict[int, list[Key]] = {}
    for at in range(keys):
        held.setdefault(at % partitions, []).append(("n", (at % partitions).to_bytes(2, "big") + b"%d" % at))
    for mine in held.values():
        table.pin(b"t", mine)
    counted.times = 0
    for number, mine in held.items():
        assert list(table.keys_in_doubt(number)) == mine
        found = table.keys_in(b"t", number)
        assert found == mine
        counted.times += len(found)
        table.release(b"t", found)
    assert not len(table)
    assert not table.is_owner(b"t")
    return counted.times


def test_a_transaction_ends_with_work_that_grows_with_its_keys() -> None:
    assert _ended(4_000, 400) <= 2 * _ended(2_000, 200)


def _dropped(others: int) -> int:
    counted = Counted()
    table = LockTable(lambda _, key: counted.place(key))
    for at in range(others):
        table.pin(b"other", [("n", b"\0\1%d" % at)])
    table.pin(b"t", [("n", b"\0\2k")])
    counted.times = 0
    table.drop({2})
    assert len(table) == others
    return counted.times


def test_the_loss_of_a_partition_costs_what_is_held_in_it() -> None:
    assert _dropped(2_000) == _dropped(1_000)


def test_the_loss_of_a_partition_costs_nothing_of_the_single_writes_under_way() -> None:
    """Each is abandoned by itself; until then its keys are nobody else's."""
    counted, keys = (
        Counted(),
        [("n", b"\0\1%d" % at) for at in range(1_000)] + [("n", b"\0\2%d" % at) for at in range(1_000)],
    )
    table = LockTable(lambda _, key: counted.place(key))
    for key in keys:
        table.pend(key)
    table.drop({2})
    assert counted.times == 0
    table.pend(keys[-1])
    for key in keys:
        assert table.is_pending(key)
        table.unpend(key)
    assert [key for key in keys if table.is_pending(key)] == [keys[-1]], "which somebody began to write since"


def test_keys_of_a_large_write_that_is_abandoned_are_let_go_of_in_pieces() -> None:
    table = LockTable(lambda _, __: 0)
    held = Keys(table, b"t", "n", [b"%d" % at for at in range(3 * LARGE_KEYS)], locked=False)
    assert len(list(held.take(lambda: True))) > 3
    table.drop({0})
    assert len(list(held.let_go(lambda: False))) == 3
    assert not any(table.is_pending(key) for key in (("n", b"0"), ("n", b"%d" % (3 * LARGE_KEYS - 1))))


def _deleted(keys: int, partitions: int) -> LayeredStore:
    """Deleted keys in every partition, and one that is left in the last."""
    store = LayeredStore(MemoryStore())
    for at in range(keys):
        number = at % partitions
        store.set(("n", number), b"%07d" % at, Entry(1, at + 1, None))
    store.put(("n", partitions - 1), b"left", Entry(1, keys + 1, b"v"))
    return store


def _scanned(keys: int, partitions: int) -> list[int]:
    """The pieces in which a scan for one row was done."""
    scan = Scanning(Scan(1, "n", list(range(partitions)), b"", None, 1), _deleted(keys, partitions).page)
    pieces = []
    while not scan.done:
        pieces.append(scan.go_on(1_000, lambda *_: False))
    assert (scan.keys, scan.values, scan.more) == ([b"left"], [b"v"], False)
    return pieces


def test_a_scan_over_deleted_keys_is_cut_into_pieces() -> None:
    once, twice = _scanned(20_000, 16), _scanned(40_000, 16)
    assert max(twice) <= 1_000 + SORTED_MAX + LOOKED_MAX + 10
    assert sum(twice) <= 2.2 * sum(once)
    assert len(twice) > len(once) > 10


def test_a_scan_that_looks_into_many_partitions_is_cut_into_pieces() -> None:
    once, twice = _scanned(0, 4_096), _scanned(0, 8_192)
    assert max(twice) <= 1_000 + LOOKED_MAX
    assert sum(twice) <= 2.2 * sum(once)


def _last_rows(keys: int) -> int:
    """What the last three of so many rows cost."""
    store = LayeredStore(MemoryStore())
    for at in range(keys):
        store.put(("n", at % 4), b"%07d" % at, Entry(1, at + 1, b"v"))
    for number in range(4):
        store.page(("n", number), b"", 1)  # a layer is put in order once
    scan = Scanning(Scan(1, "n", [0, 1, 2, 3], b"", None, 3, reverse=True), store.page)
    work = scan.go_on(1_000, lambda *_: False)
    assert (scan.done, scan.more, scan.keys) == (True, True, [b"%07d" % at for at in range(keys - 1, keys - 4, -1)])
    return work


def test_the_last_rows_cost_what_they_are() -> None:
    assert _last_rows(4_000) == _last_rows(400)


def _counted(store: LayeredStore, partitions: int) -> tuple[int, int]:
    """How many rows there are, and what it cost to say so."""
    counting = Counting(Scan(1, "n", list(range(partitions)), b"", None, 1, count=True), count_of(store), store.page)
    work = 0
    while not counting.done:
        work += counting.go_on(500, lambda *_: False)
    return counting.reply().count, work


def test_a_count_costs_partitions_and_what_is_new_since_the_last_one() -> None:
    store = LayeredStore(MemoryStore())
    for at in range(4_000):
        store.put(("n", at % 16), b"%07d" % at, Entry(1, at + 1, b"v"))
    assert _counted(store, 16)[0] == 4_000
    assert _counted(store, 16) == (4_000, 16)
    for at in range(10):
        store.set(("n", at % 16), b"%07d" % at, Entry(1, 4_000 + at, None))
        store.put(("n", at % 16), b"new%d" % at, Entry(1, 5_000 + at, b"v"))
    assert _counted(store, 16) == (4_000, 26)
    cleared, rows = store.freeze()
    states: dict[Fragment, bytes | None] = {("n", number): b"" for number in range(16)}
    store.base.write(CheckpointImage(1, {}, states, {}, cleared, rows))
    assert _counted(store, 16) == (4_000, 16)
    store.thaw()
    store.put(("n", 0), b"%07d" % 16, Entry(1, 6_000, b"overwritten"))
    assert _counted(store, 16) == (4_000, 17), "what is below was counted by the checkpoint"


def _beside_a_writer(*, cut: bool) -> tuple[int, list[int]]:
    """A count that looks up a tenth of what comes while it does, at a cut or not: what it told, and what there was, piece
    by piece."""
    store, wanted, there = LayeredStore(MemoryStore()), list[int](), 0
    kept = Kept(store)

    def write(many: int) -> None:
        nonlocal there
        for at in range(there, there + many):
            name, key = ("n", at % 16), b"%07d" % at
            kept.keep(name, [key], (1, 1))
            store.put(name, key, Entry(1, at + 1, b"v"))
        there += many

    write(8_000)
    kept.begin((1, 1))
    count = count_at((1, 1), kept, store) if cut else count_of(store)

    def page(fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
        return kept.page((1, 1), fragment, store.page(fragment, start, limit, down=down))

    counting = Counting(Scan(1, "n", list(range(16)), b"", None, 1, count=True), count, page)
    while not counting.done:
        wanted.append(there)
        assert counting.go_on(100, lambda *_: False) < 200 + cut * WALKED_ROWS
        assert len(wanted) <= 150, "it runs after the writer"
        write(1_000)
    return counting.reply().count, wanted


def test_a_count_does_not_run_after_whoever_writes_new_keys() -> None:
    """Writers of batches of 2,000 let one run into its timeout: what came while it looked keys up it looked up, too."""
    told, wanted = _beside_a_writer(cut=False)
    assert wanted[0] <= told <= wanted[10], "it is of when it came to each partition, which is soon"


def test_nor_does_one_of_a_snapshot() -> None:
    assert _beside_a_writer(cut=True)[0] == 8_000


@pytest.mark.parametrize("at_once", [1, 40, 1_000])
def test_a_count_that_is_overtaken_by_checkpoints_has_its_number_from_them(at_once: int) -> None:
    """However little it can look up: the second checkpoint that is finished has taken down all that it was to count."""
    store, there = LayeredStore(MemoryStore()), 0
    states: dict[Fragment, bytes | None] = {("n", 0): b""}

    def write() -> None:
        nonlocal there
        for at in range(there, there + 400):
            store.put(("n", 0), b"%07d" % at, Entry(1, at + 1, b"v"))
        there += 400

    write()
    counting = Counting(Scan(1, "n", [0], b"", None, 1, count=True), count_of(store), store.page)
    wanted: list[int] = []
    while not counting.done:
        counting.go_on(at_once, lambda *_: False)
        wanted.append(there)
        assert len(wanted) <= 3
        cleared, rows = store.freeze()
        write()
        counting.go_on(at_once, lambda *_: False)
        store.base.write(CheckpointImage(1, {}, states, {}, cleared, rows))
        store.thaw()
        write()
    assert counting.reply().count in wanted


def test_a_count_of_what_nobody_counted_walks_it_in_pieces() -> None:
    store = LayeredStore(MemoryStore())
    for at in range(3_000):
        store.put(("n", 0), b"%07d" % at, Entry(1, at + 1, b"v"))
    counting = Counting(Scan(1, "n", [0], b"", None, 1, count=True), lambda _name: (lambda _: (None, 0), 0), store.page)
    pieces = []
    while not counting.done:
        pieces.append(counting.go_on(100, lambda *_: False))
    assert counting.reply().count == 3_000
    assert len(pieces) >= 6


def test_a_count_goes_on_beside_what_is_in_doubt() -> None:
    store = LayeredStore(MemoryStore())
    for at in range(80):
        store.put(("n", at % 8), b"%d" % at, Entry(1, at + 1, b"v"))
    counting = Counting(Scan(1, "n", list(range(8)), b"", None, 1, count=True), count_of(store), store.page)
    doubtful = {3, 5}
    counting.go_on(1_000, lambda number, *_: number in doubtful)
    assert (counting.waits, counting.done) == (True, False)
    doubtful.remove(3)
    counting.go_on(1_000, lambda number, *_: number in doubtful)
    assert (counting.waits, counting.done) == (True, False)
    counting.go_on(1_000, lambda *_: False)
    assert (counting.waits, counting.done, counting.reply().count) == (False, True, 80)


def test_pages_show_what_one_scan_shows() -> None:
    store, wanted = LayeredStore(MemoryStore()), []
    for at in range(3 * SORTED_MAX):
        key, deleted = b"%07d" % (at * 7919 % (3 * SORTED_MAX)), at % 3 == 0
        store.set(("n", 0), key, Entry(1, at + 1, None if deleted else b"v"))
        wanted.append((key, Entry(1, at + 1, None if deleted else b"v")))
    wanted.sort(key=lambda row: row[0])
    assert store.scan(("n", 0), b"", 1 << 30) == wanted
    store.put(("n", 0), b"0000000a", Entry(1, 1 << 20, b"late"))
    found, at_key = [], b""
    while True:
        page = store.page(("n", 0), at_key, 100)
        found += page.rows
        if page.next is None:
            break
        at_key = page.next
    assert found == sorted([*wanted, (b"0000000a", Entry(1, 1 << 20, b"late"))], key=lambda row: row[0])


def test_a_transaction_that_is_given_up_lets_go_of_its_keys_in_pieces() -> None:
    keys: list[Key] = [("n", (at % 3).to_bytes(2, "big") + b"%d" % at) for at in range(4 * RELEASED_MAX)]
    table = LockTable(lambda _, key: int.from_bytes(key[:2], "big"))
    assert table.try_all(b"t", keys) is None
    table.pin(b"t", keys[:3])
    pieces = list(table.giving_up(b"t"))
    assert len(pieces) >= 3
    assert max(pieces) <= 2 * RELEASED_MAX
    assert sorted(table.keys_of(b"t")) == sorted(keys[:3]), "only its outcome releases what is pinned"
