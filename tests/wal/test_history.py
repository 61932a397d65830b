"""A supplier gives exactly the missing counters, each once, of the history that was continued, or says what it lacks."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.support.memory_disk import MemoryDisk
from tests.support.patience import joined
from tests.wal.logs import append, no_op, open_log, outcome, prepare, update
from wal import Log, LogSettings, PartitionCounter, Want
from wal.codec import HEADER_BYTES
from wal.ids import Fragment
from wal.records import EpochStart, FragmentClear, FragmentReady, History, Record, Undo, Update, Write

TX = b"a transaction id"
ACC: Fragment = ("acc", 0)
ROOMY = LogSettings(segment_bytes=1024, total_bytes=1 << 20)


def a_log(*blocks: Sequence[Record]) -> Log:
    """A log of these blocks, in small segments."""
    log = open_log(MemoryDisk(), ROOMY)
    for block in blocks:
        append(log, *block)
    return log


def want(
    have: int | PartitionCounter, up_to: int, epochs: list[tuple[int, int]] | None = None, fragment: Fragment = ACC
) -> Want:
    """What a copy that has `have` wants."""
    counter = PartitionCounter(have) if isinstance(have, int) else have
    return Want(fragment, counter, up_to, epochs or [(1, 1)])


def supplied(log: Log, *wants: Want, max_bytes: int = 1 << 20) -> tuple[list[Write], list[Fragment]]:
    """Everything that a cursor gives, and what it missed."""
    cursor = log.history(wants)
    found: list[Write] = []
    while batch := cursor.read(max_bytes):
        found += batch
    assert cursor.done
    assert cursor.read(max_bytes) == []
    return found, cursor.missed


def ends(found: list[Write]) -> list[int]:
    """The highest counter of each write."""
    return [write.end for write in found]


def test_the_missing_counters_come_in_order_and_nothing_else() -> None:
    log = a_log(*([update(n), update(n, partition=1)] for n in range(1, 41)))
    found, missed = supplied(log, want(30, 38))
    assert ends(found) == list(range(31, 39))
    assert all(write.fragment == ACC for write in found)
    assert found == [update(n).writes[0] for n in range(31, 39)]
    assert missed == []


def test_gaps_inside_are_filled_one_by_one() -> None:
    log = a_log(*([update(n)] for n in range(1, 21)))
    have = PartitionCounter(5)
    have.update(7, 3)
    have.update(14, 2)
    found, missed = supplied(log, want(have, 20))
    assert ends(found) == [6, 7, 11, 12, 13, 14, 17, 18, 19, 20]
    assert missed == []


def test_many_fragments_are_served_in_one_pass_and_each_block_is_read_once() -> None:
    log = a_log(*([update(n, partition=p) for p in range(8)] for n in range(1, 21)))
    cursor = log.history([want(p, 20, fragment=("acc", p)) for p in range(8)])
    found: list[Write] = []
    while batch := cursor.read(200):
        found += batch
    for p in range(8):
        assert ends([write for write in found if write.partition == p]) == list(range(p + 1, 21))
    blocks = sum(block.bytes for block in log.replay(1))
    assert cursor.bytes_read <= blocks
    assert cursor.missed == []


def test_segments_that_end_below_what_is_wanted_are_not_even_opened() -> None:
    disk = MemoryDisk()
    log = open_log(disk, ROOMY)
    for n in range(1, 101):
        append(log, update(n), update(n, partition=1))
    log.write_index()
    assert len(log.segments()) > 10
    before = disk.counts["open"]
    assert ends(supplied(log, want(98, 100))[0]) == [99, 100]
    assert disk.counts["open"] - before <= 2
    before = disk.counts["open"]
    assert len(supplied(log, want(98, 100), want(10, 100, fragment=("acc", 1)))[0]) == 92
    assert disk.counts["open"] - before > 10, "of another fragment nearly all is wanted"


def test_a_batch_is_about_as_large_as_asked_for() -> None:
    log = a_log(*([update(n, 100)] for n in range(1, 41)))
    cursor = log.history([want(0, 40)])
    sizes = []
    while batch := cursor.read(1000):
        sizes.append(len(batch))
    assert set(sizes[:-1]) == {7}, "48 + 8 + 100 bytes each, one more than fits"
    assert sum(sizes) == 40


def test_a_cursor_without_wants_or_with_nothing_missing_is_done_at_once() -> None:
    log = a_log([update(1)])
    assert supplied(log) == ([], [])
    cursor = log.history([want(1, 1)])
    assert cursor.read(100) == []
    assert cursor.done
    assert cursor.bytes_read == 0


def test_history_that_ends_early_is_missed_and_never_done() -> None:
    log = a_log(*([update(n)] for n in [*range(1, 10), *range(12, 21)]))
    found, missed = supplied(log, want(5, 20), want(0, 3, fragment=("acc", 9)))
    assert ends(found) == [6, 7, 8, 9, *range(12, 21)]
    assert missed == [ACC, ("acc", 9)]


def test_what_is_not_durable_yet_is_missed() -> None:
    log = a_log([update(1)])
    append(log, update(2), durable=False)
    assert supplied(log, want(0, 2)) == ([update(1).writes[0]], [ACC])
    log.sync()
    assert supplied(log, want(0, 2))[1] == []


def test_a_cursor_reads_as_far_as_the_log_was_durable_when_it_was_made() -> None:
    log = a_log([update(1)])
    cursor = log.history([want(0, 2)])
    append(log, update(2))
    assert ends(cursor.read(1 << 20)) == [1]
    assert cursor.read(1 << 20) == []
    assert cursor.missed == [ACC]


# Transactions.


def write(start: int, *keys: bytes, epoch: int = 1, partition: int = 0, namespace: str = "acc", origin: int = 0) -> Write:
    """A write of these keys, each with itself as its value."""
    return Write(namespace, partition, epoch, start, list(keys), list(keys), tx=TX, origin=origin)


def test_a_committed_transaction_is_supplied_from_its_prepare_even_across_segments() -> None:
    vote = prepare(TX, [write(5, b"x", b"y"), write(0, b"z", namespace="names")])
    log = a_log(
        *([update(n)] for n in range(1, 6)),
        [vote],
        *([update(n, 200)] for n in range(8, 20)),
        [outcome(vote)],
    )
    assert len(log.segments()) > 3
    found, missed = supplied(log, want(4, 19), want(0, 1, fragment=("names", 0)))
    assert missed == []
    assert ends([w for w in found if w.namespace == "acc"]) == [5, *range(8, 20), 7]
    assert vote.writes[0] in found
    assert vote.writes[1] in found


def test_a_prepare_without_an_outcome_is_not_supplied() -> None:
    vote = prepare(TX, [write(1, b"x")])
    log = a_log([update(1)], [vote], [update(3)])
    found, missed = supplied(log, want(0, 3))
    assert ends(found) == [1, 3]
    assert missed == [ACC]


def test_an_outcome_without_its_prepare_is_missed_if_it_committed_and_a_closed_gap_if_not() -> None:
    vote = prepare(TX, [write(0, b"x", b"y")])
    assert supplied(a_log([outcome(vote)]), want(0, 2)) == ([], [ACC])
    found, missed = supplied(a_log([outcome(vote, commit=False)]), want(0, 2))
    assert found == [Write("acc", 0, 1, 0, [], [], closed=2)]
    assert missed == []


def test_rollbacks_and_no_ops_are_closed_gaps() -> None:
    vote = prepare(TX, [write(1, b"x", b"y", b"z")])
    log = a_log([update(1)], [vote], [outcome(vote, commit=False)], [no_op(4, 2)], [update(7)])
    found, missed = supplied(log, want(0, 7))
    assert found[1:3] == [
        Write("acc", 0, 1, 1, [], [], closed=3),
        Write("acc", 0, 1, 4, [], [], closed=2),
    ]
    assert ends(found) == [1, 4, 6, 7]
    assert missed == []


def test_a_transaction_that_was_re_issued_counts_with_its_new_epoch() -> None:
    first = prepare(TX, [write(1, b"x")])
    again = prepare(TX, [write(1, b"x", epoch=3, origin=1)], epoch=3, origin=1)
    log = a_log(
        [update(1)],
        [first],
        [EpochStart(0, 3, [("acc", 2)])],
        [again],
        [outcome(again)],
        [update(3, epoch=3)],
    )
    found, missed = supplied(log, want(0, 3, [(1, 1), (3, 2)]))
    assert found == [update(1).writes[0], again.writes[0], update(3, epoch=3).writes[0]]
    assert missed == []


def test_an_outcome_of_a_later_epoch_takes_the_latest_prepare() -> None:
    first = prepare(TX, [write(0, b"x")])
    again = prepare(TX, [write(0, b"x", epoch=3, origin=1)], epoch=3, origin=1)
    log = a_log([first], [again], [outcome(again, epoch=4)])
    assert supplied(log, want(0, 1, [(3, 1)])) == ([again.writes[0]], [])


def test_a_rollback_counts_with_the_epoch_of_its_outcome() -> None:
    vote = prepare(TX, [write(1, b"x")])
    log = a_log([update(1)], [vote], [outcome(vote, commit=False, epoch=2)])
    found, missed = supplied(log, want(0, 2, [(1, 1), (2, 2)]))
    assert found[1] == Write("acc", 0, 2, 1, [], [], closed=1)
    assert missed == []


# Histories that were not continued.


def test_a_suffix_that_was_undone_is_not_supplied_although_the_log_holds_it() -> None:
    log = a_log(
        *([update(n)] for n in range(1, 7)),
        [Undo("acc", 0, 3, [b"key-0004", b"key-0005", b"key-0006"])],
        [History([update(n, 30, epoch=2).writes[0] for n in range(4, 9)])],
    )
    found, missed = supplied(log, want(1, 8, [(1, 1), (2, 4)]))
    assert [(w.end, w.epoch) for w in found] == [(2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 2), (8, 2)]
    assert missed == []


def test_a_copy_of_the_undone_history_gets_nothing_that_its_table_does_not_name() -> None:
    log = a_log(*([update(n)] for n in range(1, 7)), [Undo("acc", 0, 3, [])])
    found, missed = supplied(log, want(0, 6, [(1, 1), (2, 4)]))
    assert ends(found) == [1, 2, 3]
    assert missed == [ACC]


def test_what_lies_before_a_clear_is_still_right_if_its_epoch_is() -> None:
    """The log cannot serve what came by full transfer, but what it holds from before the clear is what it says."""
    log = a_log(
        *([update(n)] for n in range(1, 4)),
        [FragmentClear("acc", 0, "behind")],
        [FragmentReady("acc", 0, 6, 0, [(1, 1), (2, 6)], True)],
        [update(7, epoch=2)],
    )
    found, missed = supplied(log, want(0, 7, [(1, 1), (2, 6)]))
    assert ends(found) == [1, 2, 3, 7]
    assert missed == [ACC]
    assert supplied(log, want(6, 7, [(1, 1), (2, 6)])) == ([update(7, epoch=2).writes[0]], [])


def test_a_range_that_reaches_into_a_later_epoch_or_beyond_the_end_is_left_out() -> None:
    log = a_log([Update([write(0, b"a", b"b", b"c")])], [Update([write(2, b"d", b"e", epoch=2)])])
    assert supplied(log, want(0, 4, [(1, 1), (2, 3)])) == ([write(2, b"d", b"e", epoch=2)], [ACC])
    assert supplied(log, want(0, 3, [(1, 1), (2, 3)])) == ([], [ACC])


def test_a_range_that_the_asker_has_in_part_is_missed_and_not_split() -> None:
    log = a_log([Update([write(0, b"a", b"b", b"c")])], [update(4)])
    found, missed = supplied(log, want(1, 4))
    assert ends(found) == [4]
    assert missed == [ACC]


def test_the_same_counters_twice_in_the_log_are_supplied_once() -> None:
    log = a_log([update(1)], [History([update(1).writes[0], update(2).writes[0]])], [update(2)])
    assert ends(supplied(log, want(0, 2))[0]) == [1, 2]


# The log moves on.


def test_segments_that_go_while_a_cursor_reads_are_missed() -> None:
    log = a_log(*([update(n, 100)] for n in range(1, 41)))
    cursor = log.history([want(0, 40)])
    first = cursor.read(1)
    assert ends(first) == [1]
    log.trim(log.segments()[3].first_lsn)
    found = first
    while batch := cursor.read(1 << 20):
        found += batch
    begins = log.segments()[0].first_lsn
    assert ends(found)[-1] == 40
    assert ends(found) == [n for n in ends(found) if n < begins] + list(range(begins, 41))
    assert cursor.missed == [ACC]


def test_history_is_the_same_after_the_log_was_opened_again() -> None:
    disk = MemoryDisk()
    log = open_log(disk, ROOMY)
    for n in range(1, 41):
        append(log, update(n, 50), update(n, partition=1))
    before = supplied(log, want(7, 39), want(39, 40, fragment=("acc", 1)))
    log.close()
    assert supplied(open_log(disk, ROOMY), want(7, 39), want(39, 40, fragment=("acc", 1))) == before
    assert supplied(open_log(disk, ROOMY, from_lsn=60), want(7, 39), want(39, 40, fragment=("acc", 1))) == before


def test_damage_in_an_old_segment_is_reported_and_costs_the_fragments_in_that_block() -> None:
    disk = MemoryDisk()
    log = open_log(disk, ROOMY)
    for n in range(1, 31):
        append(log, update(n, partition=n % 2))
    disk.flip(disk.names()[0], 8 * (HEADER_BYTES + 60))
    even = [Want(("acc", 0), PartitionCounter(), 30, [(1, 1)])]
    cursor = log.history(even)
    while cursor.read(1 << 20):
        pass
    assert cursor.findings == []
    cursor = log.history([Want(("acc", 1), PartitionCounter(), 29, [(1, 1)])])
    found: list[Write] = []
    while batch := cursor.read(1 << 20):
        found += batch
    assert ends(found) == list(range(3, 30, 2))
    assert [finding.kind for finding in cursor.findings] == ["damaged"]
    assert cursor.missed == [("acc", 1)]


def test_a_footer_that_is_damaged_is_made_again_from_the_blocks() -> None:
    disk = MemoryDisk()
    log = open_log(disk, ROOMY)
    for n in range(1, 31):
        append(log, update(n))
    for offset in (ROOMY.segment_bytes - 10, ROOMY.segment_bytes - 90):
        damaged = disk.copy()
        damaged.flip(damaged.names()[0], 8 * offset)
        assert ends(supplied(open_log(damaged, ROOMY), want(0, 30))[0]) == list(range(1, 31))


def test_a_cursor_that_is_closed_early_is_done() -> None:
    log = a_log(*([update(n)] for n in range(1, 41)))
    cursor = log.history([want(0, 40)])
    cursor.read(100)
    cursor.close()
    assert cursor.done
    assert cursor.read(100) == []


def test_a_fragment_is_wanted_once() -> None:
    with pytest.raises(AssertionError, match="wanted twice"):
        a_log([update(1)]).history([want(0, 1), want(0, 1)])


# Against a model.


class Fragments:
    """Three fragments' histories as a primary and its successors would write them, and what is true of them in the end.

    `truth` is, per fragment, start -> the write that counts. A new epoch begins at or below the highest counter: what
    lies above is not continued.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.epoch = 1
        self.tables: dict[Fragment, list[tuple[int, int]]] = {("acc", p): [(1, 1)] for p in range(3)}
        self.truth: dict[Fragment, dict[int, Write]] = {fragment: {} for fragment in self.tables}
        self.open: list[tuple[bytes, Write]] = []
        self.transactions = 0

    def next_start(self, fragment: Fragment) -> int:
        """Where the next range begins: above everything applied or promised."""
        held = [w.end for _, w in self.open if w.fragment == fragment]
        return max([*(w.end for w in self.truth[fragment].values()), *held, self.tables[fragment][-1][1] - 1])

    def block(self) -> list[Record]:
        """One turn."""
        return [record for _ in range(self.draw.randint(1, 5)) for record in self.step()]

    def step(self) -> list[Record]:
        """One thing that happens."""
        fragment = self.draw.choice(list(self.tables))
        start, count = self.next_start(fragment), self.draw.randint(1, 3)
        keys = [b"%d" % self.draw.randint(0, 99) for _ in range(count)]
        values = [None if self.draw.random() < 0.2 else b"v%d" % start for _ in keys]
        new = Write(*fragment, self.epoch, start, keys, values)
        match self.draw.choice(["update", "update", "prepare", "outcome", "no-op", "repeat", "epoch"]):
            case "update":
                self.truth[fragment][start] = new
                return [Update([new])]
            case "prepare":
                self.transactions += 1
                tx = self.transactions.to_bytes(16, "big")
                new = Write(*fragment, self.epoch, start, keys, values, tx=tx)
                self.open.append((tx, new))
                return [prepare(tx, [new], epoch=self.epoch)]
            case "outcome" if self.open:
                return [self.resolve()]
            case "no-op":
                self.truth[fragment][start] = Write(*fragment, self.epoch, start, [], [], closed=count)
                return [no_op(start, count, partition=fragment[1], epoch=self.epoch)]
            case "repeat" if self.truth[fragment]:
                return [History([self.draw.choice(list(self.truth[fragment].values()))])]
            case "epoch" if self.draw.random() < 0.15:
                return self.begin_epoch()
        return []

    def resolve(self) -> Record:
        """The outcome of one transaction that is in doubt."""
        tx, held = self.open.pop(self.draw.randrange(len(self.open)))
        commit = self.draw.random() < 0.6
        gap = Write(*held.fragment, self.epoch, held.start, [], [], closed=held.delta)
        self.truth[held.fragment][held.start] = held if commit else gap
        return outcome(prepare(tx, [held], epoch=self.epoch), commit=commit)

    def begin_epoch(self) -> list[Record]:
        """A new primary: each fragment goes on from some range of its own; what is in doubt is issued again or closed."""
        self.epoch += 1
        records: list[Record] = []
        for fragment, truth in self.truth.items():
            held = [w.start for _, w in self.open if w.fragment == fragment]
            starts = sorted([*truth, *held, self.next_start(fragment)])
            first = min(self.draw.choice(starts[-4:]), *held, *starts[-1:]) + 1  # no vote lies below a new epoch
            for start in [start for start in truth if start >= first - 1]:
                del truth[start]
            table = [run for run in self.tables[fragment] if run[1] < first]
            self.tables[fragment] = [*table, (self.epoch, first)]
            records.append(EpochStart(fragment[1], self.epoch, [(fragment[0], first)]))
        still_open: list[tuple[bytes, Write]] = []
        for tx, vote in self.open:
            again = Write(*vote.fragment, self.epoch, vote.start, vote.keys, vote.values, 0, tx, 0, vote.epoch)
            still_open.append((tx, again))
            records.append(prepare(tx, [again], epoch=self.epoch, origin=vote.epoch))
        self.open = still_open
        for fragment, truth in self.truth.items():
            last = self.tables[fragment][-1][1] - 1
            votes = [w for _, w in self.open if w.fragment == fragment]
            known = PartitionCounter()
            for w in [*truth.values(), *votes]:
                known.update(w.start, w.delta)
            for start, delta in known.missing(max([last, *(w.end for w in votes)])):
                if start >= last:
                    truth[start] = Write(*fragment, self.epoch, start, [], [], closed=delta)
                    records.append(no_op(start, delta, partition=fragment[1], epoch=self.epoch))
        return records


