"""Whether a node runs in a directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_live(path: str | os.PathLike[str]) -> bool:
    """Whether a node runs in this directory now."""
    try:
        descriptor = os.open(Path(path) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, and given back at once: only a node that starts within these microseconds would see it.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
