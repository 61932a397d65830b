"""Operations outside transactions: registers, a set, and batches over several partitions.

Registers would show a stale read or a write that came twice, versions one that went back, the set a lost element. What any
copy may answer is as old as was allowed, or newer: it is never older than what somebody had read so long before.
"""

from __future__ import annotations

from random import Random

from engine import errors
from engine.client.calls import GetCall, PutCall, SwapCall
from engine.client.scans import ScanCall
from tests.sim.checkers.history import Add, CompareAndSet, Get, Observe, Put, ReadSet, Stamp
from tests.sim.clients import Client
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step

REGISTERS = tuple(f"x{i}" for i in range(5))
BATCHED = tuple(f"y{i}" for i in range(8))
AGES_MS = (-1, 100, 1_000, 5_000)
"""How old what a copy answers may be; the first: however old it is."""


def registers_of(load: Load, client: Client, rng: Random) -> Step:
    """Gets, puts, deletes and compare-and-sets of a few keys; each get is an observation of a version, too.

    A compare-and-set expects what its client saw last. One that does not apply is judged as the read that it is.
    """
    last_seen: dict[str, int | None] = {}
    versions: dict[str, tuple[int, int]] = {}  # of what was seen last, where that is known

    async def step(process: int) -> int:
        recorder = load.recorder
        key = rng.choice(REGISTERS)
        kind = rng.random()
        try:
            if kind < 0.1:
                await _from_any_copy(load, client, rng, key)
            elif kind < 0.45:
                recorder.begin("registers", process, Get(key))
                call = await client.call(GetCall("registers", [key.encode()]), timeout_ns=TIMEOUT_NS)
                epoch, counter, held = call.values[0]
                value = last_seen[key] = int(held) if held is not None else None
                versions[key] = epoch, counter
                got = recorder.end(process, "ok", Get(key, value))
                if value is not None:
                    recorder.also("versions", got, Observe(key, Stamp(epoch, counter), value))
                    load.registers.note(key, client.world.now, Stamp(epoch, counter), value)
            elif kind < 0.8:
                new = load.element() if rng.random() < 0.9 else None
                recorder.begin("registers", process, Put(key, new))
                data = str(new).encode() if new is not None else None
                await client.call(PutCall(client.new_tx(), "registers", [key.encode()], [data]), timeout_ns=TIMEOUT_NS)
                recorder.end(process, "ok")
            else:
                expected, new = last_seen.get(key), load.element()
                recorder.begin("registers", process, CompareAndSet(key, expected, new))
                when, old = ("absent", None) if expected is None else ("equals", str(expected).encode())
                at = versions.pop(key, (0, 0)) if expected is not None else (0, 0)
                if at != (0, 0) and rng.random() < 0.5:
                    when, old = "version", None
                swap = SwapCall(client.new_tx(), "registers", key.encode(), when, old=old, new=str(new).encode(), at=at)
                await client.call(swap, timeout_ns=TIMEOUT_NS)
                if swap.applied:
                    recorder.end(process, "ok", CompareAndSet(key, expected, new))
                    last_seen[key] = new
                else:  # it has only read
                    last_seen[key] = int(swap.found) if swap.found is not None else None
                    recorder.end(process, "ok", Get(key, last_seen[key]))
        except errors.Error as error:
            process = recorder.failed(process, error) if recorder.is_open(process) else process
        return process

    return step


async def _from_any_copy(load: Load, client: Client, rng: Random, key: str) -> None:
    """Read a register, or all of them, from any copy."""
    asked, age_ms = client.world.now, rng.choice(AGES_MS)
    found: list[tuple[str, Stamp]] = []
    if rng.random() < 0.7:
        call = await client.call(GetCall("registers", [key.encode()], stale=True, age_ms=age_ms), timeout_ns=TIMEOUT_NS)
        epoch, counter, _ = call.values[0]
        found.append((key, Stamp(epoch, counter)))
    else:
        page = ScanCall("registers", b"x", None, 100, stale=True, age_ms=age_ms)
        await client.call(page, timeout_ns=TIMEOUT_NS)
        for data, value in page.rows:
            if (stamp := load.registers.version_of(data.decode(), int(value))) is not None:
                found.append((data.decode(), stamp))
    for name, stamp in found if age_ms >= 0 and not load.given_up else ():
        load.registers.judge(name, stamp, asked, age_ms)


def set_of(load: Load, client: Client, rng: Random) -> Step:
    """Elements of a set that lies in one partition, and scans of it."""

    async def step(process: int) -> int:
        recorder = load.recorder
        try:
            if rng.random() < 0.8:
                element = load.element()
                recorder.begin("set", process, Add(element))
                call = PutCall(client.new_tx(), "set", [b"{set}%08d" % element], [b"-"])
                await client.call(call, timeout_ns=TIMEOUT_NS)
                recorder.end(process, "ok")
            else:
                recorder.begin("set", process, ReadSet())
                found = ScanCall("set", b"{set}", None, 10_000)
                await client.call(found, timeout_ns=TIMEOUT_NS)
                if found.next_start is not None:
                    recorder.end(process, "fail")  # two pages are two moments
                else:
                    recorder.end(process, "ok", ReadSet(tuple(int(key[5:]) for key, _ in found.rows)))
        except errors.Error as error:
            process = recorder.failed(process, error)
        return process

    return step


def batches_of(load: Load, client: Client, rng: Random) -> Step:
    """Puts and deletes of several keys in several partitions at once, and gets of several: registers, each by itself."""

    async def step(process: int) -> int:
        recorder = load.recorder
        keys = rng.sample(BATCHED, rng.randrange(2, 6))
        processes = [recorder.process() for _ in keys]
        data = [key.encode() for key in keys]
        try:
            if rng.random() < 0.4:
                for each, key in zip(processes, keys, strict=True):
                    recorder.begin("batches", each, Get(key))
                read = await client.call(GetCall("batches", data), timeout_ns=TIMEOUT_NS)
                for each, key, (_, _, held) in zip(processes, keys, read.values, strict=True):
                    recorder.end(each, "ok", Get(key, int(held) if held is not None else None))
            else:
                values = [None if rng.random() < 0.3 else load.element() for _ in keys]
                for each, key, value in zip(processes, keys, values, strict=True):
                    recorder.begin("batches", each, Put(key, value))
                written = [str(value).encode() if value is not None else None for value in values]
                await client.call(PutCall(client.new_tx(), "batches", data, written), timeout_ns=TIMEOUT_NS)
                for each in processes:
                    recorder.end(each, "ok")
        except errors.Error as error:
            for each in processes:  # one partition may have refused what others took
                recorder.end(each, "info")
            recorder.told(error)
        return process

    return step
