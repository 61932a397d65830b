"""What a client wants done, as values that know their requests: the material of `engine.client.routing`.

A call is over keys (or partitions), and these over nodes; which over which changes with the topology. So a call does not
hold requests: it holds what is still to be done, makes a request for whatever lies at one node, and takes the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from itertools import groupby, islice
from operator import itemgetter

from engine import errors
from engine.protocol.requests import (
    KEYS_AT_ONCE,
    Done,
    Get,
    KeepLocks,
    Lock,
    Put,
    Reply,
    Request,
    Swap,
    Unlock,
    Values,
)
from rebalance.table import Topology
from wal.ids import NO_ERA, Era, Namespace, TxId, partitions_of

Item = int
"""The position of one thing to do within its call."""


class Call(ABC):
    """Something to be done at the primaries of some partitions.

    `writes`: an unanswered request may have taken effect. `tx` identifies it then. `acked` and `version` are what the
    router says with each request that is sent, and `within_ms`: see `engine.protocol.requests`.
    """

    # What every call begins with stands in the class: a call is made for every operation, and most never differ.
    writes = False
    tx: TxId = b""
    ends = True  # its answer is the last word about its id
    acked = -1
    version = 0
    within_ms = 0
    anywhere = False  # any in-sync copy may answer it, not only the primary
    any_age = False  # nor need that copy be in sync
    error: errors.Error | None = None
    finished = False
    unanswered = False  # a request was sent whose fate is unknown
    asked = True  # what was sent for it may take effect, and did not only prepare for that
    begun = False  # some of its items were done
    rest: Sequence[Item] = ()  # what the last answer did not reach
    waiter: object = None  # whoever waits for it; nothing here touches it

    def only_partition(self, topology: Topology) -> int | None:
        """The partition of its one item; None if it has several, or none."""
        return None

    @abstractmethod
    def partitions(self, topology: Topology) -> list[int]:
        """The partition of each item, by this map."""

    @abstractmethod
    def request(self, request_id: int, items: list[Item]) -> Request:
        """The request for items whose primary is one and the same node."""

    def hear_refusal(self, code: str) -> None:
        """It was refused for now, and is to be asked again."""
        return

    @abstractmethod
    def take(self, items: list[Item], reply: Reply) -> None:
        """The answer to such a request; raises ProtocolError if it is none."""


def unexpected(reply: Reply) -> errors.ProtocolError:
    """An answer of another kind than was asked for."""
    return errors.ProtocolError(f"unexpected answer: {reply}")


class KeysCall(Call):
    """A call over keys of one namespace."""

    _places: tuple[tuple[int, int], list[int]] = ((0, 0), [])  # of each key, where its namespace has such partitions

    def __init__(self, namespace: Namespace, keys: list[bytes]) -> None:
        self.namespace = namespace
        self.keys = keys

    def only_partition(self, topology: Topology) -> int | None:
        """The partition of the key, if there is one."""
        keys = self.keys
        return topology.place(self.namespace, keys[0]) if len(keys) == 1 else None

    def keys_of(self, items: list[Item]) -> list[bytes]:
        """The keys of some items, which mostly are all."""
        keys = self.keys
        return keys if len(items) == len(keys) else [keys[i] for i in items]

    def partitions(self, topology: Topology) -> list[int]:
        """The partition of each key."""
        by = topology.partitions, topology.first_of(self.namespace)
        if self._places[0] != by:
            self._places = by, topology.places(self.namespace, self.keys)
        return self._places[1]


class GetCall(KeysCall):
    """Values of keys; `values` holds (epoch, counter, value or None) in the order of the keys.

    `stale`: from any in-sync copy; they miss nothing that was acknowledged `age_ms` ago (-1: any copy, however old), and
    `answered_ms` says how old they are at most, if it is known. What one answer holds was so at one moment: `answers` is
    how many there were. `cut`: as they were at this cut. `expiry`: not the values, but when they expire.
    """

    cut = NO_ERA
    expiry = False

    def __init__(
        self, namespace: Namespace, keys: list[bytes], *, stale: bool = False, age_ms: int = -1, cut: Era = NO_ERA
    ) -> None:
        if cut != NO_ERA:
            self.cut = cut
        self.namespace = namespace
        self.keys = keys
        self.anywhere, self.any_age = stale, stale and age_ms < 0
        self.age_ms = age_ms
        self.answered_ms = 0
        self.answers = 0
        self.values: list[tuple[int, int, bytes | None]] = [(0, 0, None)] * len(keys)

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Ask for these keys, or for as many of them as are answered at once."""
        keys = self.keys_of(items[:KEYS_AT_ONCE])
        anywhere, within, cut = self.anywhere, self.within_ms, self.cut
        return Get(request_id, self.namespace, keys, anywhere, self.age_ms, within_ms=within, cut=cut, expiry=self.expiry)

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note their values; of those that did not fit into the answer, that they are to be asked for again."""
        if not isinstance(reply, Values) or not 0 < len(reply.values) <= len(items):
            raise unexpected(reply)
        self.answers += 1
        if reply.age_ms:
            unknown = min(reply.age_ms, self.answered_ms) < 0
            self.answered_ms = -1 if unknown else max(reply.age_ms, self.answered_ms)
        if len(reply.values) == len(self.keys):
            self.values = reply.values
            return
        for item, value in zip(items, reply.values, strict=False):
            self.values[item] = value
        self.rest = items[len(reply.values) :]


class LockCall(GetCall):
    """Lock keys for a transaction, to read them (`shared`) or to write them, and read them.

    `held` of them it has locked to read. `skip`: but for those that somebody has, which are read at `SKIPPED`. `holding`:
    it has asked for other keys, before or with these.
    """

    holding = False

    def __init__(
        self,
        owner: TxId,
        namespace: Namespace,
        keys: list[bytes],
        timeout_ms: int,
        label: str = "",
        *,
        skip: bool = False,
        shared: bool = False,
        held: Collection[bytes] = (),
    ) -> None:
        super().__init__(namespace, keys)
        self.skip = skip
        self.shared = shared
        self.held = held
        self.owner = owner
        self.timeout_ms = timeout_ms
        self.label = label

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Lock these keys, or as many of them as are answered at once."""
        keys = self.keys_of(items[:KEYS_AT_ONCE])
        return Lock(
            request_id,
            self.owner,
            namespace=self.namespace,
            keys=keys,
            timeout_ms=self.timeout_ms,
            within_ms=self.within_ms,
            label=self.label,
            skip=self.skip,
            shared=self.shared,
            held=[key for key in keys if key in self.held] if self.held else [],
            holding=self.holding,
        )


