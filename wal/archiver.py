"""Making archives of sealed segments, and segments of archives.

A segment is read once, chunk by chunk, into `<archive>.tmp`; that is synced, and read back, and every byte that it gives
is compared with the segment's. Only then it gets its name, which is made durable, and only then the segment goes. Whatever
of this a crash cuts short, the segment is still there, or the archive has its name: `Log.open` removes the one or the
other, and the archiver begins again. A segment that cannot be given back byte for byte (its blocks do not verify, or there
are bytes where zeros should be) is left alone.

Each step is bounded by a chunk, so that whoever pays for it can pause in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter

import msgspec
import zstandard

from wal.archive import ArchiveFile
from wal.archive_codec import (
    CHUNK_BYTES,
    FRAME_BYTES,
    RECORD,
    SMALL_BYTES,
    WRITE,
    Chunk,
    Directory,
    Extent,
    Map,
    Spoken,
    encode_directory,
    encode_frame,
    encode_map,
    encode_way,
    pack,
)
from wal.codec import BLOCK_HEADER_BYTES, HEADER_BYTES, TRAILER_BYTES, decode_body
from wal.disk import Disk, DiskError, DiskFull, File
from wal.errors import Finding, LogDamaged
from wal.ids import Fragment
from wal.index import Touched, touched_by
from wal.probe import probe
from wal.records import History, Record, Update
from wal.recovery import Examined
from wal.scan import RawBlock, Scan
from wal.segment import archive_name, segment_lsns, segment_name
from wal.segment_file import Sealed
from wal.segments import Segments

LEVEL = 3
_COPY_BYTES = 1 << 20
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_split = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw]])


class NotArchivable(Exception):
    """The segment cannot be given back byte for byte, or could not be read or written: it stays as it is."""


class NoRoom(NotArchivable):
    """The disk has no room for the archive: it may be tried again."""


class Archiver:
    """Makes archives of an open log's segments, step by step.

    `left_alone` could not be archived: name -> why. `no_room`: why the last one came to nothing that may be tried again.
    """

    def __init__(self, disk: Disk, segments: Segments) -> None:
        self.left_alone: dict[str, str] = {}
        self.no_room = ""
        self._disk = disk
        self._segments = segments
        self._making: tuple[Sealed, Generator[int, None, None]] | None = None

    def step(self, below_lsn: int) -> int:
        """Do the next part; how many bytes of the log it went through, 0 if there is nothing to archive.

        Where there is `no_room` nothing is left behind, and the next step begins that archive again.
        """
        if self._making is None:
            sealed = next((one for one in self._segments.sealed() if self._wants(one, below_lsn)), None)
            if sealed is None:
                self.no_room = ""
                return 0
            self._making = sealed, make_archive(self._disk, sealed)
        sealed, steps = self._making
        try:
            if any(one is sealed for one in self._segments.sealed()):
                worked = next(steps, None)
                if worked is not None:
                    return worked
                self._put(sealed)
            else:  # it was trimmed meanwhile
                steps.close()
                discard(self._disk, sealed)
        except NoRoom as error:
            probe("wal.archive.no_room")
            self.no_room, self._making = str(error), None
            return 0
        except NotArchivable as error:
            probe("wal.archive.left_alone")
            self.left_alone[sealed.name] = str(error)
        self.no_room, self._making = "", None
        return sealed.header.capacity

    def _wants(self, sealed: Sealed, below_lsn: int) -> bool:
        return sealed.whole and not sealed.archived and sealed.last_lsn < below_lsn and sealed.name not in self.left_alone

    def _put(self, sealed: Sealed) -> None:
        """The archive is whole: it gets its name, and the segment goes."""
        name = archive_name(sealed.header.first_lsn)
        self._disk.rename(temporary_name(sealed), name)
        self._disk.sync_directory()
        kept = self._segments.archived(sealed, self._disk.size(name))
        probe("wal.archive.made")
        if not kept:
            probe("wal.archive.trimmed_meanwhile")
        self._disk.remove(sealed.name if kept else name)  # if it was trimmed meanwhile, the segment goes in its turn
        self._disk.sync_directory()


def finish(disk: Disk, found: Examined) -> None:
    """Do what a crash cut short, on a log that is about to be written: each segment is there once, the last as such."""
    names = set(disk.list())
    for lsn in segment_lsns(names):
        if {segment_name(lsn), archive_name(lsn)} <= names:
            probe("wal.archive.both_were_there")
            disk.remove(archive_name(lsn))  # the segment was about to go, and can be archived again
            disk.sync_directory()
    if found.live is not None and segment_name(found.live.header.first_lsn) not in names:
        unarchive(disk, found.live.header.first_lsn)


def make_archive(disk: Disk, sealed: Sealed, *, chunk_bytes: int = CHUNK_BYTES) -> Generator[int, None, None]:
    """Write a segment's archive to `<archive>.tmp`, durably, and compare it with the segment.

    Yields, after each step, how many bytes of the segment it went through. Raises NotArchivable, with nothing left behind.
    """
    name = temporary_name(sealed)
    try:
        with suppress(DiskError):
            disk.remove(name)  # of an attempt that an error ended
        source = disk.open(segment_name(sealed.header.first_lsn))
        try:
            disk.create(name, 0)
            target = disk.open(name, write=True)
            try:
                yield from _write(source, sealed, target, chunk_bytes)
                target.sync()
                yield from _compare(source, target, sealed.header.capacity)
            finally:
                target.close()
        finally:
            source.close()
    except DiskError as error:
        discard(disk, sealed)
        kind = NoRoom if isinstance(error, DiskFull) else NotArchivable
        raise kind(f"{sealed.name} stays as it is: {error}") from error
    except NotArchivable:
        discard(disk, sealed)
        raise


def temporary_name(sealed: Sealed) -> str:
    """What an archive is called until it is whole."""
    return f"{archive_name(sealed.header.first_lsn)}.tmp"


def discard(disk: Disk, sealed: Sealed) -> None:
    """Nobody wants the archive that is being made any more."""
    with suppress(DiskError):  # a leftover *.tmp is removed at the next open
        disk.remove(temporary_name(sealed))


def unarchive(disk: Disk, lsn: int) -> None:
    """Make a segment of an archive again, durably, and remove the archive: the last segment of a log is written to."""
    file = ArchiveFile(disk.open(archive_name(lsn)))
    name = segment_name(lsn)
    try:
        capacity = file.size()
        disk.create(f"{name}.tmp", capacity)
        target = disk.open(f"{name}.tmp", write=True)
        try:
            for at in range(0, capacity, _COPY_BYTES):
                target.write(at, file.read(at, min(_COPY_BYTES, capacity - at)))
            if file.problems:
                cost = "what the archive holds: take it from a peer, or accept the loss"
                what = "; ".join(file.problems)
                raise LogDamaged(
                    Finding(kind="damaged", segment=archive_name(lsn), offset=0, lsn=lsn, what=what, cost=cost)
                )
            target.sync()
        finally:
            target.close()
    finally:
        file.close()
    disk.rename(f"{name}.tmp", name)
    disk.sync_directory()
    disk.remove(archive_name(lsn))
    disk.sync_directory()


def _write(source: File, sealed: Sealed, target: File, chunk_bytes: int) -> Iterator[int]:
    """The archive's bytes, a chunk at a time."""
    trailer, header = sealed.trailer, sealed.header
    packer = _Packer(target)
    packer.put(source.read(0, HEADER_BYTES))
    scan = Scan(source, header, limit=trailer.end)
    blocks: list[RawBlock] = []
    size = 0
    for raw in scan:
        blocks.append(raw)
        size += len(raw.data)
        if size >= chunk_bytes:
            packer.chunk(blocks)
            yield size
            blocks, size = [], 0
    if (scan.offset, scan.lsn - 1, scan.crc) != (trailer.end, trailer.last_lsn, trailer.last_crc):
        stop = scan.stop or "zeros where a block should be"
        raise NotArchivable(f"{sealed.name} stays as it is: it does not verify at offset {scan.offset}: {stop}")
    if blocks:
        packer.chunk(blocks)
    index_at = header.capacity - TRAILER_BYTES - trailer.index_bytes
    index = packer.extent(source.read(index_at, trailer.index_bytes))
    found = packer.extent(encode_map(packer.map))
    told = source.read(header.capacity - TRAILER_BYTES, TRAILER_BYTES)
    packer.put(encode_directory(Directory(told, index, found, packer.chunks)))
    yield size


