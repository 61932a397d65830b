"""Conversations with the lock table of a primary (`engine.data.locks`).

```
try t1 a b reads=c       take all of these keys at once, to write or to read, or none
wait t1 a b for=5s       stand in line for them, to write them
read t1 a b for=5s       the same, to read them
press t1 a b for=5s      the same as wait, of one that holds other keys, perhaps elsewhere
early t1 a b for=5s      the same as wait, of one for whom what is handed on will do; early-read: to read them
pin t1 a b reads=c       it voted: these keys wait for the outcome (a new primary pins what it finds prepared)
commit t1 a b            the same for its one record, which is being logged
waits [holding]          who waits for whom: all, or those who hold something
give-up t1 [a]           its client does not want it any more
lease t1 10s             its client must renew within so long
certain t1 p1 a b        its commit is, in a partition, where it has written these
counts t1 p1             its outcome does, there
rests t1 a b             must what it does with these wait until another one's outcome counts?
release t1 [a]           the transaction is over (for these keys)
pend a, settle a         a single write of the key begins, counts
busy a                   would a single write have to wait?
tick 5s                  time passes
drop p1:                 this node is not primary any more of the keys that begin so
show                     who holds what, and who waits
```
"""

from __future__ import annotations

from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.protocol.requests import Link
from engine.state.store import Entry
from rebalance.rule import NEVER
from tests.conversations.names import Names, duration
from tests.conversations.story import Command, Interpreter
from wal.ids import TxId


