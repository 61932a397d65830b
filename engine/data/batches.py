"""One batch of replication: operations that went to the same copies together, and who has answered."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.data.concerns import LARGE_WORK, work_of
from engine.data.sizes import batches_of, size_of, work_to_say
from engine.state.ahead import AllAhead
from engine.turn.core import Core
from rebalance.partition import LocalPartition, Receivers
from rebalance.ports import BYTES_OF_WORK, MS, WORK_MAX, Shipped
from rebalance.travelling import travels_ns
from wal import records as r
from wal.ids import NodeId
from wal.probe import probe

PATIENCE_MAX = 16
"""A batch is sent again after `retransmit_ms`, then after twice that, and so on, up to so many times as much: sending
large batches again while they are in transit would leave no room for anything else."""
NEVER_SENT = -(1 << 62)
SOON = 4
"""What was lost, as far as can be told, is sent again after this fraction of `retransmit_ms`: a member that leaves a batch
unanswered for `suspicion_ms` is set aside, and one whose answers are lost now and then must not be taken for it."""
FEW = 8
LOOKED_OF_WORK = 8
"""So many operations of which it is seen whose they are, are as much work as one that is decided."""
SMALL_BYTES = 64 << 10
"""Where so few batches are under way, a small one that is not answered is as good as lost."""


class Batch:
    """Operations that went to the same copies together."""

    __slots__ = (
        "acked",
        "ahead",
        "being_worked_out",
        "bytes",
        "counts",
        "due",
        "lagging",
        "operations",
        "partitions",
        "patience",
        "records",
        "said",
        "sent_at",
        "sequence",
        "since",
        "size",
        "spare_since",
        "travels",
        "waiting",
    )

    def __init__(self, sequence: int, operations: list[Shipped], receivers: Receivers, acked: dict[NodeId, None]) -> None:
        self.sequence = sequence
        self.operations = operations
        self.records: list[r.Record] = [record for o in operations for record in o.records]
        self.acked = acked
        self.waiting = {n: 0 for n in receivers[0] if n not in acked}  # since when (spare), if not since it was sent
        self.lagging = {n: None for n in receivers[1] if n not in acked}  # MOVING copies that have not answered
        self.partitions: tuple[int, ...] = ()  # that it touches, if there are MOVING copies
        self.counts = False
        self.ahead: AllAhead | None = None  # what it writes, worked out, if it is large
        self.being_worked_out = False  # and does not count before that is done
        self.due = 0  # when it is sent again
        self.patience = 0  # from one sending to the next
        self.said = 0  # the newest batch there was when it was sent last; 0: it is to be sent
        self.bytes = 0
        self.since = 0  # when it was first sent, in the time for which this node was attentive
        self.spare_since = 0  # the same, in the time that it had to spare
        self.size = 0  # bytes, once somebody asked
        self.sent_at = NEVER_SENT  # the last time, over a connection that is still there
        self.travels = 0  # ns, for which it may be on its way to a copy

    def those_in(self, partitions: Container[int]) -> list[Shipped]:
        """What of it lies in some partitions, and does not count yet."""
        return [o for o in self.operations if o.partition in partitions] if not self.counts else []

    def take_out(self, partitions: Container[int]) -> list[Shipped]:
        """The same, which is not in it from now on: a copy that answers answers for the rest of it."""
        if gone := self.those_in(partitions):
            self.operations = [operation for operation in self.operations if operation.partition not in partitions]
            self.records = [record for operation in self.operations for record in operation.records]
        return gone

    def is_on_its_way(self, core: Core, answered: Mapping[NodeId, int], before: int) -> bool:
        """Whether it may still arrive: `before` it so many bytes were sent to copies that have not answered either.

        It will not if one of them answered what was sent after it.
        """
        self.travels = max(self.travels, travels_ns(before + self.size, core.settings))
        if not self.travels or core.now >= self.sent_at + core.settings.retransmit_ms * MS + self.travels:
            return False
        return not any(answered.get(node, 0) > self.said for node in (*self.waiting, *self.lagging))


class Again(NamedTuple):
    """Operations that went, or were to go, to the copies of the map before; `small`: none of them writes very much."""

    operations: list[Shipped]
    acked: Mapping[NodeId, None] = {}
    counts: bool = False
    small: bool = False


class Regrouped(NamedTuple):
    """To which copies operations go by now, who of these has answered, and whether they count already; those that all have
    answered, so that they come to count with the map; those that do not count and are another primary's; and of the first
    those that may write very much."""

    going: dict[tuple[Receivers, tuple[NodeId, ...], bool], list[Shipped]]
    everywhere: list[Shipped]
    lost: list[Shipped]
    unsure: dict[Shipped, None]


def regroup(again: Iterable[Again], partitions: Sequence[LocalPartition]) -> Regrouped:
    """What becomes of operations that went, or were to go, to the copies of the map before."""
    found = going, all_have, lost, unsure = Regrouped({}, [], [], {})
    for operations, acked, counts, small in again:
        to, into = None, all_have
        for operation in operations:
            local = partitions[operation.partition]
            if local.role.leads and local.epoch == operation.epoch:
                if local.receivers is not to:  # of very many operations nearly all go to the same copies
                    to = local.receivers
                    over = small and not counts and acked.keys() >= {*to[0], *to[1]}
                    into = all_have if over else going.setdefault((to, tuple(acked), counts), [])
                into.append(operation)
                if not small:
                    unsure[operation] = None
            elif not counts:
                lost.append(operation)
    return found


def pieces_again(
    regrouped: Regrouped, large_in: Callable[[Sequence[r.Record]], list[r.Write]], done: int
) -> Iterator[tuple[list[Shipped], Receivers, dict[NodeId, None], bool, bool, bool]]:
    """What goes together once more: to whom, who has answered, whether it counts, and is large; and whether it is left to
    be sent in later turns, because of what was before it this one, which has `done` so much, has enough to send."""
    said, unsure = done, regrouped.unsure

    def has_room(work: int) -> bool:
        """Whether this turn says so much more: something in any case."""
        nonlocal said
        said, before = said + work, said
        return not before or said <= WORK_MAX

    for (receivers, acked, counts), operations in regrouped.going.items():
        large = {o: None for o in operations if o in unsure and large_in(o.records)} if unsure and not counts else {}
        for piece, work in batches_of([o for o in operations if o not in large] if large else operations):
            most = work if work < LARGE_WORK else max(work, *[work_to_say(operation.records) for operation in piece])
            yield piece, receivers, dict.fromkeys(acked), counts, False, not has_room(most)
        for operation in large:
            yield [operation], receivers, dict.fromkeys(acked), False, True, not has_room(work_to_say(operation.records))


def work_to_give_up(lost: Sequence[Shipped], others: Sequence[Shipped]) -> int:
    """How much work it is to give up operations, and to see that `others` are not to be."""
    return len(others) // LOOKED_OF_WORK + len(lost) + sum([work_of(record) for o in lost for record in o.records])


def late_in(batches: Iterable[Batch], core: Core, answered: Mapping[NodeId, int], *, under_way: int) -> Iterator[Batch]:
    """Those of these that are to be sent now, oldest first: what a map left to be, too; some in any turn."""
    began, looked, before = False, False, 0
    for batch in batches:
        if batch.said and not batch.size and (core.work < WORK_MAX or not looked):
            looked, batch.size = True, size_of(batch.records)
            core.work += len(batch.records) + batch.size // BYTES_OF_WORK
        if core.now >= batch.due and batch.size and batch.is_on_its_way(core, answered, before):
            probe("replication.on_its_way")
            batch.due = core.now + core.settings.retransmit_ms * MS
        elif core.now >= batch.due and (core.work < WORK_MAX or not (batch.said or began)):
            began = True
            core.work += work_to_say(batch.records)
            batch.patience = patience_of(batch, core, answered, under_way)
            batch.due = core.now + batch.patience
            yield batch
        before += batch.size


def forget_sent(batches: Iterable[Batch], node: NodeId) -> None:
    """What was on its way to a node is not any more."""
    for batch in batches:
        if node in batch.waiting or node in batch.lagging:
            batch.sent_at = NEVER_SENT


def stalled_in(batches: Iterable[Batch], limit: int) -> list[NodeId]:
    """The copies that are waited for since before `limit`, by `Core.spare`, in batches, oldest first."""
    found: dict[NodeId, None] = {}
    for batch in batches:
        if batch.spare_since > limit:
            break
        still = limit - batch.travels
        if batch.spare_since <= still:
            found |= {node: None for node, since in batch.waiting.items() if since <= still}
    return list(found)


def behind_in(batches: Iterable[Batch], core: Core, answered: Mapping[NodeId, int]) -> list[NodeId]:
    """The MOVING copies that nobody should begin to wait for: for twice as long as it takes to be suspected they have
    answered nothing, and for more than twice as long as any copy that is waited for; where all are late, so may they be."""
    waited: dict[NodeId, int] = {}
    moving: dict[NodeId, int] = {}
    for batch in batches:
        for node in batch.waiting:
            waited.setdefault(node, core.attentive - batch.since)
        for node in batch.lagging:
            if answered.get(node, 0) < batch.sequence:
                moving.setdefault(node, core.attentive - batch.since - batch.travels)
    least = 2 * core.settings.suspicion_ms * MS
    return [n for n, late in moving.items() if late > max([least, *(2 * t for m, t in waited.items() if m != n)])]


def lags_ms_in(batches: Iterable[Batch], now: int) -> dict[NodeId, int]:
    """For how long each copy has not answered the oldest of these batches that it has to."""
    found: dict[NodeId, int] = {}
    for batch in batches:
        for node in (*batch.waiting, *batch.lagging):
            found.setdefault(node, (now - batch.since) // MS)
    return found


def patience_of(batch: Batch, core: Core, answered: Mapping[NodeId, int], under_way: int) -> int:
    """For how long a batch that is sent again now is left alone: the longer each time, unless it seems to be lost.

    It is if a copy that is waited for `answered` what was sent after it; and perhaps, until that copy is late, if there is
    little that it has to answer, of how many are `under_way`. That little never has to wait for long.
    """
    pause = core.settings.retransmit_ms * MS
    if not batch.said:
        return pause
    if any(answered.get(node, 0) > batch.said for node in batch.waiting):
        probe("replication.answered_what_came_later")
        return pause // SOON
    little = bool(batch.waiting) and under_way <= FEW and batch.size <= SMALL_BYTES
    if little and core.attentive < batch.since + core.settings.suspicion_ms * MS:
        return pause // SOON
    return min(2 * batch.patience, pause if little else PATIENCE_MAX * pause)
