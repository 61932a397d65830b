"""Who is seen, and who asks to be let in: this node too, for as long as the map does not list its life.

A node speaks first to whoever it knows of. It is told which map there is, and asks with that; so nobody has to wait for one
that takes long to hear. What it says of itself goes into the map by which it joins.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.cluster.behind import send_map
from engine.cluster.detector import Detector
from engine.cluster.exchange import Exchange
from engine.cluster.names import Names
from engine.cluster.reasons import is_member
from engine.messages import Join
from engine.turn.core import Core
from engine.turn.events import Connect, PeerSeen
from rebalance.going import never_gone
from rebalance.ports import MS
from rebalance.table import Candidate
from wal.ids import NodeId
from wal.probe import probe


class Joining:
    """One node's view of who may be in the next map, and is not in this one."""

    def __init__(self, core: Core, detector: Detector, names: Names, exchange: Exchange) -> None:
        self.core = core
        self.detector = detector
        self.names = names
        self.exchange = exchange
        self.seen: dict[NodeId, Candidate] = {}  # everyone a connection was made to, or who asked to join
        self._asked: dict[NodeId, tuple[int, Join]] = {}  # who asks to join -> when it last did, and how

    @property
    def me(self) -> Candidate:
        """This node, as it would be in a map."""
        core = self.core
        return Candidate(core.node, core.allocation, core.incarnation, core.address, core.settings.domain)

    @property
    def asked(self) -> Sequence[NodeId]:
        """Who asks to be let in."""
        return list(self._asked)

    def candidates(self) -> dict[NodeId, Candidate]:
        """This node and all others that it sees, as they would be in a first map."""
        return {self.core.node: self.me} | {n: c for n, c in self.seen.items() if not self.detector.suspected(n)}

    def near(self) -> list[NodeId]:
        """Everyone else who is heard of, in a map or not."""
        topology = self.core.topology
        known = dict.fromkeys([*self.seen, *(topology.voters if topology is not None else ()), *self.core.peers()])
        return [n for n in known if n != self.core.node and not self.detector.suspected(n)]

    def hear_us(self) -> list[Candidate]:
        """Those who ask, and took our map: nobody has to wait for them."""
        topology = self.core.topology
        assert topology is not None
        near = [self.seen[n] for n, (_, asked) in self._asked.items() if asked.version.major == topology.version.major]
        return [c for c in near if not self.names.taken(c.node, c.allocation, c.incarnation)]

    def know_of_steps(self, joins: Sequence[Candidate]) -> bool:
        """Whether each of these has said that it knows that a light step may let it in, and what else it has to know of."""
        topology, asked = self.core.topology, {n: join for n, (_, join) in self._asked.items()}
        assert topology is not None
        known = [asked.get(c.node) for c in joins]
        somebody_goes = bool(joins) and not never_gone(topology)
        return all(join is not None and join.admits and (join.lets_go or not somebody_goes) for join in known)

    # Others.

    def on_peer_seen(self, event: PeerSeen) -> bool:
        """A connection to a node was made; whether that may speak under its name."""
        if self.names.taken(event.node, event.allocation, event.incarnation) or not self.names.alike.greeted(event):
            return False
        self.seen[event.node] = Candidate(event.node, event.allocation, event.incarnation, event.address, event.domain)
        if self.core.topology is None or self.core.topology.member(event.node) is None:
            self.detector.heard(event.node)
        return True

    def on_join(self, sender: NodeId, message: Join) -> bool:
        """A node asks to be let in; whether it has to be."""
        core, topology = self.core, self.core.topology
        candidate = Candidate(message.node, message.allocation, message.incarnation, message.address, message.domain)
        if self.names.taken(message.node, message.allocation, message.incarnation):
            return False  # whoever speaks to it tells it
        _, asks = self._asked.get(message.node, (0, message))
        if asks.allocation == message.allocation and asks.incarnation > message.incarnation:
            return False  # an earlier life of it, delayed; or its disk was set back, and the later one asks no more
        self.seen[message.node] = candidate
        if topology is None:
            return False
        if message.cluster and message.cluster != topology.cluster:
            core.note(f"{message.node} belongs to cluster {message.cluster}, this is {topology.cluster}: not let in")
            return False
        if len(topology.all_groups) > 1 and not message.groups:
            probe("joining.knows_no_groups")
            core.note(f"{message.node} is of a version that cannot read this map: not let in; upgrade it")
            return False
        if message.version > core.version:
            return False
        self.detector.note_silent(sender, message.silent)
        if message.version < core.version or is_member(topology, candidate):
            send_map(self.core, sender)
        if is_member(topology, candidate):
            return False
        core.task(Connect(message.node, message.address))  # each time: its last life may have asked from elsewhere
        self._asked[message.node] = core.now, message
        return True

    def refresh(self) -> None:
        """Who has not asked for a while does not ask any more, nor does whom the map lists by now."""
        core, topology = self.core, self.core.topology
        fresh = core.now - 2 * core.settings.suspicion_ms * MS
        self._asked = {
            n: asked
            for n, asked in self._asked.items()
            if asked[0] >= fresh and not (topology is not None and is_member(topology, self.seen[n]))
        }

    # This node.

    def asks_in(self) -> bool:
        """Whether the map does not list this node in this life."""
        topology = self.core.topology
        return topology is None or not is_member(topology, self.me)

    def join(self) -> Join:
        """What it asks with."""
        core, topology, me = self.core, self.core.topology, self.me
        return Join(
            me.node,
            me.allocation,
            incarnation=me.incarnation,
            address=me.address,
            domain=me.domain,
            version=core.version,
            cluster=topology.cluster if topology is not None else self.exchange.consent,
            silent=self.detector.silent(),
            admits=True,
            groups=True,
            lets_go=True,
        )
