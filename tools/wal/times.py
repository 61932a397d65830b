"""Moments, as a dump prints them and as a person may say them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from engine.errors import UsageError
from wal.ids import TxId, opened_s

_AGO = r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_OPEN_MS_MAX = 400 * _UNITS_MS["d"]
"""No client is thought to have one session for longer, and no clock to be wrong by more than a day."""


@lru_cache(maxsize=1024)
def time_text(time_ms: int) -> str:
    """A block's time, in UTC.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms}ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def opened_text(tx: TxId, logged_ms: int) -> str:
    """When the session of an id was opened, by its client's clock, to the second; nothing where that is not to be believed
    of what was logged then: ids of older versions have no time in them.

    >>> opened_text(bytes.fromhex("6553f100aabbccddeeff000000000001"), 1_700_000_000_123)
    '2023-11-14T22:13:20Z'
    >>> opened_text(bytes.fromhex("aabbccddeeff00112233000000000001"), 1_700_000_000_123)
    ''
    """
    opened_ms = 1000 * opened_s(tx)
    if not logged_ms - _OPEN_MS_MAX <= opened_ms <= logged_ms + _UNITS_MS["d"]:
        return ""
    return time_text(opened_ms).replace(".000", "")


def session_text(tx: TxId, logged_ms: int) -> str:
    """The same as a word behind others of a line."""
    opened = opened_text(tx, logged_ms)
    return f" session-opened={opened}" if opened else ""


def time_of(text: str, now_ms: int) -> int:
    """A moment that a person said, in ms since 1970: ISO 8601 (UTC unless it says otherwise), or so long ago: `-1h`.

    >>> time_of("2023-11-14T22:13:20.123Z", 0), time_of("2023-11-14", 0), time_of("-1.5h", 10_000_000)
    (1700000000123, 1699920000000, 4600000)
    """
    ago = re.fullmatch(_AGO, text)
    if ago is not None:
        return now_ms - round(float(ago[1]) * _UNITS_MS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time: expected one like 2023-11-14T22:13:20Z, or how long ago: -90s, -10m, -1h, -2d"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
