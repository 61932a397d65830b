"""How large what a primary decided is, and how much of it goes into one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from engine.data.concerns import work_of
from rebalance.ports import WORK_MAX, Shipped
from wal import records as r

T = TypeVar("T")

BATCH_WORK = WORK_MAX // 4
"""Of what a turn of a copy does, for one batch: it takes one whole, and so does hardly more than a turn may. A primary may
decide as much in one turn as fills another's, and what it sent in several comes to a copy together."""


FEW_OF_ONE_TURN = 8
"""So few operations, decided in one turn, are a batch, and nobody looks how much work they are."""


def batches_of(operations: list[Shipped]) -> Iterable[list[Shipped]]:
    """Operations in their order, cut into batches; one that is more than that goes alone."""
    return _cut(operations, _work_of)


def answers_of(taken: list[tuple[int, int]]) -> Iterable[list[int]]:
    """Batches that were taken, each with its work, as they are answered: to count them is work for their primary, which
    takes an answer whole, too."""
    if len(taken) == 1:
        return ([taken[0][0]],)
    return ([sequence for sequence, _ in some] for some in _cut(taken, itemgetter(1)))


def _work_of(operation: Shipped) -> int:
    return sum(map(work_of, operation.records))


def _cut(things: Iterable[T], weighs: Callable[[T], int]) -> Iterator[list[T]]:
    some, total = list[T](), 0
    for thing in things:
        work = weighs(thing)
        if some and total + work > BATCH_WORK:
            yield some
            some, total = [], 0
        some.append(thing)
        total += work
    if some:
        yield some


def size_of(records: Sequence[r.Record]) -> int:
    """About how many bytes records have."""
    total = 0
    for record in records:
        match record:
            case r.Update(writes) | r.History(writes):
                total += sum(_write_size(w) for w in writes)
            case r.Prepare(writes=writes):
                total += sum(_write_size(w) for w in writes)
            case _:
                total += 64
    return total


def _write_size(write: r.Write) -> int:
    return 64 + sum(map(len, write.keys)) + sum(len(v) for v in write.values if v is not None)
