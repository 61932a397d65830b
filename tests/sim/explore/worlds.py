"""Small worlds of maps, transactions and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.node.node import Node
from engine.protocol.requests import Admin, CommitTx, Done, Failed, Get, GetStatus, Lock, Put, Reply, Status, Swap, Values
from rebalance.table import decode, hash_of
from tests.sim.explore.nodes import Happening, ask
from tests.sim.explore.search import SETTINGS, Fact, Might, SmallWorld, Walk
from wal import records as r
from wal.ids import NO_VERSION, NodeId, Version, partition_of

THREE = ("n1", "n2", "n3")
RESEND_MS = 400


def formed(walk: Walk) -> None:
    """A cluster of all, at rest."""
    names = list(walk.world.names)
    walk.happen(ask(names[0], Admin(1, "init", {"cluster": ["c1"], "nodes": names})))
    walk.deliver_all(lambda letter: letter.kind != "ask-tail")  # it is about a map that is to come first
    walk.deliver_all()
    walk.state = walk.state._replace(facts=frozenset())


def _hash(record: r.Accepted | r.Committed) -> int:
    """Which map it is."""
    return record.map_hash if record.step else hash_of(record.topology)


class _Maps:
    """Which map followed which; a promise that is broken when a version has two successors.

    One table does for all walks: a map carries the hashes of those that led to it, so that its own says what it follows.
    """

    def __init__(self) -> None:
        self._after: dict[int, Version] = {}  # what was accepted, as the successor of which version

    def notice(self, node: NodeId, said: r.Record | Reply) -> Fact | None:
        """A map is accepted somewhere, or committed."""
        match said:
            case r.Accepted():
                after = self._after.setdefault(_hash(said), said.after)
                assert after == said.after, f"one map follows {after} here and {said.after} there"
                return None
            case r.Committed() if self._after.get(_hash(said), NO_VERSION) != NO_VERSION:
                return Fact("committed", self._after[_hash(said)], _hash(said))
            case _:
                return None

    @staticmethod
    def judge(facts: frozenset[Fact]) -> str:
        """One successor for each version."""
        maps = {(fact.about, fact.value) for fact in facts}
        twice = [about for about, count in Counter(about for about, _ in maps).items() if count > 1]
        return f"{twice[0]} is followed by more than one map" if twice else ""


_MAPS = _Maps()
MAPS = (_MAPS.notice, _MAPS.judge)
APART = (("n1", "n3"), ("n3", "n1"))


def _begin(node: NodeId, *names: NodeId) -> Happening:
    return Happening("begin", node, names=names)


TWO_COORDINATORS = SmallWorld(
    "two-coordinators",
    "n1 and n3 each begin an exchange, n1 with n2 and n3 with n2; each node may lose its power once",
    THREE,
    formed,
    (
        Might(_begin("n1", "n1", "n2")),
        Might(_begin("n3", "n2", "n3")),
        Might(Happening("wait", "n1", ms=RESEND_MS)),
        Might(Happening("start", "n2")),
        Might(Happening("start", "n1")),
    ),
    *MAPS,
    depth=40,
    apart=APART,
)

LOST_DISK = SmallWorld(
    "lost-disk",
    "as two-coordinators, and the disk of n2, who votes for both, is lost once",
    THREE,
    formed,
    (
        Might(_begin("n1", "n1", "n2")),
        Might(_begin("n3", "n2", "n3")),
        Might(Happening("wait", "n1", ms=RESEND_MS)),
        Might(Happening("wipe", "n2")),
    ),
    *MAPS,
    depth=40,
    apart=APART,
)

SECOND_BALLOT = SmallWorld(
    "second-ballot",
    "n1 begins an exchange with n2, and n3 does, and when n1 is outbid it begins another; nobody fails",
    THREE,
    formed,
    (Might(_begin("n1", "n1", "n2"), 2), Might(_begin("n3", "n2", "n3"))),
    *MAPS,
    depth=40,
    apart=APART,
)

LED_BEFORE = 3
"""So many ballots of n1 are over when the world begins, and n3 has heard of none."""


def _led_by_n1(walk: Walk) -> None:
    formed(walk)
    for _ in range(LED_BEFORE):
        walk.happen(_begin("n1", "n1", "n2"))
        walk.deliver_all(lambda letter: letter.receiver != "n3")
    walk.state = walk.state._replace(letters=frozenset(), facts=frozenset())


LIGHT_STEP = SmallWorld(
    "light-step",
    "n1 has led some exchanges with n2 and proposes light steps under its ballot, while n3, which heard of nothing, begins",
    THREE,
    _led_by_n1,
    (
        Might(Happening("step", "n1")),
        Might(_begin("n3", "n2", "n3"), 3),
        Might(Happening("step", "n3")),
    ),
    *MAPS,
    depth=40,
    apart=APART,
)

STEP_AND_POWER = SmallWorld(
    "step-and-power",
    "as light-step, with a step of n1 alone; n1 and n2 may lose their power once each",
    THREE,
    _led_by_n1,
    (
        Might(Happening("step", "n1")),
        Might(_begin("n3", "n2", "n3"), 3),
        Might(Happening("wait", "n1", ms=RESEND_MS)),
        Might(Happening("start", "n1")),
        Might(Happening("start", "n2")),
    ),
    *MAPS,
    depth=40,
    apart=APART,
)

JOIN = SmallWorld(
    "join",
    "as light-step, and a step lets n3 in, on its disk or on the next one; n3 begins exchanges, and loses its disk once",
    THREE,
    _led_by_n1,
    (
        Might(Happening("join", "n1", names=("n3", "disk-n3"))),
        Might(Happening("join", "n1", names=("n3", "disk-n3'"))),
        Might(Happening("wipe", "n3")),
        Might(_begin("n3", "n2", "n3"), 3),
        Might(Happening("step", "n1")),
    ),
    *MAPS,
    depth=40,
)

# Who goes. n1 led all, is noted to go, and leads nothing any more; n2 is who leads next.


def _n1_is_about_to_go(walk: Walk) -> None:
    formed(walk)
    for happening in (Happening("stand", "n1"), Happening("note", "n1", names=("n1",)), Happening("move", "n1")):
        walk.happen(happening)
        walk.deliver_all()
    walk.state = walk.state._replace(letters=frozenset(), facts=frozenset())


LEAVE = SmallWorld(
    "leave",
    "n1 is about to go and may yet propose a step; n2 asks for promises and lets it go, while n3 begins, and goes on",
    THREE,
    _n1_is_about_to_go,
    (
        Might(Happening("step", "n1")),
        Might(Happening("stand", "n2")),
        Might(Happening("let-go", "n2", names=("n1",))),
        Might(Happening("step", "n2")),
        Might(_begin("n3", "n2", "n3")),
    ),
    *MAPS,
    depth=40,
)

# Another baseline. n1 alone holds data and votes, and has led some; n2 and n3 came by steps, and have promised nothing.


def _n1_alone_votes(walk: Walk) -> None:
    walk.happen(ask("n1", Admin(1, "init", {"cluster": ["c1"], "nodes": ["n1"]})))
    for _ in range(LED_BEFORE):
        walk.happen(_begin("n1", "n1"))
        walk.deliver_all(lambda letter: letter.receiver == "n1")
    for name in ("n2", "n3"):
        walk.happen(Happening("join", "n1", names=(name, f"disk-{name}")))
        walk.deliver_all()
    walk.state = walk.state._replace(letters=frozenset(), facts=frozenset())


BASELINE = SmallWorld(
    "baseline",
    "by a step of n1, who alone has voted, all three are voters; it goes on with steps, and n2 begins with n3",
    THREE,
    _n1_alone_votes,
    (
        Might(Happening("rebase", "n1", names=THREE)),
        Might(Happening("stand", "n1")),
        Might(Happening("step", "n1")),
        Might(_begin("n2", "n2", "n3")),
    ),
    *MAPS,
    depth=40,
    settings=msgspec.structs.replace(SETTINGS, backups=0),
)

# A transaction over two partitions. In a map of three nodes, n1 is primary of the first and decides, with a copy at n2; n2
# is primary of the second, with a copy at n3.

TX = bytes([7]) * 16
IN_DOUBT_MS = 300
TWO_PARTITIONS = msgspec.structs.replace(SETTINGS, partitions=2, backups=1)


def _key(partition: int) -> bytes:
    return next(b"k%d" % n for n in range(64) if partition_of(b"k%d" % n, 2) == partition)


def _commit_both(number: int) -> CommitTx:
    return CommitTx(number, TX, TX, True, [("acc", [_key(0), _key(1)], [b"1", b"1"])], [], [])


def _asked_to_commit(walk: Walk) -> None:
    formed(walk)
    walk.happen(ask("n1", _commit_both(2)))


def _ends(node: NodeId, said: r.Record | Reply) -> Fact | None:
    """How the transaction ended, on a copy, or as the client was told."""
    match said:
        case r.Prepare(tx, partition):
            return Fact("prepared", tx, partition)
        case r.Outcome(tx, _, _, commit):
            return Fact("outcome", tx, commit)
        case Done(2):
            return Fact("told", TX, True)
        case Failed(2, maybe_committed=False):
            return Fact("told", TX, False)
        case _:
            return None


def _one_end(facts: frozenset[Fact]) -> str:
    """All copies agree, and nobody was told otherwise. Who was told that it failed may hear later that it did not begin."""
    ends = {fact.value for fact in facts if fact.kind == "outcome"}
    told = {fact.value for fact in facts if fact.kind == "told"}
    prepared = {fact.value for fact in facts if fact.kind == "prepared"}
    if True in ends and len(prepared) < TWO_PARTITIONS.partitions:
        return "a transaction is committed that one participant never prepared"
    if len(ends) > 1:
        return "one copy committed what another one rolled back"
    if len(told) > 1 or (told and ends and told != ends):
        return "a client was told another end than the copies have"
    return ""


_N1_DIES = (
    Might(Happening("crash", "n1")),
    Might(_begin("n2", "n2", "n3"), down="n1"),
    Might(Happening("wait", "n2", ms=IN_DOUBT_MS), down="n1"),
)
"""And n2 goes on with n3, and recovers what it finds."""

COMMIT = SmallWorld(
    "commit",
    "a transaction over two partitions; its coordinator n1 loses its power, and n2 goes on with n3 and recovers it",
    THREE,
    _asked_to_commit,
    _N1_DIES,
    _ends,
    _one_end,
    depth=60,
    settings=TWO_PARTITIONS,
)

# The same, and the client, who was told nothing, asks n2 how it ended, and asks it to commit as well.

AGAIN_AT_N2, STATUS = 4, 5


def _ends_and_is_asked(node: NodeId, said: r.Record | Reply) -> Fact | None:
    """How the transaction ended, and what the client was told whenever it asked."""
    match said:
        case Done(id=number) if number == AGAIN_AT_N2:
            return Fact("told", TX, True)
        case Status(id=number, outcome=outcome) if number == STATUS:
            return Fact("told", TX, outcome == "committed")
        case _:
            return _ends(node, said)


def _prepared_everywhere(walk: Walk) -> None:
    """On all copies, and n1 was not told of the vote of n2."""
    _asked_to_commit(walk)
    walk.deliver_all(lambda letter: letter.kind != "vote")


ASKED_AGAIN = SmallWorld(
    "asked-again",
    "as commit, when all is prepared; the client asks n2 how it ended, and asks it to commit, once n1 is dead",
    THREE,
    _prepared_everywhere,
    (
        *_N1_DIES,
        Might(ask("n2", GetStatus(STATUS, TX, 0, 0)), down="n1"),
        Might(ask("n2", _commit_both(AGAIN_AT_N2)), down="n1"),
    ),
    _ends_and_is_asked,
    _one_end,
    depth=60,
    settings=TWO_PARTITIONS,
)

# The same, and another one stands in line at n1 for the key that it writes there.

NEXT = bytes([8]) * 16
LOCK_MS = 60_000


def _asked_by_the_next(walk: Walk) -> None:
    _asked_to_commit(walk)
    walk.happen(ask("n1", Lock(3, NEXT, "acc", [_key(0)], LOCK_MS)))


def _ends_and_is_read(node: NodeId, said: r.Record | Reply) -> Fact | None:
    """How the transaction ended, and what the next one was told of its key."""
    match said:
        case Values(3, [(_, _, value)]):
            return Fact("read", TX, value)
        case _:
            return _ends(node, said)


def _reads_what_ended(facts: frozenset[Fact]) -> str:
    """The same, and what was read is committed, and nothing of what is not."""
    read = {fact.value for fact in facts if fact.kind == "read"}
    ends = {fact.value for fact in facts if fact.kind in ("outcome", "told")}
    prepared = {fact.value for fact in facts if fact.kind == "prepared"}
    if b"1" in read and (False in ends or len(prepared) < TWO_PARTITIONS.partitions):
        return "what is read is never committed"
    if None in read and True in ends:
        return "what is committed is not read"
    return _one_end(facts)


IN_LINE = SmallWorld(
    "in-line",
    "as commit, and another transaction stands in line at n1 for the key that is written there",
    THREE,
    _asked_by_the_next,
    _N1_DIES,
    _ends_and_is_read,
    _reads_what_ended,
    depth=60,
    settings=TWO_PARTITIONS,
)

# A primary that moves. The partition is n1's, with a copy at n2, and a step makes n2 its primary; n3 votes.

AT_THE_OLD, AT_THE_NEW, READ = 2, 3, 4
"""A put at n1, another at n2, and a read at n1 of what n2 has written, begun after that was acknowledged."""
ONE_BACKUP = msgspec.structs.replace(SETTINGS, backups=1)


def _led_by_n1_with_rows(walk: Walk) -> None:
    _led_by_n1(walk)
    walk.happen(ask("n1", _put(1)))
    walk.deliver_all()
    walk.state = walk.state._replace(facts=frozenset())


def _put(number: int) -> Put:
    return Put(number, bytes([number]) * 16, "acc", [b"k%d" % number], [b"there"])


def _told_of_rows(node: NodeId, said: r.Record | Reply) -> Fact | None:
    """What was acknowledged, what was read, and with what an epoch began."""
    match said:
        case Done(id=number) if number in (AT_THE_OLD, AT_THE_NEW):
            return Fact("told", number, True)
        case Values(id=number, values=values) if number == READ:
            return Fact("read", AT_THE_NEW, values[0][2])
        case r.EpochStart(_, epoch, firsts) if epoch > 1:
            return Fact("epoch", epoch, dict(firsts).get("acc", 1))
        case r.Update([write]) if write.origin and any(key == b"k%d" % AT_THE_OLD for key in write.keys):
            return Fact("issued again", AT_THE_OLD, write.epoch)
        case _:
            return _MAPS.notice(node, said)


def _nothing_is_lost(facts: frozenset[Fact]) -> str:
    """One map for each version; what was acknowledged is in the next epoch; what is read knows what was acknowledged."""
    if split := _MAPS.judge(frozenset(fact for fact in facts if fact.kind == "committed")):
        return split
    again = {fact.value for fact in facts if fact.kind == "issued again"}
    begun = {(fact.about, fact.value) for fact in facts if fact.kind == "epoch"}
    if Fact("told", AT_THE_OLD, True) in facts:
        for epoch, first in begun:
            if first == LED_WITH + 1 and epoch not in again:
                return f"epoch {epoch} began without what was acknowledged before"
    if any(fact.kind == "read" and fact.value is None for fact in facts):
        return "a read does not find what was acknowledged before it"
    return ""


LED_WITH = 1
"""So many updates there are when the world begins."""


def _moving(name: str, what: str, *, worse: bool) -> SmallWorld:
    return SmallWorld(
        name,
        what,
        THREE,
        _led_by_n1_with_rows,
        (
            Might(Happening("move", "n1", worse=worse)),
            Might(ask("n1", _put(AT_THE_OLD))),
            Might(ask("n2", _put(AT_THE_NEW))),
            Might(ask("n1", Get(READ, "acc", [b"k%d" % AT_THE_NEW])), seen=Fact("told", AT_THE_NEW, True)),
            Might(_begin("n3", "n2", "n3"), 3),
        ),
        _told_of_rows,
        _nothing_is_lost,
        depth=40,
        settings=ONE_BACKUP,
        apart=APART,
    )


HANDOVER = _moving(
    "handover",
    "a step of n1 moves its partition to n2, clients write at both, and n3, which heard of nothing, may begin with n2",
    worse=False,
)

WRONG_PRIMARY = _moving(
    "wrong-primary",
    "as handover, and the step begins a fence, because the copy is wrong that n1 has",
    worse=True,
)

# A copy that catches up. The partition is n1's; n2 has lost its disk, is let in by a step, and is to have a copy; n3 votes.

BEFORE, MEANWHILE = 2, 3
"""A put while n1 has the only copy, and one while n2 catches up."""


def _n2_has_caught_up(walk: Walk) -> None:
    """n2 has what n1 had when it asked, and is about to say so."""
    formed(walk)
    walk.happen(_begin("n1", "n1", "n3"))
    walk.deliver_all()
    walk.happen(ask("n1", _put(BEFORE)))
    walk.happen(Happening("wipe", "n2"))
    walk.happen(Happening("join", "n1", names=("n2", "disk-n2'")))
    walk.deliver_all()
    walk.happen(Happening("wait", "n1", ms=RESEND_MS))
    walk.deliver_all(lambda letter: letter.kind != "settled")
    walk.state = walk.state._replace(facts=frozenset())


def _told_of_copies(node: NodeId, said: r.Record | Reply) -> Fact | None:
    """What was acknowledged, what n2 has on its disk, and whether it counts."""
    match said:
        case Done(id=number) if number == MEANWHILE:
            return Fact("told", number, True)
        case r.Update([write]) if node == "n2" and b"k%d" % MEANWHILE in write.keys:
            return Fact("has", MEANWHILE, node)
        case r.Preload(keys=keys) if node == "n2" and b"k%d" % MEANWHILE in keys:
            return Fact("has", MEANWHILE, node)
        case r.Committed(topology=data) if data and "n2" in decode(data).placements[0].in_sync:
            return Fact("counts", decode(data).version, "n2")
        case _:
            return None


def _who_counts_has_it(facts: frozenset[Fact]) -> str:
    """What is acknowledged is on the disk of every copy that counts."""
    counts = any(fact.kind == "counts" for fact in facts)
    if counts and Fact("told", MEANWHILE, True) in facts and Fact("has", MEANWHILE, "n2") not in facts:
        return "n2 counts, and does not have what was acknowledged"
    return ""


CATCHING_UP = SmallWorld(
    "catching-up",
    "n1 vouches for n2, which was MOVING, beside a write, and an exchange comes in between",
    THREE,
    _n2_has_caught_up,
    (
        Might(ask("n1", _put(MEANWHILE))),
        Might(_begin("n1", "n1", "n2")),
    ),
    _told_of_copies,
    _who_counts_has_it,
    depth=40,
    settings=ONE_BACKUP,
)

# A client that asks again. The partition is n1's, with a copy at n2; what is asked adds 1.

AGAIN, ELSEWHERE = 2, 3
"""A request, asked of n1 as often as it likes; and the same, of n2."""


def _add(number: int) -> Swap:
    return Swap(number, TX, "acc", b"sum", "always", b"0", b"1", how="add")


def _told_of_sums(_: NodeId, said: r.Record | Reply) -> Fact | None:
    """What the client was told."""
    match said:
        case Done(id=number, applied=True, found=answer) if number in (AGAIN, ELSEWHERE):
            return Fact("told", number, answer)
        case _:
            return None


def _once(facts: frozenset[Fact]) -> str:
    """All answers are one."""
    answers = sorted({repr(fact.value) for fact in facts if fact.kind == "told"})
    return f"a request was told {' and '.join(answers)}" if len(answers) > 1 else ""


REPEAT = SmallWorld(
    "repeat",
    "a client adds 1 by a request that it repeats, at n1 and, when n1 has died, at n2, who goes on with n3",
    THREE,
    formed,
    (
        Might(ask("n1", _add(AGAIN)), 2),
        Might(ask("n2", _add(ELSEWHERE)), 2, down="n1"),
        Might(Happening("wait", "n1", ms=RESEND_MS)),
        Might(Happening("start", "n1")),
        Might(Happening("crash", "n1")),
        Might(_begin("n2", "n2", "n3"), down="n1"),
        Might(Happening("wait", "n2", ms=RESEND_MS), down="n1"),
    ),
    _told_of_sums,
    _once,
    depth=40,
    settings=ONE_BACKUP,
)

# Three who count in one number. The last two come while what the first one wrote is on its way.

COUNT = (1, 2, 3)
AT_THE_NEXT = 10
"""What was asked of n1 is asked again of n2 under a number that is higher by this."""


def _count(number: int) -> Swap:
    return msgspec.structs.replace(_add(number), tx=bytes([number % AT_THE_NEXT]) * 16)


def _three_count(walk: Walk) -> None:
    """What the first one wrote is on both copies, and what the others wrote then is on its way."""
    formed(walk)
    for number in COUNT:
        walk.happen(ask("n1", _count(number)))
    for kind in ("replicate", "replicated"):
        (letter,) = [letter for letter in walk.state.letters if letter.kind == kind]
        walk.happen(Happening("deliver", letter.receiver, letter))


def _told_of_counts(_: NodeId, said: r.Record | Reply) -> Fact | None:
    """What a client was told."""
    match said:
        case Done(id=number, applied=True, found=answer):
            return Fact("told", number % AT_THE_NEXT, answer)
        case _:
            return None


def _each_once(facts: frozenset[Fact]) -> str:
    """Each client is told one sum, another one than all others, and no more than all of them add up to."""
    told = sorted((fact.about, fact.value) for fact in facts if fact.kind == "told")
    clients, sums = {about for about, _ in told}, {value for _, value in told}
    if len(clients) < len(told):
        return "a client was told two sums"
    if len(sums) < len(told):
        return "two clients were told one sum"
    return "somebody has counted twice" if sums - {b"%d" % number for number in COUNT} else ""


COUNTING = SmallWorld(
    "counting",
    "three clients add 1 to one number at n1, two while the first was under way; n1 dies, and they ask n2, who goes on",
    THREE,
    _three_count,
    (
        Might(Happening("crash", "n1")),
        Might(_begin("n2", "n2", "n3"), down="n1"),
        *[Might(ask("n2", _count(number + AT_THE_NEXT)), down="n1") for number in COUNT],
        Might(Happening("start", "n1")),
        Might(ask("n1", _count(COUNT[-1]))),
    ),
    _told_of_counts,
    _each_once,
    depth=40,
    settings=ONE_BACKUP,
)

# An asynchronous copy. n1 leads partitions 0 and 2, of which n2 has such copies, and keeps little to say it again.

BEHIND = msgspec.structs.replace(SETTINGS, partitions=4, backups=0, async_backups=1, backlog_bytes_max=1 << 10)
LARGE = b"x" * BEHIND.backlog_bytes_max


def _at(partition: int, after: int = 0) -> bytes:
    return next(b"k%d" % n for n in range(after, 64) if partition_of(b"k%d" % n, BEHIND.partitions) == partition)


def _commit(number: int, *, prepare_only: bool = False) -> CommitTx:
    """Of what is written in partition 2, and was read in 0."""
    return CommitTx(number, TX, TX, True, [("acc", [_at(2)], [b"1"])], [], [("acc", _at(0), 0, 0)], prepare_only)


def _prepared_by_n1(walk: Walk) -> None:
    formed(walk)
    walk.happen(ask("n1", _commit(2, prepare_only=True)))


def _has_all(nodes: Sequence[Node | None]) -> str:
    """Whether each copy has what its primary has: no counters, and nothing of transactions, are missing or too many."""
    first, second = nodes
    assert first is not None
    assert second is not None
    for number in range(BEHIND.partitions):
        one, other = (node.core.replica.partition(number) for node in (first, second))
        if one.prepared.keys() != other.prepared.keys():
            return f"of what is prepared in partition {number} one copy knows, and the other does not"
        if {name: f.counter.lwm for name, f in one.fragments.items()} != {
            n: f.counter.lwm for n, f in other.fragments.items()
        }:
            return f"what was written in partition {number} one copy has, and the other has not"
    return ""


ASYNCHRONOUS = SmallWorld(
    "asynchronous",
    "n2 has asynchronous copies of partitions of n1: in one a transaction writes, in one it only reads; batches are lost",
    ("n1", "n2"),
    _prepared_by_n1,
    (
        Might(ask("n1", _commit(3))),
        Might(ask("n1", Put(4, NEXT, "acc", [_at(2, after=32)], [LARGE]))),
        Might(Happening("lose", "n2", names=("replicate",))),
        Might(Happening("tell", "n1", ms=RESEND_MS), 3, at_rest=True),
    ),
    _ends,
    _one_end,
    depth=60,
    settings=BEHIND,
    rests=_has_all,
)
