"""How large what a primary decided is, and how much of it goes into one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from engine.data.concerns import work_of
from engine.state.ahead import KEYS_OF_WORK
from rebalance.ports import BYTES_OF_WORK, WORK_MAX, Shipped
from wal import records as r

T = TypeVar("T")

BATCH_WORK = WORK_MAX // 4
"""Of what a turn of a copy does, for one batch: it takes one whole, and so does hardly more than a turn may. A primary may
decide as much in one turn as fills another's, and what it sent in several comes to a copy together."""


FEW = 8
"""So few operations that one turn has decided are hardly more than a part of one."""


def batches_of(operations: list[Shipped]) -> Iterator[tuple[list[Shipped], int]]:
    """Operations in their order, cut into batches, each with its work; one that is more than that goes alone."""
    return _cut(operations, _work_of)


def batches_of_one_turn(operations: list[Shipped]) -> Iterable[list[Shipped]]:
    """The same of what was decided in one turn; so few that nobody needs to look are one batch."""
    return (operations,) if len(operations) <= FEW else (batch for batch, _ in batches_of(operations))


def answers_of(taken: list[tuple[int, int]]) -> Iterable[list[int]]:
    """Batches that were taken, each with its work, as they are answered: to count them is work for their primary, which
    takes an answer whole, too."""
    if len(taken) == 1:
        return ([taken[0][0]],)
    return ([sequence for sequence, _ in some] for some, _ in _cut(taken, itemgetter(1)))


def _work_of(operation: Shipped) -> int:
    return sum(map(work_of, operation.records))


def _cut(things: Iterable[T], weighs: Callable[[T], int]) -> Iterator[tuple[list[T], int]]:
    some, total = list[T](), 0
    for thing in things:
        work = weighs(thing)
        if some and total + work > BATCH_WORK:
            yield some, total
            some, total = [], 0
        some.append(thing)
        total += work
    if some:
        yield some, total


def size_of(records: Sequence[r.Record]) -> int:
    """About how many bytes records have."""
    total = 0
    for record in records:
        match record:
            case r.Update(writes) | r.History(writes):
                total += sum(_write_size(w) for w in writes)
            case r.Prepare(writes=writes):
                total += sum(_write_size(w) for w in writes)
            case r.Preload(keys=keys, values=values):
                total += 64 + sum(map(len, keys)) + sum(map(len, filter(None, values)))
            case _:
                total += 64
    return total


def work_to_say(records: Sequence[r.Record]) -> int:
    """How much work it is to say records again, which are worked out where they are taken: all keys count."""
    keys = 0
    for record in records:
        match record:
            case r.Update(writes) | r.History(writes) | r.Prepare(writes=writes):
                keys += sum([len(write.keys) for write in writes])
            case _:
                pass
    return len(records) + keys // KEYS_OF_WORK + size_of(records) // BYTES_OF_WORK


def _write_size(write: r.Write) -> int:
    return 64 + sum(map(len, write.keys)) + sum(map(len, filter(None, write.values)))
