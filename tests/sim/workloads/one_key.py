"""Many write one key at the same time: increments, appends, compare-and-sets and conditional puts, and each asks again.

Those who wait for a key are executed together, one on what the other leaves, in one record (`engine.data.chains`). So all
clients have one key at a time, and each asks for several things at once. An answer tells where in the chain somebody was
executed, and `tests.sim.checkers.one_key` takes all of them for reads: a chain of which a part is lost, counted twice, or
told of another place shows there. Whoever asks again, whatever for, is told what it was told.

A key is a list or a number, and grows: what was expected of it and has gone does not come back. So whoever is told that its
condition does not hold has not written, whichever attempt that was.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from engine import errors
from engine.client.calls import GetCall, SwapCall
from tests.sim.checkers.history import Append, Operation, Read, Transaction
from tests.sim.checkers.one_key import NUMBER_MAX, OneKey, Told, as_lists, element
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.recorder import Recorder
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step
from wal.ids import TxId

NAME = "one-key"
"""Of the namespace, and of the history."""
SHARE = 0.25
"""The share of the seeds in which many write one key."""
LIST_MAX = 40
"""Then there is another one."""
ATTEMPTS_MAX = 6
REMEMBERED = 12
"""Of the last so many that a client was answered it asks for some again."""


class _Asked(NamedTuple):
    """A write: the same each time that it is asked for."""

    key: OneKey
    tx: TxId
    value: int
    when: str
    how: str
    old: bytes | None
    new: bytes
    at: tuple[int, int]

    def call(self, *, unanswered: bool) -> SwapCall:
        """Ask for it."""
        key = self.key.name.encode()
        call = SwapCall(self.tx, NAME, key, self.when, old=self.old, new=self.new, how=self.how, at=self.at)
        call.unanswered = unanswered
        return call


class Many:
    """The keys of one run, of which the last is written, and what was told of each."""

    def __init__(self) -> None:
        self.keys: dict[str, OneKey] = {}
        self.told: dict[int, Told] = {}  # by the process that was told
        self.stood: dict[str, tuple[bytes | None, tuple[int, int]]] = {}  # by key: as somebody found it last

    def key(self, load: Load, rng: Random) -> OneKey:
        """What all write now."""
        key = next(reversed(self.keys.values()), None)
        if key is None or len(key.values) >= (NUMBER_MAX if key.is_number else LIST_MAX):
            key = OneKey(f"m{load.element()}", rng.random() < 0.5)
            self.keys[key.name] = key
        return key

    def history(self, recorder: Recorder) -> list[Operation]:
        """As lists that were read."""
        return as_lists(self.keys, recorder.history(NAME), self.told)


def many_of(load: Load) -> Many:
    """What is known of the keys that many write."""
    assert load.many is not None, "nobody writes one key with others"
    return load.many


class _Writer:
    """One client, and what it was told."""

    def __init__(self, load: Load, client: Client, rng: Random) -> None:
        self.load = load
        self.many = many_of(load)
        self.client = client
        self.rng = rng
        self.answered: list[tuple[_Asked, tuple[bool, bytes | None]]] = []

    async def step(self, process: int) -> int:
        """Several things at once: writes, reads, and what was answered once more. Sometimes it looks at the key before."""
        if self.rng.random() < 0.4:
            await read(self.load, self.client, self.many.key(self.load, self.rng))
        doing = []
        for _ in range(self.rng.choice([1, 2, 4, 8])):
            choice = self.rng.random()
            if choice < 0.1:
                doing.append(read(self.load, self.client, self.many.key(self.load, self.rng)))
            elif choice < 0.2 and self.answered:
                doing.append(self._ask_again(*self.rng.choice(self.answered)))
            else:
                doing.append(self._write(self._drawn(self.many.key(self.load, self.rng))))
        await asyncio.gather(*doing)
        return process

    def _drawn(self, key: OneKey) -> _Asked:
        """What to ask: blindly, if there is something, or if it is as it was last seen, by what stood or by its version."""
        value, rng = self.load.element(), self.rng
        key.values.append(value)
        state, at = self.many.stood.get(key.name, (None, (0, 0)))
        more = b"%d" % key.power(value) if key.is_number else element(value)
        kind = rng.random()
        if kind < 0.04 and state is not None and not key.is_number:  # there is no number
            return _Asked(key, self.client.new_tx(), value, "always", "add", None, b"1", (0, 0))
        if kind < 0.6:
            how, when = "add" if key.is_number else "append", "present" if state is not None and kind < 0.2 else "always"
            return _Asked(key, self.client.new_tx(), value, when, how, None, more, (0, 0))
        new = b"%d" % (int(state or b"0") + key.power(value)) if key.is_number else (state or b"") + more
        when = "absent" if state is None else "version" if at != (0, 0) and kind < 0.8 else "equals"
        how = rng.choice(["set", "exchange"])
        old = state if when == "equals" else None
        return _Asked(key, self.client.new_tx(), value, when, how, old, new, at if when == "version" else (0, 0))

    async def _write(self, asked: _Asked) -> None:
        """Ask, again and again if need be."""
        recorder, key, unknown = self.load.recorder, asked.key, False
        process = recorder.process()
        recorder.begin(NAME, process, Transaction((Append(key.name, asked.value),)))
        for _ in range(ATTEMPTS_MAX):
            call = asked.call(unanswered=unknown)
            try:
                await self.client.call(call, timeout_ns=self.rng.choice([20 * MS, 400 * MS, TIMEOUT_NS]))
            except errors.Error as error:
                recorder.told(error)
                unknown = unknown or error.maybe_committed
                if isinstance(error, errors.UsageError):
                    break
                await self.client.pause(self.rng.choice([0, self.rng.randrange(600 * MS)]))
                continue
            self._note(process, asked, call)
            return
        recorder.end(process, "info" if unknown else "fail")

    def _note(self, process: int, asked: _Asked, call: SwapCall) -> None:
        """It was answered."""
        many, name = self.many, asked.key.name
        before, written = Read(name), Append(name, asked.value)
        if not call.applied:
            if asked.when in ("equals", "absent") and call.found == asked.old:
                about = f"{asked.how} of {asked.value} to {name} is not made, although it stands as was expected"
                raise Violation(NAME, f"{about}: {call.found!r}", About(txs=(asked.tx,)))
            many.told[process] = Told(name, call.found)
            many.stood[name] = call.found, (0, 0)
            self.load.recorder.end(process, "ok", Transaction((before,)))
            return
        self.answered = [*self.answered[1 - REMEMBERED :], (asked, (call.applied, call.found))]
        if asked.how == "append":
            many.told[process] = Told(name, length=int(call.found or b"0"))
            self.load.recorder.end(process, "ok", Transaction((written, before)))
            return
        if asked.how == "add":
            many.told[process], many.stood[name] = Told(name, call.found), (call.found, (0, 0))
            self.load.recorder.end(process, "ok", Transaction((written, before)))
            return
        stood = call.found if asked.how == "exchange" else _expected(asked)
        many.told[process], many.stood[name] = Told(name, stood), (asked.new, (0, 0))
        self.load.recorder.end(process, "ok", Transaction((before, written)))

    async def _ask_again(self, asked: _Asked, answer: tuple[bool, bytes | None]) -> None:
        """It was answered before."""
        call = asked.call(unanswered=True)
        try:
            await self.client.call(call, timeout_ns=TIMEOUT_NS)
        except errors.Error as error:
            self.load.recorder.told(error)
            return
        if (call.applied, call.found) != answer and not self.load.given_up:
            about = f"{asked.how} of {asked.value} to {asked.key.name} was answered {answer}"
            raise Violation(NAME, f"{about}, and now {call.applied, call.found}", About(txs=(asked.tx,)))


def _expected(asked: _Asked) -> bytes | None:
    """What stood where a value was set."""
    if not asked.key.is_number:
        return asked.new[: -len(element(asked.value))] or None
    return b"%d" % (int(asked.new) - asked.key.power(asked.value))


async def read(load: Load, client: Client, key: OneKey) -> None:
    """Look at a key."""
    many, process = many_of(load), load.recorder.process()
    load.recorder.begin(NAME, process, Transaction((Read(key.name),)))
    try:
        call = await client.call(GetCall(NAME, [key.name.encode()]), timeout_ns=TIMEOUT_NS)
    except errors.Error as error:
        load.recorder.failed(process, error)
        return
    epoch, counter, state = call.values[0]
    many.told[process], many.stood[key.name] = Told(key.name, state), (state, (epoch, counter))
    load.recorder.end(process, "ok")


def one_key_of(load: Load, client: Client, rng: Random) -> Step:
    """Writes of what everybody writes."""
    return _Writer(load, client, rng).step
