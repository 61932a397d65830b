"""Which copies of a partition hold every acknowledged update: the evidence that the next map rests on.

A copy is believed on three grounds, and none of them is its own word. Its disk is the one that the map knows, and was not
set back. It has what is known to be everywhere. And where copies stand at the same counter and differ, it is on the side
that is kept. Whatever is not believed must catch up, and the operator is told why.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

from rebalance.lives import claims_by_node, set_back
from rebalance.messages import CopyReport, SingleMap
from rebalance.table import Candidate, Placement, Topology, disk_name, node_of
from wal.ids import NO_VERSION, Namespace, NodeId
from wal.probe import probe
from wal.records import Claim

REPORTS_AT_ONCE = 2_000
"""Of what nodes say of their copies, so much is sorted in one piece."""


def trusted_nodes(
    old: Topology,
    alive: Mapping[NodeId, Candidate],
    singles: Mapping[NodeId, SingleMap],
    steady: set[NodeId],
    notes: list[str],
) -> dict[NodeId, None]:
    """The nodes whose disk is the one that the map knows, and began its life with no less than it ever claimed."""
    claims = claims_by_node(claim for single in singles.values() for claim in single.claims)
    trusted: dict[NodeId, None] = {}
    for node, candidate in alive.items():
        if node not in singles:
            continue
        known = old.allocations.get(node)
        if known is not None and known != candidate.allocation:
            notes.append(f"{node} came with another disk ({candidate.allocation}, known {known}): its copies are new")
        elif node not in steady and set_back(node, singles[node].life, _that_count(old, candidate, claims.get(node, []))):
            notes.append(
                f"{node} began with less than its disk had claimed before: it was set back, its copies must catch up"
            )
        else:
            trusted[node] = None
    return trusted


def _that_count(old: Topology, candidate: Candidate, claims: Sequence[Claim]) -> Sequence[Claim]:
    """What copies on a disk are held to: what was claimed by the life that a map listed last.

    That map made void what lives before it had claimed, and none after it was given anything to acknowledge.
    """
    member = old.member(candidate.node)
    if member is not None and member.allocation == candidate.allocation:
        life = member.incarnation
    else:
        life, _ = old.listed.get(disk_name(candidate.node, candidate.allocation), (0, NO_VERSION))
    return [claim for claim in claims if claim.incarnation == life] if life else claims


def returned_disks(alive: Mapping[NodeId, Candidate], singles: Mapping[NodeId, SingleMap]) -> dict[str, None]:
    """The disks that are here and were not set back, by the names that lost partitions know them by.

    A partition that was lost with a disk is whole again with it, whatever disk its node had in the meantime.
    """
    claims = claims_by_node(claim for single in singles.values() for claim in single.claims)
    return {
        disk_name(node, candidate.allocation): None
        for node, candidate in alive.items()
        if node in singles and not set_back(node, singles[node].life, claims.get(node, []))
    }


CopyReports: TypeAlias = dict[Namespace, dict[NodeId, CopyReport]]
"""What nodes report of one partition: namespace -> node -> report."""


def sorted_reports(old: Topology, singles: Mapping[NodeId, SingleMap]) -> Generator[int, None, dict[int, CopyReports]]:
    """All reports by partition, in pieces: yields how much work the last one was."""
    found: dict[int, CopyReports] = {}
    for node, single in singles.items():
        for at in range(0, len(single.copies), REPORTS_AT_ONCE):
            for report in single.copies[at : at + REPORTS_AT_ONCE]:
                if report.partition < len(old.placements):
                    found.setdefault(report.partition, {}).setdefault(report.namespace, {})[node] = report
            yield REPORTS_AT_ONCE // 4
    return found


def survivors_of(
    placement: Placement,
    whole: Mapping[str, None],
    vouched: Sequence[NodeId],
    reports: CopyReports,
    *,
    steady: set[NodeId],
    number: int,
    notes: list[str],
) -> list[NodeId]:
    """The copies that hold every acknowledged update of the partition, and agree with each other."""
    emptied: dict[NodeId, None] = {}
    doubted: dict[NodeId, None] = {}
    for by_node in reports.values():
        for n, report in by_node.items():
            if report.loading:
                emptied[n] = None
            if report.doubted:
                doubted[n] = None
    named = dict.fromkeys(node_of(name) for name in placement.in_sync if name in whole)
    notes.extend(f"{n}'s copy of partition {number} is not whole: it must catch up" for n in named if n in emptied)
    survivors = [n for n in named if n not in emptied]
    for namespace, by_node in reports.items():
        if _alike([by_node[n] for n in survivors if n in by_node], len(survivors)):
            continue  # how it nearly always is
        stable = max((by_node[n].stable for n in survivors if n in by_node), default=0)
        behind = [n for n in survivors if (by_node[n].lwm if n in by_node else 0) < stable]
        for node in behind:
            notes.append(f"{node} lacks acknowledged updates of {namespace}/{number}: its copy must catch up")
            survivors.remove(node)
        survivors, wrong = _agreeing(survivors, placement, by_node, steady)
        notes.extend(
            f"digests of {namespace}/{number} differ at {lwm}: {', '.join(nodes)} must catch up" for lwm, nodes in wrong
        )
    sound = [n for n in survivors if n not in doubted]
    if sound and len(sound) < len(survivors):
        probe("plan.doubted_copy")
        notes.extend(f"{n}'s copy of partition {number} is taken anew" for n in survivors if n in doubted)
        survivors = sound
    return survivors + [n for n in vouched if n not in survivors and n not in emptied]


def _alike(told: Sequence[CopyReport], copies: int) -> bool:
    """Whether all copies are here, and all have the same of a namespace, and what is known to be everywhere."""
    if not told or len(told) < copies:
        return False
    first = told[0]
    lwm, digest = first.lwm, first.digest
    return all(report.lwm == lwm and report.digest == digest and report.stable <= lwm for report in told)


def _agreeing(
    survivors: list[NodeId], placement: Placement, by_node: Mapping[NodeId, CopyReport], steady: set[NodeId]
) -> tuple[list[NodeId], list[tuple[int, list[NodeId]]]]:
    """Equal LWM and unequal digest is a divergence: the primary's side is kept, else the larger one.

    Who is left, and at which counters who is not.
    """
    by_lwm: dict[int, dict[int, list[NodeId]]] = {}
    for node in survivors:
        if node in by_node:
            report = by_node[node]
            by_lwm.setdefault(report.lwm, {}).setdefault(report.digest, []).append(node)
    differ: list[tuple[int, list[NodeId]]] = []
    for lwm, sides in by_lwm.items():
        if len(sides) < 2:
            continue
        right = max(
            sides.values(),
            key=lambda side: (
                placement.owners[0] in side and placement.owners[0] in steady,
                len(side),
                [-placement.in_sync.index(n) for n in side],
            ),
        )
        wrong = [n for side in sides.values() if side is not right for n in side]
        differ.append((lwm, wrong))
        survivors = [n for n in survivors if n not in wrong]
    return survivors, differ
