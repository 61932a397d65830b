"""Who is right where copies differ. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from tools.reconcile.findings import Proof
from wal.ids import NodeId

H = TypeVar("H", bound=Hashable)


def right_one(found: Sequence[tuple[NodeId, H]], primary: NodeId | None) -> H:
    """What most have; among equals the primary's, else that of the first node by name."""
    votes: dict[H, list[NodeId]] = {}
    for node, what in found:
        votes.setdefault(what, []).append(node)
    return max(votes, key=lambda what: (len(votes[what]), primary in votes[what], what == found[0][1]))


def proof_of(found: Sequence[tuple[NodeId, H]], right: H) -> Proof:
    """What a vote proves: that more than half have it, or nothing."""
    return Proof.MAJORITY if 2 * sum(what == right for _, what in found) > len(found) else Proof.NONE
