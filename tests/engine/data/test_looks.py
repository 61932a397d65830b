"""What scans found is told again only where nothing came since: against looking anew, and told with a node by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.looks import ASKED_MAX, LOOK_BYTES_MAX, LOOKS_MAX, NOTED_KEYS, PAGE_BYTES_MAX, Look, Looks, Shape
from engine.data.scans import SCAN_CHUNK_ROWS
from engine.protocol.requests import Put, Rows, Scan
from engine.state.replica import Replica
from engine.state.rows import drop_tombstones
from engine.state.store import LayeredStore, Row
from engine.state.store_memory import MemoryStore
from engine.turn.events import Asked
from tests.engine.data.test_sessions import Alone
from tests.engine.state.test_replica import MOVES, PARTITIONS, Move, fold, record_of
from tests.support.probes import heard
from wal import records as r
from wal.ids import Fragment, tx_of

CLIENT = b"a client.."
NOT_UNDER_ONE_MAP = ("undo", "clear", "rows", "epoch", "ready")
"""What does not become of a primary's copy as long as it has the same map."""


def _live(replica: Replica, fragment: Fragment, shape: Shape, following: bytes | None) -> list[Row]:
    """The rows that a fragment has from where a page begins up to where the next one does."""
    _, start, _, down = shape
    rows = [row for row in replica.store.scan(fragment, b"", 1_000) if row[1].value is not None]
    if down:
        return [row for row in reversed(rows) if row[0] < start and (following is None or row[0] >= following)]
    return [row for row in rows if row[0] >= start and (following is None or row[0] < following)]


SHAPES: list[Shape] = [
    (namespace, start, limit, down)
    for namespace in ("acc", "bank")
    for start, limit, down in ((b"", 1, False), (b"b", 4, False), (b"\xff", 1, True), (b"c", 4, True))
]


@given(st.lists(MOVES, min_size=5, max_size=40))
@settings(max_examples=150, deadline=None)
def test_what_is_known_is_what_would_be_read_now(moves: list[Move]) -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    looks = Looks(replica)
    for shape in SHAPES:
        assert looks.at(shape) is None, "nobody has asked for it before"
    for lsn, move in enumerate(moves, 1):
        if move.kind in NOT_UNDER_ONE_MAP:
            looks.forget()
        record = record_of(move, replica) if move.kind != "checkpoint" else None
        said = fold(replica, record, lsn)
        if isinstance(said, type):
            return  # a record that no node writes
        for write in record.writes if isinstance(record, r.Update) and lsn % 3 else ():
            looks.note(write)  # not everybody who writes says so
        for fragment in replica.fragments.values() if move.kind == "checkpoint" else ():
            drop_tombstones(replica.store, fragment, list(fragment.tombstones)[:2])
        for shape in SHAPES:
            if (look := looks.at(shape)) is not None:
                _compare(replica, look, shape)


def _compare(replica: Replica, look: Look, shape: Shape) -> None:
    namespace, start, limit, down = shape
    for number in PARTITIONS:
        known = look.page(number)
        if known is None:
            look.keep(number, start, replica.store.page((namespace, number), start, limit, down=down))
            continue
        assert known.rows == _live(replica, (namespace, number), shape, known.next)
        if known.next is not None:
            look.keep(number, known.next, replica.store.page((namespace, number), known.next, limit, down=down))
            further = look.page(number)
            assert further is not None
            assert further.rows == _live(replica, (namespace, number), shape, further.next)


def _replica(rows: int, size: int) -> Replica:
    replica = Replica(LayeredStore(MemoryStore()))
    for at in range(rows):
        replica.apply(r.Update([r.Write("acc", 0, 1, at, [b"k%05d" % at], [bytes(size)], at, b"")]))
    return replica