class PutCall(KeysCall):
    """Set keys blindly; atomic within each partition. `ttl_ms`: they expire after so long (0: never)."""

    writes = True
    ttl_ms = 0

    def __init__(
        self, tx: TxId, namespace: Namespace, keys: list[bytes], values: list[bytes | None], ttl_ms: int = 0
    ) -> None:
        if ttl_ms:
            self.ttl_ms = ttl_ms
        self.namespace = namespace
        self.keys = keys
        self.tx = tx
        self.values = values

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Set these keys."""
        if len(items) == len(self.keys):
            return Put(
                request_id,
                self.tx,
                self.namespace,
                self.keys,
                self.values,
                acked=self.acked,
                version=self.version,
                within_ms=self.within_ms,
                ttl_ms=self.ttl_ms,
            )
        keys, values = [self.keys[i] for i in items], [self.values[i] for i in items]
        return Put(
            request_id,
            self.tx,
            self.namespace,
            keys,
            values,
            acked=self.acked,
            version=self.version,
            within_ms=self.within_ms,
            ttl_ms=self.ttl_ms,
        )

    def take(self, items: list[Item], reply: Reply) -> None:
        """Nothing to note."""
        if not isinstance(reply, Done):
            raise unexpected(reply)


class SwapCall(KeysCall):
    """Set one key under a condition; `applied` and `found` say what came of it. `how` and `at` as with `Swap`."""

    writes = True

    def __init__(
        self,
        tx: TxId,
        namespace: Namespace,
        key: bytes,
        when: str,
        *,
        old: bytes | None = None,
        new: bytes | None = None,
        how: str = "set",
        at: tuple[int, int] = (0, 0),
        ttl_ms: int = 0,
    ) -> None:
        super().__init__(namespace, [key])
        self.tx = tx
        self.ttl_ms = ttl_ms
        self.when = when
        self.how = how
        self.at = at
        self.old = old
        self.new = new
        self.applied = False
        self.found: bytes | None = None

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Set the key."""
        return Swap(
            request_id,
            self.tx,
            namespace=self.namespace,
            key=self.keys[0],
            when=self.when,
            old=self.old,
            new=self.new,
            acked=self.acked,
            version=self.version,
            within_ms=self.within_ms,
            how=self.how,
            epoch=self.at[0],
            counter=self.at[1],
            ttl_ms=self.ttl_ms,
        )

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note what came of it."""
        if not isinstance(reply, Done):
            raise unexpected(reply)
        self.applied, self.found = reply.applied, reply.found


class Whereabouts:
    """In which partitions some keys are. Of very many, too, each is looked at once, however often that is asked.

    Keys may come behind those that are there, and none goes. So it is with what is told: each has its position for good.
    """

    __slots__ = ("_keys", "_looked", "_of", "_there")

    def __init__(self, keys: Collection[tuple[Namespace, bytes]]) -> None:
        self._keys = keys
        self._looked = 0  # at so many of them
        self._of = 0  # partitions, before any group
        self._there: dict[tuple[Namespace, int], None] = {}

    def partitions(self, topology: Topology) -> list[int]:
        """Each partition once, by this map."""
        if self._of != topology.partitions:
            self._of, self._looked, self._there = topology.partitions, 0, {}
        if self._looked < len(self._keys):
            came, self._looked = islice(self._keys, self._looked, None), len(self._keys)
            for namespace, named in groupby(came, itemgetter(0)):
                numbers = partitions_of([key for _, key in named], self._of)
                self._there |= dict.fromkeys((namespace, number) for number in numbers)
        return [topology.first_of(namespace) + number for namespace, number in self._there]


class UnlockCall(Call):
    """Give a transaction up: release its locks, wherever its keys are."""

    def __init__(self, owner: TxId, where: Whereabouts) -> None:
        self.owner = owner
        self.where = where

    def partitions(self, topology: Topology) -> list[int]:
        """One item for each partition: its node is told of the transaction, and not of keys."""
        return self.where.partitions(topology)

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Release what lies at one node."""
        return Unlock(request_id, self.owner)

    def take(self, items: list[Item], reply: Reply) -> None:
        """Nothing to note."""


class KeepLocksCall(UnlockCall):
    """A transaction is alive: renew the leases of its locks, wherever its keys are."""

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Renew what lies at one node."""
        return KeepLocks(request_id, [self.owner])
