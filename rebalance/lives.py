"""The lives of a node on a disk: which of them may speak for what the disk holds, and when a disk was set back.

A node says in each message that matters how far its log is durable: a claim of its life. A life that begins with less
than an earlier one on the same disk had claimed was set back to an old image, and has forgotten what it promised. So has
a wiped disk, which betrays itself by another name. Neither may vote, nor pass for in sync, before a committed map lists
it: that map was decided without its word.

A life tells of the lives that came before it on its disk, back to the one that the map lists, and where the log of each
ended. So a claim is not outgrown: a disk that was set back and went on writing, or that started once more, still says
where it parted from the life that claimed more. Who keeps a claim but cannot show it has no vote, so all lives are told of
where a vote may hang on it (`LIVES_KEPT`), and the last ones everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from wal.ids import NodeId, Number
from wal.records import Claim

if TYPE_CHECKING:
    from rebalance.table import Topology

LIVES_SAID = 64
"""Of so many lives before it a heartbeat tells, and the record of a start."""

LIVES_KEPT = 4_096
"""Of so many a life tells where its word counts: a node that starts more often without being let in has to catch up."""

LEFT_OUT = (0, 0)
"""Stands where lives are not told of: it is nobody's, and so where the one before it ended is not told either."""

INCARNATION_BITS = 20
"""An incarnation is a count of starts and, below it, bits drawn at random: a disk that was set back counts again."""


def next_incarnation(last: int, draw: int) -> int:
    """The incarnation that follows `last`; `draw` is any number."""
    return ((last >> INCARNATION_BITS) + 1) << INCARNATION_BITS | draw & ((1 << INCARNATION_BITS) - 1)


class Life(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run of one node on one disk, and where its log ended when it began.

    `before` are the lives before it, oldest first, in the same words: from the one that the map lists on.
    """

    allocation: str
    incarnation: Number
    boot_lsn: Number
    before: list[tuple[Number, Number]] = msgspec.field(default_factory=list)


def disk_of(topology: Topology, node: NodeId) -> str:
    """The disk on which the map knows a node's copies, and its votes, to be; nothing for a node without."""
    return topology.allocations.get(node, "")


def may_vote(topology: Topology, node: NodeId, life: Life, claims: Iterable[Claim]) -> bool:
    """Whether a promise or an accept of this life counts for what follows `topology`, as far as it is known.

    A voter need not be a member now: its disk is in the map all the same. The life that the map lists may vote whatever
    lives before it claimed, because the map was decided without them.
    """
    if disk_of(topology, node) != life.allocation:
        return False
    member = topology.member(node)
    if member is not None and member.incarnation == life.incarnation:
        return True
    return not set_back(node, life, claims)


def set_back(node: NodeId, life: Life, claims: Iterable[Claim]) -> bool:
    """Whether another life of the same disk claimed what this one does not have: an old image was put back.

    Or that life came later, and this one is over: then it does not count either.
    """
    return any(c.node == node and c.allocation == life.allocation and not keeps(life, c) for c in claims)


def claims_by_node(claims: Iterable[Claim]) -> dict[NodeId, list[Claim]]:
    """The claims about each node: of each of its lives the highest, for many may have heard of it."""
    highest: dict[tuple[NodeId, str, int], Claim] = {}
    for claim in claims:
        key = (claim.node, claim.allocation, claim.incarnation)
        known = highest.get(key)
        if known is None or claim.durable_lsn > known.durable_lsn:
            highest[key] = claim
    found: dict[NodeId, list[Claim]] = {}
    for claim in highest.values():
        found.setdefault(claim.node, []).append(claim)
    return found


def keeps(life: Life, claim: Claim) -> bool:
    """Whether a life has all that is claimed, by itself or by a life before it on the same disk."""
    if claim.incarnation == life.incarnation:
        return True
    chain = pairwise([*life.before, (life.incarnation, life.boot_lsn)])
    end = next((end for (incarnation, _), (_, end) in chain if incarnation == claim.incarnation), -1)
    return end >= claim.durable_lsn


def lives_before(lives: Sequence[tuple[int, int]], listed: int | None) -> list[tuple[int, int]]:
    """Of all lives of a disk, (incarnation, LSN at which it began), those that its next one tells of."""
    at = next((n for n, (incarnation, _) in enumerate(lives) if incarnation == listed), 0)
    return _shortened(lives[at:], LIVES_KEPT)


def in_brief(lives: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of these, what is said every moment, or written at every start: the first ones, and the last."""
    return _shortened(lives, LIVES_SAID)


def lives_after(
    lives: Sequence[tuple[int, int]], incarnation: int, before: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The lives before one that wrote, as it started, that `before` are they, in brief.

    `lives` is all that was known of this disk: what was left out is among them.
    """
    first = lives.index(before[0]) if before and before[0] in lives else len(lives)
    return _shortened([life for life in lives[first:] if life[0] < incarnation], LIVES_KEPT) or list(before)


def _shortened(lives: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """The first two tell where the first one ended, which is the one that the map lists; `LEFT_OUT` ends at nothing."""
    return list(lives) if len(lives) <= most else [*lives[:2], LEFT_OUT, *lives[3 - most :]]


def earlier(life: Life, known: Iterable[Claim], heard: Iterable[Claim]) -> list[Claim]:
    """What lives before this one claimed: all that was known before it answered, and of the rest the lower lives."""
    return [*known, *(claim for claim in heard if claim.incarnation < life.incarnation)]
