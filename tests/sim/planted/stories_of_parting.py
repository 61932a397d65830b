"""Stories of a primary that has something under way, and is told of a map that takes its partition from it.

It is told so little by little that there is time for all sorts of things between what it gives up and the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.client.cuts import TakeCutCall
from engine.messages import Confirmed
from engine.node.node import Node
from engine.protocol.requests import Done, Get, Put, Values
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event
from tests.sim.network import Rule
from tests.sim.parted import part_slowly
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, Stories, key
from tests.sim.world import SECOND, Plant
from wal.ids import TxId

PARTING = Stories()
story = PARTING.story

TX: TxId = (99).to_bytes(10, "big") + (1).to_bytes(6, "big")
APART = [(a, b) for a in ("n1", "n2", "n3") for b in ("n1", "n2", "n3") if (a == "n1") is not (b == "n1")]


class _Millisecond:
    """`tests.sim.costs.Costs`: each turn takes one."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        return node.turn(now, events), SECOND // 1_000


class _Parts:
    """n1 leads partition 0, where `before` stands, and has `after` under way, which no copy has. Then it is deposed."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.replies: list[Any] = []
        stage.put(key(0), b"before")
        node = stage["n1"].node
        assert node is not None
        self.node = node
        stage.world.costs = _Millisecond()
        part_slowly(node, turns=200)
        self.session = stage["n1"].new_session(self.replies.append)

    def writes(self) -> None:
        """It is asked to."""
        self.lost = self.stage.lose("replicate", "n1")
        self.asks(Put(1, TX, NAMESPACE, [key(0)], [b"after"]))
        self.stage.until(lambda: bool(self.node.writes.under_way), "a write is under way")

    def asks(self, request: Get | Put) -> None:
        """Somebody asks n1, once."""
        self.stage["n1"].receive(Asked(self.session, request))

    def is_deposed(self) -> None:
        """The others go on without n1, which hears of that, and gives the write up: it has its old map still."""
        world = self.stage.world
        world.network.cut("apart", APART)
        self.stage.until(lambda: self.stage.primary(0, "n2"), "n2 is primary of partition 0")
        version = self.node.core.version
        world.network.heal("apart")
        gave_up = world.run_while(lambda: bool(self.node.writes.under_way), at_most=10 * SECOND, look_every=SECOND // 1_000)
        self.stage.must(gave_up and self.node.core.version == version, "the write is given up before the map comes")

    def ends(self) -> None:
        """n1 takes the map, and all come to rest."""
        self.stage.end(self.lost)
        self.stage.wait(1_000)
        self.stage.curtain()


@story
def who_parts_is_asked_again_for_what_it_has_given_up(plant: Plant | None) -> None:
    """A client repeats a put to n1, while n1 has given it up and has yet to take the map that made it do so."""
    with Stage(plant) as stage:
        parts = _Parts(stage)
        parts.writes()
        parts.is_deposed()
        parts.asks(Put(2, TX, NAMESPACE, [key(0)], [b"after"]))
        stage.wait(20)
        done = any(isinstance(reply, Done) for reply in parts.replies)
        found = stage.get(key(0), stage.another(without=["n1"]))
        stage.must(not done or found == b"after", f"what a client was told is done is read; found {found!r}")
        parts.ends()


@story
def what_copies_have_confirmed_is_heard_by_who_parts(plant: Plant | None) -> None:
    """n1 asked the copies whether it is still primary, for a read. They said so, and were deposed by n2's map since."""
    with Stage(plant) as stage:
        parts = _Parts(stage)
        network = stage.world.network
        late = Rule("confirmed", lambda _, dst, said: dst == "n1" and isinstance(said, Confirmed), drop=False)
        network.rules.append(late)
        parts.writes()
        parts.asks(Get(3, NAMESPACE, [key(0)]))
        stage.until(lambda: sum(held.rule is late for held in network.held) >= 2, "the copies have confirmed")
        parts.is_deposed()
        network.release([late], [held for held in network.held if held.rule is late])
        stage.wait(20)
        _is_as_before(stage, parts)
        parts.ends()


@story
def a_cut_is_read_where_who_leads_parts(plant: Plant | None) -> None:
    """A cut was taken before the write that n1 gives up, and is read at n1 before that takes the map."""
    with Stage(plant) as stage:
        parts = _Parts(stage)
        call = TakeCutCall(bytes(16))
        stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))
        parts.writes()
        parts.is_deposed()
        parts.asks(Get(4, NAMESPACE, [key(0)], cut=call.cut))
        stage.wait(20)
        _is_as_before(stage, parts)
        parts.ends()


def _is_as_before(stage: Stage, parts: _Parts) -> None:
    told = [reply.values[0][2] for reply in parts.replies if isinstance(reply, Values)]
    found = stage.get(key(0), stage.another(without=["n1"]))
    stage.must(told in ([], [found]), f"a reader was told {told}; found {found!r}")
