"""How long what a transaction writes is to last, until it is said with the commit."""

from __future__ import annotations

from collections.abc import Iterable

from wal.ids import Namespace


class TimesToLive:
    """Of what one transaction writes, and expires: how long it lasts."""

    def __init__(self) -> None:
        self._of: dict[Namespace, dict[bytes, int]] = {}

    def note(self, namespace: Namespace, keys: Iterable[bytes], ttl_ms: int) -> None:
        """Keys are written, and last so long (0: for good), whatever was said of them before."""
        if ttl_ms:
            self._of.setdefault(namespace, {}).update(dict.fromkeys(keys, ttl_ms))
        elif expiring := self._of.get(namespace):
            for key in keys:
                expiring.pop(key, None)

    def listed(self) -> list[tuple[Namespace, bytes, int]]:
        """As the commit says it."""
        return [(namespace, key, ttl_ms) for namespace, of in self._of.items() for key, ttl_ms in of.items()]
