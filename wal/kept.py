"""Why a log is kept, as its node last said: for whoever looks at its files, and knows nothing of the process.

`kept.json`, beside the segments. A node writes it when somebody begins or ends to need its log, and after a checkpoint;
nothing is lost with it, and nothing but `foreshore wal segments` reads it.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from wal.disk import Disk, DiskError, DiskMissing
from wal.walk import ReadableDisk

KEPT = "kept.json"
BYTES_MAX = 1 << 20


class Reservation(msgspec.Struct, frozen=True):
    """Who needs the log from an LSN on, and since when."""

    token: str
    lsn: int
    since_ms: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which segments go (`wal.retention`): the settings, the last checkpoint, and who needs what."""

    bytes_max: int
    pin_bytes: int
    age_ms: int
    checkpoint_lsn: int
    pins: list[Reservation]


def write_kept(disk: Disk, kept: Kept) -> None:
    """Say it anew. A disk that refuses it loses nothing, and says so where it matters."""
    with suppress(DiskError):
        temporary = f"{KEPT}.tmp"
        if temporary in disk.list():
            disk.remove(temporary)
        data = msgspec.json.encode(kept)
        disk.create(temporary, len(data))
        file = disk.open(temporary, write=True)
        try:
            file.write(0, data)
        finally:
            file.close()
        disk.rename(temporary, KEPT)


def read_kept(disk: ReadableDisk) -> Kept | None:
    """What was said last; None if nothing was, or it cannot be read."""
    try:
        file = disk.open(KEPT)
    except DiskMissing:
        return None
    try:
        return msgspec.json.decode(file.read(0, BYTES_MAX), type=Kept)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    finally:
        file.close()
