"""What programs write against the API: functions that `db.run` runs, again if need be, in any mode, of the lists.

So whatever an attempt leaves behind, the next one meets; what is only written is locked by the commit; who gave way locks
first what it wanted; and a commit whose answer was lost is asked about. Some are patient for a moment only, some are given
up at whatever they wait for: nobody knows then what came of it.
"""

from __future__ import annotations

import asyncio
from random import Random

from engine import errors
from engine.aio import Transaction as ApiTransaction
from engine.client.inside import TransactionNamespace
from engine.client.running import TransactionOptions
from tests.sim.checkers.history import Append, Read, Transaction
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.workloads.load import Load, Step
from tests.sim.workloads.transactions import drawn_lists, elements_of

Ops = list[Append | Read]
GIVEN_UP = 0.1
"""So many are given up on the way."""


def running_of(load: Load, client: Client, rng: Random) -> Step:
    """Append to lists and read others."""

    async def step(process: int) -> int:
        recorder, ops, options = load.recorder, drawn_lists(load, rng), _options(rng)
        if options["isolation"] == "READ_COMMITTED":  # what it only reads is of any moment
            ops = [op for op in ops if isinstance(op, Append)] or [Append(ops[0].key, load.element())]
        recorder.begin("lists", process, Transaction(tuple(ops)))
        rival = load.rivals.begin(client.new_owner(), [op.key for op in ops])
        pauses = [rng.choice([0, 0, 0, 1, 20, 300]) * MS for _ in ops]
        for_update, nowait = rng.random() < 0.5, rng.random() < 0.2 and options["concurrency"] == "PESSIMISTIC"

        async def once(tx: ApiTransaction) -> Ops:
            lists, told = tx.namespace("lists"), Ops()
            for op, pause in zip(ops, pauses, strict=True):
                told.append(await _done(lists, op, for_update=for_update, nowait=nowait))
                await client.pause(pause)
            return told

        patience = rng.choice([20, 200, 2_000]) / 1000 if rng.random() < GIVEN_UP else None
        try:
            async with asyncio.timeout(patience):
                told = await client.database.run(once, attempts=rng.choice([1, 3, 10]), **options)
        except TimeoutError:
            load.rivals.failed(rival)
            recorder.end(process, "info")
            return recorder.process()
        except errors.Error as error:
            if not error.maybe_committed:
                load.rivals.failed(rival)
            return recorder.failed(process, error)
        load.rivals.committed(rival)
        recorder.end(process, "ok", Transaction(tuple(told)))
        return process

    return step


def _options(rng: Random) -> TransactionOptions:
    return {
        "concurrency": rng.choice(["PESSIMISTIC", "PESSIMISTIC", "OPTIMISTIC"]),
        "isolation": rng.choice([None, None, "READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"]),
        "timeout": rng.choice([0.5, 5.0, 30.0]),
        "label": rng.choice(["", "", "append", "rarely"]),
        "lock_timeout": rng.choice([0.1, 1.0, 5.0]),
    }


async def _done(
    lists: TransactionNamespace[bytes, bytes], op: Append | Read, *, for_update: bool, nowait: bool
) -> Append | Read:
    """Append to a list, or read it; the operation, with what was read."""
    key = op.key.encode()
    if isinstance(op, Read):
        return Read(op.key, elements_of(await lists.get(key, nowait=nowait)))
    more = str(op.value).encode()
    if for_update:
        held = await lists.get_for_update(key, nowait=nowait)
        await lists.put(key, held + b" " + more if held else more)
    else:
        await lists.update(key, lambda held: held + b" " + more if held else more)
    return op
