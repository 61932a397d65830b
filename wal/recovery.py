"""Opening a log, the reading half: what of it is whole, and what to make of the place where it stops being so.

`examine` checks the links between all segments, and every block from the segment that holds `from_lsn` on. It changes
nothing; `wal.repair` does.

## Torn tail or damage?

A file that is shorter than its header says, or longer, is damage: segments are made, filled and synced in full size
before they are used, so no crash changes that. Else the log stops at its first block that does not verify. In any
segment but the last that is damage: a segment gets a successor only after all of it was synced. In the last one it is a
*torn tail* if nothing from there on was ever known to be durable, and damage otherwise. The bytes alone cannot tell.
With FSYNC durability there is at most one unsynced
block, the last; with LOG_ONLY many are written between two syncs, and a power cut keeps any subset of their sectors,
so that a later one may be whole where an earlier one is not. Therefore each block says up to which offset the file was
synced when it was written. A whole block behind the break that says so of the place of the break is the proof that what
is broken had been promised: damage, and nothing is dropped. Without such a proof nothing behind the break was written
later than the sync that would have made the broken block durable. It is dropped as torn, and reported; had that very
sync succeeded before the bytes were damaged, nothing on this disk could tell. That last group is what peers answer for
("you acknowledged up to c"); `Log.sync` and `Log.close` make the window small, because they end a group with a marker:
a block without records that carries the proof.
"""

from __future__ import annotations

from wal.codec import (
    FormatError,
    NewerFormat,
    SegmentHeader,
    Trailer,
)
from wal.disk import Disk, File
from wal.errors import Finding, Kind, LogBehindStore, LogDamaged, LogForeign, LogTooNew
from wal.scan import Scan, nonzero_end, survivors
from wal.segment import SegmentBuilder, segment_lsn, segment_lsns, segment_name, stored_bytes, stored_name
from wal.segment_file import Sealed, broken, newer, read_header, read_trailer, rebuild, wrong_size
from wal.stored import open_segment


class Examined:
    """What `examine` found. The log's whole part is `sealed`, then `live` up to its end."""

    def __init__(self) -> None:
        self.sealed: list[Sealed] = []
        self.live: SegmentBuilder | None = None
        self.live_sealed: Trailer | None = None
        """The last segment is sealed already and only its successor is missing."""
        self.unsealed: SegmentBuilder | None = None
        """The last of `sealed`, where its index was not written yet, or its trailer cannot be read."""
        self.torn_end = 0
        """Where the bytes end that follow the live segment's last block and are not zero."""
        self.gone = 0
        """How many bytes the live segment's file is shorter than it was made; below 0 if it is longer."""
        self.why = ""
        """What stopped the scan of the live segment."""
        self.damage: Finding | None = None
        self.after_damage: list[str] = []
        """The segments from the damage on, but for the one that begins whole and is `live`."""


def examine(disk: Disk, *, cluster: str, node: str, from_lsn: int) -> Examined:
    """Read the log and find out what of it is whole. Changes nothing.

    Raises LogForeign and LogTooNew, about which nothing can be done here; damage is reported as a value.
    """
    found = Examined()
    names = disk.list()
    lsns = segment_lsns(names)
    headers = [_header(disk, lsn, cluster, node) for lsn in lsns]
    verify_from = max((at for at, lsn in enumerate(lsns) if lsn <= from_lsn), default=0)
    for at, header in enumerate(headers):
        problem = header if isinstance(header, Finding) else _link(found, header, from_lsn)
        if problem is None:
            assert isinstance(header, SegmentHeader)
            file = open_segment(disk, lsns[at])
            try:
                if at + 1 == len(headers):
                    problem = _examine_last(found, file, header)
                else:
                    problem = _examine_sealed(found, file, header, headers[at + 1], verify=at >= verify_from)
            finally:
                file.close()
        if problem is not None:
            found.damage = problem
            after = set(lsns[at + (found.live is not None) :])
            found.after_damage = [name for name in names if segment_lsn(name) in after]
            break
    return found


