"""How often Python functions are called, for tests of what something costs: the same in each run, on whatever machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType


@contextmanager
def called(*codes: CodeType) -> Iterator[Counter[CodeType]]:
    """Counts the calls within a block, by their code: of these, or of all, among which are two of its own end."""
    counts, before = Counter[CodeType](), sys.getprofile()

    def count(frame: FrameType, event: str, _what: object) -> None:
        if event == "call" and (not codes or frame.f_code in codes):
            counts[frame.f_code] += 1

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(before)
