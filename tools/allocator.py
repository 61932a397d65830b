"""What a node's process tells the C library about memory."""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 128 << 10


def give_large_blocks_back() -> None:
    """Blocks of 128 KiB and more go back to the system when they are freed, and smaller ones are all of one heap.

    The first is how glibc begins, too; but each large block that is freed makes it keep larger ones, and values of 256 KiB
    between small blocks that live on leave holes: a node at rest held 220 MB of them (`foreshore bench at-rest`). As for
    the second, a heap for each thread keeps what a checkpoint freed for the next one that the same thread writes, if any
    (`foreshore bench transfer-memory`). Other C libraries have no such function, or another one, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_ARENA_MAX, 1)
