"""Every setting of a node, with its meaning, default and bounds; times are in milliseconds, sizes in bytes.

A cluster-wide setting (`partitions`, `backups`) is fixed when the cluster is formed and lives in its topology from then
on; the others may differ from node to node, though there is rarely a reason, and `engine.cluster.alike` says where it
matters. `engine.open` forms a cluster of one, with defaults of its own for these (`engine.host.embedded.ALONE`). A name
says the unit; `foreshore node config` prints what is written here, and `tools.config` checks what an operator gives
against it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, get_args

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields

from engine.errors import UsageError
from engine.protocol.habits import Habits


class Durability(StrEnum):
    """What an acknowledged write has reached on each in-sync copy; Ignite's names."""

    FSYNC = "FSYNC"  # the disk
    LOG_ONLY = "LOG_ONLY"  # the operating system, synced every `sync_interval_ms`: survives the process
    BACKGROUND = "BACKGROUND"  # memory, written and synced every `sync_interval_ms`
    NONE = "NONE"  # memory, written with each checkpoint: survives a clean stop


def _is(meaning: str, least: int | None = None, most: int | None = None) -> Meta:
    """What a field means, and its bounds."""
    return Meta(description=meaning, ge=least, le=most)


_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


class Settings(Struct, frozen=True, kw_only=True):
    """What the deciding half of a node needs to know."""

    cluster: Annotated[str, _is("name of the cluster; nodes of another one are not let in")] = "foreshore"
    partitions: Annotated[int, _is("partitions of a cluster that is formed here: a power of two", 1, 16384)] = 1024
    backups: Annotated[int, _is("copies beside the primary, in a cluster that is formed here", 0, 6)] = 2
    async_backups: Annotated[int, _is("further copies that nobody waits for, in a cluster that is formed here", 0, 6)] = 0
    durability: Annotated[Durability, _is("what a write reaches before it is acknowledged")] = Durability.FSYNC
    domain: Annotated[str, _is("what fails together with this node, such as its machine or rack")] = ""

    heartbeat_ms: Annotated[int, _is("how often a node says that it lives", 10, _MINUTE)] = 250
    suspicion_ms: Annotated[int, _is("silence after which a member is suspected", 50, _HOUR)] = 1_500
    connection_lost_ms: Annotated[int, _is("the same, once its connection broke", 0, _HOUR)] = 500
    slow_ms: Annotated[int, _is("a log that always takes so long to sync sets its member aside", 10, _HOUR)] = 500
    exchange_delay_ms: Annotated[int, _is("time to collect reasons for an exchange", 0, _MINUTE)] = 150
    exchange_retry_ms: Annotated[int, _is("pause after an exchange that failed", 10, _MINUTE)] = 1_000
    exchange_drain_ms: Annotated[int, _is("longest wait for what a handover interrupts", 0, _HOUR)] = 2_000
    retransmit_ms: Annotated[int, _is("what is not answered is sent again after this", 10, _MINUTE)] = 400

    link_bytes_per_s: Annotated[int, _is("what is large is not late before it could come so fast", _KIB, 64 * _GIB)] = _MIB

    lock_lease_ms: Annotated[int, _is("a client silent for so long loses its locks", 100, _DAY)] = 10_000
    lock_timeout_ms: Annotated[int, _is("longest wait for a lock", 1, _HOUR)] = 5_000
    in_doubt_ms: Annotated[int, _is("who is prepared for so long asks for the outcome", 10, _HOUR)] = 1_000
    result_retention_ms: Annotated[int, _is("answers are kept so long for clients that are silent", 1_000, _DAY)] = 600_000
    answers_kept: Annotated[int, _is("answers per partition that are no burden, acknowledged or not", 1, 65_536)] = 256
    cut_bytes_max: Annotated[int, _is("what was overwritten is kept for snapshots up to this", _KIB, 64 * _GIB)] = 256 << 20
    staged_bytes_max: Annotated[
        int, _is("what clients say ahead of large transactions is kept up to this", 64, 64 * _GIB)
    ] = 256 << 20
    parked_max: Annotated[int, _is("requests that may wait for an exchange, per partition", 1, 10_000_000)] = 20_000

    checkpoint_ms: Annotated[int, _is("longest time between two checkpoints", 10, _DAY)] = 60_000
    checkpoint_bytes: Annotated[int, _is("changes in memory that make one due", _KIB, 64 * _GIB)] = 48 << 20
    max_parallel_migrations: Annotated[int, _is("large partitions supplied in full at a time", 1, 16384)] = 10
    supply_batch_bytes: Annotated[
        int, _is("size of a batch of a transfer; of what is above 4 MiB nothing comes", _KIB, 64 * _MIB)
    ] = 512 << 10
    supply_credit: Annotated[int, _is("batches of a transfer that may be under way", 1, 1_000)] = 16
    backlog_bytes_max: Annotated[int, _is("live writes kept for a copy that is loading", _KIB, 64 * _GIB)] = 64 << 20
    anti_entropy_ms: Annotated[int, _is("live copies are compared once in so long; 0: they are not", 0, _DAY)] = 30_000
    mutations_bytes: Annotated[int, _is("keys changed while a copy is away: kept up to this; 0: not", 0, 64 * _GIB)] = (
        64 << 20
    )
    prefer_history: Annotated[bool, _is("give a node that returns what it missed, not fewer rows")] = False
    namespaces_max: Annotated[int, _is("how many namespaces there may be", 1, 65_536)] = 256

    wal_segment_bytes: Annotated[int, _is("size that a segment of the log grows to", _KIB, 4 * _GIB - 8)] = 64 << 20
    wal_total_bytes: Annotated[int, _is("the log is kept up to this size, for history", 3 * _KIB, 1 << 44)] = 1 << 30
    wal_age_ms: Annotated[int, _is("history older than this need not be kept; 0: as long as there is room", 0, 1 << 44)] = 0
    wal_archive_bytes_per_s: Annotated[
        int, _is("how fast old segments are compressed into archives, beside the turns; 0: they are not", 0, 64 * _GIB)
    ] = 0
    sync_interval_ms: Annotated[int, _is("time between syncs, with LOG_ONLY and BACKGROUND", 1, _MINUTE)] = 1_000


