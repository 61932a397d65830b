"""What of a node's settings concerns the others: a node says it in its greeting, once for each connection and each way.

What a write survives is decided where its copies lie, by the setting of each of their nodes. And who says more rarely that
it lives than another one waits for it would be suspected between two heartbeats, let back in, and suspected again.
"""

from __future__ import annotations

from msgspec import Struct

from wal.ids import Number


class Habits(Struct, frozen=True, array_like=True):
    """These settings of one node. Empty and 0: it is of a version that does not say."""

    durability: str = ""
    heartbeat_ms: Number = 0
    suspicion_ms: Number = 0

    def lose_each_other(self, other: Habits) -> bool:
        """Whether one of two nodes would suspect the other one between two of its heartbeats."""
        pairs = (self, other), (other, self)
        return any(0 < hears.suspicion_ms < 2 * says.heartbeat_ms for hears, says in pairs)
