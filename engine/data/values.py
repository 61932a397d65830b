"""The values of keys, as one answer tells them."""

from __future__ import annotations

from collections.abc import Mapping

from engine.data.holdings import Handed, Key
from engine.protocol.requests import KEYS_AT_ONCE, Get, Lock, Values
from engine.turn.core import Core
from wal.probe import probe

NOTHING: Mapping[Key, Handed] = {}
VALUES_BYTES_MAX = 32 << 20
"""Of values in one answer, unless the first alone is larger; so that every answer fits into a frame."""


def values_of(core: Core, request: Get | Lock, age_ms: int = 0, *, handed: Mapping[Key, Handed] = NOTHING) -> Values:
    """The values of the keys, or of as many of the first ones as one answer can carry; of those that were `handed` on, as
    they will be."""
    assert core.topology is not None
    namespace, place, get = request.namespace, core.topology.place, core.replica.store.get
    values: list[tuple[int, int, bytes | None]] = []
    size = 0
    for key in request.keys[:KEYS_AT_ONCE]:
        number = place(namespace, key)
        held = get((namespace, number), key)
        if handed and (namespace, key) in handed:
            held = handed[namespace, key].entry
            if held.value is None:
                values.append((held.epoch, held.counter, None))
                continue
        if held is None or held.value is None:
            fragment = core.replica.fragments.get((namespace, number))
            values.append((core.local[number].epoch, fragment.counter.lwm if fragment is not None else 0, None))
            continue
        size += len(held.value)
        if size > VALUES_BYTES_MAX and values:
            probe("read.answered_in_part")
            break
        values.append((held.epoch, held.counter, held.value))
    core.work += len(values) // 2
    return Values(request.id, values, core.version_number, age_ms)
