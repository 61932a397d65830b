"""A disk on which no file finds room, made by the kernel: EFBIG, which is a full disk to everybody.

So it is to Python, which takes the bytecode that it could write half for whole from then on: nobody writes any meanwhile.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process, nor of one that it starts, grows beyond `size` bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYTHONDONTWRITEBYTECODE", "1")
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
