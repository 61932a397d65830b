"""The partition map of one topology version: who is a member, and who has which partition, and how each copy stands.

A topology is a value. It is proposed, accepted and committed as a whole by the exchange (`engine.cluster.exchange`), and
every node that has version 5.1 has the same bytes for it. It says four things about a partition:

* its **epoch**, which rises at every change of primary and begins each new history,
* its **owners**, primary first: the copies that get every write,
* its **in-sync set**: the owners that must have an update on disk before it is acknowledged; the other owners are MOVING,
* whether it is **LOST**: no member of its in-sync set is here, and nobody else may pretend to be one.

Placements carry a version each, raised by one for every slot that changes, and the topology a 64-bit stamp over these
versions, so that two members compare their tables in one number (Hazelcast's parallel migrations design, 1.2 and 1.3).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from struct import iter_unpack, pack

import msgspec

from rebalance.migrations import NOT_ORDERED, Migrations
from rebalance.namespaces import LossPolicy, NamespaceSettings
from wal.ids import NO_VERSION, Namespace, NodeId, Version, partition_of, partitions_of
from wal.records import Claim

FORMAT = 1
BEFORE_KEPT = 16
BACKUPS_MAX = 6
"""Of a group, synchronous and asynchronous ones together."""
BACK_OFF_MS = 10_000
DOUBLED_MAX = 6
"""A member that was too slow stays away for so long, and twice as long each time after, up to so many times."""
ENCODED_AT_ONCE = 4_096
"""Partitions."""
ENCODED_OF_WORK = 16
"""So many are as much work to encode as one thing that is decided."""
SHORT_ARRAY = 15
"""Things in an array whose length MessagePack says in the byte that begins it; of a longer one it takes two more."""


class Standing(StrEnum):
    """What one node's copy of a partition may do."""

    OWNING = "OWNING"  # in sync: counts for acknowledgements, may be promoted
    MOVING = "MOVING"  # loading: takes live writes, serves nothing, counts for nothing
    ASYNC = "ASYNC"  # asynchronous: takes live writes, counts for nothing, serves those who do not mind its age
    LOST = "LOST"  # the partition has no in-sync copy here
    NONE = "-"  # no copy


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One node of one topology version. `order` is its age: the smallest is the coordinator."""

    node: NodeId
    allocation: str
    incarnation: int
    address: str
    order: int
    domain: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """A node that wants to be in the next map, as it says it is now."""

    node: NodeId
    allocation: str
    incarnation: int
    address: str
    domain: str


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where one partition is. Invariant: unless lost, owners[0] is the primary and in in_sync; in_sync <= owners.

    `asynchronous` are further nodes that get every write, and that nobody waits for: they are no owners, and become primary
    only by way of the in-sync set, like any copy that was MOVING.
    """

    version: int
    epoch: int
    owners: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]
    lost: bool = False
    asynchronous: tuple[NodeId, ...] = ()

    @property
    def copies(self) -> tuple[NodeId, ...]:
        """All that get every write."""
        return self.owners + self.asynchronous if self.asynchronous else self.owners

    @property
    def primary(self) -> NodeId | None:
        """The node that hands out counters, or None while the partition is lost."""
        return None if self.lost else self.owners[0]

    def standing_of(self, node: NodeId) -> Standing:
        """What `node`'s copy is."""
        if self.lost:
            return Standing.LOST if node in self.in_sync else Standing.NONE
        if node in self.in_sync:
            return Standing.OWNING
        if node in self.owners:
            return Standing.MOVING
        return Standing.ASYNC if node in self.asynchronous else Standing.NONE


