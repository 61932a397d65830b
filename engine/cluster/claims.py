"""What disks have claimed to hold, as far as this node was told; `rebalance.lives` says what follows from it.

Claims outlive a restart of everybody. What a voter promised is logged when it is heard of, how far a disk is durable in
coarse steps, and before each checkpoint, which keeps what is logged; all that is known goes into the next map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.turn.core import Core
from engine.turn.settings import Durability
from rebalance.lives import Life, disk_of, keeps
from rebalance.table import Member, Topology, disk_name, lost_disks
from wal.ids import NO_VERSION, NodeId, Version
from wal.probe import probe
from wal.records import Claim, Claimed

CLAIM_STEP = 1_024
"""A claim of so many records more is logged, though nobody has voted."""

CLAIMS_KEPT = 8
"""Of so many lives of one disk it is remembered what they claimed; more than one only since it was set back, or since
it started again without being heard."""

Key = tuple[NodeId, str, int]
_FSYNC = Durability.FSYNC


class Claims:
    """The most that each life of the disks which the map knows was heard to claim."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._heard: dict[Key, int] = {}
        self._sure: dict[Key, int] = {}  # of these, what no loss of power may honestly take back
        self._logged: dict[Key, int] = {}
        self._listed: dict[NodeId, Key] = {}
        self._awaited: dict[str, None] = {}  # disks that lost partitions wait for
        self._voided_by = NO_VERSION  # the last map that was seen here
        self._ahead: dict[Key, Version] = {}  # heard under a map that is not here yet
        self._fence = NO_VERSION  # of the last map that was seen here

    def boot(self) -> None:
        """Begin with what the log and the map remember."""
        replica = self.core.replica
        self._sure = {_key(claim): claim.durable_lsn for claim in replica.claims}
        self._heard, self._logged = dict(self._sure), dict(self._sure)
        self._voided_by = replica.claimed_at
        if self.core.topology is not None:
            self._fence = self.core.fence
            every_life = replica.claimed_at >= self.core.fence
            self._void_older(self.core.topology, anew=() if every_life else self.core.topology.members)

    def switch(self) -> None:
        """A new map: what it says of a node rests on the life that it lists; what other lives claimed is void."""
        topology, fence = self.core.topology, self._fence
        assert topology is not None
        self._fence = topology.fenced
        if topology.fence != NO_VERSION and topology.fence in (fence, topology.version):
            self.step()  # of which all have to take notice, and nobody was asked
        else:
            self._void_older(topology, anew=topology.members)

    def step(self) -> list[Member]:
        """A light step: who joins by it, and only of them what other lives claimed is void."""
        topology = self.core.topology
        assert topology is not None
        joined = [m for m in topology.members if self._listed.get(m.node) != (m.node, m.allocation, m.incarnation)]
        if joined:
            self._void_older(topology, anew=joined)
        if joined or topology.fence == topology.version:
            self.core.log(Claimed(topology.version, self.sure()))  # else what is void now would be read again
        self.learn(topology.claims)
        self._voided_by = topology.version
        return joined

    def _void_older(self, topology: Topology, *, anew: Sequence[Member]) -> None:
        self._listed = {m.node: (m.node, m.allocation, m.incarnation) for m in topology.members}
        self._awaited = lost_disks(topology.placements)
        listed = {m.node: self._listed[m.node] for m in anew}

        def counts(key: Key) -> bool:
            disk = disk_name(key[0], key[1])
            if disk in self._awaited:
                return True
            life, version = topology.listed.get(disk, (key[2], NO_VERSION))
            if life != key[2] and version > max(self._voided_by, self._ahead.get(key, NO_VERSION)):
                return False  # a map that was missed here made it void
            return disk_of(topology, key[0]) == key[1] and listed.get(key[0], key) == key

        self._heard = {key: lsn for key, lsn in self._heard.items() if counts(key)}
        self._sure = {key: lsn for key, lsn in self._sure.items() if counts(key)}
        for claim in topology.claims:
            self._raise(_key(claim), claim.durable_lsn, claim.durable_lsn)
            self._logged[_key(claim)] = claim.durable_lsn
        self._logged = {key: lsn for key, lsn in self._logged.items() if key in self._sure}
        self._voided_by, self._ahead = topology.version, {}

    # Hearing.

    def note(self, node: NodeId, life: Life, durable_lsn: int, voted_lsn: int, *, version: Version = NO_VERSION) -> None:
        """A life of a node claims that its log is durable up to here, and all that it voted up to there.

        `version` is the map that it has, if that may be newer than ours.
        """
        if node == self.core.node or not self._known(node, life.allocation):
            return
        if version > self.core.version:
            self._ahead[(node, life.allocation, life.incarnation)] = version
        for claim in self.known():
            if claim.node == node and claim.incarnation != life.incarnation and keeps(life, claim):
                self._heard.pop(_key(claim), None)  # whoever keeps this life's keeps that one
                self._sure.pop(_key(claim), None)
        self._claimed((node, life.allocation, life.incarnation), durable_lsn, voted_lsn)

    def note_listed(self, node: NodeId, durable_lsn: int) -> None:
        """A node that serves under the same map claims it, so in the life that the map lists."""
        key = self._listed.get(node)
        if key is not None and node != self.core.node:
            self._claimed(key, durable_lsn, 0)

    def learn(self, claims: Iterable[Claim]) -> None:
        """Others heard of these under the same map, perhaps of this very disk."""
        for claim in claims:
            if self._known(claim.node, claim.allocation):
                self._raise(_key(claim), claim.durable_lsn, 0)

    def _known(self, node: NodeId, allocation: str) -> bool:
        topology = self.core.topology
        if topology is None:
            return False
        return disk_of(topology, node) == allocation or disk_name(node, allocation) in self._awaited

    def _claimed(self, key: Key, durable_lsn: int, voted_lsn: int) -> None:
        """Take a claim, and log it if it must outlive this node by itself."""
        sure = durable_lsn if self.core.settings.durability is _FSYNC else voted_lsn
        self._raise(key, durable_lsn, sure if sure > voted_lsn else voted_lsn)
        logged = self._logged.get(key, 0)
        if (voted_lsn > logged or sure >= logged + CLAIM_STEP) and key in self._sure:
            self.write_down()

    def write_down(self) -> None:
        """A checkpoint begins, which keeps what was logged: that is to be all."""
        if self._logged != self._sure:
            self._logged = dict(self._sure)
            self.core.log(Claimed(self.core.version, self.sure()))

    def _raise(self, key: Key, heard: int, sure: int) -> None:
        known = self._heard.get(key, -1)
        if known < 0 and sum(k[0] == key[0] for k in self._heard) >= CLAIMS_KEPT:
            probe("claims.too_many_lives")  # those that are known keep the disk from passing
            return
        most = heard if heard > sure else sure
        if most > known:
            self._heard[key] = most
        if sure and sure > self._sure.get(key, 0):
            self._sure[key] = sure

    # Telling.

    def known(self) -> list[Claim]:
        """All that was heard."""
        return [Claim(*key, lsn) for key, lsn in self._heard.items()]

    def sure(self) -> list[Claim]:
        """What may never be forgotten."""
        return [Claim(*key, lsn) for key, lsn in self._sure.items()]


def _key(claim: Claim) -> Key:
    return (claim.node, claim.allocation, claim.incarnation)
