"""What is large takes its time on a slow link: it is not late, nor said again, before it could have come.

What was said is lost with its connection, or dropped where too much waits for a peer; on a link that is slow it is neither,
and to say it once more leaves room for nothing else. So whoever is asked again for what it has said waits until that could
have arrived at `link_bytes_per_s`, the slowest link that members are to have between them. Of what is there within
`retransmit_ms` nobody notices; more than `TRAVELS_SECONDS_MAX` is waited for by nobody.
"""

from __future__ import annotations

from rebalance.ports import MS, Settings
from wal.ids import NodeId

SECOND = 1_000 * MS
TRAVELS_SECONDS_MAX = 32


def travels_ns(size: int, settings: Settings) -> int:
    """For how long so many bytes may be on their way, in ns; 0: nobody notices."""
    time = min(size * SECOND // settings.link_bytes_per_s, TRAVELS_SECONDS_MAX * SECOND)
    return time if time >= settings.retransmit_ms * MS else 0


class Answered:
    """Which large answers, by what they are about, may still be on their way to whom."""

    def __init__(self) -> None:
        self._until: dict[NodeId, dict[int, int]] = {}

    def note(self, node: NodeId, about: list[int], size: int, now: int, settings: Settings) -> None:
        """It was told so many bytes about these."""
        if time := travels_ns(size, settings):
            before = max(self._until.get(node, {}).values(), default=now)
            until = min(max(now, before) + time, now + TRAVELS_SECONDS_MAX * SECOND)
            self._until.setdefault(node, {}).update(dict.fromkeys(about, until))

    def is_on_its_way(self, node: NodeId, about: int, now: int) -> bool:
        """Whether what it was told about that may come yet."""
        found = self._until.get(node)
        return found is not None and now < found.get(about, now)

    def forget(self, node: NodeId | None = None) -> None:
        """What was on its way, to this one or to all, is not any more."""
        if node is None:
            self._until = {}
        else:
            self._until.pop(node, None)
