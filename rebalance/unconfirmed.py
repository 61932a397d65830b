"""What a demander does when a full transfer ends: the rows that it was not told of go, and then its copy is whole.

What was written live while a copy was loading is in doubt, until the transfer tells of its key or comes to say that all was
told: then it was deleted before, and the supplier needed the tombstone no more. `FragmentReady` would drop these rows all
at once. There may be tens of thousands, each to be looked at; so they go before, in pieces.
"""

from __future__ import annotations

from rebalance.leaves import KEYS_A_WORK
from rebalance.ports import Node
from wal import records as r
from wal.probe import probe

KEYS_AT_ONCE = 1_000


class Unconfirmed:
    """Of one fragment, all rows of which have come; `ready` is logged at the end."""

    def __init__(self, ready: r.FragmentReady, epoch: int) -> None:
        self.name = (ready.namespace, ready.partition)
        self._ready = ready
        self._epoch = epoch
        self._keys: list[bytes] = []
        self._dropped = True  # some, since they were told apart

    def step(self, core: Node) -> bool:
        """Do a piece; whether it was the last one."""
        if self._keys:
            self._drop(core)
            return False
        fragment = core.replica.fragment(self.name)
        self._keys = core.replica.unconfirmed(fragment, self._ready.lwm)
        core.work += len(fragment.suspects) // KEYS_A_WORK + 1
        if len(self._keys) > KEYS_AT_ONCE and self._dropped:
            self._dropped = False
            return False
        core.work += len(self._keys)
        core.log(self._ready)
        return True

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
