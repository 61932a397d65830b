"""Tails become stable by themselves: what was written last, and by nobody after it, is not kept for ever.

Every write says up to where the ones before it are on every in-sync copy (`Write.stable`), and so a busy fragment keeps
what is under way. Where nothing follows, the last write would stay in the tail of each copy, value and all. So a primary
looks now and then at the fragments that have a tail, and says of those that did not move since the last look that they are
stable, in a record of its own, `Stable`, one for all fragments of a partition. It goes to the copies like a write, and
nobody waits for it.
"""

from __future__ import annotations

from rebalance.by_fragment import ByFragment
from rebalance.partition import LocalPartition, Role
from rebalance.ports import MS, Node, Operation, Shipping, leads, may_act
from rebalance.rule import NEVER, Rule
from wal import records as r
from wal.ids import Namespace

LOOK_MS = 1_000
"""From look to look."""
LOOK_AT_OTHERS = 16
"""One look in so many takes in the partitions that others lead, too, in case no tail is left there."""
NAMES_AT_ONCE = 500


class Stability(Rule):
    """The fragments of one node that have a tail."""

    def __init__(self, core: Node, shipping: Shipping) -> None:
        super().__init__()
        self.core = core
        self._shipping = shipping
        self._look_at = 0
        self._looks = 0
        self._looking: list[int] = []  # partitions
        self._stood, self._stands = ByFragment[int](), ByFragment[int]()  # LWM at the last look, and at this one

    @property
    def wake_at(self) -> int:
        """When to look next; never while there is no tail."""
        return self._look_at if self.core.replica.tails.parts and self.core.serving and not self._looking else NEVER

    def tick(self) -> None:
        """Look at all that have a tail, a piece at a time."""
        self._look_at = self.core.now + LOOK_MS * MS
        self._looks += 1
        self._looking = list(self.core.replica.tails.parts)
        self._stood, self._stands = self._stands, ByFragment()
        self.core.resume(self._go_on)

    def _go_on(self) -> None:
        core, looked, others = self.core, 0, not self._looks % LOOK_AT_OTHERS
        while self._looking and looked < NAMES_AT_ONCE:
            number = self._looking.pop()
            looked += self._look_at_all(number) if others or leads(core, number) is not None else 1
            self._stood.parts.pop(number, None)
        core.work += looked
        if self._looking:
            core.resume(self._go_on)

    def _look_at_all(self, number: int) -> int:
        """Say which of those of a partition are stable now; how many there were."""
        core, quiet, local = self.core, list[tuple[Namespace, int]](), self._local(number)
        stood = self._stood.of(number)
        names = list(core.replica.tails.of(number))
        for namespace in names:
            fragment = core.replica.fragments.get((namespace, number))
            if fragment is None or not (fragment.unstable or fragment.beyond):
                core.replica.drop_tail((namespace, number))
            elif local is not None and fragment.unstable and not fragment.loading:
                lwm = fragment.counter.lwm
                if stood.get(namespace) == lwm:
                    quiet.append((namespace, lwm))
                else:
                    self._stands[namespace, number] = lwm
        if quiet and local is not None:
            said = r.Stable(number, local.epoch, quiet)
            core.log(said)
            self._shipping.ship(Operation(local, [said]), local)  # true before it counts, and after it is abandoned
        return len(names)

    def _local(self, number: int) -> LocalPartition | None:
        """The partition, if this node speaks for it."""
        core = self.core
        local = leads(core, number)
        return local if local is not None and local.role is not Role.DRAINING and may_act(core, core.fence) else None
