"""Who holds which key, to read or to write, and what only an outcome releases. `engine.data.locks` is who waits for it.

A lock is shared, for reading, or exclusive, for writing: many share a key, or one has it. From the vote on, or from the
moment that its one record is logged, a key is pinned, also one that was only read: only the outcome releases it, whatever
the client does. A transaction may be pinned in one partition and not in the others, so it is keys that are pinned and not
transactions.

A transaction may hold a hundred thousand keys in thousands of partitions, and ends partition by partition: so what it
holds is kept by partition, and nothing here walks all keys to find those of one.

From its last vote on a commit is certain: nothing else can come of it, whoever fails (`engine.transactions.coordinator`).
What is left is to tell the copies. Who stands in line for a key need not wait for that, too: as soon as the outcome is in
the log and on its way, the key is *handed on*, and its next owner reads what the commit has written. Until the outcome
counts, such a key is in doubt as before, for everybody else: it is not read beside its owner, and no single write has it,
nor who takes what is free, even if nobody has it. And its next owner ends nothing: whatever it is to vote on waits until
then (`rests_on`), so that no copy ever has two transactions in doubt of which one rests on the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat, starmap
from operator import eq
from typing import NamedTuple, TypeAlias

from engine.state.store import Entry
from wal.ids import Namespace, TxId

Key = tuple[Namespace, bytes]
Place: TypeAlias = Callable[[Namespace, bytes], int]
Places: TypeAlias = Callable[[Collection[Key]], Sequence[int]]
"""In which partition each of some keys lies."""
Written: TypeAlias = Callable[[Key], Entry | None]
"""What a transaction writes to a key, if it does."""
Resumed: TypeAlias = Callable[[bool], None]
"""Told whether an outcome counts; else its partition is another node's to lead by now."""
LET_GO_MAX = 1_000
"""Keys of partitions that another node leads now that are let go of in one piece."""
MANY_KEYS = 64
"""So many keys that nobody has are taken together, or pinned and let go of by who has them, at a fifth of what it costs
one by one."""


class Who(NamedTuple):
    """What is known of a transaction that holds something: its label, since when (ns), and by which client's connection."""

    label: str
    since: int
    session: int = 0


class Passing:
    """The end of a transaction in one partition, while its outcome is on its way: the keys of it that were `handed` on, and
    who waits until it counts."""

    __slots__ = ("behind", "handed", "tx", "written")

    def __init__(self, tx: TxId, written: Written) -> None:
        self.tx = tx
        self.written = written
        self.handed: list[Key] = []
        self.behind: list[Resumed] = []


class Handed(NamedTuple):
    """A key that was handed on: by whom, and as what."""

    by: TxId
    passing: Passing
    entry: Entry


