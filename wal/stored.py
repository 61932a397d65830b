"""In which form a segment is stored: as it was written, or in an archive.

`open_segment` is how every reader comes by one, whichever it is; what it gives is a file of the segment's own bytes.
"""

from __future__ import annotations

from typing import Protocol

from wal.disk import DiskMissing, File
from wal.segment import archive_name, file_name, segment_name


class Opens(Protocol):
    """The part of a disk that is needed to open a segment."""

    def open(self, name: str, write: bool = False) -> File:
        """An existing file; DiskMissing if there is none."""
        ...


class Archived:
    """The segment in an archive (`wal.archive.ArchiveFile`), to who need not know how it stands there.

    `problems` is what of it cannot be given back, and why; `newer`: one of them is that a newer version wrote it.
    """

    stored: int
    problems: list[str]
    newer: bool


def open_segment(disk: Opens, lsn: int) -> File:
    """The segment that begins at `lsn`, archived or not; DiskMissing if there is none.

    Where both are there, the archiver was about to remove the segment: it serves as long as it is there.
    """
    try:
        return disk.open(segment_name(lsn))
    except DiskMissing as error:
        from wal.archive import ArchiveFile  # noqa: PLC0415  # who meets no archive does not wait for it

        try:
            return ArchiveFile(disk.open(archive_name(lsn)))
        except DiskMissing:
            raise error from None


def stored_bytes(file: File) -> int:
    """The size of the archive behind a segment; 0 if it is none."""
    return file.stored if isinstance(file, Archived) else 0


def stored_name(file: File, lsn: int) -> str:
    """The name of the file behind the segment that begins at `lsn`."""
    return file_name(lsn, stored_bytes(file))
