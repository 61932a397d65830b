"""What a copy says of itself, in the four conversations that ask for it; all of it is taken from one value, the fragment.

Each question has an answer of its own on the wire, because formats are only added to, and because each is paid for as
often as it is asked: a line of the single map goes for every fragment of a node and decides who may lead, so it has no
tables; a survivor of a promotion is asked for its tail, and not for digests; a demand says all by which two histories can
be compared; and what a copy contains is summed up in pieces, and is what it was when that began.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from rebalance.fragment import FragmentState
from rebalance.messages import Contents, CopyReport, CopyTail, Have, TailReport
from rebalance.partition import PartitionState
from wal.ids import Fragment

REPORTED_AT_ONCE = 2_000
"""So many lines of a single map are one piece."""
REPORTS_OF_WORK = 5
"""So many of them are as much work as one thing that is decided."""


def report_of(fragment: FragmentState, *, doubted: bool) -> CopyReport:
    """A line of the single map. A copy that is loading has nothing that counts."""
    if fragment.loading:
        return CopyReport(*fragment.name, lwm=0, highest=0, stable=0, digest=0, epoch=0, loading=True)
    return CopyReport(
        *fragment.name,
        lwm=fragment.counter.lwm,
        highest=fragment.counter.highest_applied,
        stable=fragment.stable,
        digest=fragment.digest,
        epoch=fragment.epochs[-1][0] if fragment.epochs else 0,
        doubted=doubted,
    )


def says_something(fragment: FragmentState) -> bool:
    """Whether there is a line of it."""
    return bool(fragment.loading or fragment.counter.hwm or fragment.stable)


def reports_of(
    fragments: Mapping[Fragment, FragmentState], doubted: Container[Fragment], into: list[CopyReport]
) -> Iterator[int]:
    """The lines of a single map, in pieces: yields how much work each was. One that is loading says so, and so does one
    that an operator doubts; of what never had anything there is no line."""
    names = list(fragments)
    for at in range(0, len(names), REPORTED_AT_ONCE):
        some = names[at : at + REPORTED_AT_ONCE]
        into += [
            report_of(fragment, doubted=name in doubted)
            for name in some
            if (fragment := fragments.get(name)) is not None and says_something(fragment)
        ]
        yield len(some) // REPORTS_OF_WORK


def tail_of(state: PartitionState) -> CopyTail:
    """What a new primary and its survivors tell each other; not what one of them has that the other lacks."""
    there = [f for f in state.fragments.values() if f.counter.hwm or f.epochs]
    reports = [TailReport(f.name[0], f.counter.lwm, list(f.counter.ranges), list(f.epochs)) for f in there]
    return CopyTail(state.number, state.epoch, reports, list(state.prepared), writes=[], prepares=[])


def nothing_of(name: Fragment) -> Have:
    """What a copy has of a fragment that it has never heard of."""
    return Have(*name, 0, 0, [], [], [])


def have_of(
    fragment: FragmentState,
    digests: list[tuple[int, int]],
    *,
    no_history: bool = False,
    kept: bool = False,
    leaves: bytes = b"",
) -> Have:
    """What a demand says, and what it is compared with; with those digests that are of interest."""
    counter = fragment.counter
    return Have(
        *fragment.name,
        lwm=counter.lwm,
        highest=counter.highest_applied,
        ranges=list(counter.ranges),
        epochs=list(fragment.epochs),
        digests=digests,
        stable=fragment.stable,
        loading=fragment.loading,
        no_history=no_history,
        suspects=[] if fragment.loading else list(fragment.suspects),
        beyond=_beyond(fragment) if fragment.beyond else [],
        kept=kept,
        leaves=leaves,
    )


def _beyond(fragment: FragmentState) -> list[tuple[int, int, int]]:
    """What was applied beyond a gap, in order, as (start, delta, epoch); what adjoins and is of one epoch is one."""
    found: list[tuple[int, int, int]] = []
    beyond = fragment.beyond
    first = end = epoch = -1  # what adjoins, so far
    for start in sorted(beyond):
        write = beyond[start]
        if start != end or write.epoch != epoch:
            if end >= 0:
                found.append((first, end - first, epoch))
            first, epoch = start, write.epoch
        end = write.end
    found.append((first, end - first, epoch))
    return found


def no_contents(namespace: str) -> Contents:
    """What a copy contains of a fragment that it does not have."""
    return Contents(namespace, 0, [], 0)
