"""Short names in stories: transactions `t1`, keys that fall into the partition where the story wants them."""

from __future__ import annotations

import re
from functools import lru_cache

from tests.conversations.story import StoryError
from wal.ids import TxId, partition_of

_UNITS = {"ms": 1_000_000, "s": 1_000_000_000, "h": 3_600_000_000_000}


def duration(text: str) -> int:
    """`300ms`, `2s` or `1h` in nanoseconds."""
    match = re.fullmatch(r"(\d+)(ms|s|h)", text)
    if match is None:
        raise StoryError(f"not a time: {text!r}; expected 300ms, 2s or 1h")
    return int(match[1]) * _UNITS[match[2]]


class Names:
    """Transactions by short names: `t7` is younger than `t3`, as its id says."""

    def __init__(self) -> None:
        self._short: dict[TxId, str] = {}

    def tx(self, name: str) -> TxId:
        """The id of a transaction; `t` and a number."""
        if not re.fullmatch(r"t\d+", name):
            raise StoryError(f"not a transaction: {name!r}; expected t1, t2, ...")
        tx = int(name[1:]).to_bytes(8, "big") + b"a story"[:7] + b"."
        self._short[tx] = name
        return tx

    def tx_name(self, tx: TxId) -> str:
        """The short name of an id that the story gave; empty for one that it did not."""
        return self._short.get(tx, "")

    def shorten(self, text: str) -> str:
        """The same text with short names for long ones."""
        for tx, name in self._short.items():
            text = text.replace(tx.hex(), name)
        return re.sub(r"b'(?:\{\d+\})?([^']*)'", r"\1", text)


@lru_cache(maxsize=4096)
def key_in(partition: int, partitions: int, name: str) -> bytes:
    """The key that a story calls `name`, with a hash tag before it that puts it into `partition`."""
    for tag in range(1_000_000):
        key = b"{%d}%s" % (tag, name.encode())
        if partition_of(key, partitions) == partition:
            return key
    raise StoryError(f"no key falls into partition {partition} of {partitions}")


def key_name(key: bytes) -> str:
    """What a story calls a key."""
    return key.rpartition(b"}")[2].decode(errors="backslashreplace")
