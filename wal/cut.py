"""A copy of a part of a log, and a record of what is not in it.

What is copied is copied as it stands: whole segments and archives byte for byte, and of the segment in which the copy ends
its blocks up to there. A block is what one sync made durable, so a copy never ends inside one. The record, a file beside
the segments, says which LSNs were left out, by what, and why; whoever verifies the copy is told.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from wal.codec import FormatError
from wal.disk import Disk, File
from wal.errors import Finding
from wal.scan import Scan
from wal.segment import segment_lsns, segment_name, stored_bytes, stored_name
from wal.segment_file import read_header, read_trailer
from wal.stored import open_segment
from wal.walk import ReadableDisk

_CHUNK = 1 << 20
_PREFIX = "loss-"
_BYTES_MAX = 1 << 24


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy of a log does not have: the records `first_lsn` to `last_lsn`, as far as anybody knows.

    `source` is what it was made of, `by` the command that made it, and `findings` what was wrong with that.
    """

    by: str
    source: str
    time_ms: int
    first_lsn: int
    last_lsn: int
    findings: list[Finding] = []


def copy_part(source: ReadableDisk, target: Disk, *, from_lsn: int = 1, to_lsn: int) -> int:
    """Copy the segments from the one that begins with `from_lsn`, or the first behind it, up to the last block that ends
    at or below `to_lsn`; returns the last LSN of the copy, `from_lsn` less one if there is none. Synced when it returns.
    """
    last = from_lsn - 1
    for lsn in segment_lsns(source.list()):
        if lsn < from_lsn:
            continue
        if lsn > to_lsn + 1:
            break
        file = open_segment(source, lsn)
        try:
            last, whole = _copy(file, lsn, source, target, to_lsn)
        except FormatError:
            break  # its header is what is damaged: there is nothing of it
        finally:
            file.close()
        if not whole:
            break
    target.sync_directory()
    return last


def loss_name(loss: Loss) -> str:
    """The file of a record of a loss."""
    return f"{_PREFIX}{loss.first_lsn:020d}.json"


def is_loss_name(name: str) -> bool:
    """Whether a file is called as one of these."""
    return name.startswith(_PREFIX) and name.endswith(".json")


def write_loss(disk: Disk, loss: Loss) -> str:
    """Note it beside the segments, durably; the name of the file."""
    name = loss_name(loss)
    data = msgspec.json.encode(loss)
    if name in disk.list():
        disk.remove(name)
    disk.create(name, len(data))
    _put(disk, name, [data])
    return name


def read_losses(disk: ReadableDisk) -> list[Loss]:
    """All that was noted, the oldest LSN first; a file that cannot be read is none of ours."""
    found: list[Loss] = []
    for name in disk.list():
        if is_loss_name(name):
            file = disk.open(name)
            try:
                found.append(msgspec.json.decode(file.read(0, _BYTES_MAX), type=Loss))
            except (msgspec.MsgspecError, UnicodeError):
                continue
            finally:
                file.close()
    return found


def _copy(file: File, lsn: int, source: ReadableDisk, target: Disk, to_lsn: int) -> tuple[int, bool]:
    """Copy one segment; its last LSN in the copy, and whether all of it is there and it has a successor."""
    header = read_header(file)
    try:
        trailer = read_trailer(file, header)
    except FormatError:
        trailer = None
    if trailer is not None and trailer.last_lsn <= to_lsn:
        name = stored_name(file, lsn)
        size = stored_bytes(file) or file.size()
        raw = source.open(name)
        try:
            target.create(name, size)
            _put(target, name, (raw.read(at, min(_CHUNK, size - at)) for at in range(0, size, _CHUNK)))
        finally:
            raw.close()
        return trailer.last_lsn, True
    scan = Scan(file, header, limit=min(file.size(), header.capacity) if trailer is None else trailer.end)
    end, last = scan.offset, scan.lsn - 1
    for block in scan:
        if block.header.last_lsn > to_lsn:
            break
        end, last = scan.offset, scan.lsn - 1
    name = segment_name(lsn)
    target.create(name, header.capacity)
    _put(target, name, (file.read(at, min(_CHUNK, end - at)) for at in range(0, end, _CHUNK)))
    return last, False


def _put(disk: Disk, name: str, parts: Iterator[bytes] | list[bytes]) -> None:
    file = disk.open(name, write=True)
    try:
        at = 0
        for part in parts:
            file.write(at, part)
            at += len(part)
        file.sync()
    finally:
        file.close()
