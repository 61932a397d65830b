"""How long what is written lasts: as its client says, or else as the map says of its namespace.

The primary decides it, by the map under which it takes the write, and what it decided is a row beside the entry
(`engine.data.expiry`): no copy looks at a namespace's settings, and a later map changes nothing that was written before.
"""

from __future__ import annotations

from engine.protocol.requests import Put, Swap
from engine.turn.core import Core
from wal.ids import Namespace


def lasts_ms(core: Core, request: Put | Swap) -> int:
    """How long what a request writes lasts; 0: for good."""
    if request.ttl_ms:
        return max(request.ttl_ms, 0)
    settings = core.namespaces.get(request.namespace)
    if settings is None or (isinstance(request, Swap) and request.how == "keep"):
        return 0
    return settings.ttl_ms


def those_that_expire(
    core: Core,
    writes: list[tuple[Namespace, list[bytes], list[bytes | None]]],
    said: list[tuple[Namespace, bytes, int]],
) -> list[tuple[Namespace, bytes, int]]:
    """Of what a transaction writes, what expires, and after how long; `said`: by its client."""
    given = {(namespace, key) for namespace, key, _ in said}
    found = [(namespace, key, ttl_ms) for namespace, key, ttl_ms in said if ttl_ms > 0]
    for namespace, keys, values in writes:
        settings = core.namespaces.get(namespace)
        if settings is not None and settings.ttl_ms:
            found += [
                (namespace, key, settings.ttl_ms)
                for key, value in zip(keys, values, strict=True)
                if value is not None and (namespace, key) not in given
            ]
    return found