@pytest.mark.parametrize("seed", range(60))
def test_whatever_was_written_a_copy_gets_exactly_what_it_lacks_of_what_counts(seed: int) -> None:
    draw = random.Random(seed)
    model = Fragments(draw)
    disk = MemoryDisk()
    log = open_log(disk, ROOMY)
    for _ in range(60):
        if block := model.block():
            append(log, *block)
    while model.open and seed % 3:
        append(log, model.resolve())
    if seed % 2:
        log.close()
        log = open_log(disk, ROOMY)
    wants: list[Want] = []
    expected: dict[Fragment, list[Write]] = {}
    short: list[Fragment] = []
    for fragment, truth in model.truth.items():
        writes = sorted(truth.values(), key=lambda w: w.start)
        have = PartitionCounter()
        kept = [w for w in writes if draw.random() < 0.4]
        for w in kept:
            have.update(w.start, w.delta)
        up_to = max((w.end for w in writes), default=0)
        whole = not writes or (writes[0].start == 0 and all(a.end == b.start for a, b in pairwise(writes)))
        expected[fragment] = [w for w in writes if w not in kept]
        short += [] if whole else [fragment]
        wants.append(Want(fragment, have, up_to, model.tables[fragment]))
    found, missed = supplied(log, *wants, max_bytes=draw.choice([1, 100, 10_000]))
    for fragment, writes in expected.items():
        got = [w for w in found if w.fragment == fragment]
        assert sorted(got, key=lambda w: w.start) == writes, f"{fragment} of seed {seed}"
    assert missed == short


def test_cursors_read_while_the_writer_rotates_and_trims() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=2048, total_bytes=8 * 2048))
    append(log, update(1))
    problems: list[BaseException] = []
    stop = threading.Event()

    def supply() -> None:
        try:
            while not stop.is_set():
                found, missed = supplied(log, want(0, log.next_lsn - 1))
                numbers = ends(found)
                assert numbers == sorted(set(numbers))
                assert missed or len(numbers) > 0
        except BaseException as error:
            problems.append(error)

    suppliers = [threading.Thread(target=supply, daemon=True) for _ in range(2)]
    for supplier in suppliers:
        supplier.start()
    n = 1
    while n < 2000 and not problems:
        n += 1
        append(log, update(n), durable=n % 10 == 0)
        trimmed = log.trimmable(log.durable_lsn) if n % 40 == 0 else None
        if trimmed is not None:
            log.trim(trimmed.first_lsn)
    stop.set()
    joined(*suppliers)
    assert problems == []
    assert log.segments()[0].first_lsn > 1000
