"""What disks have claimed to hold, and which life of a node may vote.

A node says in each message that matters how far its log is durable: a claim of its life. A life that begins with less
than an earlier one on the same disk had claimed was set back to an old image, and has forgotten what it promised. So has
a wiped disk, which betrays itself by another name. Neither may vote, nor pass for in sync, before a committed map lists
it: that map was decided without its word.

A life tells of the lives that came before it on its disk, and where the log of each ended. So a claim is never outgrown: a
disk that was set back and went on writing, or that started once more, still says where it parted from the life that
claimed more. It tells of those before the one that the map lists, too: whoever missed the map that settled what they had
claimed asks for it.

Claims outlive a restart of everybody. What a voter promised is logged when it is heard of, how far a disk is durable in
coarse steps; all that is known goes into each checkpoint, and into the next map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from engine.core import Core
from engine.messages import Life
from engine.settings import Durability
from engine.topology import Topology, disk_name, lost_disks
from wal.ids import NodeId
from wal.probe import probe
from wal.records import Claim, Claimed

CLAIM_STEP = 1_024
"""A claim of so many records more is logged, though nobody has voted."""

CLAIMS_KEPT = 8
"""Of so many lives of one disk it is remembered what they claimed; more than one only since it was set back, or since
it started again without being heard."""

LIVES_KEPT = 64
"""Of so many lives before it a life tells: a node that starts more often without being let in, or while somebody is away
who has heard of it, has to catch up."""

Key = tuple[NodeId, str, int]


class Claims:
    """The most that each life of the disks which the map knows was heard to claim."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._heard: dict[Key, int] = {}
        self._sure: dict[Key, int] = {}  # of these, what no loss of power may honestly take back
        self._logged: dict[Key, int] = {}
        self._listed: dict[NodeId, Key] = {}
        self._awaited: dict[str, None] = {}  # disks that lost partitions wait for

    def boot(self) -> None:
        """Begin with what the log and the map remember."""
        replica = self.core.replica
        self._sure = {_key(claim): claim.durable_lsn for claim in replica.claims}
        self._heard, self._logged = dict(self._sure), dict(self._sure)
        if self.core.topology is not None:
            self._settle(self.core.topology, every_life=replica.claimed_at == self.core.version)

    def switch(self) -> None:
        """A new map: what it says of a node rests on the life that it lists; what other lives claimed is settled."""
        assert self.core.topology is not None
        self._settle(self.core.topology, every_life=False)

    def _settle(self, topology: Topology, *, every_life: bool) -> None:
        listed = self._listed = {m.node: (m.node, m.allocation, m.incarnation) for m in topology.members}
        self._awaited = lost_disks(topology.placements)

        def counts(key: Key) -> bool:
            if disk_name(key[0], key[1]) in self._awaited:
                return True
            return disk_of(topology, key[0]) == key[1] and (every_life or listed.get(key[0], key) == key)

        self._heard = {key: lsn for key, lsn in self._heard.items() if counts(key)}
        self._sure = {key: lsn for key, lsn in self._sure.items() if counts(key)}
        for claim in topology.claims:
            self._raise(_key(claim), claim.durable_lsn, claim.durable_lsn)
            self._logged[_key(claim)] = claim.durable_lsn
        self._logged = {key: lsn for key, lsn in self._logged.items() if key in self._sure}

    # Hearing.

    def note(self, node: NodeId, life: Life, durable_lsn: int, voted_lsn: int) -> None:
        """A life of a node claims that its log is durable up to here, and all that it voted up to there."""
        if node == self.core.node or not self._known(node, life.allocation):
            return
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
        sure = durable_lsn if self.core.settings.durability is Durability.FSYNC else voted_lsn
        self._raise(key, durable_lsn, max(sure, voted_lsn))
        logged = self._logged.get(key, 0)
        if key in self._sure and (voted_lsn > logged or sure >= logged + CLAIM_STEP):
            self._logged = dict(self._sure)
            self.core.log(Claimed(self.core.version, self.sure()))

    def _raise(self, key: Key, heard: int, sure: int) -> None:
        if key not in self._heard and sum(k[0] == key[0] for k in self._heard) >= CLAIMS_KEPT:
            probe("claims.too_many_lives")  # those that are known keep the disk from passing
            return
        self._heard[key] = max(self._heard.get(key, 0), heard, sure)
        if sure:
            self._sure[key] = max(self._sure.get(key, 0), sure)

    # Telling.

    def known(self) -> list[Claim]:
        """All that was heard."""
        return [Claim(*key, lsn) for key, lsn in self._heard.items()]

    def sure(self) -> list[Claim]:
        """What may never be forgotten."""
        return [Claim(*key, lsn) for key, lsn in self._sure.items()]


def disk_of(topology: Topology, node: NodeId) -> str:
    """The disk on which the map knows a node's copies, and its votes, to be; nothing for a node without."""
    return topology.allocations.get(node, "")


def may_vote(topology: Topology, node: NodeId, life: Life, claims: Iterable[Claim]) -> bool:
    """Whether a promise or an accept of this life counts for what follows `topology`, as far as it is known.

    A voter need not be a member now: its disk is in the map all the same. The life that the map lists may vote whatever
    lives before it claimed, because the map was decided without them.
    """
    if disk_of(topology, node) != life.allocation:
        return False
    member = topology.member(node)
    if member is not None and member.incarnation == life.incarnation:
        return True
    return not set_back(node, life, claims)


def set_back(node: NodeId, life: Life, claims: Iterable[Claim]) -> bool:
    """Whether another life of the same disk claimed what this one does not have: an old image was put back.

    Or that life came later, and this one is over: then it does not count either.
    """
    return any(c.node == node and c.allocation == life.allocation and not keeps(life, c) for c in claims)


def keeps(life: Life, claim: Claim) -> bool:
    """Whether a life has all that is claimed, by itself or by a life before it on the same disk."""
    if claim.incarnation == life.incarnation:
        return True
    chain = [*life.before, (life.incarnation, life.boot_lsn)]
    ends = {incarnation: end for (incarnation, _), (_, end) in pairwise(chain)}
    return ends.get(claim.incarnation, -1) >= claim.durable_lsn


def lives_before(lives: Sequence[tuple[int, int]], listed: int | None) -> list[tuple[int, int]]:
    """Of all lives of a disk, (incarnation, LSN at which it began), those that its next one tells of.

    If they are too many, these are the last ones, and that which the map lists.
    """
    older, told = lives[:-LIVES_KEPT], list(lives[-LIVES_KEPT:])
    rests_on = [life for life in older if life[0] == listed]
    return [*rests_on, *told[len(rests_on) :]]


def earlier(life: Life, known: Iterable[Claim], heard: Iterable[Claim]) -> list[Claim]:
    """What lives before this one claimed: all that was known before it answered, and of the rest the lower lives."""
    return [*known, *(claim for claim in heard if claim.incarnation < life.incarnation)]


def _key(claim: Claim) -> Key:
    return (claim.node, claim.allocation, claim.incarnation)
