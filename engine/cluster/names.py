"""Who may speak under a name: the life that the map lists, and nobody else as long as that one lives.

A name belongs to a data directory. If a second process is started under the name of a live member, with another
directory, then what it says must not be taken for the member's: it would look alive when it is not, and acknowledge what
it does not have. So it is refused when it connects, and ends; what it says all the same is not heard. Only when the life
that the map lists has been silent for so long that it is suspected may another disk take the name.

A restart of the same directory is the same member, whose earlier life is over, because a directory is locked. If that
one is heard all the same, somebody runs a copy of the directory: the life that the map lists goes on, whichever that is by
now, and nothing that the other one says is heard. It is hung up on, and is refused when it connects again, so it ends, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.cluster.alike import Alike
from engine.cluster.detector import Detector
from engine.messages import (
    KINDS,
    Accept,
    AcceptStep,
    Announce,
    AskCopies,
    AskMap,
    Commit,
    CommitStep,
    Copies,
    Heartbeat,
    Join,
    Leave,
    Message,
    Promise,
    Propose,
    ProposeStep,
    Refuse,
    ResetLost,
    SetBaseline,
    SetMigrations,
    SetNamespace,
    SingleMap,
    Survey,
    Surveyed,
)
from engine.turn.core import Core
from engine.turn.events import Event, NameTaken, Received, Stop
from rebalance.ports import MS, WORK_MAX
from rebalance.table import Member
from wal.ids import ROUNDS_AHEAD, Ballot, NodeId
from wal.probe import probe

OF_ANY_LIFE = (
    Heartbeat,
    Join,
    Announce,
    Promise,
    SingleMap,
    AskCopies,
    Copies,
    Propose,
    Accept,
    Refuse,
    Commit,
    ProposeStep,
    AcceptStep,
    CommitStep,
    AskMap,
    Survey,
    Surveyed,
)
"""What a life may say that the map does not list: each of these tells of its life, or is as true from anyone."""

OF_A_MEMBER = (Promise, SingleMap, Copies, Accept, AcceptStep)
"""Of these a map is made, and counted: another disk may say them when the one that the map lists is suspected. Else whoever
comes by a connection that stood already could put itself in the place of a member that is there."""
BEATS = 2
"""A life that was heard so many heartbeats after the next one of its directory began is still there."""

BEGUN_MAX = 256
"""So many lives that the map does not list are remembered; then all are forgotten, and told apart again if they speak."""

_BALLOTED = frozenset(kind for kind in KINDS if "ballot" in kind.__struct_fields__)
PATIENCE_SUSPICIONS = 3
"""Who is refused for its name for so many times `suspicion_ms` ends: whoever holds the name is not about to go."""


class Names:
    """Which life of each name counts, on one node."""

    def __init__(self, core: Core, detector: Detector) -> None:
        self.core = core
        self.detector = detector
        self.alike = Alike(core)
        self._listed: dict[NodeId, Member] = {}
        self._heard: dict[NodeId, int] = {}  # when the listed life of a member last spoke
        self._begun: dict[tuple[NodeId, str, int], int] = {}  # when another life of a member first spoke
        self._refused_since: int | None = None  # this node's own name is taken, others say

    def switch(self) -> None:
        """A new map lists other lives."""
        topology, before = self.core.topology, self._listed
        self._listed = {m.node: m for m in topology.members} if topology is not None else {}
        same = {n for n, m in self._listed.items() if n in before and _life(m) == _life(before[n])}
        self._heard = {n: at for n, at in self._heard.items() if n in same}
        self._begun = {life: at for life, at in self._begun.items() if life[0] in same}
        if self.core.serving:
            self._refused_since = None

    def came(self, events: Sequence[Event]) -> None:
        """More came than this turn could take. Who said something that lies here is not silent, whenever that is taken; of
        very much only what came last is looked at."""
        last = events[-WORK_MAX:]
        for life in dict.fromkeys([(e.sender, e.allocation, e.incarnation) for e in last if isinstance(e, Received)]):
            member = self._listed.get(life[0])
            if member is not None and _life(member) == life[1:] and life not in self.alike.unheard:
                self.detector.heard(member.node)

    def hear(self, sender: NodeId, allocation: str, incarnation: int, message: Message) -> bool:
        """A life of a node says something; whether it is to be listened to. Who is listened to lives."""
        if type(message) in _BALLOTED and self._is_out_of_reach(message):
            return False
        if self.alike.unheard and (sender, allocation, incarnation) in self.alike.unheard:
            return False
        member = self._listed.get(sender)
        if member is None:
            self.detector.heard(sender)
            return True
        if member.incarnation == incarnation and member.allocation == allocation:
            self._heard[sender] = self.core.now
            self.detector.heard(sender)
            return True
        returns = allocation == member.allocation
        if returns:
            if self._two_at_once(sender, allocation, incarnation):
                probe("names.a_copy_is_not_heard")
                return False
            self.detector.heard(sender)
        if isinstance(message, OF_A_MEMBER) and allocation != member.allocation and not self.detector.suspected(sender):
            probe("names.the_member_of_that_name_is_there")
            return False
        if isinstance(message, OF_ANY_LIFE):
            return True
        if isinstance(message, Leave | SetBaseline | ResetLost | SetNamespace | SetMigrations):
            if returns:
                return True
        elif message.version > self.core.version:
            return True  # of a map that is not known here yet
        probe("names.another_life_is_not_heard")
        return False

    def _is_out_of_reach(self, message: Message) -> bool:
        """Whether nobody could outbid the ballot of a message."""
        ballot: Ballot | None = getattr(message, "ballot", None)
        if ballot is None or ballot.round <= self.core.replica.promised[1].round + ROUNDS_AHEAD:
            return False
        probe("names.nobody_could_outbid_that")
        return True

    def taken(self, node: NodeId, allocation: str, incarnation: int) -> str:
        """Why a life may not speak under its name now, or nothing."""
        member, core = self._listed.get(node), self.core
        if node == core.node and allocation != core.allocation:
            return f"node id {node!r} is taken by {core.address}: start it with another --node"
        if node == core.node and incarnation != core.incarnation:
            return f"node id {node!r} is taken: {core.address} still runs on a copy of this directory"
        if member is None or (member.allocation, member.incarnation) == (allocation, incarnation):
            return ""
        if allocation != member.allocation and not self.detector.suspected(node):
            return (
                f"node id {node!r} is taken: the member of that name lives at {member.address}, on another disk; start "
                "this one with another --node, or stop that one first"
            )
        if allocation == member.allocation and self._two_at_once(node, allocation, incarnation):
            probe("names.copied")
            return (
                f"node id {node!r} is taken: the member at {member.address} still runs on a copy of this directory; start "
                "this one with another --node on an empty directory, or stop that one first"
            )
        return ""

    def _two_at_once(self, node: NodeId, allocation: str, incarnation: int) -> bool:
        """Whether the listed life of a node speaks although a later one of the same directory does, too."""
        now, beats = self.core.now, BEATS * self.core.settings.heartbeat_ms * MS
        if len(self._begun) >= BEGUN_MAX:
            self._begun.clear()
        begun = self._begun.setdefault((node, allocation, incarnation), now)
        heard = self._heard.get(node, 0)
        return heard > begun + beats and now - heard < beats

    def on_name_taken(self, event: NameTaken) -> None:
        """Others refuse this node's name; if that goes on, end: unless it serves, and hears a majority."""
        core = self.core
        if self._refused_since is None:
            self._refused_since = core.now
        patience = PATIENCE_SUSPICIONS * core.settings.suspicion_ms * MS
        if not (core.serving and core.quorum) and core.now - self._refused_since > patience:
            core.task(Stop(event.reason, refused=True))


def _life(member: Member) -> tuple[str, int]:
    return member.allocation, member.incarnation
