"""Transactions that are said at once, with conditions, and optimistic ones that read at a cut: both of the lists.

One that is said at once has read its lists before, each at its own time, and says of each that it must be as it was read:
so where it is done, it has read and written all of them in one moment. Where it is told that a condition does not hold it
has a rival, as whoever is refused has. One that reads at a cut has read the past: it commits if none of that has changed.
"""

from __future__ import annotations

from random import Random
from typing import Any

from engine import errors
from engine.client.calls import GetCall
from engine.client.oneshot import Check, Operation, Put
from engine.client.operations import Version
from tests.sim.checkers.history import Append, Read, Transaction
from tests.sim.clients import SECOND, Client
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step, failed
from tests.sim.workloads.transactions import carry_out, drawn_lists, elements_of

Ops = list[Append | Read]


def at_once_of(load: Load, client: Client, rng: Random) -> Step:
    """Append to lists and look at others, all in one request, if all are as they were; or read at a cut, and append."""

    async def step(process: int) -> int:
        ops, since = drawn_lists(load, rng), client.world.now
        at_a_cut = rng.random() < 0.5 or not any(isinstance(op, Append) for op in ops)
        process = await (_at_a_cut if at_a_cut else _at_once)(load, client, rng, process, ops)
        load.recorder.read("at-once", since, client.world.now, Transaction(()))  # for whoever counts what was done
        return process

    return step


async def _at_once(load: Load, client: Client, rng: Random, process: int, ops: Ops) -> int:
    recorder = load.recorder
    recorder.begin("lists", process, Transaction(tuple(ops)))
    attempt = load.rivals.begin(client.new_owner(), [op.key for op in ops])
    try:
        found = await client.call(GetCall("lists", [op.key.encode() for op in ops]), timeout_ns=TIMEOUT_NS)
        await client.pause(rng.choice([1, 1, 20, 300]) * MS)
    except errors.Error as error:
        load.rivals.failed(attempt)
        return recorder.failed(process, error)
    lists, asked, told = client.database.namespace("lists"), list[Operation](), Ops()
    when: dict[str, Any]
    for op, (epoch, counter, held) in zip(ops, found.values, strict=True):
        key = op.key.encode()
        by_version = held is not None and rng.random() < 0.5
        if by_version:
            when = {"if_version": Version(epoch, counter)}
        else:
            when = {"if_value": held} if held is not None else {"if_absent": True}
        if isinstance(op, Append):
            more = str(op.value).encode()
            asked.append(Put(lists, key, held + b" " + more if held else more, **when))
            told.append(op)
        else:
            asked.append(Check(lists, key, **when))
            told.append(Read(op.key, elements_of(held)))
    load.rivals.asks(attempt)
    try:
        applied = await client.database.transact(asked, attempts=rng.choice([1, 1, 3]), timeout=TIMEOUT_NS / SECOND)
    except errors.Error as error:
        if isinstance(error, errors.Conflict):
            load.rivals.refused(attempt)
        elif not error.maybe_committed:
            load.rivals.failed(attempt)
        return recorder.failed(process, error)
    if not applied:
        load.rivals.refused(attempt)
        recorder.end(process, "fail")
        return process
    load.rivals.committed(attempt)
    recorder.end(process, "ok", Transaction(tuple(told)))
    return process


async def _at_a_cut(load: Load, client: Client, rng: Random, process: int, ops: Ops) -> int:
    recorder, tx = load.recorder, SimTransaction(client, optimistic=True, timeout_ns=TIMEOUT_NS)
    recorder.begin("lists", process, Transaction(tuple(ops)))
    attempt = load.rivals.begin(tx.tx, [op.key for op in ops])
    try:
        await tx.begin_at_a_cut()
        told: Ops = []
        for op in ops:
            load.rivals.asks(attempt)
            held = (await tx.get("lists", [op.key.encode()]))[op.key.encode()]
            told.append(await carry_out(tx, op, held))
            await client.pause(rng.choice([1, 1, 20, 300]) * MS)
        if rng.random() < 0.5:  # who writes long after it has let go of its cut is judged by what is there now
            tx.leave_its_cut()
        load.rivals.asks(attempt)
        await tx.commit()
        load.rivals.committed(attempt)
        recorder.end(process, "ok", Transaction(tuple(told)))
    except errors.Error as error:
        if isinstance(error, errors.Conflict):
            load.rivals.refused(attempt)
        elif not error.maybe_committed:
            load.rivals.failed(attempt)
        process = await failed(tx, load, process, rng, error)
    return process
