"""Whoever has an older map is told the newer one, and who has a newer one is asked for it."""

from __future__ import annotations

from engine.messages import AskMap, Commit
from engine.turn.core import Core
from wal.ids import NodeId, Version


def same_version(core: Core, sender: NodeId, after: Version) -> bool:
    """Whether a message is about the version after ours; else bring whoever is behind up to date."""
    if after < core.version:
        send_map(core, sender)
        return False
    if after > core.version:
        core.send(sender, AskMap(core.version))
        return False
    return True


def send_map(core: Core, to: NodeId) -> None:
    """Tell a node that is behind what is committed."""
    version, topology = core.replica.committed
    if topology and to != core.node:
        core.send(to, Commit(version, topology))
