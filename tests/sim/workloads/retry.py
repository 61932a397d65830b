"""Writes that are asked for again under their transaction id: before an answer, after it, and long after.

Each client has lists of its own, to which nobody else writes, and each list holds the names of the transactions that
appended to it. One that is executed again takes the list back to what it was, or appends its name twice.

Beside each list there is a number. Each transaction of it adds another power of `BASE`, so that its digits say how often
each of them counted; and what it is told, the sum or the length, is what it is told whenever it asks.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

from engine import errors
from engine.client.calls import Call, GetCall, PutCall, SwapCall
from engine.client.ends import CommitCall, StatusCall
from tests.sim.checkers.history import Apply, ReadApplied
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step
from wal.ids import TxId

ATTEMPTS_MAX = 6
NUMBER = ", number"
"""What the history of a list's number ends with."""
NAMES_MAX = 20
BASE = 8
"""Of the number: 20 names need 60 bits."""
PREFIX = "retry "
"""What the histories of these lists and numbers begin with: each has its own."""


class _Asked(NamedTuple):
    """An append: the same each time that it is asked for."""

    name: str
    tx: TxId
    how: str
    before: bytes
    after: bytes


class _Lists:
    """One client's lists, one after the other."""

    def __init__(self, load: Load, client: Client, rng: Random) -> None:
        self.load = load
        self.client = client
        self.rng = rng
        self.begin()

    def begin(self) -> None:
        """The last one is long, or it is not known what became of it: take another."""
        self.key = f"{self.client.name}-{self.load.element()}".encode()
        self.number = b"number of " + self.key
        self.history = PREFIX + self.key.decode()
        self.asked: list[_Asked] = []
        self.added: list[_Asked] = []

    async def step(self, process: int) -> int:
        """Append, read, ask again for something that was answered, or ask what became of it."""
        choice = self.rng.random()
        if choice < 0.2:
            return await self._read(process)
        if choice < 0.4:
            return await self._count(process)
        if choice < 0.55 and self.asked:
            process, _ = await self._attempt(process, self.rng.choice(self.asked), again=True)
            return process
        if choice < 0.6 and self.asked:
            return await self._ask(process, self.rng.choice(self.asked))
        if len(self.asked) >= NAMES_MAX:
            self.begin()
        before = self.asked[-1].after if self.asked else b""
        name = f"t{self.load.element()}"
        how = self.rng.choice(["put", "swap", "append", "exchange", "commit"])
        asked = _Asked(name, self.client.new_tx(), how, before, b" ".join(filter(None, (before, name.encode()))))
        for number in range(ATTEMPTS_MAX):
            process, done = await self._attempt(process, asked, again=number > 0)
            if done:
                self.asked.append(asked)
                return process
            await self.client.pause(self.rng.randrange(600 * MS))
        self.begin()
        return process

    async def _count(self, process: int) -> int:
        """Add to the number, again and again if need be; ask again for what was added; or read it."""
        choice = self.rng.random()
        if choice < 0.3:
            return await self._read_number(process)
        if choice < 0.6 and self.added:
            process, _ = await self._attempt(process, self.rng.choice(self.added), again=True)
            return process
        if len(self.added) >= NAMES_MAX:
            self.begin()
        name, by = f"t{self.load.element()}", b"%d" % BASE ** len(self.added)
        asked = _Asked(name, self.client.new_tx(), "add", b"", by)
        self.added.append(asked)  # whatever becomes of it: nobody else adds its power
        for number in range(ATTEMPTS_MAX):
            process, done = await self._attempt(process, asked, again=number > 0)
            if done:
                break
            await self.client.pause(self.rng.randrange(600 * MS))
        return process

    async def _attempt(self, process: int, asked: _Asked, *, again: bool) -> tuple[int, bool]:
        """Ask, patiently or not; the process to go on as, and whether it is done."""
        recorder = self.load.recorder
        call = self._call(asked)
        call.unanswered = again  # an earlier attempt may have been executed
        recorder.begin(self.history + (NUMBER if asked.how == "add" else ""), process, Apply(asked.name))
        try:
            await self.client.call(call, timeout_ns=self.rng.choice([20 * MS, 400 * MS, TIMEOUT_NS]))
        except errors.Error as error:
            return recorder.failed(process, error), False
        answer = f"applied {call.applied}, told {call.found!r}" if isinstance(call, SwapCall) else "done"
        recorder.end(process, "ok", Apply(asked.name, answer))
        return process, True

    def _call(self, asked: _Asked) -> Call:
        if asked.how == "put":
            return PutCall(asked.tx, "retry", [self.key], [asked.after])
        if asked.how == "add":
            return SwapCall(asked.tx, "retry", self.number, "always", new=asked.after, how="add")
        if asked.how == "exchange":
            return SwapCall(asked.tx, "retry", self.key, "always", new=asked.after, how="exchange")
        if asked.how == "append":
            more = asked.after[len(asked.before) :]
            return SwapCall(asked.tx, "retry", self.key, "always", new=more, how="append")
        if asked.how == "swap":
            when, old = ("equals", asked.before) if asked.before else ("absent", None)
            return SwapCall(asked.tx, "retry", self.key, when, old=old, new=asked.after)
        writes: list[tuple[str, list[bytes], list[bytes | None]]]
        writes = [("retry", [self.key, b"mirror of " + self.key], [asked.after, asked.after])]
        return CommitCall(asked.tx, asked.tx, optimistic=True, writes=writes, locks=[], reads=[])

    async def _ask(self, process: int, asked: _Asked) -> int:
        """How did it end? What the answer must be, the oracle of answers knows."""
        topology = self.client.router.topology
        assert topology is not None, "something was answered already"
        try:
            await self.client.call(StatusCall(asked.tx, topology.place("retry", self.key)), timeout_ns=TIMEOUT_NS)
        except errors.Error as error:
            self.load.recorder.told(error)
        return process

    async def _read(self, process: int) -> int:
        recorder = self.load.recorder
        recorder.begin(self.history, process, ReadApplied())
        try:
            call = await self.client.call(GetCall("retry", [self.key]), timeout_ns=TIMEOUT_NS)
        except errors.Error as error:
            return recorder.failed(process, error)
        held = call.values[0][2] or b""
        recorder.end(process, "ok", ReadApplied(dict(Counter(held.decode().split()))))
        return process

    async def _read_number(self, process: int) -> int:
        """Each digit of the number is how often one transaction counted."""
        recorder, added = self.load.recorder, [asked.name for asked in self.added]
        recorder.begin(self.history + NUMBER, process, ReadApplied())
        try:
            call = await self.client.call(GetCall("retry", [self.number]), timeout_ns=TIMEOUT_NS)
        except errors.Error as error:
            return recorder.failed(process, error)
        held, counts = int(call.values[0][2] or b"0"), dict[str, int]()
        for name in added:
            held, digit = divmod(held, BASE)
            counts[name] = digit
        assert not held, "somebody else has added to it"
        recorder.end(process, "ok", ReadApplied({name: count for name, count in counts.items() if count}))
        return process


def retry_of(load: Load, client: Client, rng: Random) -> Step:
    """Appends that are asked for more than once."""
    return _Lists(load, client, rng).step