class LockStory(Interpreter):
    """One table, its clock, and what its waiters were told since the last command."""

    def __init__(self) -> None:
        self.table = LockTable(lambda _, key: _place(key))
        self.names = Names()
        self.now = 0
        self.told: list[str] = []

    def answer(self, command: Command) -> list[str]:
        """What was told to waiters follows what was answered."""
        lines = super().answer(command)
        told, self.told = [self.names.shorten(text) for text in self.told], []
        return [*(line for line in lines if line != "ok" or not told), *told]

    def check(self) -> None:
        table = self.table
        for owner, by_partition in table._keys.items():
            for number, keys in by_partition.items():
                assert keys, f"an empty share of partition {number} is kept"
                assert owner in table.owners_in(number), f"partition {number} does not know an owner of its keys"
                for key in keys:
                    assert table.holds(owner, key), f"{key} is listed for an owner that does not hold it"
                    assert _place(key[1]) == number, f"{key} is listed in partition {number}"
        for key, sharing in table._sharing.items():
            assert sharing, f"an empty share of {key} is kept"
            assert key not in table._owner, f"{key} is read beside its writer"
            assert all(key in table._keys[owner][_place(key[1])] for owner in sharing), (
                f"a reader of {key} does not know it"
            )
        for key, line in table._waiting.items():
            first = next(iter(line))
            assert not any(waiter.done for waiter in line), f"somebody stands in line for {key} who waits no more"
            free = table._free(first.owner, key, shared=first.shared, early=first.early)
            assert not free, f"nothing keeps {first.owner.hex()} from {key}"
        for key, handed in table.handed.items():
            assert key in handed.passing.handed
            assert not table.holds(handed.by, key), f"{key} was handed on by one that has it"
            assert key in table._doubtful[_place(key[1])], f"{key} was handed on, and is not in doubt"
        for number, doubtful in table._doubtful.items():
            assert doubtful, f"an empty share of partition {number} is kept"
            assert all(table.in_doubt(key) and _place(key[1]) == number for key in doubtful)

    def on_try(self, command: Command) -> str:
        reads = self._reads(command)
        blocked = self.table.try_all(self._owner(command), self._keys(command), reads)
        return "taken" if blocked is None else f"nothing taken: {_name(blocked)} is in the way"

    def on_wait(self, command: Command) -> str:
        return self._wait(command, shared=False)

    def on_read(self, command: Command) -> str:
        return self._wait(command, shared=True)

    def on_press(self, command: Command) -> str:
        return self._wait(command, shared=False, holding=True)

    def on_early(self, command: Command) -> str:
        return self._wait(command, shared=False, early=True)

    def on_early_read(self, command: Command) -> str:
        return self._wait(command, shared=True, early=True)

    def _wait(self, command: Command, *, shared: bool, holding: bool = False, early: bool = False) -> str:
        deadline = self.now + duration(command.option("for") or "5s")
        owner = self._owner(command)
        name = self.names.tx_name(owner)
        keys = self._keys(command)
        before = len(self.told)
        self.table.wait_all(
            owner,
            keys,
            deadline,
            lambda: self.told.append(f"{name} is granted {' '.join(map(_name, keys))}"),
            lambda held, ring: self.told.append(
                f"{name} gives way in a circle" if ring else f"{name} gives up: {held or 'the primary changed'}"
            ),
            shared=shared,
            holding=holding,
            early=early,
        )
        return "" if len(self.told) > before else f"{name} waits"

    def on_pin(self, command: Command) -> None:
        reads = self._reads(command)
        self.table.pin(self._owner(command), self._keys(command), reads)

    def on_commit(self, command: Command) -> None:
        self.table.pin(self._owner(command), self._keys(command), in_doubt=False)

    def on_give_up(self, command: Command) -> None:
        self.table.give_up(self._owner(command), self._keys(command) or None)

    def on_lease(self, command: Command) -> None:
        owner = self._owner(command)
        self.table.lend(owner, self.now + duration(command.word("how long")))

    def on_release(self, command: Command) -> None:
        self.table.release(self._owner(command), self._keys(command) or None)

    def on_certain(self, command: Command) -> None:
        owner, number = self._owner(command), _place(command.word("a partition").encode())
        written = {key: Entry(1, 1, b"") for key in self._keys(command)}
        self.table.certain(owner, owner, number, written.get, None)

    def on_counts(self, command: Command) -> list[str]:
        owner, number = self._owner(command), _place(command.word("a partition").encode())
        passing = self.table.passed(owner, owner, number)
        handed = passing.handed if passing is not None else []
        self.table.release(owner, [*self.table.keys_in(owner, number), *handed])
        for go_on in passing.behind if passing is not None else ():
            go_on(True)
        return [f"{self.names.tx_name(owner)} had handed on {' '.join(map(_name, handed)) or 'nothing'}"]

    def on_rests(self, command: Command) -> str:
        owner = self._owner(command)
        passing = self.table.rests_on(owner, self._keys(command))
        if passing is None:
            return "it does not"
        name = self.names.tx_name(owner)
        passing.behind.append(lambda counts: self.told.append(f"{name} goes on" if counts else f"{name} rests on nothing"))
        return f"{name} waits"

    def on_pend(self, command: Command) -> None:
        for key in self._keys(command):
            self.table.pend(key)

    def on_settle(self, command: Command) -> None:
        for key in self._keys(command):
            self.table.unpend(key)

    def on_busy(self, command: Command) -> list[str]:
        return [f"{_name(key)} {'busy' if self.table.busy(key) else 'free'}" for key in self._keys(command)]

    def on_waits(self, command: Command) -> list[str]:
        """Who waits for whom."""
        table = self.table
        waits = table.waits(lambda one: table.may_close_a_circle(one.owner)) if command.flag("holding") else table.waits()
        return [f"{self.names.tx_name(one)} for {self.names.tx_name(other)}" for one, other, _, _ in waits] or ["nobody"]

    def on_give_way(self, command: Command) -> None:
        owner = self._owner(command)
        namespace, key = self._keys(command)[0]
        self.table.give_way(owner, [Link(owner, "", b"another", "", node="n1", namespace=namespace, key=key, shared=False)])

    def on_tick(self, command: Command) -> str:
        self.now += duration(command.word("how long"))
        for owner in self.table.expire(self.now):
            self.table.give_up(owner)
        return ""

    def on_next(self, _: Command) -> str:
        """When something happens by itself."""
        at = self.table.next_expiry()
        return "nothing happens by itself" if at == NEVER else f"in {(at - self.now) // 1_000_000} ms"

    def on_drop(self, command: Command) -> None:
        prefix = command.word("a prefix").encode()
        self.table.drop({_place(prefix)})

    def on_show(self, _: Command) -> list[str]:
        lines = []
        for owner in self._owners():
            held = sorted(self.table.keys_of(owner))
            mine = [key for key in held if self.table.may_write(owner, key)]
            told = {
                "holds": mine,
                "reads": [key for key in held if key not in mine],
                "in doubt:": [key for key in mine if self.table.in_doubt(key)],
                "handed on to it:": [key for key in held if key in self.table.handed],
            }
            said = [f"{word} {' '.join(map(_name, keys))}" for word, keys in told.items() if keys]
            lines.append(f"{self.names.tx_name(owner)} {', '.join(said)}")
        return lines or ["nobody holds anything"]

    def _owners(self) -> list[TxId]:
        """Every transaction that holds something, the first that took something first."""
        return list(self.table._keys)

    def _owner(self, command: Command) -> TxId:
        return self.names.tx(command.word("a transaction"))

    def _reads(self, command: Command) -> list[Key]:
        return [("acc", word.encode()) for word in (command.option("reads") or "").split(",") if word]

    def _keys(self, command: Command) -> list[Key]:
        return [("acc", word.encode()) for word in command.rest()]


def _name(key: Key) -> str:
    return key[1].decode()


def _place(key: bytes) -> int:
    """Keys that begin with the same word and a colon lie in one partition."""
    return int.from_bytes(key.partition(b":")[0], "big") if b":" in key else 0
