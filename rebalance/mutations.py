"""Which keys were changed while a copy is away, so that it gets these when it is back, though the log has forgotten them.

Every copy in sync remembers, not only the primary, because any of them may lead by then. No write pays for it: what was
applied lies above the store, key by key, until a checkpoint takes it down, and whoever has somebody away keeps the keys
of each checkpoint. So nothing that changes a row can be left out, be it a put, a delete, what a new primary issues again,
or what a copy undid: rows are changed nowhere else. `docs/differential.md` says why that is enough.

It is kept in memory, up to `mutations_bytes`. Beyond that, after a restart, and where this copy itself came to be in sync
too late to know, a fragment is compared instead (`rebalance.leaves`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from rebalance.by_key import copy_of
from rebalance.contents import Entry
from rebalance.partition import LocalPartition, Role
from rebalance.ports import Above, Node
from rebalance.rule import NewMap
from rebalance.table import Topology
from wal.ids import Fragment, Namespace, NodeId
from wal.probe import probe

KEY_WEIGHS = 170
"""What a key that is remembered weighs in memory beside its bytes: the object, its counter, and its place."""
KEYS_AT_ONCE = 1_000
KEYS_OF_WORK = 16
"""So many keys that are remembered, or looked through, are as much work as a row."""
FREED_WORK = 100
"""Of work is what is forgotten in one piece."""
SIFTED_AT_ONCE = 10_000
"""Of so many it is looked at once which were changed above a counter."""
COPIED_OF_WORK = 256
LOOKED_AT_ONCE = 200
LOOKED_OF_WORK = 8
"""So many fragments, or partitions, that are looked at."""


class Changed:
    """Keys of a fragment, each with the counter of its last update (0: it is gone, tombstone and all).

    Invariant: whatever was applied above counter `above`, up to the last checkpoint, is of one of these keys.
    """

    __slots__ = ("above", "bytes", "keys")

    def __init__(self, above: int) -> None:
        self.above = above
        self.bytes = 0
        self.keys: dict[bytes, int] = {}


class _Source(NamedTuple):
    """Keys, and what says of each which counter its last update has; those `above` one are meant, or all (-1)."""

    rows: Mapping[bytes, Any]
    counter_of: Callable[[Any], int]
    above: int

    def means(self, value: Any) -> bool:
        """Whether a key that has this here is one of them; one that is gone, tombstone and all, has no counter."""
        return self.above < 0 or not (counter := self.counter_of(value)) or counter > self.above


class Remembered:
    """The keys of all that was applied above a counter, by the moment at which that was asked.

    Of very many it is not looked at once which they are: what there is of them is copied, part by part, and they are sifted
    out as they are wanted. So `len` says how many they are at most, which are no more than there were updates (`most`).
    """

    def __init__(self, sources: Sequence[_Source], most: int) -> None:
        self.keys: list[bytes] = []  # that were sifted out, and are left
        self.looked = 0
        self.left = sum(len(source.rows) for source in sources)  # that nobody has looked at
        self._most = most
        few = self.left <= SIFTED_AT_ONCE
        self._sources = [source if few else source._replace(rows=copy_of(source.rows)) for source in sources]
        self._walk = chain.from_iterable(map(self._of, range(len(sources))))
        if few:
            self._sift(self.left + 1)
            self._sources = []

    def __len__(self) -> int:
        return len(self.keys) + min(self.left, self._most)

    def sift(self) -> int:
        """See that there are some `keys`, or that none is `left`, as far as one look goes; how much work it was."""
        if self.keys or not self.left:
            return 0
        self._sift(KEYS_AT_ONCE)
        return KEYS_AT_ONCE // KEYS_OF_WORK

    def _sift(self, most: int) -> None:
        before = self.left
        self.keys += [key for key in islice(self._walk, most) if key is not None]
        self.looked += before - self.left

    def _of(self, at: int) -> Iterator[bytes | None]:
        """The keys of one source, each named once; None for one that is not meant."""
        source, before = self._sources[at], self._sources[:at]
        for key, value in source.rows.items():
            self.left -= 1
            named = source.means(value) and not any(key in b.rows and b.means(b.rows[key]) for b in before)
            yield key if named else None


def _number(counter: int) -> int:
    return counter


def _counter_of(entry: Entry) -> int:
    return entry.counter


class Mutations:
    """The keys that one node remembers, for copies of others that are away."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._in_sync: dict[int, int] = {}  # where this copy is, since which checkpoint
        self._moving: dict[int, None] = {}  # where it was not, in this life
        self._away: dict[int, Mapping[NodeId, None]] = {}  # of these partitions, who was in sync and is not
        self._known: dict[int, dict[Namespace, Changed | None]] = {}  # None: they were too many
        self._forgotten: deque[dict[Namespace, Changed | None]] = deque()
        self._here: tuple[object, ...] = ()  # members and baseline of the last map
        self._unlooked: dict[int, object] = {}  # of those where somebody is away, where nobody has looked who is so still
        self._looking = False
        self._checkpoints = 0
        self.bytes = 0

    def __len__(self) -> int:
        """Of how many partitions it remembers."""
        return len(self._away)

    def switch(self, new: NewMap) -> None:
        """A new map: who is away now, and who is whole again, or meant to hold nothing any more."""
        core, topology = self._core, self._core.topology
        assert topology is not None
        known, moving, away = self._in_sync, self._moving, self._away
        gone_of: dict[tuple[NodeId, ...], dict[NodeId, None]] = {}
        remembers = core.settings.mutations_bytes > 0
        for local, out in zip(new.moved, new.out, strict=True):  # as many as there are, where a member is lost
            number = local.number
            since = known.get(number)
            if not local.role.in_sync:
                self._note_out(local, since is not None)
            elif since is None:
                known[number] = self._checkpoints if moving and moving.pop(number, 0) is None else -1
            # In the store there may be rows of counters that a copy had not reached, if a transfer brought them.
            elif out and (number in away or (remembers and since < self._checkpoints)):
                gone = gone_of.get(out) or gone_of.setdefault(out, dict.fromkeys(out))
                away[number] = {**away[number], **gone} if number in away else gone
        here, self._here = self._here, (topology.members, topology.baseline)
        if away:
            moved = {local.number: None for local in new.moved if local.number in away} if here == self._here else away
            self._unlooked |= moved
        if self._unlooked and not self._looking:
            self._looking = True
            core.put_off(self._look)

    def _look(self) -> None:
        """Look at the next of those where somebody is away. It does not matter when: till then it remembers more."""
        core, topology = self._core, self._core.topology
        assert topology is not None
        here = {member.node: None for member in topology.members}
        some = list(islice(self._unlooked, LOOKED_AT_ONCE))
        for number in some:
            del self._unlooked[number]
            if number in self._away:
                self._look_again(number, topology, here)
        core.work += len(some) // LOOKED_OF_WORK
        self._looking = bool(self._unlooked)
        if self._looking:
            core.put_off(self._look)

    def _look_again(self, number: int, topology: Topology, members: Container[NodeId]) -> None:
        """Who of those that were away is so still: not whole, meant to hold data, and not here, or to catch up."""
        placement, left = self._core.local[number].placement, dict[NodeId, None]()
        settled = placement.owners == placement.in_sync
        for node in self._away[number]:
            here = node not in placement.owners and settled and node in members
            if node not in placement.in_sync and node in topology.baseline and not here:
                left[node] = None
        if left:
            self._away[number] = left
        else:
            self._forget(number)

    def _note_out(self, local: LocalPartition, was_in_sync: bool) -> None:
        """This node's copy is not in sync."""
        if was_in_sync:
            del self._in_sync[local.number]
            self._forget(local.number)
        if local.role is Role.MOVING:
            self._moving[local.number] = None

    def _forget(self, number: int) -> None:
        """Nobody is away from a partition any more, or nobody asks this node. Of all at once it may be very much."""
        self._away.pop(number, None)
        if (known := self._known.pop(number, None)) is not None:
            if not self._forgotten:
                self._core.put_off(self._free)
            self._forgotten.append(known)

    def _free(self) -> None:
        """Free the next of what was forgotten; till then it weighs what it did."""
        work = 0
        while self._forgotten and work < FREED_WORK:
            for changed in self._forgotten.popleft().values():
                work += 1
                if changed is not None:
                    self.bytes -= changed.bytes
                    work += len(changed.keys) // KEYS_OF_WORK
        self._core.work += work
        if self._forgotten:
            self._core.put_off(self._free)

    # What a checkpoint takes down.

    def remember(self, frozen: Above) -> Iterator[int]:
        """A checkpoint has begun, of this: keep the keys, in pieces, each of which says how much work it was."""
        self._checkpoints += 1
        return self._remembering(frozen)

    def _remembering(self, frozen: Above) -> Iterator[int]:
        for at, (name, above) in enumerate(frozen.since.items()):
            if not at % LOOKED_AT_ONCE:
                yield LOOKED_AT_ONCE // LOOKED_OF_WORK
            if name[1] in self._away:
                yield from self._add(name, frozen, above)

    def _add(self, name: Fragment, frozen: Above, above: int) -> Iterator[int]:
        """One fragment of it."""
        namespace, number = name
        changed = self._known.setdefault(number, {}).setdefault(namespace, Changed(above))
        if name in frozen.cleared:
            self._give_up(name)
            return
        rows = iter(frozen.rows.get(name, {}).items())
        while changed is not None and (some := list(islice(rows, KEYS_AT_ONCE))):
            if self._known.get(number, {}).get(namespace) is not changed:
                return  # nobody is away any more, or somebody else is
            keys, count, size = changed.keys, len(changed.keys), 0
            for key, entry in some:
                if key not in keys:
                    size += len(key)
                keys[key] = entry.counter
            size += KEY_WEIGHS * (len(keys) - count)
            changed.bytes += size
            self.bytes += size
            if self.bytes > self._core.settings.mutations_bytes:
                probe("mutations.too_many")
                self._give_up(name)
                return
            yield 1 + len(some) // KEYS_OF_WORK

    def _give_up(self, name: Fragment) -> None:
        """Nothing is known of a fragment for as long as anybody is away."""
        known = self._known[name[1]]
        if (changed := known[name[0]]) is not None:
            self.bytes -= changed.bytes
        known[name[0]] = None

    # What a copy lacks.

    def since(self, name: Fragment, counter: int) -> Remembered | None:
        """The keys of all that was applied above a counter; None if that is not known."""
        namespace, number = name
        if number not in self._away:
            return None
        known = self._known.get(number, {})
        if namespace in known and known[namespace] is None:
            return None
        changed = known.get(namespace)
        layers = [la for la in self._core.replica.store.layers if name in la.since or name in la.rows or name in la.cleared]
        if any(name in layer.cleared or name not in layer.since for layer in layers):
            return None
        if changed is not None:
            above = changed.above
        elif layers:
            above = layers[-1].since[name]
        else:
            above = self._core.replica.fragment(name).counter.highest_applied
        if counter < above:
            return None
        sources: list[_Source] = []
        if changed is not None:
            sources.append(_Source(changed.keys, _number, counter if changed.above < counter else -1))
        for layer in layers:
            rows = layer.rows.get(name, {})
            sources.append(_Source(rows, _counter_of, counter if layer.since[name] < counter else -1))
        found = Remembered(sources, self._core.replica.fragment(name).counter.highest_applied - counter)
        self._core.work += found.looked // KEYS_OF_WORK + found.left // COPIED_OF_WORK
        return found