class Group(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many copies the partitions of one group have. Namespaces that ask for as many are in one group."""

    backups: int
    async_backups: int = 0

    @property
    def copies(self) -> int:
        """How many of them are to be in sync, where there are enough nodes."""
        return self.backups + 1

    @property
    def told(self) -> str:
        """It in words."""
        return f"{self.backups} backups" + (f" and {self.async_backups} asynchronous ones" if self.async_backups else "")

    @property
    def places(self) -> int:
        """How many of them there are with the asynchronous ones."""
        return self.copies + self.async_backups


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition that was lost begins again: `node`'s copy, of this epoch and with so many updates; or nothing."""

    partition: int
    node: NodeId
    epoch: int
    updates: int


class Intervention(msgspec.Struct, frozen=True, array_like=True):
    """Something that the operator forced: `reset-lost` or `recover`, after which version, with which nodes."""

    kind: str
    after: Version
    nodes: tuple[NodeId, ...]
    taken: tuple[Taken, ...]


class Topology(msgspec.Struct, frozen=True, array_like=True):
    """One committed (or proposed) version of the cluster.

    `cluster` is the id drawn when the cluster was formed; `allocations` names the disk on which each data node's copies
    are known to live: a wiped disk has another one, and so cannot pass as in-sync. `baseline` are the nodes that are
    meant to hold data, here or not.

    `claims` is how far the disk of each voter was durable as of its single map; for one that is away, all that was heard.
    `before` are the last versions that led here, oldest first, each with the hash of its map: whoever has another map of
    such a version, or a version that is not among them, is on the other side of a split. `baselined` is the version that
    brought the baseline: an order to change it is for one baseline alone.

    `interventions` are the last orders of the operator that gave something up. `aside` are members that were too slow to be
    waited for, and how often they were set aside: they are in an in-sync set only where `rebalance.aside` says so;
    negative, once they were let back in.

    `listed`, of the disks that are away and counted on: the life that a map listed last, and which map. It made void what
    other lives on that disk had claimed before, also for whoever missed it.

    `fence`, in a map that came by a light step (`rebalance.steps`): the version of the last one that did not.

    `namespaces` are those of which the operator has said something, `migrations` what he has ordered of these.

    `partitions` is how many a key can be in, those of one group. Each of the `groups` has as many of its own, one group's
    after the other's; the first one is the cluster's own, of `backups`, and the only one where none is named.
    """

    version: Version
    cluster: str
    name: str
    partitions: int
    backups: int
    members: tuple[Member, ...]
    baseline: tuple[NodeId, ...]
    placements: tuple[Placement, ...]
    allocations: dict[NodeId, str]
    domains: dict[NodeId, str]
    next_order: int
    format: int = FORMAT
    claims: tuple[Claim, ...] = ()
    before: tuple[tuple[Version, int], ...] = ()
    baselined: Version = NO_VERSION
    interventions: tuple[Intervention, ...] = ()
    aside: dict[NodeId, int] = {}  # msgspec copies it
    listed: dict[str, tuple[int, Version]] = {}
    fence: Version = NO_VERSION
    namespaces: dict[Namespace, NamespaceSettings] = {}
    migrations: Migrations = NOT_ORDERED
    groups: tuple[Group, ...] = ()

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """Every group, the cluster's own first."""
        return self.groups or (Group(self.backups),)

    def group_of(self, partition: int) -> Group:
        """The group of a partition of the table."""
        return self.groups[partition // self.partitions] if self.groups else Group(self.backups)

    def first_of(self, namespace: Namespace) -> int:
        """The first partition of a namespace's group."""
        if not self.groups or (settings := self.namespaces.get(namespace)) is None:
            return 0
        return settings.group * self.partitions

    def partitions_of(self, namespace: Namespace) -> range:
        """All partitions in which a namespace may have keys."""
        first = self.first_of(namespace)
        return range(first, first + self.partitions)

    def place(self, namespace: Namespace, key: bytes) -> int:
        """The partition of a key."""
        number = partition_of(key, self.partitions)
        return number + self.first_of(namespace) if self.groups else number

    def places(self, namespace: Namespace, keys: Sequence[bytes]) -> list[int]:
        """The partition of each of many keys."""
        numbers = partitions_of(keys, self.partitions) if len(keys) != 1 else [partition_of(keys[0], self.partitions)]
        if not self.groups:
            return numbers
        first = self.first_of(namespace)
        return [number + first for number in numbers]

    def read_only(self) -> dict[Namespace, int]:
        """The namespaces in which nothing is written for now, and which LOST partition is the reason."""
        found: dict[Namespace, int] = {}
        for name, said in self.namespaces.items():
            if said.loss is LossPolicy.READ_ONLY_SAFE:
                lost = next((number for number in self.partitions_of(name) if self.placements[number].lost), None)
                if lost is not None:
                    found[name] = lost
        return found

    def copies_of(self, partition: int) -> int:
        """How many copies of a partition should be in sync."""
        return min(self.group_of(partition).copies, len(self.baseline))

    @property
    def wanted(self) -> list[int]:
        """The same of every partition, for who looks at many of them."""
        return [n for g in self.all_groups for n in [min(g.copies, len(self.baseline))] * self.partitions]

    @property
    def fenced(self) -> Version:
        """The version by which what nodes say of their copies is fenced: of the last map that was no light step."""
        return self.fence if self.fence != NO_VERSION else self.version

    def member(self, node: NodeId) -> Member | None:
        """The member entry of `node`, if it is one."""
        return next((m for m in self.members if m.node == node), None)

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The nodes whose majority decides the next version: those that are meant to hold data, here or not.

        Only the operator changes them. If failures and stops did, whoever was last to go would be the whole electorate,
        and if nodes without data did, they could outvote all that has any.
        """
        return self.baseline

    @property
    def majority(self) -> int:
        """How many voters make a majority."""
        return len(self.baseline) // 2 + 1

    def carried_by(self, nodes: Collection[NodeId]) -> bool:
        """Whether these nodes are a majority of the voters, and so can decide the next version."""
        return sum([n in nodes for n in self.baseline]) >= self.majority

    def check(self, begin: int = 0, end: int | None = None) -> None:
        """Assert the invariants that every proposed map must have; of the partitions from `begin` to below `end`."""
        groups = self.all_groups
        assert len(self.placements) == self.partitions * len(groups), "a map places every partition of every group"
        assert groups[0].backups == self.backups, "the first group is the cluster's own"
        assert len(set(groups)) == len(groups), "there is a group once"
        names = [m.node for m in self.members]
        assert len(set(names)) == len(names), "a node is a member once"
        alike: dict[tuple[object, ...], None] = {}  # there are many partitions, and few ways in which they are placed
        for number, p in enumerate(self.placements[begin:end], begin):
            key = (p.owners, p.in_sync, p.lost, p.asynchronous)
            if key in alike:
                continue
            alike[key] = None
            where = f"partition {number} of {self.version}"
            assert p.in_sync, f"{where} has an empty in-sync set"
            assert len(set(p.owners)) == len(p.owners), f"{where} has an owner twice"
            if not p.lost:
                assert p.owners[0] in p.in_sync, f"{where}: the primary is not in sync"
                assert all(n in p.owners for n in p.in_sync), f"{where}: an in-sync copy is not an owner"
                assert all(n in names for n in p.copies), f"{where}: an owner is not a member"
            assert len(set(p.copies)) == len(p.copies), f"{where} has two copies on a node"
            assert not (p.lost and p.asynchronous), f"{where} is lost, and nobody follows"


def back_off_ms(times: int) -> int:
    """How long a member that was set aside so many times stays away."""
    return BACK_OFF_MS << min(max(times, 1) - 1, DOUBLED_MAX)


def hash_of(encoded: bytes) -> int:
    """64 bits of a map's bytes: equal hashes, equal maps."""
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "big")


def split_from(topology: Topology, own_hash: int, version: Version, other_hash: int) -> bool:
    """Whether a map of this or an older version, with this hash, is not one that led to `topology`, as far as it knows."""
    assert version <= topology.version
    if version == topology.version:
        return other_hash != own_hash
    if not topology.before or version < topology.before[0][0]:
        return False
    return (version, other_hash) not in topology.before


def disk_name(node: NodeId, allocation: str) -> str:
    """How the in-sync set of a lost partition names a disk that its node does not have any more."""
    return f"{node}#{allocation}"


def node_of(name: str) -> NodeId:
    """The node of an entry of an in-sync set."""
    return name.partition("#")[0]


def lost_disks(placements: Iterable[Placement]) -> dict[str, None]:
    """The disks, by name, that lost partitions wait for although their nodes have others now."""
    return {name: None for p in placements if p.lost for name in p.in_sync if "#" in name}


def in_sync_of(placements: Sequence[Placement]) -> dict[NodeId, int]:
    """Of each node the partitions of which its copy is in sync, or was when they were lost: of each a byte that is 1."""
    found: dict[NodeId, bytearray] = {}
    for number, placement in enumerate(placements):
        for node in placement.in_sync:
            bits = found.get(node)
            if bits is None:
                bits = found[node] = bytearray(len(placements))
            bits[number] = 1
    return {node: int.from_bytes(bits, "little") for node, bits in found.items()}


_decoder = msgspec.msgpack.Decoder(Topology)
_encoder = msgspec.msgpack.Encoder()


def encode(topology: Topology) -> bytes:
    """The bytes of a topology, as the log and the wire carry them."""
    return _encoder.encode(topology)


def encoding(topology: Topology) -> Generator[int, None, bytes]:
    """`encode`, in pieces; yields how much work each was."""
    placements = topology.placements
    if len(placements) <= ENCODED_AT_ONCE:
        return encode(topology)
    pieces = [b"\xdc" + pack(">H", len(placements))]  # an array of so many
    for begin in range(0, len(placements), ENCODED_AT_ONCE):
        some = placements[begin : begin + ENCODED_AT_ONCE]
        pieces.append(_encoder.encode(some)[1 if len(some) <= SHORT_ARRAY else 3 :])
        yield len(some) // ENCODED_OF_WORK
    return encode(msgspec.structs.replace(topology, placements=msgspec.Raw(b"".join(pieces))))


@lru_cache(maxsize=2)
def decode(data: bytes) -> Topology:
    """The inverse of `encode`; raises ValueError with what was wrong.

    What is proposed is committed next, or is what was: a map of many partitions is not taken apart twice.
    """
    try:
        topology = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a topology: {error}") from error
    if topology.format != FORMAT:
        raise ValueError(f"topology format {topology.format} is not known here: expected {FORMAT}; upgrade this node")
    return topology


def version_of(topology: Topology | None) -> Version:
    """A topology's version, or 0.0 for none."""
    return topology.version if topology else NO_VERSION


_MASK = (1 << 64) - 1


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _finish(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)


def murmur3_64(data: bytes, seed: int = 0) -> int:
    """The first half of the canonical MurmurHash3 x64 128 of `data`.

    >>> hex(murmur3_64(b"hello"))
    '0xcbd8a7b341bd9b02'
    """
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    whole = len(data) & ~15
    for k1, k2 in iter_unpack("<QQ", data[:whole]):
        k1, k2 = k1 * c1 & _MASK, k2 * c2 & _MASK  # noqa: PLW2901  # as the algorithm names them
        h1 ^= (k1 << 31 | k1 >> 33) * c2 & _MASK
        h1 = (((h1 << 27 | h1 >> 37) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= (k2 << 33 | k2 >> 31) * c1 & _MASK
        h2 = (((h2 << 31 | h2 >> 33) + h1) * 5 + 0x38495AB5) & _MASK
    rest = data[whole:]
    if len(rest) > 8:
        h2 ^= _rotate(int.from_bytes(rest[8:], "little") * c2 & _MASK, 33) * c1 & _MASK
    if rest:
        h1 ^= _rotate(int.from_bytes(rest[:8], "little") * c1 & _MASK, 31) * c2 & _MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finish(h1) + _finish(h2)) & _MASK


def stamp(topology: Topology) -> int:
    """One number over all placement versions: equal stamps, equal tables."""
    return murmur3_64(pack(f">{len(topology.placements)}I", *[p.version for p in topology.placements]))
