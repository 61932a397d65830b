"""What a demander does when a full transfer ends, before its copy is whole: what may be very much, in pieces.

What was written live while a copy was loading is in doubt, until the transfer tells of its key or comes to say that all was
told: then it was deleted before, and the supplier needed the tombstone no more. `FragmentReady` would drop these rows all
at once. There may be tens of thousands, each to be looked at; so they go before, in pieces. And what came above the
transfer is linked to its history (`rebalance.links`), and freed afterwards where it is in the tail no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rebalance.by_key import parts_of
from rebalance.fragment import FragmentState
from rebalance.leaves import KEYS_A_WORK
from rebalance.ports import Node
from wal import records as r
from wal.probe import probe

KEYS_AT_ONCE = 1_000
LINKED_OF_WORK = 4
"""So many keys that are linked are as much work as one thing that is decided."""
FREED_AT_ONCE = 2_000
FREED_OF_WORK = 40
"""And so many writes that are freed."""


def ends_in_pieces(fragment: FragmentState, lwm: int) -> bool:
    """Whether there is more to do than a few things, where a transfer up to `lwm` ends."""
    return len(fragment.suspects) > KEYS_AT_ONCE or fragment.counter.highest_applied - lwm > KEYS_AT_ONCE


class Unconfirmed:
    """Of one fragment, all rows of which have come; `ready` is logged at the end."""

    def __init__(self, ready: r.FragmentReady, epoch: int) -> None:
        self.name = (ready.namespace, ready.partition)
        self._ready = ready
        self._epoch = epoch
        self._keys: list[bytes] = []
        self._dropped = True  # some, since they were told apart
        self._over: list[Mapping[Any, Any]] | None = None  # the copy is whole, and this is freed

    def step(self, core: Node) -> bool:
        """Do a piece; whether it was the last one."""
        if self._over is not None:
            return self._free(core)
        if self._keys:
            self._drop(core)
            return False
        fragment = core.replica.fragment(self.name)
        linked = core.replica.links.make(fragment, self._ready.lwm, self._ready.digest, KEYS_AT_ONCE)
        core.work += linked // LINKED_OF_WORK
        if linked >= KEYS_AT_ONCE:
            probe("demand.linked_beforehand")
            return False
        self._keys = core.replica.unconfirmed(fragment, self._ready.lwm)
        looked = len(self._keys) if core.replica.links.only_live(self.name) else len(fragment.suspects)
        core.work += looked // KEYS_A_WORK + 1
        if len(self._keys) > KEYS_AT_ONCE and self._dropped:
            self._dropped = False
            return False
        core.work += len(self._keys)
        self._over = [fragment.beyond, *parts_of(fragment.suspects)]
        core.log(self._ready)
        return False

    def _free(self, core: Node) -> bool:
        """What came live is the copy's tail by now, or forgotten: what held it is not needed any more."""
        assert self._over is not None
        while self._over and not self._over[-1]:
            self._over.pop()
        if self._over and isinstance(over := self._over[-1], dict):
            for _ in range(min(FREED_AT_ONCE, len(over))):
                over.popitem()
            core.work += FREED_AT_ONCE // FREED_OF_WORK
        return not self._over

    def _drop(self, core: Node) -> None:
        """Drop some of them, but for what was written above the transfer meanwhile."""
        some, get = self._keys[-KEYS_AT_ONCE:], core.replica.store.get
        del self._keys[-KEYS_AT_ONCE:]
        core.work += len(some) + 1
        keys = [key for key in some if (held := get(self.name, key)) is not None and held.counter <= self._ready.lwm]
        if keys:
            probe("demand.dropped_unconfirmed")
            self._dropped = True
            epochs, nothing = [self._epoch] * len(keys), [0] * len(keys)
            core.log(r.Preload(*self.name, epochs=epochs, counters=nothing, keys=keys, values=[None] * len(keys)))