FIXED = ("partitions", "backups", "async_backups")
"""What is fixed when a cluster is formed: what a node is told of it later counts for nothing."""


def habits_of(settings: Settings) -> Habits:
    """What of them others have to know."""
    return Habits(settings.durability, settings.heartbeat_ms, settings.suspicion_ms)


def check_settings(settings: Settings) -> None:
    """Refuse settings that contradict each other, or what a type cannot say. Raises UsageError."""
    partitions = settings.partitions
    if partitions & (partitions - 1) or not 1 <= partitions <= 16384:
        raise UsageError(f"partitions is {partitions}: expected a power of two up to 16384")
    if not 0 <= settings.backups <= 6:
        raise UsageError(f"backups is {settings.backups}: expected 0 to 6")
    if settings.backups + settings.async_backups > 6:
        raise UsageError(
            f"backups is {settings.backups} and async_backups is {settings.async_backups}: expected 6 at most in all"
        )
    if settings.suspicion_ms < 2 * settings.heartbeat_ms:
        raise UsageError(
            f"suspicion_ms is {settings.suspicion_ms} and heartbeat_ms is {settings.heartbeat_ms}: expected two "
            "heartbeats or more before a suspicion, or members would be suspected between two of them"
        )
    if settings.wal_total_bytes < 3 * settings.wal_segment_bytes:
        raise UsageError(
            f"wal_total_bytes is {settings.wal_total_bytes} and wal_segment_bytes is {settings.wal_segment_bytes}: "
            "expected room for three segments, the one that is written, the next, and one of history"
        )


def settings_of(options: Mapping[str, Any], base: Mapping[str, Any]) -> Settings:
    """The settings that an application chose, over others. Raises UsageError."""
    known = Settings.__struct_fields__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            expected = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
            raise UsageError(f"unknown setting {name!r}: {expected}")
    for field in fields(Settings):
        if field.name in options:
            _check(field.name, field.type, options[field.name])
    settings = convert({**base, **options}, Settings)
    check_settings(settings)
    return settings


def _check(name: str, kind: Any, value: object) -> None:
    """Raise UsageError for a value that a setting cannot have."""
    try:
        convert(value, kind)
    except (ValidationError, UnicodeError) as error:
        said, choices = str(error), getattr(get_args(kind)[0], "__members__", None)
        if choices:
            near = difflib.get_close_matches(str(value).upper(), choices, n=1)
            said = f"expected one of {', '.join(choices)}" + (f"; did you mean {near[0]!r}?" if near else "")
        raise UsageError(f"{name} is {value!r}: {said}") from None
