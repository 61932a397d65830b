"""Asynchronous copies: how they find that they lack something, and ask for it.

```
 primary, a few partitions at a tick                 each asynchronous copy of them
 Stands(fragments, each with LWM and digest) ----->  what was told a round ago is not here, or a digest is another one:
                                          <-----  Demand of all such fragments, as a copy that is MOVING would say it
```

Such a copy gets every write, and nobody waits for it. What is lost on the way is said again, as to a copy that is loading;
but only as long as there is room for what it has not answered, and after that nobody would know. So its primary tells where
it stands, at the pace of anti-entropy, and the copy goes by it. A write that is under way is no lack: what a copy has not
reached it was told of a round before. Nor does a transaction that only reads in a partition move any counter: if one was
prepared here a round ago the copy asks, too, and learns whether it has ended. What it asks for comes in one session with
each primary at a time, by that session's credit, chosen and counted like any transfer: a fragment that goes as rows counts
for nothing before the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rebalance.fragment import FragmentState
from rebalance.messages import Stands
from rebalance.partition import Role
from rebalance.ports import Node, may_act
from rebalance.rule import NewMap, drop
from wal.ids import DECISIONS, Fragment, NodeId, TxId
from wal.probe import probe


class Following:
    """The asynchronous copies of one node, and what it tells those of others."""

    def __init__(self, core: Node, lack: Callable[[Iterable[int]], None]) -> None:
        self._core = core
        self._lack = lack  # copies of these partitions are to ask for what is not here
        self._told: dict[Fragment, int] = {}  # where the primary of a copy of this node stood a round ago
        self._readers: dict[int, dict[TxId, None]] = {}  # what was prepared here then without a write, by partition
        self.lags: dict[int, int] = {}  # partition -> so many updates that had counted when it last told are not here

    def tell(self, numbers: Iterable[int]) -> None:
        """Tell the asynchronous copies of partitions that this node leads where it stands, all of one node at once."""
        core = self._core
        stands: dict[NodeId, list[tuple[str, int, int, int]]] = {}
        for number in numbers:
            for node in core.local[number].placement.asynchronous:
                fragments = core.replica.partition(number).fragments
                told = [(namespace, number, each.counter.lwm, each.digest) for namespace, each in fragments.items()]
                nothing = (DECISIONS, number, 0, 0)  # was written; perhaps something was read
                stands.setdefault(node, []).extend(told or [nothing])
        for node, some in stands.items():
            core.work += len(some)
            core.send(node, Stands(core.fence, some))

    def on_stands(self, sender: NodeId, message: Stands) -> None:
        """A primary tells where it stands: ask for what is not here although it was told of a round ago."""
        core = self._core
        if not may_act(core, message.version):
            return
        core.work += len(message.fragments)
        lacking: dict[int, None] = {}
        lags: dict[int, int] = {}
        for namespace, number, lwm, digest in message.fragments:
            local = core.local[number] if 0 <= number < len(core.local) else None
            if local is None or local.role is not Role.ASYNC or local.placement.primary != sender:
                continue
            fragment = core.replica.fragment((namespace, number))
            before = self._told.get(fragment.name, 0)
            self._told[fragment.name] = lwm
            lags[number] = lags.get(number, 0) + max(0, lwm - fragment.counter.lwm)
            if _lacks(fragment, before) or _differs(fragment, lwm, digest):
                lacking[number] = None
        self.lags |= lags
        lacking |= {number: None for number in lags if self._may_have_ended(number)}
        if lacking:
            probe("following.lacks")
            self._lack(lacking)

    def _may_have_ended(self, number: int) -> bool:
        """Whether a transaction of which no counter tells how it ends was prepared here a round ago."""
        prepared, before = self._core.replica.partition(number).prepared, self._readers.pop(number, {})
        if not prepared:
            return False  # how it nearly always is
        self._core.work += len(prepared)
        if readers := {tx: None for tx, prepare in prepared.items() if not prepare.writes}:
            self._readers[number] = readers
        return any(tx in readers for tx in before)

    def switch(self, new: NewMap) -> None:
        """A new map: what others had told of partitions that it changes means nothing."""
        if not (self._told or self.lags):
            return
        gone = {local.number for local in new.changed}
        for name in [name for name in self._told if name[1] in gone]:
            del self._told[name]
        drop(self.lags, gone)
        drop(self._readers, gone)

    def as_object(self, copies: int) -> dict[str, int]:
        """For a person: how many asynchronous copies are here, and how far behind, as their primaries last told."""
        return {"copies": copies, "updates": sum(self.lags.values())}


def may_tell(node: Node, number: int) -> bool:
    """Whether this node's copy tells who does not mind its age: in sync, or asynchronous and not being made anew."""
    local, state = node.local[number], node.replica.partition(number)
    if local.role is not Role.ASYNC:
        return local.in_sync
    return state.epoch > 0 and not any(f.loading or f.suspects for f in state.fragments.values())


def _lacks(fragment: FragmentState, told: int) -> bool:
    return fragment.loading or fragment.counter.lwm < told


def _differs(fragment: FragmentState, lwm: int, digest: int) -> bool:
    known = fragment.digest_at(lwm) if not fragment.loading and fragment.counter.lwm >= lwm else None
    return known is not None and known != digest
