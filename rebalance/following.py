"""Asynchronous copies: how they find that they lack something, or have something else, and ask for it.

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

Where nothing is lacking something may be wrong all the same: a row that had rotted on the primary, and that nobody had
read yet, fills a copy like any other; and the copy proves its rows, as they are what it was told. So a primary that has
summed up what it contains, for the copies in sync, shows it to these as well; nobody waits for what they make of it.

```
 primary, of the same partitions                     each asynchronous copy of them
 Proofs(round 0: what it contains) --------------->  sums up what it has; at the same counters it is another sum:
                                          <-----  AskProofs(read=[it])
 reads its rows
 Proofs(round 0: ..., proven) -------------------->  is another one still: takes it anew, the rows that differ
```

Only what is proven is taken over, and only while no copy in sync is suspected of anything. Neither side remembers anything
for the other between two rounds, so that what is lost, or was said to an older version, costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rebalance.comparing import CHANGED_MAX, sum_up
from rebalance.fragment import FragmentState
from rebalance.messages import AskProofs, Contents, CopyProof, Proofs, Stands
from rebalance.partition import Role
from rebalance.ports import Node, leads, may_act
from rebalance.rule import NewMap, drop
from wal.ids import DECISIONS, Fragment, NodeId, TxId, fragment_name
from wal.probe import probe

UNASKED = 0
"""The round of what is shown to asynchronous copies: no question has it."""
READ_AT_ONCE = 32
"""Fragments of a partition that a primary is asked to read; others are found again in a later round."""


class Following:
    """The asynchronous copies of one node, and what it tells those of others."""

    def __init__(
        self, core: Node, lack: Callable[[Iterable[int]], None], renew: Callable[[list[Fragment], str], str]
    ) -> None:
        self._core = core
        self._lack = lack  # copies of these partitions are to ask for what is not here
        self._renew = renew  # these are to be taken anew, the rows that differ, for a reason
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
            if not self._follows(number, sender):
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

    def _follows(self, number: int, primary: NodeId) -> bool:
        """Whether this node has an asynchronous copy of a partition, if there is such a one, that this one leads."""
        local = self._core.local[number] if 0 <= number < len(self._core.local) else None
        return local is not None and local.role is Role.ASYNC and local.placement.primary == primary

    def show(self, proofs: Sequence[CopyProof]) -> None:
        """Tell the asynchronous copies of partitions that this node leads what it contains, all of one node at once."""
        core = self._core
        told: dict[NodeId, list[CopyProof]] = {}
        for proof in proofs:
            if proof.contents and leads(core, proof.partition) is not None:
                core.work += len(proof.contents)
                for node in core.local[proof.partition].placement.asynchronous:
                    told.setdefault(node, []).append(proof)
        for node, some in told.items():
            core.send(node, Proofs(core.fence, UNASKED, some))

    def on_shown(self, primary: NodeId, proofs: Sequence[CopyProof]) -> None:
        """A primary shows what it contains: sum up what is here of it."""
        for proof in proofs:
            if self._follows(proof.partition, primary):
                sum_up(self._core, proof.partition, partial(self._compare, primary, proof), changed_max=CHANGED_MAX)

    def _compare(self, primary: NodeId, shown: CopyProof, contents: list[Contents] | None) -> None:
        """What is another one here, at the same counters, is to be read there, or was."""
        core, number = self._core, shown.partition
        if contents is None or not self._follows(number, primary):
            return
        here = {each.namespace: each for each in contents}
        differing = [
            theirs
            for theirs in shown.contents or ()
            if (mine := here.get(theirs.namespace)) is not None and _is_another(mine, theirs)
        ]
        core.work += len(here)
        doubted: list[Fragment] = []
        for theirs in differing:
            name, mine = (theirs.namespace, number), here[theirs.namespace]
            if theirs.namespace in shown.proven:
                probe("following.filled_wrong")
                digests = f"digest {theirs.digest:016x} at lwm={theirs.lwm}, {mine.digest:016x} here"
                core.note(
                    f"{primary} has other rows of {fragment_name(name)}, and proves them ({digests}): they are taken anew"
                )
                self._renew([name], "anti-entropy: its primary proves other rows")
            elif theirs.namespace not in shown.disproved:
                doubted.append(name)
        if doubted:
            probe("following.doubts")
            core.send(primary, AskProofs(core.fence, UNASKED, [], doubted[:READ_AT_ONCE]))

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


def _is_another(mine: Contents, theirs: Contents) -> bool:
    """Whether something else came of the same: a history that differs, or a gap, is for `Stands`."""
    same = (mine.lwm, mine.history) == (theirs.lwm, theirs.history) and not (mine.ranges or theirs.ranges)
    return same and mine.digest != theirs.digest
