"""What copies say of their tails to a new primary, and what of it is news to whom: plain functions over what was said."""

from __future__ import annotations

from collections.abc import Mapping

from rebalance.fragment import FragmentState
from rebalance.messages import CopyTail
from rebalance.partition import PartitionState, bytes_prepared
from wal import records as r
from wal.ids import Namespace, NodeId
from wal.probe import probe

TAIL_BYTES_MAX = 64 << 20
"""Of what is prepared in one partition, in an answer; no `supply_batch_bytes` may be more."""


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
    for tx, prepare in state.prepared.items():
        if anew or tx not in theirs.prepared:
            size += bytes_prepared(prepare)
            if size > TAIL_BYTES_MAX:
                probe("promotion.left_out_what_was_not_voted_for")
                break
            found.append(prepare)
    return found


def emptied(state: PartitionState) -> bool:
    """Whether a copy survived in name only."""
    return any(fragment.loading for fragment in state.fragments.values())


def lags(answer: CopyTail, namespace: Namespace, fragment: FragmentState, lowest: int, epoch: int) -> bool:
    """Whether a survivor does not have exactly what this copy has of a fragment."""
    if lowest < epoch:
        return True
    report = next((f for f in answer.fragments if f.namespace == namespace), None)
    mine = (fragment.counter.lwm, fragment.counter.ranges)
    theirs = (report.lwm, tuple(report.ranges)) if report else (0, ())
    return mine != theirs
