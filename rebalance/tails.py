"""What copies say of their tails to a new primary, and what of it is news to whom: plain functions over what was said.

What one of them has that the other lacks may be much, so it is told in parts. Each is asked for, and made of what is here
then: that stays as it is until the new primary begins its epoch, which it does when it has heard all. Where what is told is
not as long as it was, because a step came in between, it is told from the beginning.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import chain, islice

from msgspec import structs

from rebalance.fragment import FragmentState
from rebalance.messages import ROW_BYTES, CopyTail, TailReport
from rebalance.partition import PartitionState, bytes_prepared
from rebalance.ports import BYTES_OF_WORK, WORK_MAX
from wal import records as r
from wal.ids import NodeId
from wal.probe import probe

TAIL_BYTES_MAX = 64 << 20
"""Of what is prepared in one partition, in an answer; no `supply_batch_bytes` may be more."""

PART_WORK = WORK_MAX // 2
"""Of what one message tells: it is put together in one turn, and taken in one. What is larger goes by itself."""


def answer_to(theirs: CopyTail, mine: CopyTail, state: PartitionState, *, in_parts: bool) -> CopyTail:
    """What a copy tells who asked, as far as it goes into one message, if that one asks on; `mine` is what it has.

    Raises ValueError where nobody can have what was said.
    """
    writes, prepares = lacked_by(theirs, state), prepared_for(theirs, state)
    if not in_parts:
        return structs.replace(mine, writes=writes, prepares=prepares)
    many = len(writes) + len(prepares)
    told = theirs.told if theirs.told <= many else 0
    before, work, count = max(0, told - len(writes)), 0, 0
    for some in chain(([w] for w in islice(writes, told, None)), (p.writes for p in islice(prepares, before, None))):
        if work >= PART_WORK:
            probe("promotion.answers_in_parts")
            break
        work += _work_of(some)
        count += 1
    of_writes = min(count, max(0, len(writes) - told))
    return structs.replace(
        mine,
        writes=writes[told : told + of_writes],
        prepares=prepares[before : before + count - of_writes],
        told=told,
        left=many - told - count,
    )


def work_to_tell(answer: CopyTail) -> int:
    """What it is to say an answer, or to hear it; to take what it brings is another thing."""
    writes = sum(_work_of([write]) for write in answer.writes)
    return 1 + len(answer.fragments) + writes + sum(_work_of(prepare.writes) for prepare in answer.prepares)


def size_of_tail(answer: CopyTail) -> int:
    """How many bytes the writes in an answer have."""
    return _size_of(answer.writes) + sum(_size_of(prepare.writes) for prepare in answer.prepares)


def _size_of(writes: list[r.Write]) -> int:
    return sum(ROW_BYTES * len(w.keys) + sum(map(len, w.keys)) + sum(map(len, filter(None, w.values))) for w in writes)


def _work_of(writes: list[r.Write]) -> int:
    return 1 + _size_of(writes) // BYTES_OF_WORK


class Told:
    """What survivors have told of partitions of which something is left to tell."""

    def __init__(self) -> None:
        self._so_far: dict[tuple[int, NodeId], CopyTail] = {}

    def hear(self, survivor: NodeId, part: CopyTail) -> tuple[CopyTail | None, bool]:
        """All that it has to tell, if this was the last part; and whether it is asked on, where this was news."""
        key = part.partition, survivor
        before = self._so_far.pop(key, None)
        told = _joined(before, part)
        if told is None:
            probe("promotion.is_told_from_the_beginning")
            return None, True
        if not told.left:
            return told, False
        self._so_far[key] = told
        return None, told is not before

    def question(self, survivor: NodeId, mine: CopyTail) -> CopyTail:
        """What it is asked: what is here, and how much of its answer is."""
        told = self._so_far.get((mine.partition, survivor)) if self._so_far else None
        return mine if told is None else structs.replace(mine, told=_end_of(told))

    def keep(self, waiting: Mapping[int, Container[NodeId]]) -> None:
        """Of these partitions these are asked on, and nobody else."""
        for key in [key for key in self._so_far if key[1] not in waiting.get(key[0], ())]:
            del self._so_far[key]


def _joined(before: CopyTail | None, part: CopyTail) -> CopyTail | None:
    """What was told so far, with another part; None: that does not follow."""
    if before is None or (before.epoch, _end_of(before) + before.left) != (part.epoch, _end_of(part) + part.left):
        return None if part.told else part
    if part.told != _end_of(before):
        return before
    return structs.replace(part, writes=before.writes + part.writes, prepares=before.prepares + part.prepares, told=0)


def _end_of(answer: CopyTail) -> int:
    return answer.told + len(answer.writes) + len(answer.prepares)


def newest_first(answers: Mapping[NodeId, CopyTail | None]) -> list[CopyTail]:
    """Those who have answered, who took part in the newest epoch first."""
    return sorted((a for a in answers.values() if a is not None), key=lambda a: -a.epoch)


def can_be(answer: CopyTail, epoch: int) -> bool:
    """Whether a survivor can have that: of this partition alone, of epochs that are over, and whole."""
    number, prepares = answer.partition, answer.prepares
    writes = answer.writes + [write for prepare in prepares for write in prepare.writes]
    return (
        answer.epoch < epoch
        and all(prepare.partition == number and prepare.epoch < epoch for prepare in prepares)
        and all(w.partition == number and w.epoch < epoch and len(w.keys) == len(w.values) for w in writes)
    )


def lacked_by(theirs: CopyTail, state: PartitionState) -> list[r.Write]:
    """What a copy lacks of this one; raises ValueError where it cannot have what it says."""
    known = {report.namespace: report for report in theirs.fragments} if theirs.epoch >= state.epoch else {}
    writes: list[r.Write] = []
    for namespace, fragment in state.fragments.items():
        report = known.get(namespace)
        writes.extend(fragment.lacking(*((report.lwm, report.ranges) if report is not None else (fragment.stable, []))))
    return writes


def prepared_for(theirs: CopyTail, state: PartitionState) -> list[r.Prepare]:
    """What is prepared here and is to be told to a copy, because it lacks it or will.

    A copy that lacks this one's epoch forgets with its beginning what was prepared before it, unless that was issued again
    first. So it is told all of it, if that is no more than may come with an epoch's beginning on whichever node. What is
    more was issued again before on all copies; and what of it has no room here some copy in sync lacks, so that it was not
    voted for and may be closed.
    """
    anew = state.epoch > theirs.epoch and state.prepared_bytes <= TAIL_BYTES_MAX
    found, size = list[r.Prepare](), 0
    known = dict.fromkeys(theirs.prepared)
    for tx, prepare in state.prepared.items():
        if anew or tx not in known:
            size += bytes_prepared(prepare)
            if size > TAIL_BYTES_MAX:
                probe("promotion.left_out_what_was_not_voted_for")
                break
            found.append(prepare)
    return found


def emptied(state: PartitionState) -> bool:
    """Whether a copy survived in name only."""
    return any(fragment.loading for fragment in state.fragments.values())


def lagged(answers: Iterable[CopyTail], state: PartitionState, lowest: int) -> list[FragmentState]:
    """Of which fragments some survivor does not have exactly what this copy has; `lowest`: the oldest of their epochs."""
    if lowest < state.epoch:
        return list(state.fragments.values())
    said = [{report.namespace: report for report in answer.fragments} for answer in answers]
    return [f for namespace, f in state.fragments.items() if any(_lags(reports.get(namespace), f) for reports in said)]


def _lags(report: TailReport | None, fragment: FragmentState) -> bool:
    mine = (fragment.counter.lwm, fragment.counter.ranges)
    theirs = (report.lwm, tuple(report.ranges)) if report else (0, ())
    return mine != theirs
