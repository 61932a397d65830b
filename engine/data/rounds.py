"""How a cut is taken: one node numbers the eras of a map, and leads all members into the next one.

```
 client        whoever numbers               every member
 TakeCut --->  EnterEra(e)     ----------->  enters e: keeps what is overwritten, withholds answers
               <---------------- Entered
               all have entered: SealCut(e) -----> gives its answers; e can be read at
               <---------------- Sealed
 <--- Cut(e)
```

Who asks while a round is under way shares the next one. The primary of the first partition that is not LOST numbers, by
the map that made it primary or by the fence, whichever is later: so no two nodes give one number, and a life that comes
back is in another map. A round is of one map, light steps aside; where another one comes, or somebody does not answer, it
is given up, and begun again a little later.
"""

from __future__ import annotations

from typing import assert_never, get_args

from engine.data.cuts import WITHHELD_MS
from engine.messages import Entered, EnterEra, SealCut, Sealed
from engine.messages.cuts import ToRounds
from engine.protocol.requests import Code, Cut, Request, TakeCut
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import Asked, SessionId
from rebalance.partition import LocalPartition
from rebalance.ports import MS, may_act
from rebalance.rule import NewMap, Rule
from rebalance.table import Topology
from wal.ids import Era, NodeId
from wal.probe import probe

READERS_MAX = 1_000
"""So many share one round at most."""
PAUSE_MS = (50, 200, 1_000, 3_000)
"""After a round that came to nothing, and longer after later ones: everybody's answers were withheld."""


class _Round:
    """A cut that is being taken, by the primaries of one map. `entered`: all members have entered its era."""

    __slots__ = ("asked", "began", "cut", "entered", "members", "said_at", "topology", "version", "waiting")

    def __init__(self, cut: Era, topology: Topology, now: int) -> None:
        self.cut = cut
        self.topology = topology
        self.version = topology.fenced
        self.members = tuple(m.node for m in topology.members)
        self.waiting = dict.fromkeys(self.members)
        self.entered = False
        self.began = self.said_at = now
        self.asked: list[tuple[SessionId, Request, int]] = []


class Rounds(Rule):
    """The cuts that one node takes."""

    takes = get_args(ToRounds)

    def __init__(self, core: Core, desk: Desk) -> None:
        super().__init__()
        self.core = core
        self.desk = desk
        self._round: _Round | None = None
        self._asked: list[tuple[SessionId, Request, int]] = []  # for the next round, since
        self._last: Era = (0, 0)
        self._failed = 0
        self._not_before = 0

    def on_take(self, session: SessionId, request: TakeCut) -> None:
        """A client wants a cut."""
        core = self.core
        if not self._numbers:
            self.desk.remap(session, request.id)
        elif not core.quorum:
            said = "this node does not reach a majority of the cluster; it resumes by itself when it does"
            self.desk.refuse(session, request.id, Code.NO_QUORUM, said, retryable=True)
        else:
            self._asked.append((session, request, core.now))
            self._begin()

    @property
    def _numbers(self) -> bool:
        """Whether it is this node that numbers the eras of the committed map."""
        first = self._first
        return first is not None and first.mine

    @property
    def _first(self) -> LocalPartition | None:
        """The partition whose primary numbers the eras."""
        return next((local for local in self.core.local if not local.placement.lost), None)

    def _begin(self) -> None:
        core = self.core
        if self._round is not None or not self._asked or not may_act(core, core.fence):
            return
        if core.now < self._not_before:
            self.alarm.by(self._not_before)
            return
        asked = [(session, request, core.now) for session, request in self.desk.still_wanted(self._asked)]
        self._asked = asked[READERS_MAX:]
        if not asked:
            return
        assert core.topology is not None
        first = self._first
        assert first is not None, "it was this node that numbers"
        number = max(core.fence.number, first.since)  # by one fence the first partition may be handed over
        self._last = (number, self._last[1] + 1 if self._last[0] == number else 1)
        self._round = _Round(self._last, core.topology, core.now)
        self._round.asked = asked[:READERS_MAX]
        self._say(self._round)

    def _say(self, asking: _Round) -> None:
        core = self.core
        asking.said_at = core.now
        message: EnterEra | SealCut = EnterEra(asking.version, asking.cut, asking.topology.version)
        if asking.entered:
            holders = [request.holder for _, request, _ in asking.asked if isinstance(request, TakeCut)]
            message = SealCut(asking.version, asking.cut, holders)
        core.send(tuple(node for node in asking.waiting if node != core.node), message)
        if core.node in asking.waiting:
            core.tell(core.node, message)  # no disk is asked for anything
        self.alarm.by(core.now + core.settings.retransmit_ms * MS)

    def on(self, sender: NodeId, message: ToRounds) -> None:
        """What members answer."""
        asking = self._round
        if asking is None or message.version != asking.version:
            return
        match message:
            case Entered(_, era):
                if era == asking.cut and not asking.entered:
                    asking.waiting.pop(sender, None)
                    if not asking.waiting:
                        self._seal(asking)
            case Sealed(_, cut, held):
                if cut == asking.cut and asking.entered:
                    self._sealed(asking, sender, held=held)
            case _:
                assert_never(message)

    def _seal(self, asking: _Round) -> None:
        asking.entered = True
        asking.waiting = dict.fromkeys(asking.members)
        self._say(asking)

    def _sealed(self, asking: _Round, sender: NodeId, *, held: bool) -> None:
        if not held:
            self._give_up(asking)
            return
        asking.waiting.pop(sender, None)
        if not asking.waiting:
            self._round, self._failed = None, 0
            probe("cut.taken")
            for session, request, _ in asking.asked:
                self.desk.reply(session, Cut(request.id, asking.cut))
            self._begin()

    def _give_up(self, asking: _Round) -> None:
        probe("cut.given_up")
        self._round = None
        self._not_before = self.core.now + PAUSE_MS[min(self._failed, len(PAUSE_MS) - 1)] * MS
        self._failed += 1
        self._asked = asking.asked + self._asked
        self._begin()

    def switch(self, _: NewMap) -> None:
        """A new topology: another node may number now, and members of this map are others."""
        asked = self._asked
        if self._round is not None:
            probe("cut.round_of_another_map")
            asked = self._round.asked + asked
        self._round, self._asked, self._failed, self._not_before = None, [], 0, 0
        self.desk.ask_again([Asked(*each) for each in asked])

    def step(self, new: NewMap) -> None:
        """A light step: the same, where a primary has moved that the round counts on."""
        known = self._round.topology.placements if self._round is not None else ()
        if any(known[local.number].primary != local.placement.primary for local in new.changed if known):
            self.switch(new)

    def tick(self) -> None:
        """Say it again; give up what takes too long; begin what had to wait."""
        core, asking = self.core, self._round
        self.alarm.off()
        if asking is not None and self.alarm.is_due(asking.began + WITHHELD_MS * MS, core.now):
            self._give_up(asking)
        elif asking is not None and self.alarm.is_due(asking.said_at + core.settings.retransmit_ms * MS, core.now):
            self._say(asking)
        self._begin()
