"""In which form a segment is stored: as it was written, or in an archive.

`open_segment` is how every reader comes by one, whichever it is; what it gives is a file of the segment's own bytes.
"""

from __future__ import annotations

from typing import Protocol

from wal.disk import DiskMissing, File
from wal.segment import archive_name, segment_name


class Opens(Protocol):
    """The part of a disk that is needed to open a segment."""

    def open(self, name: str, write: bool = False) -> File:
        """An existing file; DiskMissing if there is none."""
        ...


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
