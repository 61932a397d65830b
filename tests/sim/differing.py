"""Nodes that are set differently: each of a cluster in its own way, and in another one after each start, as when an
operator changes a file node by node. What a map fixes is the same everywhere, and what `engine.cluster.alike` keeps apart
is not drawn; a node waits for others no longer than the seed's settings say, by which life is judged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from engine.protocol.habits import Habits
from engine.turn.settings import Settings, habits_of

DIFFERING_SHARE, DIFFERING_LARGE_SHARE = 0.12, 0.03
"""The share of the small seeds in which they are, and of the others: a seed costs a fifth to a half more with them."""
BEATS = ((60, 400), (100, 400), (250, 1_500), (150, 1_000))
"""How often a node beats, and after which silence it suspects (ms)."""
ROOMS = (64, 2 << 10, 1 << 20)
"""For what clients stage of large transactions, of which what one has begun is said again to another one."""


def differing(settings: Settings, draw: Random, drawn: Callable[[Random, int], Settings]) -> Settings:
    """What a node may be set to in a cluster of these settings; `drawn` draws those of a seed."""
    other = drawn(draw, 3)
    mine = habits_of(settings)
    may = [(beat, wait) for beat, wait in BEATS if wait <= settings.suspicion_ms and _get_on(mine, beat, wait)]
    heartbeat_ms, suspicion_ms = draw.choice([(settings.heartbeat_ms, settings.suspicion_ms), *may])
    slower = draw.choice([1, 1, 2])
    return msgspec.structs.replace(
        settings,
        heartbeat_ms=heartbeat_ms,
        suspicion_ms=suspicion_ms,
        connection_lost_ms=settings.connection_lost_ms // slower,
        exchange_delay_ms=settings.exchange_delay_ms // slower,
        exchange_retry_ms=settings.exchange_retry_ms // slower,
        retransmit_ms=settings.retransmit_ms * draw.choice([1, 1, 2]),
        lock_lease_ms=other.lock_lease_ms,
        lock_timeout_ms=other.lock_timeout_ms,
        in_doubt_ms=other.in_doubt_ms,
        answers_kept=other.answers_kept,
        checkpoint_ms=other.checkpoint_ms,
        checkpoint_bytes=other.checkpoint_bytes,
        max_parallel_migrations=other.max_parallel_migrations,
        supply_batch_bytes=max(other.supply_batch_bytes, settings.supply_batch_bytes // 2),
        supply_credit=other.supply_credit,
        backlog_bytes_max=other.backlog_bytes_max,
        prefer_history=other.prefer_history,
        wal_segment_bytes=other.wal_segment_bytes,
        wal_total_bytes=other.wal_total_bytes,
        staged_bytes_max=draw.choice([settings.staged_bytes_max, *ROOMS]),
        mutations_bytes=draw.choice([settings.mutations_bytes, 0, 4 << 10]),
    )


def _get_on(mine: Habits, heartbeat_ms: int, suspicion_ms: int) -> bool:
    return not mine.lose_each_other(msgspec.structs.replace(mine, heartbeat_ms=heartbeat_ms, suspicion_ms=suspicion_ms))
