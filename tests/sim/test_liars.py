"""Members whose words mean nothing: what is said to a node ends no node, and it goes on to serve.

What was found so is told one by one below; `python -m tests.sim nonsense --lies` looks further.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from engine.errors import ProtocolError
from engine.messages import (
    Accept,
    Announce,
    AskTail,
    Commit,
    CommitStep,
    CopyTail,
    Demand,
    Finish,
    GiveWay,
    Inquire,
    Message,
    Part,
    PrepareParts,
    Promise,
    Propose,
    Refuse,
    Replicate,
    ResetLost,
    Resolve,
    SetNamespace,
    SingleMap,
    Tail,
    TailReport,
    Vote,
)
from engine.node.node import Node
from engine.protocol.requests import Code, Failed, Lock, Reply
from engine.protocol.wire import decode_messages, frame
from engine.turn.events import Asked, Received
from rebalance import table as topologies
from rebalance.steps import Step, stepped
from rebalance.supplying import Session
from rebalance.table import Placement
from tests.sim.heckled import LIES, lie
from tests.sim.planted.stage import NAMESPACE, Stage, key
from tests.sim.trace import FRAME_HEADER_BYTES
from wal.ids import NUMBER_MAX, ROUNDS_AHEAD, Ballot, Version
from wal.records import Prepare, Update, Write

TX = bytes(range(16))
FAR = 60_000
"""A partition that could be, in another cluster."""
TIMES = 60

Said = Callable[[Node], list[Message]]


def _lying(stage: Stage, *said: Message, src: str = "n2", dst: str = "n1") -> None:
    """A member says something to another one, whose turn it is."""
    speaker = stage[src].node
    assert speaker is not None
    for one in said:
        (message,) = decode_messages(frame([one])[FRAME_HEADER_BYTES:])
        stage[dst].receive(Received(src, speaker.core.allocation, speaker.core.incarnation, message))
        stage.wait(100)


def _step(node: Node, number: int, placed: Placement) -> Step:
    return Step(node.core.version, node.core.map_hash, [(number, placed)], [])


def _placed(node: Node, **other: object) -> Placement:
    top = node.core.topology
    assert top is not None
    return msgspec.structs.replace(top.placements[0], **other)


def _parts(node: Node, part: Part, participants: list[int], decision: int = 0) -> PrepareParts:
    return PrepareParts(
        node.core.fence, TX, TX, optimistic=True, parts=[part], participants=participants, decision=decision
    )


def _older(node: Node) -> bytes:
    top = node.core.topology
    assert top is not None
    return topologies.encode(msgspec.structs.replace(top, version=Version(0, 9)))


def _proposed(node: Node, step: Step, map_hash: int | None = None) -> Propose:
    """The map that a step makes, as an exchange would propose it."""
    top = node.core.topology
    assert top is not None
    makes = topologies.hash_of(topologies.encode(stepped(top, step))) if map_hash is None else map_hash
    return Propose(node.core.version, Ballot(1 << 20, "n2"), b"", step, makes)


def _rest(node: Node, version: Version) -> Step:
    top = node.core.topology
    assert top is not None
    return Step(top.version, node.core.map_hash, [], [], rest=msgspec.structs.replace(top, version=version, placements=()))


def _tail(report: TailReport) -> Said:
    return lambda node: [AskTail(node.core.fence, [CopyTail(1, 1, [report], [], [], [])])]


NONSENSE: dict[str, Said] = {
    "a step that gives a partition no owner": lambda n: [CommitStep(_step(n, 0, _placed(n, owners=())))],
    "a step that names a copy in sync that is none": lambda n: [CommitStep(_step(n, 0, _placed(n, in_sync=("n9",))))],
    "a step that gives a partition two copies on a node": lambda n: [
        CommitStep(_step(n, 0, _placed(n, owners=("n1", "n1", "n2"), in_sync=("n1", "n2"))))
    ],
    "a map that is none, to be accepted": lambda n: [Propose(n.core.version, Ballot(1 << 20, "n2"), b"\x07")],
    "a map of an older version, to be accepted": lambda n: [Propose(n.core.version, Ballot(1 << 20, "n2"), _older(n))],
    "a light step, to be accepted as the map of an exchange": lambda n: [_proposed(n, _step(n, 0, _placed(n)))],
    "a step that makes another map than it says": lambda n: [_proposed(n, _rest(n, Version(9, 0)), 7)],
    "a step that makes an older map": lambda n: [_proposed(n, _rest(n, Version(0, 9)))],
    "a map that is none, as it was committed": lambda n: [Commit(Version(9, 0), b"\x07")],
    "a map of another version than it is called": lambda n: [Commit(Version(9, 0), _older(n))],
    "a ballot that nobody could outbid": lambda n: [Announce(n.core.version, Ballot(NUMBER_MAX, "n2"), [])],
    "that one was promised": lambda n: [Refuse(n.core.version, Ballot(1, "n1"), Ballot(NUMBER_MAX, "n2"))],
    "lost partitions that there are not": lambda n: [ResetLost([(FAR, 1)])],
    "a loss policy that there is not": lambda n: [SetNamespace("other", Version(0, 0), loss="lose")],
    "a namespace of a thousand copies": lambda n: [SetNamespace("other", Version(0, 0), backups=1_000)],
    "a namespace that has no legal name": lambda n: [SetNamespace("~tx", Version(0, 0), drop=True)],
    "of a tail what was applied beyond no gap": _tail(TailReport(NAMESPACE, 1, [(0, 3)], [])),
    "of a tail a range of nothing": _tail(TailReport(NAMESPACE, 0, [(5, 0)], [])),
    "doubt about a partition that there is not": lambda n: [Resolve(n.core.fence, TX, 0, FAR)],
    "doubt about participants that there are not": lambda n: [Resolve(n.core.fence, TX, 0, 1, [0, 1, FAR])],
    "parts of nothing": lambda n: [_parts(n, Part(0, [(NAMESPACE, [], [])], [], []), [0, 1])],
    "parts of keys without values": lambda n: [_parts(n, Part(0, [(NAMESPACE, [key(0)], [])], [], []), [0, 1])],
    "a condition that there is not": lambda n: [
        _parts(n, Part(0, [], [], [], [(NAMESPACE, key(0), "perhaps", None, 0, 0)]), [0, 1])
    ],
    "a decision where there is no partition": lambda n: [_parts(n, Part(0, [], [], []), [0, FAR], FAR)],
    "a part that is none of the participants": lambda n: [_parts(n, Part(0, [], [], []), [1, 2], 1)],
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_member_says(what: str) -> None:
    with Stage(None) as stage:
        for number in range(4):
            stage.put(key(number), b"before")
        node = stage["n1"].node
        assert node is not None
        _lying(stage, *NONSENSE[what](node))
        stage.put(key(0), b"after")
        stage.until(lambda: not node.participant.in_doubt() and not len(node.locks), "nothing is held for the liar")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(1), b"by a map that was decided since")
        newest = stage.world.newest()
        assert newest is not None
        assert not newest.namespaces, "nobody has ordered anything"
        stage.curtain()


@pytest.mark.parametrize("what", [what for what in NONSENSE if "accepted" in what or "step that makes" in what])
def test_a_proposal_that_is_no_later_map_is_not_accepted(what: str) -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"before")
        node = stage["n1"].node
        assert node is not None
        before = node.core.replica.accepted
        _lying(stage, *NONSENSE[what](node))
        assert node.core.replica.accepted == before
        assert not node.core.frozen
        stage.curtain()


def test_what_is_prepared_is_not_committed_by_whoever_says_so_before_it_has_voted() -> None:
    """n1 leads a part that is on no other copy yet, and hears from n2 how the transaction has ended."""
    with Stage(None) as stage:
        lost = stage.lose("replicated", receiver="n1")
        node = stage["n1"].node
        assert node is not None
        part = Part(0, [(NAMESPACE, [key(0)], [b"v"])], [], [])
        _lying(stage, _parts(node, part, [0, 1], 1), Finish(node.core.fence, TX, commit=True, partitions=[0]))
        assert (TX, 0) in node.participant.voting
        stage.end(lost)
        stage.until(lambda: not node.participant.in_doubt(), "the doubt ends")
        assert stage.get(key(0)) is None
        stage.curtain()


def test_how_a_transaction_ended_nobody_tells_the_node_that_decides_it() -> None:
    with Stage(None) as stage:
        tx = stage.transaction()

        async def prepare() -> None:
            await tx.put(NAMESPACE, {key(0): b"v", key(1): b"v"})
            await tx.prepare()

        stage.do(prepare())
        node = stage["n1"].node
        assert node is not None
        _lying(stage, Finish(node.core.fence, tx.tx, commit=False, partitions=[0]))
        stage.do(tx.commit())
        assert [stage.get(key(0)), stage.get(key(1))] == [b"v", b"v"]
        stage.curtain()


BROUGHT = {
    "of an epoch that has yet to begin": CopyTail(0, 99, [TailReport(NAMESPACE, 1, [], [(99, 1)])], [], [], []),
    "of a partition that there is not": CopyTail(0, 1, [], [], [Write(NAMESPACE, FAR, 1, 0, [b"k"], [b"v"])], []),
    "of another partition": CopyTail(0, 1, [], [], [Write(NAMESPACE, 1, 1, 7, [key(1)], [b"v"])], []),
    "keys without values": CopyTail(0, 1, [], [], [Write(NAMESPACE, 0, 1, 1, [key(0)], [])], []),
    "a vote of another partition": CopyTail(0, 1, [], [], [], [Prepare(TX, 1, 1, [], [], [0, 1], 0)]),
}


@pytest.mark.parametrize("what", BROUGHT)
def test_a_survivor_brings_a_new_primary(what: str) -> None:
    """n2 leads partition 0 after n1, and n3 says that it has what it cannot have."""
    with Stage(None) as stage:
        stage.put(key(0), b"before")
        late = stage.lose("tail", receiver="n2")
        stage.power_cut("n1")
        node = stage["n2"].node
        assert node is not None
        stage.until(lambda: 0 in node.promotion.owed, "n2 is to lead partition 0")
        stage.wait(50)
        _lying(stage, Tail(node.core.fence, [BROUGHT[what]]), src="n3", dst="n2")
        stage.end(late)
        stage.until(lambda: stage.primary(0, "n2"), "n2 leads it, with what n3 has")
        assert stage.get(key(0), stage.another(without=["n1"])) == b"before"
        stage.curtain()


def test_who_accepts_before_anything_is_proposed_accepts_nothing() -> None:
    with Stage(None) as stage:
        node, liar = stage["n1"].node, stage["n2"].node
        assert node is not None
        assert liar is not None
        late = [stage.lose("single-map", receiver="n1"), stage.lose("promise", receiver="n1")]
        stage.power_cut("n3")
        stage.until(lambda: node.exchange.attempt is not None, "an exchange begins")
        attempt, life = node.exchange.attempt, liar.core.life
        assert attempt is not None
        _lying(stage, Accept(attempt.after, attempt.ballot, life, 0))
        unread = Promise(attempt.after, attempt.ballot, Ballot(1, "n2"), b"\x07", life)
        vouched = SingleMap(attempt.after, attempt.ballot, life, [], [], [(FAR, "n2")])
        _lying(stage, unread, vouched)
        stage.end(*late)
        stage.left_out("n3")
        stage.curtain()


def test_who_gives_way_is_told_of_a_circle_though_it_is_half_told() -> None:
    other = bytes([9]) * 16
    with Stage(None) as stage:
        told: list[Reply] = []
        session = stage["n1"].new_session(told.append)  # type: ignore[arg-type]  # a session answers with replies
        for at, tx in enumerate((TX, other)):
            stage["n1"].receive(Asked(session, Lock(at, tx, NAMESPACE, [key(0)], 5_000, holding=True)))
            stage.wait(50)
        node = stage["n1"].node
        assert node is not None
        links = [("n1", NAMESPACE, key(0), ""), ("n2", NAMESPACE, key(1), "")]
        _lying(stage, GiveWay(node.core.fence, other, [other, TX], links, [True]))
        assert [reply.code for reply in told if isinstance(reply, Failed)] == [Code.DEADLOCK]
        stage.wait(5_000)
        stage.curtain()


def test_a_partition_that_is_demanded_twice_is_supplied_once() -> None:
    demand = Demand(Version(1, 0), 1, [3, 0, 3], [], 4, part=0, parts=2)
    session = Session("n2", ("n2-disk1", 1, 0), demand, returning=False)
    assert session.new_ones(demand.partitions) == [0, 3]
    assert session.new_ones([0, 2]) == [2], "nor by another part of the demand"


@pytest.mark.parametrize(
    "said", [Vote(Version(1, 0), TX, -1, 0, yes=True, reason=""), Inquire(Version(1, -1), TX, 0, 0), ResetLost([(-1, 0)])]
)
def test_less_than_nothing_is_no_message(said: Message) -> None:
    with pytest.raises(ProtocolError, match="Expected `int` >= 0"):
        decode_messages(frame([said])[FRAME_HEADER_BYTES:])


@pytest.mark.parametrize(
    "said",
    [
        Vote(Version(1, 0), TX, NUMBER_MAX + 1, 0, yes=True, reason=""),
        Replicate(Version(1, 0), 1, [Update([Write(NAMESPACE, 0, 1, NUMBER_MAX + 1, [b"k"], [b"v"])])], 0),
        Replicate(Version(1, 0), 1, [Update([Write(NAMESPACE, 0, 1, 0, [], [], closed=(1 << 64) - 1)])], 0),
        Replicate(Version(1, 0), 1, [], 0, (0, NUMBER_MAX + 1)),
    ],
)
def test_more_than_there_can_be_is_no_message(said: Message) -> None:
    with pytest.raises(ProtocolError, match="Expected `int` <= "):
        decode_messages(frame([said])[FRAME_HEADER_BYTES:])


def test_a_ballot_may_be_ahead_by_as_much_as_a_member_can_have_missed() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        for ahead in (ROUNDS_AHEAD + 2, ROUNDS_AHEAD // 2):
            _lying(stage, Announce(node.core.version, Ballot(node.exchange.promised.round + ahead, "n2"), []))
            assert (node.exchange.promised.round > ROUNDS_AHEAD // 4) == (ahead < ROUNDS_AHEAD)
        stage.until(lambda: not node.core.frozen, "the next ballot is higher")
        stage.curtain()


@pytest.mark.parametrize("kind", LIES)
def test_lies_of_one_kind_end_nobody_and_the_cluster_comes_to_rest(kind: type[Message]) -> None:
    assert lie(1, TIMES, [kind]).kinds[kind] >= TIMES


@pytest.mark.parametrize("seed", range(1, 5))
def test_lies_of_all_kinds_end_nobody(seed: int) -> None:
    lie(seed, 4 * TIMES, LIES)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_member_whose_frames_are_damaged_ends_nobody(seed: int) -> None:
    liar = lie(seed, 5 * TIMES, LIES, broken=True)
    assert liar.refused > TIMES, "much of it cannot be read"
    assert liar.kinds.total() > TIMES, "and much can"
