"""Every setting of a node, with its unit and default; times are in milliseconds, sizes in bytes.

A cluster-wide setting (`partitions`, `backups`) is fixed when the cluster is formed and lives in its topology from then
on; the others may differ from node to node, though there is rarely a reason.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Durability(StrEnum):
    """What an acknowledged write has reached on each in-sync copy; Ignite's names."""

    FSYNC = "FSYNC"  # the disk
    LOG_ONLY = "LOG_ONLY"  # the operating system, synced every `sync_interval_ms`: survives the process
    BACKGROUND = "BACKGROUND"  # memory, written and synced every `sync_interval_ms`
    NONE = "NONE"  # memory, written with each checkpoint: survives a clean stop


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the deciding half of a node needs to know."""

    cluster: str = "foreshore"
    partitions: int = 1024
    backups: int = 2
    durability: Durability = Durability.FSYNC
    domain: str = ""

    heartbeat_ms: int = 250
    suspicion_ms: int = 1_500
    connection_lost_ms: int = 500
    exchange_delay_ms: int = 150
    exchange_retry_ms: int = 1_000
    exchange_drain_ms: int = 2_000
    retransmit_ms: int = 400

    lock_lease_ms: int = 10_000
    lock_timeout_ms: int = 5_000
    in_doubt_ms: int = 1_000
    parked_max: int = 20_000

    checkpoint_ms: int = 60_000
    checkpoint_bytes: int = 48 << 20
    max_parallel_migrations: int = 10
    supply_batch_bytes: int = 512 << 10
    supply_credit: int = 4
    backlog_bytes_max: int = 64 << 20
    prefer_history: bool = False
    namespaces_max: int = 256

    wal_segment_bytes: int = 64 << 20
    wal_total_bytes: int = 1 << 30
    sync_interval_ms: int = 1_000
