"""The log against everything that a disk can do to it, exhaustively: each ends in the exact prefix or a clear refusal.

Cut at every byte, flip every bit that says something, cut the power after every disk operation and keep many subsets
of what was not synced, fail every call, and meddle with whole segments. What is never allowed: different records, a gap,
or the loss of anything that was acknowledged as durable.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.support.memory_disk import Keep, MemoryDisk, PowerCut, Reason, Unsynced
from tests.wal.logs import append, filled, no_op, open_log, outcome, prepare, records_of, reopened, update
from wal import Block, DiskError, DiskFull, Log, LogClosed, LogDamaged, LogError, LogSettings, inspect, read, verify
from wal.codec import BLOCK_HEADER_BYTES, HEADER_BYTES
from wal.records import Checkpoint, Record, Update, Write

ONE_SEGMENT = LogSettings(segment_bytes=12 << 10, total_bytes=1 << 20)
FOUR_KILOBYTES = LogSettings(segment_bytes=4 << 10, total_bytes=1 << 20)
TINY = LogSettings(segment_bytes=1024, total_bytes=3 << 10)


def assorted(blocks: int, size: int) -> list[list[Record]]:
    """Blocks of about `size` bytes each, of several kinds of records."""
    found: list[list[Record]] = []
    for at in range(blocks):
        n = 3 * at + 1
        vote = prepare(bytes([at]) * 16, [Write("acc", 1, 1, at, [b"k%d" % at], [b"v" * (size // 4)])])
        closing = outcome(vote, commit=at % 2 == 0)
        found.append([update(n, size // 3), vote, closing, no_op(at, 1, partition=2), Checkpoint(n)])
    return found


def flat(blocks: list[list[Record]]) -> list[Record]:
    """All records of these blocks."""
    return [record for block in blocks for record in block]


# Cuts.


def test_a_log_of_ten_kilobytes_cut_at_every_byte_is_refused_and_accepted_the_exact_prefix_of_whole_blocks() -> None:
    """Accepted at every byte; that it is refused before, and that `verify` finds it, at every byte of a header, and at one
    of five elsewhere, which nothing tells apart."""
    blocks = assorted(10, 1350)
    disk = filled(blocks, ONE_SEGMENT)
    (name,) = disk.names()
    image = disk.image(name)
    ends = [block.offset + block.bytes for block in read(disk)]
    assert ends[-1] > 10_000
    headers = {*range(HEADER_BYTES)}
    headers |= {end + at for end in (HEADER_BYTES, *ends) for at in range(-8, BLOCK_HEADER_BYTES + 8)}
    for size in range(len(image)):
        cut = MemoryDisk()
        cut.put(name, image[:size])
        if size % 5 == 0 or size in headers:
            with pytest.raises(LogDamaged):
                open_log(cut, ONE_SEGMENT)
            assert verify(cut).damaged
        if size < HEADER_BYTES:
            continue
        whole = sum(end <= size for end in ends)
        log = open_log(cut, ONE_SEGMENT, accept_loss=True)
        assert records_of(log) == flat(blocks[:whole]), f"cut at {size}"
        assert log.torn is not None
        assert (log.torn.offset, log.torn.gone) == ([HEADER_BYTES, *ends][whole], len(image) - size)


def test_a_cut_in_a_segment_that_has_a_successor_is_refused_unless_the_store_needs_nothing_of_it() -> None:
    blocks = assorted(12, 400)
    disk = filled(blocks, FOUR_KILOBYTES)
    names = disk.names()
    assert len(names) == 2
    image = disk.image(names[0])
    end = max(block.offset + block.bytes for block in read(disk) if block.segment == names[0])
    for size in range(0, len(image), 7):
        disk.put(names[0], image[:size])
        assert verify(disk).damaged
        with pytest.raises(LogDamaged, match=names[0]):
            open_log(disk.copy(), FOUR_KILOBYTES)
        if size >= end:
            begins = int(names[1].removesuffix(".wal"))
            assert reopened(disk.copy(), FOUR_KILOBYTES, from_lsn=begins) == flat(blocks)[begins - 1 :]


# Flips.


def judged(disk: MemoryDisk, settings: LogSettings) -> list[Record] | LogError:
    """What a flipped log replays, or how it is refused."""
    try:
        return reopened(disk, settings)
    except LogError as refusal:
        return refusal


def test_a_bit_that_flips_anywhere_in_a_log_of_ten_kilobytes_is_refused_or_leaves_the_exact_prefix() -> None:
    """Every bit of a header, and of what follows the blocks; of a body, and of what is unused, one of each byte: nothing
    in there is told apart bit by bit."""
    blocks = assorted(9, 1100)
    disk = filled(blocks, FOUR_KILOBYTES)
    names = disk.names()
    assert len(names) == 3
    left = {"elsewhere": flat(blocks), "torn": flat(blocks[:-1])}
    written = list(read(disk))
    tried: Counter[str] = Counter()
    for name in names:
        image = disk.image(name)
        assert len(image) == FOUR_KILOBYTES.segment_bytes
        for at, (place, whole) in enumerate(_places(name, image, written)):
            for bit in range(8 * at, 8 * at + 8) if whole else (8 * at + at % 8,):
                disk.flip(name, bit)
                found = judged(disk.copy(), FOUR_KILOBYTES)
                disk.flip(name, bit)
                tried[place] += 1
                if place == "refused":
                    assert isinstance(found, LogDamaged), f"{name} bit {bit}: {found}"
                else:
                    assert found == left[place], f"{name} bit {bit}: {found}"
    assert min(tried[place] for place in ("refused", "torn", "elsewhere")) > 1_000


def _places(name: str, image: bytes, written: list[Block]) -> Iterator[tuple[str, bool]]:
    """Of each byte of a segment what comes of a flip in it, and whether it says something bit by bit.

    A footer, and space that is unused, are nothing of a block or a header: a footer is made again from the blocks.
    """
    yield from (("refused", True) for _ in range(HEADER_BYTES))
    end = HEADER_BYTES
    for block in written:
        if block.segment == name:
            assert block.offset == end
            place = "torn" if block is written[-1] else "refused"
            yield from ((place, at < BLOCK_HEADER_BYTES) for at in range(block.bytes))
            end += block.bytes
    yield from (("elsewhere", byte != 0) for byte in image[end:])


def test_a_flip_in_every_byte_of_a_closed_log_is_refused_unless_it_hits_no_record() -> None:
    blocks = assorted(6, 400)
    disk = MemoryDisk()
    log = open_log(disk, FOUR_KILOBYTES)
    for block in blocks:
        append(log, *block)
    log.close()
    (name,) = disk.names()
    end = max(block.offset + block.bytes for block in read(disk))
    for offset in range(FOUR_KILOBYTES.segment_bytes):
        flipped = disk.copy()
        flipped.flip(name, 8 * offset + offset % 8)
        found = judged(flipped, FOUR_KILOBYTES)
        if offset < end:
            assert isinstance(found, LogDamaged), f"offset {offset}"
        else:
            assert found == flat(blocks), f"offset {offset}"


@pytest.mark.parametrize("bits", [2, 3, 8, 33])
def test_several_flipped_bits_are_refused_or_leave_the_exact_prefix_and_are_found_wherever_they_cost_anything(
    bits: int,
) -> None:
    blocks = assorted(9, 700)
    disk = filled(blocks, FOUR_KILOBYTES)
    names = disk.names()
    everything = flat(blocks)
    prefixes = [flat(blocks[:at]) for at in range(len(blocks) + 1)]
    draw = random.Random(bits)
    size = FOUR_KILOBYTES.segment_bytes
    outcomes: Counter[str] = Counter()
    for _ in range(400):
        flipped = disk.copy()
        near = draw.randrange(8 * size)  # in one place, as a sick sector has them, or all over the files
        for _ in range(bits):
            at = (near + draw.randrange(64)) % (8 * size) if draw.random() < 0.7 else draw.randrange(8 * size)
            flipped.flip(draw.choice(names), at)
        report = verify(flipped)
        assert report.findings, "bits that changed are found"
        found = judged(flipped.copy(), FOUR_KILOBYTES)
        if isinstance(found, LogDamaged):
            outcomes["refused"] += 1
            continue
        assert found in prefixes, "records that nobody wrote"
        outcomes["everything" if found == everything else "prefix"] += 1
        if found != everything:
            assert any(finding.kind in {"torn", "damaged"} for finding in report.findings)
    assert outcomes["refused"] > 100
    assert sum(outcomes.values()) == 400


def test_verify_finds_a_flip_anywhere_in_the_files_by_either_implementation() -> None:
    disk = filled(assorted(6, 900), FOUR_KILOBYTES)
    assert len(disk.names()) == 2
    for name in disk.names():
        for offset in range(0, FOUR_KILOBYTES.segment_bytes, 3):
            disk.flip(name, 8 * offset + offset % 8)
            assert verify(disk, reference=offset % 2 == 0).findings, f"{name} offset {offset}"
            disk.flip(name, 8 * offset + offset % 8)
    assert verify(disk).findings == []


def test_what_inspect_still_reads_of_a_damaged_log_is_never_anything_else() -> None:
    blocks = assorted(6, 900)
    disk = filled(blocks, FOUR_KILOBYTES)
    block_at = {5 * at + 1: block for at, block in enumerate(blocks)}
    for name in disk.names():
        for offset in range(0, FOUR_KILOBYTES.segment_bytes, 5):
            disk.flip(name, 8 * offset + offset % 8)
            found = [item for item in inspect(disk) if isinstance(item, Block)]
            disk.flip(name, 8 * offset + offset % 8)
            for block in found:
                assert block.records == block_at[block.first_lsn]
            if offset >= HEADER_BYTES:
                assert len(found) >= len(blocks) - 1, "one flip takes one block at most"


# Power cuts.


class Story:
    """What one run of a workload was told: everything appended, in order, and how much of it is promised."""

    def __init__(self) -> None:
        self.appended: list[Record] = []
        self.promised = 0
        self.first_lsn = 1
        self.log: Log | None = None

    def append(self, log: Log, *records: Record, durable: bool = True) -> None:
        """Append, and note what was promised."""
        self.appended += records
        append(log, *records, durable=durable)
        if durable:
            self.promised = len(self.appended)

    def run(self, disk: MemoryDisk) -> None:
        """Open, append with and without sync, rotate, prepare, trim, close, open again."""
        log = self.log = open_log(disk, TINY)
        self.append(log, update(1), update(2))
        self.append(log, update(3, 300), durable=False)
        self.append(log, update(4, 10), durable=False)
        log.sync()
        self.promised = len(self.appended)
        self.append(log, update(5, 250))
        log.prepare_next()
        self.append(log, update(6, 250), durable=False)
        self.append(log, update(7, 1500))
        for n in range(8, 14):
            self.append(log, update(n, 120), durable=n % 3 == 0)
        trimmed = log.trimmable(7)
        assert trimmed is not None
        self.append(log, trimmed)
        self.first_lsn = trimmed.first_lsn
        log.trim(trimmed.first_lsn)
        self.append(log, update(14), durable=False)
        log.close()
        self.promised = len(self.appended)
        log = self.log = open_log(disk, TINY, from_lsn=self.first_lsn)
        for n in range(15, 24):
            self.append(log, update(n, 100 + 40 * (n % 4)), durable=n % 2 == 0)

    def check(self, disk: MemoryDisk, what: str) -> list[Record]:
        """Open the log: it holds at least what was promised, and of the rest an exact prefix. Returns all records."""
        found = [*self.appended[: self.first_lsn - 1], *reopened(disk, TINY, from_lsn=self.first_lsn)]
        assert len(found) >= self.promised, f"{what}: {self.promised} were promised, {len(found)} are there"
        assert found == self.appended[: len(found)], what
        return found

    def check_again(self, disk: MemoryDisk, found: list[Record], what: str) -> None:
        """What was recovered can be built upon: the next block survives losing everything that is unsynced."""
        append(open_log(disk, TINY, from_lsn=self.first_lsn), update(999))
        again = reopened(disk.crash(lambda _: False), TINY, from_lsn=self.first_lsn)
        assert [*found[: self.first_lsn - 1], *again] == [*found, update(999)], what


def selectors(unsynced: list[Unsynced], seed: int) -> Iterator[tuple[str, Keep]]:
    """Nothing, everything, each single thing, all but each single thing, and random subsets."""
    yield "nothing", lambda _: False
    yield "everything", lambda _: True
    for item in unsynced:
        yield f"only {item}", item.__eq__
        yield f"all but {item}", item.__ne__
    for n in range(6):
        draw = random.Random(1000 * seed + n)
        chance = draw.choice([0.2, 0.5, 0.8])
        kept = {item for item in unsynced if draw.random() < chance}
        yield f"subset {n}", kept.__contains__


def calls_of_a_run() -> int:
    """How many disk operations the workload has when nothing happens."""
    disk = MemoryDisk()
    Story().run(disk)
    return disk.calls


def test_a_power_cut_after_every_disk_operation_loses_nothing_that_was_promised() -> None:
    calls = calls_of_a_run()
    assert calls > 150
    survivors = 0
    for call in range(calls + 1):
        disk = MemoryDisk()
        disk.cut_power_after(call)
        story = Story()
        try:
            story.run(disk)
        except PowerCut:
            pass
        else:
            assert call == calls
        for name, keep in selectors(disk.unsynced(), call):
            what = f"power cut after call {call}, {name} survived"
            left = disk.crash(keep)
            found = story.check(left, what)
            story.check_again(left, found, what)
            survivors += 1
    assert survivors > 1500


def test_a_power_cut_at_every_step_of_a_recovery_loses_nothing_either() -> None:
    blocks: list[list[Record]] = [[update(1, 100)], [update(2, 900)], [update(3, 100)]]
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, *blocks[0])
    append(log, *blocks[1], durable=False)
    append(log, *blocks[2], durable=False)
    prefixes = [flat(blocks[:whole]) for whole in (1, 2, 3)]
    for lost in disk.unsynced():
        torn = disk.crash(lost.__ne__)
        complete = torn.copy()
        reopened(complete)
        for call in range(complete.calls):
            victim = torn.copy()
            victim.cut_power_after(call)
            with pytest.raises(PowerCut):
                reopened(victim)
            for name, keep in selectors(victim.unsynced(), call):
                left = victim.crash(keep)
                found = reopened(left)
                assert found in prefixes, f"{lost} lost, cut after call {call}, {name} survived"
                assert reopened(left.crash(lambda _: False)) == found, name


# Errors.

CHANGES = {"create", "write", "sync", "rename", "remove", "sync_directory", "truncate"}


@pytest.mark.parametrize("reason", ["EIO", "ENOSPC", "EROFS"])
def test_an_error_at_every_call_stops_the_log_and_loses_nothing_that_was_promised(reason: Reason) -> None:
    calls = calls_of_a_run()
    met: Counter[str] = Counter()
    for call in range(1, calls + 1):
        disk = MemoryDisk()
        disk.fail("any", call, reason)
        story = Story()
        what = f"{reason} at call {call}"
        with pytest.raises(DiskError) as first:
            story.run(disk)
        if story.log is not None and disk.trace[call - 1][0] in CHANGES:
            met[how := how_it_stopped(story.log, first.value)] += 1
            if how == GOES_ON:  # what it was refused is not there, and what it took since is promised
                story.appended[story.log.next_lsn - 2 :] = [update(1)]
                story.promised = len(story.appended)
        # The process is started again, the power was never gone, and the disk answers.
        found = story.check(disk, what)
        story.check_again(disk, found, what)
    assert met["stopped"] > 30
    assert (met[GOES_ON] > 3) == (reason == "ENOSPC")


GOES_ON = "goes on"


def how_it_stopped(log: Log, first: DiskError) -> str:
    """`stopped`: it refuses everything with the first error. GOES_ON: the file of the next segment could not
    be made yet."""
    refusal = refusal_of(lambda: append(log, update(1)))
    if refusal is None:
        assert isinstance(first, DiskFull)
        assert first.early
        return GOES_ON
    if isinstance(refusal, LogClosed):
        return "before it was open"  # the error came while it was opened; this is the log before, which is closed
    assert refusal is first
    assert refusal_of(lambda: list(log.replay(log.segments()[0].first_lsn))) is first
    return "stopped"


def refusal_of(call: Callable[[], object]) -> DiskError | LogClosed | None:
    """With what it was refused, if it was."""
    try:
        call()
    except (DiskError, LogClosed) as refusal:
        return refusal
    return None


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("operation", sorted(CHANGES - {"truncate"}))
def test_after_the_nth_failure_of_an_operation_nothing_is_tried_again(operation: str, nth: int) -> None:
    disk = MemoryDisk()
    disk.fail(operation, nth)
    story = Story()
    if refusal_of(lambda: story.run(disk)) is not None:
        changed = [kind for kind, _ in disk.trace if kind in CHANGES]
        assert changed[-1] == operation
        if story.log is not None:
            log = story.log
            assert refusal_of(lambda: append(log, update(1))) is not None
            log.close()
        assert [kind for kind, _ in disk.trace if kind in CHANGES] == changed
    else:
        assert disk.counts[operation] < nth


# Segments.


@pytest.fixture
def segmented() -> MemoryDisk:
    """Five segments and more, of one-record blocks."""
    disk = filled([[update(n, 60)] for n in range(1, 61)])
    assert len(disk.names()) >= 5
    return disk


def test_every_missing_segment_but_the_last_is_a_clear_refusal(segmented: MemoryDisk) -> None:
    names = segmented.names()
    for at, name in enumerate(names[:-1]):
        disk = segmented.copy()
        disk.remove(name)
        with pytest.raises(LogDamaged) as refusal:
            open_log(disk)
        assert refusal.value.finding.kind == "missing"
        assert refusal.value.lsn == int(name[:20])
        assert refusal.value.segment == names[at + 1]
        assert [finding.kind for finding in verify(disk).findings] == ["missing"]


def test_a_log_without_its_last_segment_is_behind_a_store_that_knows_more(segmented: MemoryDisk) -> None:
    disk = segmented.copy()
    disk.remove(disk.names()[-1])
    with pytest.raises(LogError, match="the log ends before LSN"):
        open_log(disk, from_lsn=60)
    found = reopened(disk)
    assert found == [update(n, 60) for n in range(1, len(found) + 1)], "nobody knows of more: an exact prefix"


def test_every_pair_of_swapped_segments_is_a_clear_refusal(segmented: MemoryDisk) -> None:
    names = segmented.names()
    for left in names:
        for right in names:
            if left < right:
                disk = segmented.copy()
                disk.put(left, segmented.image(right))
                disk.put(right, segmented.image(left))
                with pytest.raises(LogDamaged, match="by the file's name"):
                    open_log(disk)


def test_a_segment_of_an_older_life_of_the_log_is_a_clear_refusal(segmented: MemoryDisk) -> None:
    """The same cluster, node, LSNs and sizes, and other records: only the links and the chain can tell."""
    other = filled([[update(n, 60, epoch=2)] for n in range(1, 61)])
    names = segmented.names()
    assert other.names() == names
    for name in names:
        disk = segmented.copy()
        disk.put(name, other.image(name))
        with pytest.raises(LogDamaged, match="follows LSN") as refusal:
            open_log(disk)
        assert refusal.value.finding.kind == "replaced"
        assert verify(disk).damaged


def test_a_recycled_tail_is_never_read_as_records() -> None:
    """Behind the end lie whole blocks of an older life of the same file: whatever happens, they are no records."""
    old = filled([[update(n, 60)] for n in range(1, 9)])
    (name,) = old.names()
    for count in range(8):
        records: list[Record] = [update(n, 60, epoch=7) for n in range(1, count + 1)]
        new = filled([[record] for record in records])
        end = max((block.offset + block.bytes for block in read(new)), default=HEADER_BYTES)
        new.put(name, new.image(name)[:end] + old.image(name)[end:])
        found = judged(new, ONE_SEGMENT)
        if count:
            assert isinstance(found, LogDamaged) or found == records


def test_a_block_inside_a_value_is_never_taken_for_a_block() -> None:
    """A user who stores this log's own bytes as a value must not confuse the search behind a torn block."""
    disk = filled([[update(1, 60)], [update(2, 60)]])
    (name,) = disk.names()
    image = disk.image(name)[HEADER_BYTES:600]
    log = open_log(disk)
    for shift in range(8):
        append(log, Update([Write("acc", 0, 1, log.next_lsn - 1, [b"k"], [bytes(shift) + image])]), durable=False)
    last = list(log.replay(1))[-1]
    disk.open(last.segment, write=True).write(last.offset + 50, b"\xff" * 8)
    log = open_log(disk)
    assert log.torn is not None
    assert log.torn.lsn == last.first_lsn


def test_a_header_of_zeros_is_refused(segmented: MemoryDisk) -> None:
    for name in segmented.names():
        disk = segmented.copy()
        disk.put(name, bytes(HEADER_BYTES) + segmented.image(name)[HEADER_BYTES:])
        with pytest.raises(LogDamaged, match="magic"):
            open_log(disk)


def test_segments_before_the_checkpoint_are_proven_by_their_links_and_read_by_verify(segmented: MemoryDisk) -> None:
    names = segmented.names()
    disk = segmented.copy()
    disk.flip(names[0], 8 * (HEADER_BYTES + 100))
    from_lsn = int(names[2][:20])
    assert reopened(disk, from_lsn=from_lsn) == [update(n, 60) for n in range(from_lsn, 61)]
    assert verify(disk).damaged
