"""The load of a crash run: real clients that write, read and move money while nodes die, and the judgement of it.

Each round uses keys of its own, so that a history ends with its round and a run of any length is judged in pieces. Money
stays: the accounts are the same from the first round to the last. The checkers are those of the simulator, but for
`Batches`, which has one writer per key and so needs no search: what was acknowledged last is what must be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeAlias

from engine import aio, errors
from engine.client.calls import GetCall
from engine.client.scans import ScanCall
from tests.crash.journal import Journal
from tests.sim.checkers import bank, list_append, monotonic, register, sets
from tests.sim.checkers.history import (
    Add,
    Anomaly,
    Append,
    CompareAndSet,
    Get,
    Observe,
    Put,
    Read,
    ReadBalances,
    ReadSet,
    Stamp,
    Transaction,
    Transfer,
)

ACCOUNTS = tuple(f"a{at}" for at in range(8))
BALANCE = 100
REGISTERS = 6
LISTS = 5
LIST_MAX = 40
BATCH = 12
PAUSE_SECONDS = 0.05
"""The longest pause between two operations of one client: the processes share two cores with the test."""

Step: TypeAlias = Callable[[int], Awaitable[int]]


class Load:
    """Clients at work. Between `begin` and `stop` they do what their workload says, one thing after the other."""

    def __init__(self, database: aio.Database, journal: Journal, draw: Random) -> None:
        self.database = database
        self.journal = journal
        self.round = 0
        self.batches = Batches(self)
        self._draw = draw
        self._element = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def set_up(self) -> None:
        """What must be there before anything goes wrong: the money."""
        await self.database.namespace("bank", codec="str").put_many({a: str(BALANCE) for a in ACCOUNTS})

    def begin(self) -> None:
        """Start the clients, with new keys."""
        self._stopping = False
        self.round += 1
        self.batches = Batches(self)
        loop = asyncio.get_running_loop()
        steps = (bank_of, lists_of, lists_of, registers_of, registers_of, registers_of, set_of)
        for make in (*steps, lambda load, draw: load.batches.step(draw)):
            draw = Random(self._draw.getrandbits(64))
            self._tasks.append(loop.create_task(self._repeat(make(self, draw), draw)))

    async def stop(self) -> None:
        """Let every client end what it is at."""
        self._stopping = True
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    def check_alive(self) -> None:
        """Raise what ended a client: only the end of the load may."""
        for task in self._tasks:
            if task.done():
                task.result()

    def element(self) -> int:
        """A value that is used once."""
        self._element += 1
        return self._element

    async def _repeat(self, step: Step, draw: Random) -> None:
        process = self.journal.process()
        while not self._stopping:
            process = await step(process)
            await asyncio.sleep(draw.uniform(0, PAUSE_SECONDS))

    def transaction(self, draw: Random) -> aio.Transaction:
        """A transaction of either kind."""
        concurrency = draw.choice((aio.Concurrency.PESSIMISTIC, aio.Concurrency.OPTIMISTIC))
        return self.database.transaction(concurrency=concurrency, timeout=5.0, lock_timeout=1.0)

    async def unknown(self, process: int, error: errors.Error) -> int:
        """A write or a transaction ended with an error; if it may have happened, its status says whether it did."""
        if not error.maybe_committed or error.tx_id is None:
            return self.journal.failed(process, error)
        try:
            outcome = await self.database.transaction_status(error.tx_id)
        except errors.Error:
            return self.journal.failed(process, error)
        self.journal.errors[f"{type(error).__name__}, {outcome}"] += 1
        self.journal.end(process, "ok" if outcome == "committed" else "fail")
        return process

    # The verdict.

    async def read_everything(self) -> None:
        """When nothing is written any more: everything that this round wrote."""
        journal, database = self.journal, self.database
        process = journal.process()
        lists = database.namespace("lists", codec="str")
        journal.begin("lists", process, Transaction(()))
        rows = [row async for row in lists.scan(prefix=f"l{self.round}-")]
        told = tuple(Read(key, tuple(map(int, value.split()))) for key, value in rows)
        journal.end(process, "ok", Transaction(told))
        registers = database.namespace("registers", codec="str")
        for at in range(REGISTERS):
            key = f"x{self.round}-{at}"
            journal.begin("registers", process, Get(key))
            value = await registers.get(key)
            journal.end(process, "ok", Get(key, int(value) if value is not None else None))
        journal.begin("set", process, ReadSet())
        head = b"{set%d}" % self.round
        elements = [int(key[len(head) :]) async for key, _ in database.namespace("set").scan(prefix=head)]
        journal.end(process, "ok", ReadSet(tuple(elements)))
        journal.begin("bank", process, ReadBalances())
        held = await database.namespace("bank", codec="str").get_many(ACCOUNTS)
        journal.end(process, "ok", ReadBalances({account: int(balance) for account, balance in held.items()}))
        await self.batches.read()

    def judge(self) -> list[str]:
        """What the histories of the round have against the engine; they are forgotten then."""
        history = self.journal.history
        verdicts: dict[str, Sequence[Anomaly]] = {
            "bank": bank.check(BALANCE * len(ACCOUNTS), history("bank"), accounts=ACCOUNTS),
            "lists": list_append.check(history("lists")),
            "registers": register.check(history("registers")),
            "versions": monotonic.check(history("versions")),
            "set": sets.check(history("set")),
        }
        found = [f"{name}: {anomaly}" for name, anomalies in verdicts.items() for anomaly in anomalies]
        self.journal.forget()
        return [line for line in found if ": undecided: " not in line] + self.batches.problems


# Transactions.


def bank_of(load: Load, draw: Random) -> Step:
    """Transfers between accounts, which are in different partitions, and reads of all of them."""

    async def step(process: int) -> int:
        journal = load.journal
        reading = draw.random() < 0.2
        source, target = draw.sample(ACCOUNTS, 2)
        amount = draw.randrange(1, 30)
        journal.begin("bank", process, ReadBalances() if reading else Transfer(source, target, amount))
        held: dict[str, str] = {}
        try:
            async with load.transaction(draw) as tx:
                accounts = tx.namespace("bank", codec="str")
                held = await accounts.get_many(ACCOUNTS if reading else (source, target))
                if not reading and int(held[source]) >= amount:
                    moved = {source: int(held[source]) - amount, target: int(held[target]) + amount}
                    await accounts.put_many({account: str(balance) for account, balance in moved.items()})
        except errors.Error as error:
            return await load.unknown(process, error) if not reading else journal.failed(process, error)
        if reading:
            journal.end(process, "ok", ReadBalances({account: int(balance) for account, balance in held.items()}))
        else:
            journal.end(process, "ok" if int(held[source]) >= amount else "fail")
        return process

    return step


def lists_of(load: Load, draw: Random) -> Step:
    """Appends to lists and reads of them, several in a transaction."""
    begun = 0

    async def step(process: int) -> int:
        nonlocal begun
        begun += 1
        journal = load.journal
        generation = begun // (LISTS * LIST_MAX // 2)
        keys = [f"l{load.round}-{generation}-{at}" for at in draw.sample(range(LISTS), draw.randrange(1, 4))]
        ops = [Append(k, load.element()) if draw.random() < 0.6 else Read(k) for k in keys]
        journal.begin("lists", process, Transaction(tuple(ops)))
        told: list[Append | Read] = []
        try:
            async with load.transaction(draw) as tx:
                lists = tx.namespace("lists", codec="str")
                for op in ops:
                    held = await lists.get(op.key, "")
                    if isinstance(op, Append):
                        await lists.put(op.key, f"{held} {op.value}".strip())
                        told.append(op)
                    else:
                        told.append(Read(op.key, tuple(map(int, held.split()))))
        except errors.Error as error:
            if not any(isinstance(op, Append) for op in ops) or any(isinstance(op, Read) for op in ops):
                return journal.failed(process, error)  # a status does not bring back what was read
            return await load.unknown(process, error)
        journal.end(process, "ok", Transaction(tuple(told)))
        return process

    return step


# Single operations.


def registers_of(load: Load, draw: Random) -> Step:
    """Gets, puts, deletes and compare-and-sets of a few keys; each get is an observation of a version, too."""

    async def step(process: int) -> int:
        journal, registers = load.journal, load.database.namespace("registers", codec="str")
        key = f"x{load.round}-{draw.randrange(REGISTERS)}"
        kind = draw.random()
        try:
            if kind < 0.45:
                journal.begin("registers", process, Get(key))
                call = await load.database.session.call(GetCall("registers", [key.encode()]))
                epoch, counter, held = call.values[0]
                value = int(held) if held is not None else None
                got = journal.end(process, "ok", Get(key, value))
                if value is not None:
                    journal.also("versions", got, Observe(key, Stamp(epoch, counter), value))
            elif kind < 0.75:
                new = load.element()
                journal.begin("registers", process, Put(key, new))
                await registers.put(key, str(new))
                journal.end(process, "ok")
            elif kind < 0.85:
                journal.begin("registers", process, Put(key, None))
                await registers.delete(key)
                journal.end(process, "ok")
            else:
                old, new = await registers.get(key), load.element()
                if old is not None:
                    journal.begin("registers", process, CompareAndSet(key, int(old), new))
                    swapped = await registers.replace(key, old, str(new))
                    journal.end(process, "ok", CompareAndSet(key, int(old), new, swapped))
        except errors.Error as error:
            if not journal.is_open(process):
                return process
            if kind >= 0.85:
                return journal.failed(process, error)  # a status does not say whether the condition held
            return await load.unknown(process, error)
        return process

    return step


def set_of(load: Load, draw: Random) -> Step:
    """Elements of a set that lies in one partition, and scans of it."""

    async def step(process: int) -> int:
        journal, head = load.journal, b"{set%d}" % load.round
        try:
            if draw.random() < 0.85:
                element = load.element()
                journal.begin("set", process, Add(element))
                await load.database.namespace("set").put(head + b"%08d" % element, b"-")
                journal.end(process, "ok")
            else:
                journal.begin("set", process, ReadSet())
                page = await load.database.session.call(ScanCall("set", head, head + b"~", 2_000))
                if page.next_start is not None:
                    journal.end(process, "fail")  # two pages are two moments
                else:
                    journal.end(process, "ok", ReadSet(tuple(int(key[len(head) :]) for key, _ in page.rows)))
        except errors.Error as error:
            return await load.unknown(process, error)
        return process

    return step


class Batches:
    """Batches of puts and deletes over many partitions, of keys that this client alone writes.

    What a key may hold is known exactly: what was acknowledged last, and, if the batch was not answered, either that or
    what it would have written; an unknown batch is never followed by another of the same keys.
    """

    def __init__(self, load: Load) -> None:
        self.problems: list[str] = []
        self._load = load
        self._possible: dict[str, tuple[str | None, ...]] = {}
        self._numbers = 0

    def step(self, draw: Random) -> Step:
        """Write a batch of new keys, or write or delete again one whose fate is known."""

        async def write(process: int) -> int:
            keys = self._choose(draw)
            value = None if draw.random() < 0.3 else f"{self._load.element()}:" + "v" * draw.randrange(200)
            before = {key: self._possible.get(key, (None,)) for key in keys}
            self._possible |= {key: (*held, value) for key, held in before.items()}
            namespace = self._load.database.namespace("batches", codec="str")
            journal = self._load.journal
            try:
                if value is None:
                    await namespace.delete_many(keys)
                else:
                    await namespace.put_many(dict.fromkeys(keys, value))
            except errors.Error as error:
                journal.errors[type(error).__name__] += 1
                journal.answers["info" if error.maybe_committed else "fail"] += 1
                if not error.maybe_committed:
                    self._possible |= before
            else:
                journal.answers["ok"] += 1
                self._possible |= dict.fromkeys(keys, (value,))
            return process

        return write

    def _choose(self, draw: Random) -> list[str]:
        known = [key for key, values in self._possible.items() if len(values) == 1]
        if known and draw.random() < 0.5:
            return draw.sample(known, min(BATCH, len(known)))
        self._numbers += 1
        return [f"b{self._load.round}-{self._numbers}-{at}" for at in range(BATCH)]

    async def read(self) -> None:
        """Compare every key with what it may hold."""
        namespace = self._load.database.namespace("batches", codec="str")
        held = {key: value async for key, value in namespace.scan(prefix=f"b{self._load.round}-")}
        for key, possible in self._possible.items():
            if held.get(key) not in possible:
                self.problems.append(f"batches: {key} holds {held.get(key)!r}: expected one of {possible}")
        self.problems += [f"batches: {key} is there, and nobody wrote it" for key in held.keys() - self._possible.keys()]