class Holdings:
    """What transactions hold. A key has one owner or some who share it, never both.

    `place` tells in which partition a key lies, and `places` the same of many, if that is known to be quicker.
    """

    def __init__(self, place: Place, places: Places | None = None) -> None:
        self._place = place
        self._places: Places = places or (lambda keys: list(starmap(place, keys)))
        self._owner: dict[Key, TxId] = {}
        self._sharing: dict[Key, dict[TxId, bool]] = {}  # True: pinned
        self._keys: dict[TxId, dict[int, dict[Key, None]]] = {}  # by partition
        self._owners: dict[int, dict[TxId, None]] = {}  # who holds something in a partition
        self._pinned: dict[Key, bool] = {}  # of owners; True: of a vote, so that nobody may be told the key's value
        self._doubtful: dict[int, dict[Key, None]] = {}  # the pinned ones of votes, by partition
        self.passing: dict[TxId, dict[int, Passing]] = {}  # whose commits are certain, and do not count yet; by partition
        self.handed: dict[Key, Handed] = {}  # what others have of these by now
        self._gone: dict[int, list[TxId]] = {}  # who has yet to let go of what it has in a partition
        self._who: dict[TxId, Who] = {}
        self._lease: dict[TxId, int] = {}

    def __len__(self) -> int:
        return len(self._owner) + len(self._sharing)

    def holds(self, owner: TxId, key: Key) -> bool:
        """Whether the transaction may read the key, and nobody else write it."""
        return self._owner.get(key) == owner or owner in self._sharing.get(key, ())

    def may_write(self, owner: TxId, key: Key) -> bool:
        """Whether the transaction has the key for itself."""
        return self._owner.get(key) == owner

    def may_write_all(self, owner: TxId, keys: Iterable[Key]) -> bool:
        """Whether the transaction has each of some keys for itself."""
        return all(map(eq, map(self._owner.get, keys), repeat(owner)))

    def owned(self, key: Key) -> TxId | None:
        """The transaction that may write a key, or that has written it and handed it on, while it is in doubt for that."""
        if self.handed and (handed := self.handed.get(key)) is not None:
            return handed.by
        return self._owner.get(key)

    def keys_of(self, owner: TxId) -> list[Key]:
        """The keys a transaction holds."""
        return [key for keys in self._keys.get(owner, {}).values() for key in keys]

    def keys_in(self, owner: TxId, partition: int) -> list[Key]:
        """The keys of one partition that a transaction holds."""
        return list(self._keys.get(owner, {}).get(partition, ()))

    def is_owner(self, owner: TxId) -> bool:
        """Whether a transaction holds anything, or what it held is in doubt."""
        return owner in self._keys or owner in self.passing

    def owners_in(self, partition: int) -> Iterable[TxId]:
        """The transactions that hold keys of a partition."""
        return self._owners.get(partition, ())

    def held_of(self, partitions: Iterable[int]) -> list[int]:
        """Those of some partitions in which anybody holds a key."""
        return list(filter(self._owners.__contains__, partitions))

    def introduce(self, owner: TxId, label: str, now: int, session: int = 0) -> None:
        """Whoever waits for what this transaction holds is told its label, and since when it holds something."""
        if owner in self._keys:
            self._who.setdefault(owner, Who(label, now, session))

    def who(self, owner: TxId) -> Who | None:
        """Who holds something here, and since when; None if nobody said."""
        return self._who.get(owner)

    # What is shown to a person, in pages: what comes and goes between two pages may be missed, or seen twice.

    def owners(self, skip: int, most: int) -> list[TxId]:
        """Some transactions that hold something."""
        return list(islice(self._keys, skip, skip + most))

    def counted(self, owner: TxId) -> tuple[int, int]:
        """How many keys a transaction holds, and in how many partitions."""
        mine = self._keys.get(owner, {})
        return sum(map(len, mine.values())), len(mine)

    def held_in(self, partition: int, skip: int, most: int, only: TxId | None = None) -> list[tuple[TxId, Key]]:
        """Some of the locks in a partition, or of one transaction's there. What is skipped is walked of one at most."""
        found: list[tuple[TxId, Key]] = []
        for owner in self._owners.get(partition, ()) if only is None else (only,):
            keys = self._keys.get(owner, {}).get(partition, {})
            if skip >= len(keys):
                skip -= len(keys)
                continue
            found += [(owner, key) for key in islice(keys, skip, skip + most - len(found))]
            skip = 0
            if len(found) >= most:
                break
        return found

    def is_pinned(self, owner: TxId, key: Key) -> bool:
        """Whether only an outcome takes a key from a transaction that holds it."""
        return key in self._pinned if self._owner.get(key) == owner else self._sharing.get(key, {}).get(owner, False)

    def ends_by_itself(self, key: Key) -> bool:
        """Whether an outcome that is yet to come releases a key, whatever any client does."""
        if key in self._pinned or any(self._sharing.get(key, {}).values()):
            return True
        return key in self.handed and key not in self._owner and key not in self._sharing

    def in_doubt(self, key: Key) -> bool:
        """Whether a transaction that writes the key voted, and its outcome does not count yet."""
        return self._pinned.get(key, False) or key in self.handed

    def partitions_in_doubt(self) -> Collection[int]:
        """Those in which there are any such keys."""
        return self._doubtful.keys()

    def keys_in_doubt(self, partition: int) -> Iterable[Key]:
        """The keys of a partition that are written by transactions that voted and whose outcome is open."""
        return self._doubtful.get(partition, ())

    def pin(
        self,
        owner: TxId,
        keys: Sequence[Key],
        reads: Iterable[Key] = (),
        *,
        in_doubt: bool = True,
        found: bool = False,
        sure: bool = False,
    ) -> None:
        """Only an outcome releases these keys, and `reads` that were only read: take those that it does not hold yet.

        `in_doubt`: it voted, so that what the keys hold that it writes cannot be told before the outcome is known.
        `found`: so it was by a new primary; what another one that voted has stays with that one. `sure`: somebody has just
        looked that it has all of `keys` to write.
        """
        new: Sequence[Key] = keys
        if found and len(keys) >= MANY_KEYS and self._are_free(keys):
            self._take_new(owner, dict.fromkeys(keys, owner))
            sure = True
        if len(keys) >= MANY_KEYS and (sure or self.may_write_all(owner, keys)):
            self._pin_all(keys, in_doubt=in_doubt)
            new = ()
        for key in new:
            if found and self._is_of_another(owner, key, read=False):
                continue
            if self._owner.get(key) != owner:
                self._take(owner, key)
            self._pinned[key] = in_doubt
            if in_doubt:
                self._doubtful.setdefault(self._place(*key), {})[key] = None
        for key in reads:
            if found and self._is_of_another(owner, key, read=True):
                continue
            self._take(owner, key, shared=True)
            if self._owner.get(key) == owner:
                self._pinned.setdefault(key, False)
            else:
                self._sharing[key][owner] = True

    def unpin(self, owner: TxId, keys: Iterable[Key], reads: Iterable[Key]) -> None:
        """No outcome is to come for these, of what it has of them: it holds them as before they were pinned."""
        for key in chain(keys, reads):
            if self._owner.get(key) == owner:
                if self._pinned.pop(key, False):
                    self._no_longer_doubt(self._place(*key), (key,))
            elif owner in self._sharing.get(key, ()):
                self._sharing[key][owner] = False

    def _pin_all(self, keys: Sequence[Key], *, in_doubt: bool) -> None:
        """Of who has them all to write."""
        self._pinned.update(dict.fromkeys(keys, in_doubt))
        if in_doubt:
            for number, some in self._by_partition(keys).items():
                self._doubtful.setdefault(number, {}).update(some)

    def _are_free(self, keys: Sequence[Key]) -> bool:
        """Whether nobody has any of some keys, or has handed it on."""
        return all(those.keys().isdisjoint(keys) for those in (self._owner, self._sharing, self.handed))

    def _is_of_another(self, owner: TxId, key: Key, *, read: bool) -> bool:
        """Whether others that voted have a key, so that one that voted cannot have it, too: see `Participant.activated`."""
        held = self._owner.get(key)
        if held is not None:
            return held != owner and key in self._pinned
        others = self._sharing.get(key, {}) if not read else {}
        return any(pinned for other, pinned in others.items() if other != owner)

    def _take(self, owner: TxId, key: Key, *, shared: bool = False) -> None:
        held = self._owner.get(key)
        if held == owner:
            return
        assert held is None, f"{key} is taken twice: by {held.hex()}, {owner.hex()}"
        if shared:
            self._sharing.setdefault(key, {}).setdefault(owner, False)
        else:
            others = self._sharing.pop(key, None)
            if others is not None:
                assert list(others) == [owner], f"{key} is taken by {owner.hex()} from {len(others)} readers"
                if others[owner]:
                    self._pinned[key] = False
            self._owner[key] = owner
        number = self._place(*key)
        mine = self._keys.setdefault(owner, {})
        keys = mine.get(number)
        if keys is None:
            keys = mine[number] = {}
            self._owners.setdefault(number, {})[owner] = None
        keys[key] = None

    def _take_new(self, owner: TxId, keys: dict[Key, TxId]) -> None:
        """Take keys that nobody has, to write, if there are any; each of them with the owner."""
        if not keys:
            return
        self._owner.update(keys)
        mine = self._keys.setdefault(owner, {})
        for number, some in self._by_partition(keys).items():
            if number in mine:
                mine[number].update(some)
            else:
                mine[number] = some
                self._owners.setdefault(number, {})[owner] = None

    def _by_partition(self, keys: Collection[Key]) -> dict[int, dict[Key, None]]:
        numbers = self._places(keys)
        if len(set(numbers)) == 1:
            return {numbers[0]: dict.fromkeys(keys)}
        found: dict[int, dict[Key, None]] = {}
        for number, key in zip(numbers, keys, strict=True):
            found.setdefault(number, {})[key] = None
        return found

    def _let_go_all(self, owner: TxId, keys: Sequence[Key]) -> None:
        """Of keys that it has to write."""
        mine = self._keys[owner]
        for number, some in self._by_partition(keys).items():
            voted = [key for key in some if self._pinned.get(key)] if number in self._doubtful else []
            if voted:
                self._no_longer_doubt(number, voted)
            deque(map(self._owner.__delitem__, some), maxlen=0)
            if self._pinned:
                deque(map(self._pinned.pop, some, repeat(None)), maxlen=0)
            held = mine[number]
            if len(held) == len(some):
                self._is_out_of(owner, number)
            else:
                deque(map(held.__delitem__, some), maxlen=0)

    def _let_go(self, owner: TxId, key: Key) -> None:
        number, mine = self._place(*key), self._keys[owner]
        keys = mine[number]
        del keys[key]
        others = self._sharing.get(key)
        if others is not None:
            del others[owner]
            if not others:
                del self._sharing[key]
        else:
            del self._owner[key]
            if self._pinned.pop(key, False):
                self._no_longer_doubt(number, (key,))
        if not keys:
            self._is_out_of(owner, number)

    @property
    def lets_go(self) -> bool:
        """Whether anything `goes`."""
        return bool(self._gone)

    def goes(self, number: int) -> bool:
        """Whether some of what was held in a partition before another node led it is yet to be let go of here."""
        return number in self._gone

    def _go(self, gone: Container[int]) -> None:
        """Nobody holds anything in these partitions any more: `letting_go` lets go of it before they are led again."""
        for number in [number for number in self._owners if number in gone]:
            self._gone[number] = list(self._owners[number])

    def letting_go(self, only: int | None = None) -> Iterator[int]:
        """Let go of what `goes`, or of what of it was held in one partition; yields how many keys each piece was."""
        done = 0
        while self._gone if only is None else only in self._gone:
            number = next(reversed(self._gone)) if only is None else only
            owners = self._gone[number]
            owner = owners[-1]
            there = self._keys.get(owner, {}).get(number, {})
            some = list(islice(reversed(there), LET_GO_MAX))
            was_all = len(some) == len(there)
            if len(some) >= MANY_KEYS and self.may_write_all(owner, some):
                self._let_go_all(owner, some)
            else:
                for key in some:
                    self._let_go(owner, key)
            if was_all:
                owners.pop()
            if not owners:
                del self._gone[number]
            done += 1 + len(some)
            if done >= LET_GO_MAX:
                yield done
                done = 0
        if done:
            yield done

    def _no_longer_doubt(self, number: int, keys: Iterable[Key]) -> None:
        """Keys of a partition are in doubt no more, but for what was handed on."""
        doubtful = self._doubtful[number]
        for key in keys:
            if key not in self.handed:
                del doubtful[key]
        if not doubtful:
            del self._doubtful[number]

    # Commits that are certain.

    def pass_on(self, owner: TxId, tx: TxId, number: int, written: Written) -> None:
        """The commit of a transaction is certain, and on its way to the copies of a partition: what it has `written` there
        may be handed on, until it has `passed`. Of two that have one owner, as no client should have, only of one."""
        self.passing.setdefault(owner, {}).setdefault(number, Passing(tx, written))

    def passed(self, owner: TxId, tx: TxId, number: int) -> Passing | None:
        """It counts now, or never will here: what was handed on is in doubt for it no more."""
        mine = self.passing.get(owner, {})
        passing = mine.get(number)
        if passing is None or passing.tx != tx:
            return None
        del mine[number]
        if not mine:
            del self.passing[owner]
        for key in passing.handed:
            del self.handed[key]
            if not self._pinned.get(key):
                self._no_longer_doubt(number, (key,))
        return passing

    def rests_on(self, owner: TxId, keys: Iterable[Key]) -> Passing | None:
        """What a transaction that has some of these keys must not be ahead of, if there is anything."""
        handed = self.handed
        mine = (handed[key].passing for key in keys if key in handed and self.holds(owner, key)) if handed else ()
        return next(iter(mine), None)

    def _may_be_handed_on(self, key: Key) -> bool:
        """Whether the commit is certain by which the owner of a key has written it."""
        return self._as_passed(self._owner[key], key) is not None

    def _as_passed(self, owner: TxId, key: Key) -> Entry | None:
        if owner not in self.passing or not self._pinned.get(key):
            return None
        passing = self.passing[owner].get(self._place(*key))
        return passing.written(key) if passing is not None else None

    def _hand_on(self, key: Key) -> None:
        """Its owner has a key no more; it is in doubt for it."""
        owner, number = self._owner[key], self._place(*key)
        entry = self._as_passed(owner, key)
        assert entry is not None, f"{key} is handed on by {owner.hex()}, whose commit is not certain"
        passing = self.passing[owner][number]
        self._let_go(owner, key)
        self._doubtful.setdefault(number, {})[key] = None
        self.handed[key] = Handed(owner, passing, entry)
        passing.handed.append(key)

    def _is_out_of(self, owner: TxId, number: int) -> None:
        """It has nothing in a partition any more."""
        mine = self._keys[owner]
        del mine[number]
        owners = self._owners[number]
        del owners[owner]
        if not owners:
            del self._owners[number]
        if not mine:
            del self._keys[owner]
            self._lease.pop(owner, None)
            self._who.pop(owner, None)
