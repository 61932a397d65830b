"""How many bytes a second one node supplies, over all its sessions: a bucket that may be in debt.

A batch leaves when nothing is owed, whatever it weighs, and what it weighs is owed from then on. So the smallest limit
lets one batch through, a large value is not starved by small ones, and the mean is kept. Sessions that wait go in turn:
one batch each, so that none waits for all that another has to send.
"""

from __future__ import annotations

from rebalance.rule import NEVER
from wal.ids import NodeId

SECOND_NS = 1_000_000_000
SAVED_NS = 100_000_000
"""What was not used in so much time may be used later: a node is not woken to the moment."""


class Throttle:
    """What one node may supply now. Times are in ns, sizes in bytes."""

    def __init__(self) -> None:
        self.rate = 0  # bytes a second; 0: no limit
        self._free_at = 0  # when nothing is owed any more
        self._line: dict[NodeId, None] = {}  # whose sessions wait, in their order
        self._turn: NodeId | None = None  # whose turn it is

    def limit(self, rate: int) -> None:
        """From now on so much; what is owed was owed under the last limit, and is forgotten with it."""
        if rate != self.rate:
            self.rate, self._free_at = rate, 0

    def admits(self, node: NodeId, now: int) -> bool:
        """Whether a batch may go to this node; if not, it stands in line."""
        if not self.rate:
            return True
        first = not self._line or self._turn == node
        if now >= self._free_at and first:
            self._turn = None
            return True
        self._line[node] = None
        return False

    def spend(self, size: int, now: int) -> None:
        """So much was sent."""
        if self.rate:
            self._free_at = max(self._free_at, now - SAVED_NS) + max(size, 1) * SECOND_NS // self.rate

    def waits(self, node: NodeId) -> bool:
        """Whether this node's session stands in line."""
        return node in self._line

    def next(self, now: int) -> NodeId | None:
        """Whose turn it is, if anybody's: who does not use it is passed over."""
        self._turn = None
        if not self._line or (self.rate and now < self._free_at):
            return None
        self._turn = next(iter(self._line))
        del self._line[self._turn]
        return self._turn

    @property
    def due(self) -> int:
        """When it is somebody's turn, or `NEVER`."""
        if not self._line:
            return NEVER
        return self._free_at if self.rate else 0
