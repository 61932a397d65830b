"""When one node may supply the next batch, over all its sessions: a bucket that may be in debt.

A batch leaves when nothing is owed, whatever it weighs, and what it weighs is owed from then on. So the smallest limit
lets one batch through, a large value is not starved by small ones, and the mean is kept. Sessions that wait go in turn:
one batch each, so that none waits for all that another has to send.

Clients come first, limit or not. What a batch takes of the processors it takes of three processes: who makes it, who
takes it, and who writes that one's checkpoint. So where clients were served since the last one, time is owed for it, in
which nothing of that is asked for: the more, the more work it is, and the more clients asked.
"""

from __future__ import annotations

from rebalance.rule import NEVER
from wal.ids import NodeId

SECOND_NS = 1_000_000_000
SAVED_NS = 100_000_000
"""What was not used in so much time may be used later: a node is not woken to the moment."""


REST_A_WORK_NS = 30_000
"""What is owed for a unit of work beside busy clients; on all processors together it is some 25 us where rows are small."""
REST_A_REQUEST_NS = 2_000_000
"""No more is owed than this for each request: who is asked for something now and then is not held up."""


class Throttle:
    """What one node may supply now. Times are in ns, sizes in bytes."""

    def __init__(self) -> None:
        self.rate = 0  # bytes a second; 0: no limit
        self._free_at = 0  # when nothing is owed any more
        self._asked = 0  # requests of clients that had been taken when the last batch was sent that was any work
        self._line: dict[NodeId, None] = {}  # whose sessions wait, in their order
        self._turn: NodeId | None = None  # whose turn it is

    def limit(self, rate: int) -> None:
        """From now on so much; what is owed was owed under the last limit, and is forgotten with it."""
        if rate != self.rate:
            self.rate, self._free_at = rate, 0

    def admits(self, node: NodeId, now: int) -> bool:
        """Whether a batch may go to this node; if not, it stands in line."""
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

    def give_way(self, work: int, asked: int, now: int) -> None:
        """A batch of so much work is sent, if any, and so many requests of clients were taken until now."""
        if work:
            rest = min(work * REST_A_WORK_NS, (asked - self._asked) * REST_A_REQUEST_NS)
            self._free_at, self._asked = max(self._free_at, now + rest), asked

    def waits(self, node: NodeId) -> bool:
        """Whether this node's session stands in line."""
        return node in self._line

    def next(self, now: int) -> NodeId | None:
        """Whose turn it is, if anybody's: who does not use it is passed over."""
        self._turn = None
        if not self._line or now < self._free_at:
            return None
        self._turn = next(iter(self._line))
        del self._line[self._turn]
        return self._turn

    @property
    def due(self) -> int:
        """When it is somebody's turn, or `NEVER`."""
        return self._free_at if self._line else NEVER
