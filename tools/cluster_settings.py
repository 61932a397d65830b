"""Settings that differ between the nodes of a cluster, as `foreshore cluster status` and `node status` show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Status = Mapping[str, Any]
Members = Mapping[str, Status | None]


def durabilities(asked: Status, members: Members) -> dict[str, list[str]]:
    """Each durability, and the members that have it: as they say themselves, or as the node that was asked was told."""
    found: dict[str, list[str]] = {}
    for name, status in members.items():
        told = _habits(asked, name) if status is None else status.get("habits", {})
        if durability := told.get("durability"):
            found.setdefault(durability, []).append(name)
    return found


def unlike(asked: Status, members: Members, name: str) -> str | None:
    """That of one member, where they differ."""
    found = durabilities(asked, members)
    return next((each for each, names in found.items() if name in names), None) if len(found) > 1 else None


def differing(asked: Status, members: Members) -> Iterator[str]:
    """What of it is not as it should be, in words."""
    found = durabilities(asked, members)
    if len(found) > 1:
        told = "; ".join(f"{each} on {', '.join(names)}" for each, names in found.items())
        yield (
            f"durability differs: {told}: of a write that is acknowledged each of these has no more than that promises; "
            "restart the ones that are wrong with another --durability, one after the other"
        )
    said = dict[str, None]()
    for status in (asked, *members.values()):
        said |= dict.fromkeys(apart(status) if status is not None else ())
    yield from said


def apart(status: Status) -> Iterator[str]:
    """Who is not heard by a node because one of them would suspect the other between two heartbeats."""
    mine = status.get("habits", {})
    for name, said in status.get("peers", {}).items():
        if said["apart"]:
            yield (
                f"{name} and {status['node']} do not hear each other: heartbeat_ms {said['heartbeat_ms']} and suspicion_ms "
                f"{said['suspicion_ms']} of {name} do not go with {mine['heartbeat_ms']} and {mine['suspicion_ms']} of "
                f"{status['node']}: each must suspect after two heartbeats of the other or later"
            )


def ignored(status: Status) -> Iterator[str]:
    """What was given to a node, and is fixed in the map to be something else."""
    for key, said in status.get("ignored", {}).items():
        yield f"{key} {said['here']} was given to this node and counts for nothing: in its cluster it is {said['map']}"


def _habits(asked: Status, name: str) -> Mapping[str, Any]:
    if name == asked["node"]:
        found: Mapping[str, Any] = asked.get("habits", {})
    else:
        found = asked.get("peers", {}).get(name, {})
    return found