def _compare(source: File, target: File, capacity: int) -> Iterator[int]:
    """Read the archive back: every byte of the segment must come out of it."""
    archive = ArchiveFile(target)
    if archive.size() != capacity:
        raise NotArchivable(f"an archive gives {archive.size()} bytes: expected {capacity}; {archive.problems}")
    since = 0
    for at in range(0, capacity, _COPY_BYTES):
        size = min(_COPY_BYTES, capacity - at)
        if archive.read(at, size) != source.read(at, size):
            why = "; ".join(archive.problems) or "bytes that are no block, or a disk that did not keep what it was given"
            raise NotArchivable(
                f"an archive differs from its segment behind offset {at}: {why}; the segment stays as it is"
            )
        since += size
        if since >= CHUNK_BYTES:
            yield since
            since = 0


class _Packer:
    """Where an archive's next bytes go, and what is in it so far."""

    def __init__(self, target: File) -> None:
        self.chunks: list[Chunk] = []
        self.map = Map.empty()
        self._target = target
        self._at = 0
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)

    def put(self, data: bytes) -> None:
        """These bytes as they are."""
        self._target.write(self._at, data)
        self._at += len(data)

    def extent(self, data: bytes) -> Extent:
        """These bytes, compressed."""
        extent, packed = pack(self._compressor, data, self._at)
        self.put(packed)
        return extent

    def chunk(self, blocks: Sequence[RawBlock]) -> None:
        """The next chunk: these blocks."""
        first_lsn, first_frame = blocks[0].header.first_lsn, self.map.count
        cut = _Cut()
        for raw in blocks:
            cut.block(raw)
        frames = cut.frames()
        at, packed = self._at, []
        for number, group in enumerate(frames):
            for piece in group.pieces:
                cut.order[piece[0]] = number
            group.pieces.sort(key=itemgetter(0))
            extent, data = pack(self._compressor, encode_frame(first_lsn, [piece[1:] for piece in group.pieces]), at)
            at += len(data)
            packed.append(data)
            self._note(first_frame + number, group.touched)
            self.map.add(extent)
        self.put(b"".join(packed))
        way = self.extent(encode_way(b"".join(cut.glue), cut.lengths, cut.order))
        end = blocks[-1].offset + len(blocks[-1].data)
        self.chunks.append(Chunk(blocks[0].offset, end, first_lsn, first_frame, frames=len(frames), way=way))

    def _note(self, frame: int, touched: Touched) -> None:
        for fragment, (low, high) in touched.items():
            spoken = self.map.fragments.get(fragment)
            if spoken is None:
                spoken = self.map.fragments[fragment] = Spoken(array("I"), array("Q"), array("Q"))
            spoken.frames.append(frame)
            spoken.lows.append(low)
            spoken.highs.append(high)


