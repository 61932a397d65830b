"""Members that live and are too slow to be waited for: a disk that takes long, a copy that never answers.

Nobody's silence tells of them. So every node says in its heartbeats how long its log takes to sync, and which copies have
not answered its batches for longer than it takes to be suspected. It counts the time that it had to spare (`Core.spare`):
of that for which it was busy itself an eighth, and none for which it was stopped. So who is as slow as the others blames
nobody. Where all have more to do than they can, most of it lies before one of them, whichever is a little behind: that one
is late, and no slower than they are, and an exchange would stop all and give it more to do.

The coordinator sets one member aside at a time, by an exchange: the one that most accusations touch, or one whose disk has
been slow for a while when most are not. If that is the coordinator itself the next one does it, as each step of a slow one
takes a sync of its disk. Who is set aside keeps its copies, gets every write, and is waited for by nobody, but where too
few fast copies would stay behind (`rebalance.aside`), for as long as it answers at all. It asks to be let back in after a
while, which doubles each time it has to be set aside again; once it has done well for long enough, that is forgotten.

Who is no member may be as slow, and every exchange that is to let it in stops all others until it is given up. So it is not
asked again for a while that doubles, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.turn.core import Core
from rebalance.aside import waited_for
from rebalance.ports import MS
from rebalance.table import Candidate, Topology, back_off_ms
from wal.ids import NodeId

SLOW_TIMES = 10
"""A disk is slow when each sync of it took `slow_ms` for so many times as long."""
MUTE_SUSPICIONS = 8
"""A copy that has not answered for so many times `suspicion_ms` is not a slow one: two syncs, one that was under way and
its own, would have taken that long, and a node that is stuck for half of it falls silent."""
LATE_DOUBLED_MAX = 6
"""Who was waited for in vain is not asked again for `suspicion_ms`, then for twice that, and so on, so often."""
FORGIVEN_AFTER = 10
"""Times the last back-off, after which it is forgotten that a member was set aside."""


class Pace:
    """What one node knows about how fast the members are."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.sync_ms: dict[NodeId, int] = {}  # the last that each said
        self._slow: dict[NodeId, tuple[int, int]] = {}  # no sync of it was fast since then; and when it last said so
        self._stalled: dict[NodeId, list[NodeId]] = {}  # who said -> who does not answer it
        self._mute: dict[NodeId, list[NodeId]] = {}  # the same, who has not for long
        self._returned: dict[NodeId, int] = {}  # when a member that was set aside was let back in
        self._late: dict[NodeId, tuple[int, int, int]] = {}  # that life, how often it was too late, and until when it rests

    def heard(self, node: NodeId, sync_ms: int, stalled: list[NodeId], mute: Sequence[NodeId] = ()) -> None:
        """A member says how long its log took to sync, if it did since it last said so, and who does not answer it."""
        self._stalled[node], self._mute[node] = stalled, list(mute)
        if not sync_ms:
            return
        now, settings = self.core.now, self.core.settings
        self.sync_ms[node] = sync_ms
        if sync_ms < settings.slow_ms:
            self._slow.pop(node, None)
            return
        since, last = self._slow.get(node, (now, now))
        self._slow[node] = (since if now - last < 2 * settings.suspicion_ms * MS else now, now)

    def switch(self, topology: Topology) -> None:
        """A new topology: what was said of the copies of the last one is over."""
        self._stalled, self._mute = {}, {}
        names = {m.node for m in topology.members}
        self.sync_ms = {n: ms for n, ms in self.sync_ms.items() if n in names}
        self._late = {n: late for n, late in self._late.items() if n not in names}
        self._slow = {n: at for n, at in self._slow.items() if n in names and topology.aside.get(n, 0) <= 0}
        self._returned = {n: self._returned.get(n, self.core.now) for n, times in topology.aside.items() if times < 0}

    def note_late(self, joiner: Candidate) -> None:
        """An exchange that was to let this life in went on without it: it had not said in time what it has."""
        life, times, _ = self._late.get(joiner.node, (joiner.incarnation, 0, 0))
        times = times + 1 if life == joiner.incarnation else 1
        rest = self.core.settings.suspicion_ms << min(times - 1, LATE_DOUBLED_MAX)
        self._late[joiner.node] = (joiner.incarnation, times, self.core.now + rest * MS)

    def rests(self, joiner: Candidate) -> bool:
        """Whether it would be too early to wait for this life again."""
        life, _, until = self._late.get(joiner.node, (0, 0, 0))
        return life == joiner.incarnation and self.core.now < until

    def known(self, topology: Topology) -> dict[NodeId, int]:
        """Who was set aside, how often, without what is forgiven."""
        return {
            node: times
            for node, times in topology.aside.items()
            if times > 0
            or self.core.now - self._returned.get(node, self.core.now) < FORGIVEN_AFTER * back_off_ms(-times) * MS
        }

    def to_set_aside(self, topology: Topology, here: Collection[NodeId]) -> dict[NodeId, int]:
        """The member that is to be set aside now, and how often it was with that; nobody, most of the time."""
        if not any(self._stalled.values()) and not self._slow:
            return {}
        away = [n for n, times in topology.aside.items() if times > 0 and n in here]
        for node in self._worst(topology, here):
            if 2 * len(dict.fromkeys([*away, node])) >= len(here):
                continue
            if node in away or self._is_in_the_way(topology, node, here):
                return {node: abs(self.known(topology).get(node, 0)) + 1}
        return {}

    def is_mute(self, node: NodeId, here: Collection[NodeId]) -> bool:
        """Whether a member does not answer, or is not answered, at all."""
        return any(node in pair for pair in _pairs(self._mute, here))

    def _is_in_the_way(self, topology: Topology, node: NodeId, here: Collection[NodeId]) -> bool:
        """Whether somebody waits for a member who would not if it were set aside."""
        aside, mute = topology.aside | {node: 1}, [node] if self.is_mute(node, here) else []
        alike = dict.fromkeys(
            (p.in_sync, wanted)
            for p, wanted in zip(topology.placements, topology.wanted, strict=True)
            if node in p.in_sync and not p.lost
        )
        return any(node not in waited_for([n for n in some if n in here], aside, mute, wanted) for some, wanted in alike)

    def _worst(self, topology: Topology, here: Collection[NodeId]) -> Sequence[NodeId]:
        """Who is in the way, the worst first."""
        pairs = self._unexpected(topology, _pairs(self._stalled, here))
        # Who does not get answers may be deaf itself; not where the other one says itself that its disk is slow.
        touching = [(c,) if c in self._slow and p not in self._slow else (p, c) for p, c in pairs]
        touched = {n: sum(n in some for some in touching) for some in touching for n in some}
        accused = {n: sum(c == n for _, c in pairs) for n in touched}
        worst = sorted(touched, key=lambda n: (-touched[n], -accused[n], n))[:1]
        lasting = SLOW_TIMES * self.core.settings.slow_ms * MS
        slow = [n for n, (since, last) in self._slow.items() if n in here and last - since >= lasting]
        if 2 * len(self._slow) >= len(here):
            slow = []  # whatever is slow there is not one disk
        return [*worst, *(n for n in sorted(slow) if topology.aside.get(n, 0) <= 0)]

    def _unexpected(self, topology: Topology, pairs: list[tuple[NodeId, NodeId]]) -> list[tuple[NodeId, NodeId]]:
        """Without those where a primary waits for a slow copy because it is to."""
        slow = dict.fromkeys(c for _, c in pairs if topology.aside.get(c, 0) > 0)
        if not slow:
            return pairs
        alike = dict.fromkeys([(p.owners[0], p.in_sync) for p in topology.placements if not p.lost])
        known = dict.fromkeys((primary, n) for primary, in_sync in alike for n in in_sync if n in slow)
        return [(p, c) for p, c in pairs if (p, c) not in known or c in self._mute.get(p, ())]


def _pairs(said: Mapping[NodeId, Sequence[NodeId]], here: Collection[NodeId]) -> list[tuple[NodeId, NodeId]]:
    """Who does not get answers, and of whom."""
    return [(p, c) for p, copies in said.items() for c in copies if p in here and c in here]
