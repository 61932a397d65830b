"""Opening a log, the writing half: the torn tail is set aside, the end is made durable, and a loss can be accepted.

What a torn tail held is never dropped silently: it is copied to `<segment>.torn`, synced, reported, and only then
zeroed. The zeros matter: a stale block that stayed behind could become valid again, if the log came to write the same
bytes before it once more.

The end of the log is written anew before anybody builds on it. A process that died after a failed sync may have left
bytes that the page cache still shows and that never reached the disk; a sync alone would say that all is well. So the
blocks that no later block proves to be synced (see `wal.recovery`) are written over by themselves, and synced.

Each step can be cut short by a crash and done again: until the zeros are synced, the tail is still torn.
"""

from __future__ import annotations

import msgspec

from wal.codec import HEADER_BYTES
from wal.disk import Disk, File
from wal.recovery import Examined
from wal.segment import segment_lsn
from wal.segment_file import rebuild
from wal.stored import open_segment

_CHUNK = 1 << 20


class Torn(msgspec.Struct, frozen=True, kw_only=True):
    """What stood behind the log's last block: `bytes` of it were copied to `kept_as`.

    `gone`: so many bytes were missing at the end of the file (below 0: too many), and that loss was accepted.
    """

    segment: str
    offset: int
    lsn: int
    bytes: int
    gone: int
    kept_as: str
    why: str


def repair(disk: Disk, found: Examined) -> tuple[File, Torn | None]:
    """Make the last segment fit to be written: set aside what is torn, zero it, and make the rest durable."""
    live = found.live
    assert live is not None, "there is no segment to repair"
    assert found.damage is None, f"a damaged log is not repaired but refused or cut: {found.damage}"
    file = disk.open(live.name, write=True)
    torn: Torn | None = None
    size = found.torn_end - live.end
    if size or found.gone:
        torn = Torn(
            segment=live.name,
            offset=live.end,
            lsn=live.next_lsn,
            bytes=size,
            gone=found.gone,
            kept_as=_copy_aside(disk, file, live.name, live.end, size) if size else "",
            why=found.why or "zeros, and then bytes that are no block",
        )
        if found.gone < 0:
            file.truncate(live.header.capacity)
        _zero(file, live.end, live.header.capacity if found.gone else found.torn_end)
    _rewrite(file, live.synced_to, live.end)
    file.sync()
    disk.sync_directory()
    live.synced_to = live.end
    return file, torn


def accept(disk: Disk, found: Examined, from_lsn: int) -> list[str]:
    """Set everything from the damage on aside; `found` is whole then, and ends there. Returns the new names.

    If what precedes the damage does not reach `from_lsn`, all of it is set aside, and `found` has no segment at all.
    """
    doomed = list(found.after_damage)
    if found.live is None and found.sealed:
        _reopen_last(disk, found)
    if found.live is not None and found.live.next_lsn < from_lsn:
        doomed = [name for name in disk.list() if segment_lsn(name) is not None]
        found.sealed.clear()
        found.live = found.unsealed = None
    kept: list[str] = []
    for name in reversed(doomed):  # the newest first: a crash in between leaves a prefix with the same damage
        kept.append(free_name(disk, f"{name}.lost"))
        disk.rename(name, kept[-1])
        disk.sync_directory()
    found.damage = None
    found.after_damage.clear()
    return kept


def free_name(disk: Disk, name: str) -> str:
    """`name`, or `name.2`, `name.3` ...: what was set aside is never overwritten."""
    taken = set(disk.list())
    candidate, n = name, 1
    while candidate in taken:
        n += 1
        candidate = f"{name}.{n}"
    return candidate


def _reopen_last(disk: Disk, found: Examined) -> None:
    """The successors of a sealed segment are lost: it is the last one again, and its footer a tail to be zeroed."""
    sealed = found.sealed.pop()
    file = open_segment(disk, sealed.header.first_lsn)
    try:
        found.live, _ = rebuild(file, sealed.header, sealed.trailer.end)
        found.gone = sealed.header.capacity - file.size()
    finally:
        file.close()
    found.live_sealed = found.unsealed = None
    found.torn_end = sealed.header.capacity - found.gone
    found.why = "the footer of a segment that is the last one again"
    assert found.torn_end >= found.live.end >= HEADER_BYTES


def _copy_aside(disk: Disk, file: File, segment: str, offset: int, size: int) -> str:
    """Copy [offset, offset + size) to a file of its own, durably; return its name."""
    name = free_name(disk, f"{segment}.torn")
    disk.create(name, size)
    copy = disk.open(name, write=True)
    try:
        for at in range(0, size, _CHUNK):
            copy.write(at, file.read(offset + at, min(_CHUNK, size - at)))
        copy.sync()
    finally:
        copy.close()
    return name


def _zero(file: File, offset: int, end: int) -> None:
    for at in range(offset, end, _CHUNK):
        file.write(at, bytes(min(_CHUNK, end - at)))


def _rewrite(file: File, offset: int, end: int) -> None:
    for at in range(offset, end, _CHUNK):
        file.write(at, file.read(at, min(_CHUNK, end - at)))
