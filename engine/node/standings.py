"""What an operator is told of all fragments of a node, in pieces: there may be hundreds of thousands.

What is told of each is of the moment in which its piece is put together. So where something is written meanwhile it is of
several moments, as what several nodes tell always is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator
from typing import Any

import msgspec

from engine.state.replica import Replica
from engine.turn.core import Core
from rebalance.demanding import Progress
from rebalance.fragment import FragmentState
from rebalance.ports import BYTES_OF_WORK
from wal.ids import Fragment, Namespace, fragment_name

CONTENTS_MAX = 4_096
"""Each digest of contents is a read of the store: where more fragments are asked for none is told."""
COUNTED_AT_ONCE = 1_000
COUNTED_OF_WORK = 40
"""So many partitions, or fragments, are as much work to count as one thing that is decided."""
TOLD_AT_ONCE = 100
TOLD_OF_WORK = 2
"""So many fragments are as much work to tell."""


def counters(core: Core, namespaces: Collection[Namespace], partitions: range | None) -> Generator[int, None, bytes]:
    """Of the fragments of these namespaces and partitions (of all, where none are named), as JSON: LWM, HWM, ranges, digest
    and epoch; and, where few are asked for, contents at the last checkpoint. Yields how much work each piece was."""
    replica, wanted = core.replica, dict.fromkeys(namespaces)
    numbers = sorted(replica.partitions) if partitions is None else [n for n in partitions if n in replica.partitions]
    asked = 0
    for at in range(0, len(numbers), COUNTED_AT_ONCE):
        some = [replica.partitions[number].fragments for number in numbers[at : at + COUNTED_AT_ONCE]]
        asked += sum(map(len, some) if not wanted else [name in fragments for fragments in some for name in wanted])
        yield len(some) * max(1, len(wanted)) // COUNTED_OF_WORK
    reads = asked <= CONTENTS_MAX
    told: list[bytes] = []
    piece: dict[str, dict[str, Any]] = {}
    for looked, number in enumerate(numbers, 1):
        leads = number < len(core.local) and core.local[number].mine
        fragments = replica.partitions[number].fragments
        for namespace in [name for name in fragments if not wanted or name in wanted]:
            if (fragment := fragments.get(namespace)) is None:
                continue  # it went since the last piece
            name = namespace, number
            piece[fragment_name(name)] = _standing(replica, name, fragment, leads=leads, reads=reads)
            if len(piece) >= TOLD_AT_ONCE:
                told.append(msgspec.json.encode(piece)[1:-1])
                yield len(piece) if reads else len(piece) // TOLD_OF_WORK
                piece = {}
        if looked % COUNTED_AT_ONCE == 0:
            yield COUNTED_AT_ONCE // COUNTED_OF_WORK  # also where nothing of them is wanted
    told.append(msgspec.json.encode(piece)[1:-1])
    body = b"{" + b",".join(filter(None, told)) + b"}"
    yield len(body) // BYTES_OF_WORK
    return body


def _standing(replica: Replica, name: Fragment, fragment: FragmentState, *, leads: bool, reads: bool) -> dict[str, Any]:
    contents = replica.store.base.contents(name) if reads else None
    return {
        "lwm": fragment.counter.lwm,
        "hwm": fragment.counter.hwm,
        "ranges": fragment.counter.ranges,
        "digest": f"{fragment.digest:016x}",
        "contents": f"{contents:016x}" if contents is not None else None,
        "epoch": fragment.epochs[-1][0] if fragment.epochs else 0,
        "loading": fragment.loading,
        "primary": leads,
    }


def taken(progress: Progress) -> Generator[int, None, dict[str, Any]]:
    """How a node's copies caught up, since it started: the kinds of their transfers, what they missed, and why so many rows
    were taken. Yields how much work each piece was."""
    kinds, missing, reasons = Counter[str](), Counter[str](), dict[str, str]()
    told = 0
    for looked, name in enumerate(progress.kinds.names(), 1):
        kind = progress.kinds[name]
        kinds[kind] += 1
        missing[kind] += progress.expected.get(name, 0)
        if kind == "full" and (reason := progress.reasons.get(name)) is not None:
            reasons[fragment_name(name)] = reason
        if looked % COUNTED_AT_ONCE == 0:
            yield COUNTED_AT_ONCE // COUNTED_OF_WORK + (len(reasons) - told) // TOLD_OF_WORK
            told = len(reasons)
    yield len(reasons) // COUNTED_OF_WORK
    return {"fragments": dict(kinds), "missing": dict(missing), "reasons": reasons}