def test_what_fills_a_gap_is_seen() -> None:
    replica = _replica(1, 1)
    looks = Looks(replica)
    shape: Shape = ("acc", b"", 4, False)
    looks.at(shape)
    look = looks.at(shape)
    assert look is not None
    replica.apply(r.Update([r.Write("acc", 0, 1, 2, [b"above a gap"], [b"v"], 0, b"")]))
    look.keep(0, b"", replica.store.page(("acc", 0), b"", 4))
    replica.apply(r.Update([r.Write("acc", 0, 1, 1, [b"in the gap"], [b"v"], 0, b"")]))
    assert look.page(0) is None


def test_a_fragment_that_comes_into_being_is_seen() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    looks = Looks(replica)
    shape: Shape = ("acc", b"", 4, False)
    looks.at(shape)
    look = looks.at(shape)
    assert look is not None
    look.keep(0, b"", replica.store.page(("acc", 0), b"", 4))
    assert look.page(0) is not None
    replica.apply(r.Update([r.Write("acc", 0, 1, 0, [b"k"], [b"v"], 0, b"")]))
    assert look.page(0) is None


def test_what_is_kept_is_bounded() -> None:
    replica = _replica(40, PAGE_BYTES_MAX // 40)
    looks = Looks(replica)
    small, large = ("acc", b"", 4, False), ("acc", b"", 40, False)
    for shape in (small, large):
        looks.at(shape)
        look = looks.at(shape)
        assert look is not None
        page = replica.store.page(("acc", 0), b"", shape[2])
        look.keep(0, b"", page)
        assert (look.page(0) is not None) == (shape is small)
    look = looks.at(small)
    assert look is not None
    for number in range(1, LOOK_BYTES_MAX // 250 + 2):  # there is nothing in them
        look.keep(number, b"", replica.store.page(("acc", number), b"", 4))
    assert look.page(LOOK_BYTES_MAX // 250 + 1) is None
    others: list[Shape] = [("acc", b"%d" % number, 4, False) for number in range(LOOKS_MAX)]
    for shape in others * 2:
        looks.at(shape)
    assert look.page(0) is None, "it was used longest ago"
    assert looks.at(small) is None, "and is asked for once again"


def test_who_walks_through_all_rows_pushes_nobody_out() -> None:
    looks = Looks(Replica(LayeredStore(MemoryStore())))
    shape: Shape = ("acc", b"", 4, False)
    looks.at(shape)
    kept = looks.at(shape)
    for number in range(10 * ASKED_MAX):
        assert looks.at(("acc", b"%05d" % number, 4, False)) is None
    assert looks.at(shape) is kept is not None


class Queue(Alone):
    """A node that is asked for the first rows of a range again and again, and counts the partitions it looks into."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.partitions = partitions
        self.pages = 0
        self._number = 0
        store = self.node.core.replica.store
        page = store.page

        def counted(*asked: object, **options: object) -> object:
            self.pages += 1
            return page(*asked, **options)  # type: ignore[arg-type]

        store.page = counted  # type: ignore[method-assign,assignment]

    def write(self, key: bytes, value: bytes | None) -> None:
        """Put or delete a key."""
        self._number += 1
        self.ask(Put(1, tx_of(CLIENT, self._number), "jobs", [key], [value]))

    def write_many(self, keys: list[bytes]) -> None:
        """Put keys, in one batch for each partition."""
        self._number += 1
        self.ask(Put(1, tx_of(CLIENT, self._number), "jobs", keys, [b"v"] * len(keys)))

    def first(
        self,
        limit: int = 2,
        *,
        reverse: bool = False,
        stale: bool = False,
        between: tuple[bytes, bytes | None] = (b"", None),
    ) -> tuple[list[bytes], int]:
        """The first keys, and how many partitions were looked into."""
        self.pages = 0
        numbers = list(range(self.partitions))
        scan = Scan(1, "jobs", numbers, *between, limit, reverse=reverse, stale=stale, age_ms=60_000)
        (told,) = self.turn([Asked(1, scan)])
        assert isinstance(told, Rows)
        return told.keys, self.pages


def test_only_partitions_into_which_something_came_are_looked_into_again() -> None:
    queue = Queue(16)
    jobs = [b"job-%03d" % number for number in range(30)]
    for job in jobs:
        queue.write(job, b"v")
    assert queue.first() == (jobs[:2], 16)
    with heard() as paths:
        assert queue.first()[0] == jobs[:2]
    assert "look.kept" in paths
    assert queue.first() == (jobs[:2], 0)
    queue.write(jobs[0], None)
    assert queue.first() == (jobs[1:3], 0), "what is known is so with the delete"
    queue.write(b"job-", b"v")
    assert queue.first() == ([b"job-", jobs[1]], 0)
    queue.write_many([b"job-%03d-" % number for number in range(NOTED_KEYS + 1)])
    keys, pages = queue.first()
    assert keys == [b"job-", b"job-000-"]
    assert 1 <= pages <= 16, "of many it is looked for again"
    assert queue.first() == (keys, 0)
    assert queue.first(reverse=True)[0] == jobs[:-3:-1]
    assert queue.first(reverse=True)[0] == jobs[:-3:-1]
    queue.write(jobs[-1], None)
    assert queue.first(reverse=True) == (jobs[-2:-4:-1], 0)
    queue.write(b"job-1", b"v")
    assert queue.first(reverse=True) == ([b"job-1", jobs[-2]], 0)


KEYS = st.integers(0, 40).map(lambda number: b"job-%03d" % number)
RANGES: list[tuple[bytes, bytes | None]] = [(b"", None), (b"job-010", b"job-030"), (b"job-030", None), (b"", b"job-004")]


@given(st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=60), st.sampled_from(RANGES), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_taken_up_together_is_what_is_there(
    moves: list[tuple[bytes, bool]], between: tuple[bytes, bytes | None], reverse: bool
) -> None:
    queue, there = Queue(4), dict[bytes, None]()
    low, high = between
    for number, (key, puts) in enumerate(moves):
        queue.write(key, b"v" if puts else None)
        if puts:
            there[key] = None
        else:
            there.pop(key, None)
        if number % 3 == 0 or number == len(moves) - 1:
            wanted = sorted((k for k in there if k >= low and (high is None or k < high)), reverse=reverse)
            for limit in (3, 3, 20):
                assert queue.first(limit, reverse=reverse, between=between)[0] == wanted[:limit]


def test_who_takes_the_first_rows_one_after_the_other_walks_through_none_that_were_taken() -> None:
    queue = Queue(2)
    jobs = [b"job-%03d" % number for number in range(200)]
    for job in jobs:
        queue.write(job, b"v")
    queue.first()
    queue.first()
    most = looked = 0
    for number, job in enumerate(jobs):
        keys, pages = queue.first()
        assert keys == jobs[number : number + 2]
        most, looked = max(most, pages), looked + pages
        queue.write(job, None)
    assert most <= 2, "once in each partition, where all that was known is taken"
    assert looked <= len(jobs) // SCAN_CHUNK_ROWS + 4
    assert queue.first()[0] == []
    queue.write(b"job-", b"v")
    assert queue.first() == ([b"job-"], 0)


def test_rows_that_are_large_are_looked_for_again() -> None:
    queue = Queue(4)
    queue.write(b"large", bytes(PAGE_BYTES_MAX))
    for _ in range(3):
        keys, pages = queue.first()
    assert (keys, pages) == ([b"large"], 1)


def test_a_stale_scan_knows_nothing_of_what_was_found() -> None:
    queue = Queue(4)
    queue.write(b"job", b"v")
    for _ in range(3):
        assert queue.first(stale=True) == ([b"job"], 4)


def test_what_is_known_costs_less_of_a_turn() -> None:
    queue = Queue(128)
    queue.write(b"job", b"v")

    def cost() -> int:
        scan = Scan(1, "jobs", list(range(128)), b"", None, 2)
        before = queue.node.core.now
        queue.node.turn(before + 1, [Asked(1, scan)])
        work = queue.node.core.work
        queue.turn([])
        return work

    first = cost()
    cost()
    assert cost() < first / 4
