"""What a map changes of the partitions of one node, found in one walk over them.

There may be very many, and a map takes effect in one turn: to look at each is most of what that costs. So whatever the
rules are told of it (`rebalance.rule.NewMap`), and the operator, is found here, while a partition is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rebalance.partition import LocalPartition, Role
from rebalance.rule import NewMap
from rebalance.table import Topology
from wal.ids import NodeId

_NOBODY: tuple[NodeId, ...] = ()


class Walked(NewMap, frozen=True):
    """What was found, and how many partitions have another primary, another in-sync set, or no copy in sync at all."""

    primaries: int = 0
    in_sync: int = 0
    lost: int = 0


def place_all(
    partitions: Sequence[LocalPartition],
    topology: Topology,
    node: NodeId | None,
    group: Callable[[LocalPartition], None],
    *,
    anew: bool,
    light: bool,
    known: int,
) -> Walked:
    """Let a map take effect on all partitions of `node`; None: it does not list this life. Of those that it leads now, or
    did, `group` is to find out who is waited for.

    `anew`: whatever a partition was, it is another thing now, because this life was not listed before, or is no more. So
    is each from `known` on. What is being promoted already is told again, unless the map is a `light` one.
    """
    new, promoting, nothing = Walked([], [], []), Role.PROMOTING, Role.NONE
    moved, out, changed, promoted, left, gone = new.moved, new.out, new.changed, new.promoted, new.left, new.gone
    primaries = in_sync = lost = 0
    no_more: dict[tuple[tuple[NodeId, ...], tuple[NodeId, ...]], tuple[NodeId, ...]] = {}
    for local, placement in zip(partitions, topology.placements, strict=True):
        before = local.placement
        lost += placement.lost
        if not anew and (before is placement or before == placement) and local.number < known:
            if local.role is promoting and not light:
                promoted.append(local)
            continue
        moved.append(local)
        led, was, now, nodes = local.role.leads, before.in_sync, placement.in_sync, _NOBODY
        if was != now:
            in_sync += 1
            found = no_more.get((was, now))
            nodes = no_more[was, now] = tuple(n for n in was if n not in now) if found is None else found
        out.append(nodes)
        if before.lost is not placement.lost or (not placement.lost and before.owners[0] != placement.owners[0]):
            primaries += 1
        is_new = local.place(placement, node)
        if is_new:
            changed.append(local)
        role = local.role
        if role.leads:
            group(local)
            if role is promoting and (is_new or not light):
                promoted.append(local)
        elif led:
            left.append(local)
            group(local)
        if role is nothing:
            gone.append(local)
    for local in promoted:
        local.since = topology.version.number
    return msgspec.structs.replace(new, primaries=primaries, in_sync=in_sync, lost=lost)


def what_changed(before: Topology | None, after: Topology, new: Walked) -> str:
    """In which way a map differs from the one before it, for the operator; nothing if it is the first one."""
    if before is None:
        return ""
    old = {m.node: (m.allocation, m.incarnation) for m in before.members}
    lives = {m.node: (m.allocation, m.incarnation) for m in after.members}
    said = [f"{node} is out" for node in old if node not in lives]
    said += [f"{node} is in" for node in lives if node not in old]
    said += [f"{node} is another life" for node in lives if node in old and old[node] != lives[node]]
    if before.baseline != after.baseline:
        said.append(f"baseline {','.join(after.baseline)}")
    said += [f"a group of {group.told}" for group in after.all_groups if group not in before.all_groups]
    if before.namespaces != after.namespaces:
        changed = [name for name, stands in after.namespaces.items() if stands != before.namespaces.get(name)]
        said += [f"namespace {name} {after.namespaces[name].stands}" for name in changed]
    if before.migrations != after.migrations:
        paused, limit = after.migrations.paused, after.migrations.bytes_per_second
        said.append(f"migrations paused: {paused}, limited to {f'{limit} bytes/s' if limit else 'nothing'}")
    counts = {"primaries moved": new.primaries, "in-sync sets changed": new.in_sync, "LOST": new.lost}
    return "; ".join(said + [f"{what}: {count}" for what, count in counts.items() if count])
