"""Small worlds in which a cut of two partitions is taken beside what clients write, and read (`docs/cut.md`).

n1 leads partition 0 and numbers the eras, n2 leads partition 1, and each has a copy of the other's. What has to come after
something else may begin only once a client was told of that: so each fact here is of one order, and a promise about before
and after needs no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from engine.protocol.requests import CommitTx, Cut, Done, Get, Put, Reply, Request, TakeCut, Values
from tests.sim.explore.nodes import Happening, ask
from tests.sim.explore.search import SETTINGS, Fact, Judge, Might, SmallWorld, Walk
from tests.sim.explore.worlds import formed
from wal import records as r
from wal.ids import Era, NodeId, Version, partition_of

TWO = ("n1", "n2")
PARTITIONS = 2
ROOM = msgspec.structs.replace(SETTINGS, partitions=PARTITIONS, backups=1)
CUT: Era = (Version(1, 0).number, 1)
"""The first one that is taken in a cluster that has just been formed."""
LATE_MS = 1_100
"""Longer than answers are withheld."""
TX = bytes([7]) * 16

TAKE, FIRST, SECOND, AFTER, LATER, BOTH, SEEN, RESTS, BESIDE, AT_FIRST, AT_SECOND = range(2, 13)
"""Requests: the cut; a put, another one once that was acknowledged, one once the cut was handed out, and a read of the
first one by then; a transaction in both partitions, a read of what it writes in the second, and a put once that was read;
a put at any time; and what is read at the cut."""


def _key(request: int, partition: int) -> bytes:
    return next(
        b"%d-%d" % (request, n) for n in range(64) if partition_of(b"%d-%d" % (request, n), PARTITIONS) == partition
    )


def _put(request: int, partition: int) -> Request:
    return Put(request, bytes([request]) * 16, "acc", [_key(request, partition)], [b"there"])


def _commit() -> Request:
    return CommitTx(BOTH, TX, TX, True, [("acc", [_key(BOTH, 0), _key(BOTH, 1)], [b"there", b"there"])], [], [])


def _at_the_cut(request: int, *keys: bytes) -> Request:
    return Get(request, "acc", list(keys), cut=CUT)


WRITTEN = {
    AT_FIRST: (FIRST, AFTER, BOTH, RESTS),
    AT_SECOND: (SECOND, BOTH),
}
"""Whose keys a read at the cut asks for."""
_TAKEN = Fact("cut", TAKE, CUT)
_READ_AT_THE_CUT = (
    Might(ask("n1", _at_the_cut(AT_FIRST, *(_key(w, 0) for w in WRITTEN[AT_FIRST]))), 2, seen=_TAKEN),
    Might(ask("n2", _at_the_cut(AT_SECOND, *(_key(w, 1) for w in WRITTEN[AT_SECOND]))), seen=_TAKEN),
)


def _told_of_cuts(node: NodeId, said: r.Record | Reply) -> Fact | None:
    """What was acknowledged, whether the cut was handed out, and whose writes were found at it."""
    match said:
        case Cut(id, cut):
            return Fact("cut", id, cut)
        case Done(id):
            return Fact("told", id, True)
        case Values(id, values) if id in WRITTEN:
            there = frozenset(w for w, (_, _, value) in zip(WRITTEN[id], values, strict=True) if value is not None)
            return Fact("at the cut", id, there)
        case Values(id=request, values=[(_, _, value)]):
            return Fact("read", request, value is not None)
        case _:
            return None


def _found(facts: frozenset[Fact], at: int) -> frozenset[int] | None:
    """Whose writes a read at the cut found, if it was read."""
    return next((cast("frozenset[int]", f.value) for f in facts if f.kind == "at the cut" and f.about == at), None)


def _one_moment(facts: frozenset[Fact]) -> str:
    """The cut stands at a moment between its being asked for and handed out, and is the same each time."""
    first, second = _found(facts, AT_FIRST), _found(facts, AT_SECOND)
    both = first is not None and second is not None
    if sum(fact.kind == "at the cut" for fact in facts) > (first is not None) + (second is not None):
        return "what was read at the cut is another thing the next time"
    first, second = first or frozenset(), second or frozenset()
    if AFTER in first:
        return "what was written after the cut was handed out is in it"
    if FIRST in first and Fact("read", LATER, False) in facts:
        return "what nobody could read when the cut was handed out is in it"
    if both and (BOTH in first) != (BOTH in second):
        return "a transaction is on both sides of the cut"
    if both and RESTS in first and BOTH not in second:
        return "what was written by who had read a transaction is in the cut, and the transaction is not"
    if both and SECOND in second and FIRST not in first:
        return "what was written after something was acknowledged is in the cut, and that is not"
    return ""


def _with_what_was_before(before: int) -> Judge:
    """The same, and what was acknowledged before the cut was asked for is in it."""

    def judge(facts: frozenset[Fact]) -> str:
        found = {at: _found(facts, at) for at, written in WRITTEN.items() if before in written}
        if any(there is not None and before not in there for there in found.values()):
            return "what was acknowledged before the cut was asked for is not in it"
        return _one_moment(facts)

    return judge


_TAKE = ask("n1", TakeCut(TAKE, TX))


def _taking(walk: Walk) -> None:
    """A cut was asked for."""
    formed(walk)
    walk.happen(_TAKE)


def _asked(walk: Walk) -> None:
    """A transaction in both partitions is under way."""
    formed(walk)
    walk.happen(ask("n1", _commit()))


def _prepared(walk: Walk) -> None:
    """It is prepared on all copies, and that of n2 was not told to n1."""
    _asked(walk)
    walk.deliver_all(lambda letter: letter.kind != "vote")


def _world(
    name: str, about: str, *may: Might, begin: Callable[[Walk], None] = formed, judge: Judge = _one_moment
) -> SmallWorld:
    return SmallWorld(name, about, TWO, begin, (*may, *_READ_AT_THE_CUT), _told_of_cuts, judge, depth=60, settings=ROOM)


CUT_AND_PUTS = _world(
    "cut-and-puts",
    "a cut is taken at any time; a put at n1, one at n2 when that was acknowledged, one at n1 when the cut was handed out",
    Might(_TAKE),
    Might(ask("n1", _put(FIRST, 0))),
    Might(ask("n2", _put(SECOND, 1)), seen=Fact("told", FIRST, True)),
    Might(ask("n1", _put(AFTER, 0)), seen=_TAKEN),
    Might(ask("n1", Get(LATER, "acc", [_key(FIRST, 0)])), seen=_TAKEN),
)

CUT_AND_LATE = _world(
    "cut-and-late",
    "the same when it was asked for; n1 and n2 may wait longer than answers are withheld",
    Might(ask("n1", _put(FIRST, 0))),
    Might(ask("n2", _put(SECOND, 1)), seen=Fact("told", FIRST, True)),
    *(Might(Happening("wait", node, ms=LATE_MS)) for node in TWO),
    begin=_taking,
)

CUT_AND_COMMIT = _world(
    "cut-and-commit",
    "a cut is taken at any time while a transaction at n1 and n2 is under way",
    Might(_TAKE),
    begin=_asked,
)

CUT_AND_READER = _world(
    "cut-and-reader",
    "the same when it is prepared; and who has read at n2 what it writes puts at n1",
    Might(_TAKE),
    Might(ask("n2", Get(SEEN, "acc", [_key(BOTH, 1)]))),
    Might(ask("n1", _put(RESTS, 0)), seen=Fact("read", SEEN, True)),
    begin=_prepared,
)

CUT_AFTER_COMMIT = _world(
    "cut-after-commit",
    "a cut is taken when it was acknowledged, beside a put",
    Might(_TAKE, seen=Fact("told", BOTH, True)),
    Might(ask("n2", _put(BESIDE, 1))),
    begin=_prepared,
    judge=_with_what_was_before(BOTH),
)
