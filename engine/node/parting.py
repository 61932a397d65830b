"""What a primary has begun in partitions that the next map takes from it is given up before that map takes effect.

A map takes effect in one step, and what does not count yet in a partition that another node leads from there on is part of
this copy then, whoever asked for it asks there, and whoever waits for a key waits in vain. Of thousands that is more than a
turn may do. But as soon as the map is chosen nothing else can come of them: the epoch in which they were decided is over.
So they are given up in pieces while the node has the old map still, as if the new one came later
(`engine.cluster.foresight`).

What this copy has there need not count from then on, so nobody may see it who goes by the old map:

- The node is frozen (`Core.part`), as it is from its single map on: nothing is begun, voted on, decided or shipped.
- Reads that wait for the word of the copies are asked again, which now means: after the map.
- Snapshots do not reach into these partitions any more, and nothing is supplied from there.

Who waits for a key goes first: else it would have the key of a write that was given up, and be told what that wrote.
Whatever is left, of little or of what came in between, the map itself gives up.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain, islice

from engine.data.cuts import Cuts
from engine.data.locks import KEYS_OF_ONE, LockTable
from engine.data.reads import Reads
from engine.data.replication import Replication
from engine.transactions.coordinator import Coordinator
from rebalance.supplier import SupplySide

MUCH = 500
"""As much is given up by the map itself, and not before."""
WAITER_WORK = 3
"""To tell somebody that it waits in vain, beside what its keys take."""


class Parting:
    """Of one node, from the partitions that it leads."""

    def __init__(
        self,
        *,
        locks: LockTable,
        replication: Replication,
        coordinator: Coordinator,
        reads: Reads,
        cuts: Cuts,
        supply: SupplySide,
    ) -> None:
        self._replication = replication
        self._reads = reads
        self._cuts = cuts
        self._supply = supply
        self._locks = locks
        self._coordinator = coordinator
        self.much = MUCH

    def gives_up(self, ending: dict[int, None]) -> Iterator[int] | None:
        """Give up what is under way in partitions that the next map takes, in pieces; None: that is not much."""
        if not self._is_much(ending):
            return None
        for number in ending:
            self._cuts.lose(number)
        self._supply.leave(ending)
        self._reads.switch()
        return chain(
            (WAITER_WORK + keys // KEYS_OF_ONE for keys in self._locks.waiting_in_vain(ending)),
            self._replication.giving_up(ending),
            self._coordinator.turning_away(ending),
        )

    def _is_much(self, ending: Container[int]) -> bool:
        under_way = chain(
            self._locks.wait_in(ending),
            self._replication.under_way_in(ending),
            self._coordinator.decided_in(ending),
        )
        return next(islice(under_way, self.much, None), None) is not None