def require(found: Examined, from_lsn: int) -> None:
    """Raise LogDamaged or LogBehindStore unless the log is whole and serves `from_lsn`."""
    if found.damage is not None:
        raise LogDamaged(found.damage)
    ends, name, offset = 1, "-", 0
    if found.live is not None:
        ends, name, offset = found.live.next_lsn, found.live.name, found.live.end
    if from_lsn > ends:
        what = f"the store needs the log from LSN {from_lsn} on, and the log ends before LSN {ends}"
        cost = f"the records from LSN {ends} to {from_lsn - 1}, unless the store holds all of them"
        raise LogBehindStore(_finding("missing", name, offset, ends, what=what, cost=cost))


def _header(disk: Disk, lsn: int, cluster: str, node: str) -> SegmentHeader | Finding:
    """A segment's header, or why it cannot be used; raises for a log that is not ours to judge."""
    file = open_segment(disk, lsn)
    name = stored_name(file, lsn)
    try:
        header = read_header(file)
    except NewerFormat as error:
        raise LogTooNew(newer(error, name, 0, lsn)) from error
    except FormatError as error:
        return _finding("damaged", name, 0, lsn, what=str(error), cost=f"the records from LSN {lsn} on")
    finally:
        file.close()
    if (header.cluster, header.node) != (cluster, node):
        what = f"the log of node {header.node!r} in cluster {header.cluster!r}: expected {node!r} in {cluster!r}"
        raise LogForeign(_finding("foreign", name, 0, lsn, what=what, cost="nothing, where it belongs"))
    if header.first_lsn != lsn:
        what = f"the segment begins at LSN {header.first_lsn}: expected {lsn}, by the file's name"
        return _finding("replaced", name, 0, lsn, what=what, cost=f"the records from LSN {lsn} on")
    return header


def _link(found: Examined, header: SegmentHeader, from_lsn: int) -> Finding | None:
    """Whether the segment follows the one before, or, as the first, reaches back to `from_lsn`."""
    name, first = segment_name(header.first_lsn), header.first_lsn
    if not found.sealed:
        if first <= from_lsn:
            return None
        what = f"the log begins at LSN {first}: expected LSN {from_lsn}, from which on the store needs it"
        return _finding("missing", name, 0, from_lsn, what=what, cost=f"the records from LSN {from_lsn} to {first - 1}")
    before = found.sealed[-1]
    ended = before.trailer.last_lsn, before.trailer.end, before.trailer.last_crc
    known = header.previous_lsn, header.previous_end, header.previous_crc
    if ended == known:
        return None
    lost = before.last_lsn + 1
    if known[0] > ended[0]:
        what = f"the segment follows LSN {known[0]}: the log before it ends with LSN {ended[0]} in {before.name}"
        return _finding("missing", name, 0, lost, what=what, cost=f"the records from LSN {lost} to {known[0]}")
    what = (
        f"the segment follows LSN {known[0]}, end {known[1]}, crc {known[2]:08x}: the one before it, {before.name}, "
        f"has LSN {ended[0]}, end {ended[1]}, crc {ended[2]:08x}"
    )
    return _finding("replaced", name, 0, lost, what=what, cost=f"the records from LSN {lost} on")


def _examine_sealed(
    found: Examined, file: File, header: SegmentHeader, after: SegmentHeader | Finding, *, verify: bool
) -> Finding | None:
    """A segment with a successor: it must be whole, by its trailer or else by what its successor knew of it."""
    name = stored_name(file, header.first_lsn)
    if verify and (what := wrong_size(file, header)):
        return _resized(found, file, header, what)
    trailer = _trailer(file, header)
    if trailer is not None and trailer.index_bytes:
        if verify:
            scan = Scan(file, header, limit=trailer.end)
            for _ in scan:
                pass
            if scan.newer is not None:
                raise LogTooNew(newer(scan.newer, name, scan.offset, scan.lsn))
            if (scan.offset, scan.lsn - 1, scan.crc) != (trailer.end, trailer.last_lsn, trailer.last_crc):
                return _stopped(found, file, rebuild(file, header, scan.offset)[0], scan)
        found.sealed.append(Sealed(header, trailer, archived=stored_bytes(file)))
        found.unsealed = None
        return None
    builder, scan = rebuild(file, header, min(file.size(), header.capacity) if trailer is None else trailer.end)
    ended = expected = builder.last_lsn, builder.end, builder.crc
    if trailer is not None:
        expected = trailer.last_lsn, trailer.end, trailer.last_crc
    elif isinstance(after, SegmentHeader):
        expected = after.previous_lsn, after.previous_end, after.previous_crc
    if ended != expected:
        return _stopped(found, file, builder, scan)
    builder.synced_to = builder.end  # it has a successor
    found.sealed.append(Sealed(header, builder.trailer(), archived=stored_bytes(file)))
    found.unsealed = None if found.sealed[-1].archived else builder
    return None


