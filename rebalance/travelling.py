"""What is large takes its time on a slow link: it is not late, nor said again, before it could have come.

What was said is lost with its connection, or dropped where too much waits for a peer; on a link that is slow it is neither,
and to say it once more leaves room for nothing else. So whoever is asked again for what it has said waits until that could
have arrived at `link_bytes_per_s`, the slowest link that members are to have between them. Of what is there within
`retransmit_ms` nobody notices; more than `TRAVELS_SECONDS_MAX` is waited for by nobody.
"""

from __future__ import annotations

from rebalance.ports import MS, Node, Settings
from wal.ids import NodeId
from wal.probe import probe

SECOND = 1_000 * MS
TRAVELS_SECONDS_MAX = 32


def travels_ns(size: int, settings: Settings) -> int:
    """For how long so many bytes may be on their way, in ns; 0: nobody notices."""
    time = min(size * SECOND // settings.link_bytes_per_s, TRAVELS_SECONDS_MAX * SECOND)
    return time if time >= settings.retransmit_ms * MS else 0


class Answers:
    """What a node was told about partitions, and may not have come: who asks the same again meanwhile is not told again."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._until: dict[NodeId, int] = {}  # all that a node was told is there
        self._told: dict[tuple[NodeId, int], tuple[object, int]] = {}  # on which question; and until when it may come

    def comes(self, node: NodeId, partition: int, question: object) -> bool:
        """Whether the answer to this question may still come."""
        asked, until = self._told.get((node, partition), (None, 0))
        if self._core.now >= until or asked != question:
            return False
        probe("travelling.answer_comes_yet")
        return True

    def note(self, node: NodeId, partition: int, question: object, size: int) -> None:
        """It is answered now, in so many bytes."""
        now, settings = self._core.now, self._core.settings
        begins = max(now, self._until.get(node, 0))
        self._until[node] = min(begins + size * SECOND // settings.link_bytes_per_s, now + TRAVELS_SECONDS_MAX * SECOND)
        if (pause := settings.retransmit_ms * MS) <= self._until[node] - now:
            self._told[node, partition] = question, self._until[node] + pause

    def forget(self, node: NodeId | None = None) -> None:
        """What this node was told, or whichever, is not on its way any more."""
        self._told = {key: told for key, told in self._told.items() if node not in (None, key[0])}
        self._until = {other: until for other, until in self._until.items() if node not in (None, other)}
