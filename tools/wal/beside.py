"""What a directory folds to, and readings of its log beside that, of one moment.

A node that runs goes on meanwhile: it trims its log, and goes on to another segment, between the one reading and the other.
Then neither knows what the other is about, and holding them against each other says of a healthy node that it contradicts
itself. So such a pair is read again; and what cannot be had in a few attempts is not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

from engine.offline.directory import State, read_directory
from tools.wal.places import Place
from wal import Block, Source, inspect

T = TypeVar("T")
ATTEMPTS = 5
AGAIN_SECONDS = 0.2


class Blocks:
    """The blocks of a log up to an LSN, front to back, as often as they are asked for."""

    def __init__(self, source: Source, to_lsn: int) -> None:
        self._source = source
        self._to_lsn = to_lsn
        self._met: list[tuple[int, int]] = []  # by each reading, from where and how far

    def __iter__(self) -> Iterator[Block]:
        first = last = 0
        for found in inspect(self._source, to_lsn=self._to_lsn or None):
            if isinstance(found, Block):
                first, last = first or found.first_lsn, found.last_lsn
                yield found
        self._met.append((first, last))

    def all_from(self, first_lsn: int) -> bool:
        """Whether each reading began there or before, and came to the end."""
        return all(first <= first_lsn and self._to_lsn <= last for first, last in self._met)


def folded_beside(place: Place, read: Callable[[State, Blocks], T], stack: ExitStack) -> tuple[State, T | None]:
    """What a directory folds to, closed with the stack, and what `read` makes of that and of its log; None if a node that
    runs there was too quick each time."""
    assert place.directory is not None, "a directory is folded as a whole"
    for _ in range(ATTEMPTS):
        with ExitStack() as attempt:
            state = attempt.enter_context(read_directory(place.directory))
            blocks = Blocks(place.source, state.lsn)
            found = read(state, blocks)
            if not place.live or blocks.all_from(state.log_begins):
                stack.push(attempt.pop_all())
                return state, found
        time.sleep(AGAIN_SECONDS)
    return stack.enter_context(read_directory(place.directory)), None
