"""What is large takes its time on a slow link: it is not late, nor said again, before it could have come.

What was said is lost with its connection, or dropped where too much waits for a peer; on a link that is slow it is neither,
and to say it once more leaves room for nothing else. So whoever is asked again for what it has said waits until that could
have arrived at `link_bytes_per_s`, the slowest link that members are to have between them. Of what is there within
`retransmit_ms` nobody notices; more than `TRAVELS_SECONDS_MAX` is waited for by nobody.
"""

from __future__ import annotations

from rebalance.ports import MS, Settings

SECOND = 1_000 * MS
TRAVELS_SECONDS_MAX = 32


def travels_ns(size: int, settings: Settings) -> int:
    """For how long so many bytes may be on their way, in ns; 0: nobody notices."""
    time = min(size * SECOND // settings.link_bytes_per_s, TRAVELS_SECONDS_MAX * SECOND)
    return time if time >= settings.retransmit_ms * MS else 0