class _Group:
    """Pieces that belong together: (number in the chunk, LSN, kind, bytes), and what they speak of."""

    __slots__ = ("pieces", "size", "touched")

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, int, bytes]] = []
        self.size = 0
        self.touched: Touched = {}

    def speak(self, touched: Touched) -> None:
        """It speaks of these, too."""
        for fragment, (low, high) in touched.items():
            known = self.touched.get(fragment, (low, high))
            self.touched[fragment] = (min(known[0], low), max(known[1], high))


_Key = tuple[int, str, bool]
"""(partition, namespace, only mentioned): what is sorted stands as it is wanted, one partition after the other."""


class _Cut:
    """A chunk's blocks, cut into glue and pieces. `lengths` are of the glue before each piece, and behind the last."""

    def __init__(self) -> None:
        self.glue: list[bytes] = []
        self.lengths = array("I", [0])
        self.order = array("I")
        self._open: dict[_Key, _Group] = {}
        self._done: list[tuple[_Key, _Group]] = []

    def block(self, raw: RawBlock) -> None:
        """Cut a block that was checked."""
        header, data = raw.header, raw.data
        records = decode_body(header, data)
        body = memoryview(data)[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + header.length]
        raws = [bytes(one) for one in _raws.decode(body)]
        at = BLOCK_HEADER_BYTES + header.length - sum(map(len, raws))
        self._glue(data[:at])
        lsn = header.first_lsn
        for record, encoded in zip(records, raws, strict=True):
            self._record(lsn, record, encoded)
            lsn += 1
        self._glue(data[BLOCK_HEADER_BYTES + header.length :])

    def frames(self) -> list[_Group]:
        """All pieces in frames: each fragment by itself, unless it has next to nothing."""
        found: list[_Group] = []
        groups = [*self._done, *self._open.items()]
        groups.sort(key=itemgetter(0))
        small: _Group | None = None
        for _, group in groups:
            if group.size >= SMALL_BYTES:
                found.append(group)
                continue
            if small is None or small.size >= SMALL_BYTES:
                small = _Group()
                found.append(small)
            small.pieces += group.pieces
            small.size += group.size
            small.speak(group.touched)
        return found

    def _record(self, lsn: int, record: Record, encoded: bytes) -> None:
        if isinstance(record, Update | History):
            writes = [bytes(one) for one in _split.decode(encoded)[1]]
            head = len(encoded) - sum(map(len, writes))
            if encoded[head:] == b"".join(writes):
                self._glue(encoded[:head])
                for write, piece in zip(record.writes, writes, strict=True):
                    span = (write.start + 1, write.end)
                    self._piece(lsn, WRITE, piece, (write.partition, write.namespace, False), {write.fragment: span})
                return
        touched = touched_by([record])
        name, partition = _first(touched)
        self._piece(lsn, RECORD, encoded, (partition, name, not any(high for _, high in touched.values())), touched)

    def _glue(self, data: bytes) -> None:
        self.glue.append(data)
        self.lengths[-1] += len(data)

    def _piece(self, lsn: int, kind: int, data: bytes, key: _Key, touched: Touched) -> None:
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = _Group()
        group.pieces.append((len(self.order), lsn, kind, data))
        group.size += len(data)
        group.speak(touched)
        self.order.append(0)
        self.lengths.append(0)
        if group.size >= FRAME_BYTES:
            self._done.append((key, self._open.pop(key)))


def _first(touched: Touched) -> Fragment:
    """Where a record stands that may speak of several fragments, or of none."""
    return next(iter(touched), ("", -1))