def _examine_last(found: Examined, file: File, header: SegmentHeader) -> Finding | None:
    """The last segment: where its blocks end, and whether what follows is torn or damaged."""
    if what := wrong_size(file, header):
        return _resized(found, file, header, what)
    trailer = _trailer(file, header)
    builder, scan = rebuild(file, header, header.capacity if trailer is None else trailer.end)
    if trailer is not None:
        if (scan.offset, scan.lsn - 1, scan.crc) != (trailer.end, trailer.last_lsn, trailer.last_crc):
            return _stopped(found, file, builder, scan)
        builder.synced_to = found.torn_end = builder.end  # a footer is written when all before it is synced
        found.live, found.live_sealed = builder, trailer
        return None
    found.live = builder
    found.why = scan.stop
    found.torn_end = nonzero_end(file, scan.offset, header.capacity)
    if found.torn_end == scan.offset:
        return None
    for raw in survivors(file, header, offset=scan.offset, limit=header.capacity, lsn=scan.lsn):
        if raw.header.synced_to > scan.offset:
            known = f"a whole block at offset {raw.offset} says that all before offset {raw.header.synced_to} was synced"
            what = f"{scan.stop or 'zeros where a block should be'}; {known}"
            cost = f"the records from LSN {scan.lsn} on"
            return _finding("damaged", builder.name, scan.offset, scan.lsn, what=what, cost=cost)
    return None


def _stopped(found: Examined, file: File, builder: SegmentBuilder, scan: Scan) -> Finding:
    """A segment that must be whole stops at `scan`; the log ends there if the loss is accepted."""
    _cut_at(found, file, builder, scan.stop or "zeros where a block should be")
    return broken(scan, stored_name(file, builder.header.first_lsn), f"the records from LSN {scan.lsn} on")


def _resized(found: Examined, file: File, header: SegmentHeader, what: str) -> Finding:
    """A segment whose file has another size than it was made with; the log ends with its blocks if it is accepted."""
    builder, scan = rebuild(file, header, min(file.size(), header.capacity))
    _cut_at(found, file, builder, what)
    cost = f"the records from LSN {scan.lsn} on"
    return _finding("damaged", stored_name(file, header.first_lsn), scan.offset, scan.lsn, what=what, cost=cost)


def _cut_at(found: Examined, file: File, builder: SegmentBuilder, why: str) -> None:
    """The log ends with the blocks of this segment that are whole."""
    size = file.size()
    found.live = builder
    found.gone = builder.header.capacity - size
    found.why = why
    found.torn_end = nonzero_end(file, builder.end, size)


def _trailer(file: File, header: SegmentHeader) -> Trailer | None:
    """The trailer, or None if there is none that can be read; a torn or damaged one is made again from the blocks."""
    try:
        return read_trailer(file, header)
    except NewerFormat as error:
        raise LogTooNew(newer(error, segment_name(header.first_lsn), header.capacity, header.first_lsn)) from error
    except FormatError:
        return None


def _finding(kind: Kind, segment: str, offset: int, lsn: int, what: str, cost: str) -> Finding:
    return Finding(kind=kind, segment=segment, offset=offset, lsn=lsn, what=what, cost=cost)
