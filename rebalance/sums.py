"""What the copies of a partition add up to, by which an exchange knows that they are alike, and asks no more of them.

A failover has to know which copies hold every acknowledged update, and nearly always all do: where the copies of a
partition have come to the same place of the same history in every fragment, any of them may lead, and none must catch up.
That is known from one number for each copy. What each fragment has, which is a line for each of many namespaces, is asked
for only where the numbers differ, where a copy is not whole, and where nothing better is left than what somebody has.

The sum is over fragments with something in them, of (namespace, LWM, digest of history): two copies that differ in any of
these have the same sum once in 2^64 times, which is what two histories of the same digest have. How far copies know to be
stable does not differ between copies that are alike in a way that matters: it is never above LWM. That a copy is not whole,
or is doubted, is no number: `NOT_WHOLE`.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from struct import Struct

from xxhash import xxh3_64_intdigest

from rebalance.messages import CopyReport, SingleMap
from rebalance.partition import PartitionState
from rebalance.table import Topology, node_of
from rebalance.telling import REPORTS_OF_WORK, report_of, says_something
from wal.ids import Fragment, Namespace, NodeId

NOT_WHOLE = 0
"""Of a copy that is loading, or that is doubted, in any of its fragments."""
MASK = (1 << 64) - 1
SUMMED_OF_WORK = 8
"""So many fragments that are summed up are as much work as one thing that is decided."""
TOLD_OF_WORK = 15
"""So many sums, or fragments, of which another node has told."""
COMPARED_OF_WORK = 10
"""And so many partitions, the sums of whose copies are compared."""
ADDED_AT_ONCE = 3_000
_pack = Struct("<QQ").pack


def sums_of(
    partitions: Mapping[int, PartitionState], doubted: Container[Fragment], into: list[tuple[int, int]]
) -> Iterator[int]:
    """What each copy of a node adds up to, in pieces: yields how much work each was. Of what has nothing there is none."""
    seeds: dict[Namespace, int] = {}
    count = 0
    for number in list(partitions):
        if (state := partitions.get(number)) is None:
            continue
        total, some = 0, False
        for namespace, fragment in state.fragments.items():
            lwm = fragment.counter.lwm
            if fragment.loading or (namespace, number) in doubted:
                total, some = NOT_WHOLE, True
                break
            if lwm:
                total, some = total + _sum_of(namespace, lwm, fragment.digest, seeds), True
        else:
            total = total & MASK or 1
        if some:
            into.append((number, total))
        count += 1 + len(state.fragments)
        if count >= ADDED_AT_ONCE:
            yield count // SUMMED_OF_WORK
            count = 0
    yield count // SUMMED_OF_WORK


def _sum_of(namespace: Namespace, lwm: int, digest: int, seeds: dict[Namespace, int]) -> int:
    seed = seeds.get(namespace)
    if seed is None:
        seed = seeds[namespace] = xxh3_64_intdigest(namespace.encode())
    return xxh3_64_intdigest(_pack(lwm, digest), seed)


def sums_in(copies: Sequence[CopyReport]) -> dict[int, int]:
    """The same, of what a node that knows of no sums has reported."""
    seeds, found = dict[Namespace, int](), dict[int, int]()
    not_whole: dict[int, None] = {}
    for copy in copies:
        if copy.loading or copy.doubted:
            not_whole[copy.partition] = None
        elif copy.lwm:
            found[copy.partition] = found.get(copy.partition, 0) + _sum_of(copy.namespace, copy.lwm, copy.digest, seeds)
    return {number: total & MASK or 1 for number, total in found.items()} | dict.fromkeys(not_whole, NOT_WHOLE)


def in_doubt(
    topology: Topology, singles: Mapping[NodeId, SingleMap], reset: Iterable[int]
) -> Generator[int, None, frozenset[int]]:
    """The partitions whose copies are not all alike, as those say that have reported, in pieces.

    Nobody is asked of any where all have told all.
    """
    if all(single.sums is None for single in singles.values()):
        return frozenset()
    sums: dict[NodeId, dict[int, int]] = {}
    for node, single in singles.items():
        sums[node] = sums_in(single.copies) if single.sums is None else dict(single.sums)
        yield (len(single.copies) + len(single.sums or ())) // TOLD_OF_WORK
    vouched: dict[int, list[NodeId]] = {}
    for single in singles.values():
        for number, node in single.vouched:
            vouched.setdefault(number, []).append(node)
    begins_again, found = frozenset(reset), list[int]()
    by_name: dict[str, Mapping[int, int] | None] = {}  # few, for very many partitions
    for number, placement in enumerate(topology.placements):
        told = set[int | None]()
        for name in placement.in_sync:
            if name not in by_name:
                by_name[name] = sums.get(node_of(name))
            if (its := by_name[name]) is not None:
                told.add(its.get(number))
        waited = {sums[n].get(number) for n in vouched[number] if n in sums} if number in vouched else ()
        if placement.lost or number in begins_again or len(told) > 1 or NOT_WHOLE in told or NOT_WHOLE in waited:
            found.append(number)
        if not number % ADDED_AT_ONCE:
            yield ADDED_AT_ONCE // COMPARED_OF_WORK
    return frozenset(found)


def reports_in(
    partitions: Mapping[int, PartitionState],
    numbers: Sequence[int],
    doubted: Container[Fragment],
    into: list[CopyReport],
) -> Iterator[int]:
    """What a node has of these partitions, fragment by fragment, in pieces."""
    count = 0
    for number in numbers:
        state = partitions.get(number)
        for fragment in state.fragments.values() if state is not None else ():
            if says_something(fragment):
                into.append(report_of(fragment, doubted=fragment.name in doubted))
        count += 1 + (len(state.fragments) if state is not None else 0)
        if count >= ADDED_AT_ONCE:
            yield count // REPORTS_OF_WORK
            count = 0
    yield count // REPORTS_OF_WORK
