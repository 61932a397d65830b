"""What is only written and locked by the commit, as `db.run` does it, beside locks on what was read.

A count goes up by one under a lock, and what follows from it is only written: two keys in each of two other partitions. So
nobody may ever see one without the others, no number may be told twice, and none that was told is gone for who reads later.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from engine import errors
from tests.sim.checkers.history import Get
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step, give_up

NAMESPACE = "late"
COUNT = b"count"
FOLLOWING = (b"{a}double", b"{a}half", b"{b}square", b"{b}cube")
"""Where they are staged, two pieces in each of two partitions."""


def late_of(load: Load, client: Client, rng: Random) -> Step:
    """Count one more, or see that all are of one number."""

    async def step(process: int) -> int:
        recorder, known = load.recorder, load.told_late
        counts, least = rng.random() < 0.7, max(known, default=0)
        patience = rng.choice([1_000, 100])
        tx = SimTransaction(client, late=counts, timeout_ns=TIMEOUT_NS, lock_timeout_ms=patience)
        if not tx.owner[-1] % 3:
            tx.at_once = 1
        recorder.begin(NAMESPACE, process, Get(NAMESPACE))
        try:
            found = {COUNT: await _count(tx, rng)} if counts else await tx.get(NAMESPACE, [COUNT, *FOLLOWING])
            await tx.commit()
        except errors.Error as error:
            process = recorder.failed(process, error)
            await give_up(tx, load, rng)
            return process
        recorder.end(process, "ok")
        if load.given_up:
            return process
        number = _one_number(tx, found)
        if number < least:
            raise Violation("late", f"{number} is read, and {least} was told before", About(txs=(tx.tx,)))
        if counts and number in known:
            raise Violation("late", f"{number} was counted twice", About(txs=(known[number], tx.tx)))
        if counts:
            known[number] = tx.tx
        return process

    return step


async def _count(tx: SimTransaction, rng: Random) -> bytes:
    """The next number, written everywhere."""
    if rng.random() < 0.5:
        held = (await tx.get(NAMESPACE, [COUNT]))[COUNT]
    else:
        held = (await tx.get_many(NAMESPACE, [COUNT], update=True)).get(COUNT)
    number = str(int(held or b"0") + 1).encode()
    await tx.client.pause(rng.choice([1, 1, 20, 300]) * MS)
    await tx.put(NAMESPACE, dict.fromkeys(FOLLOWING, number))
    await tx.put(NAMESPACE, {COUNT: number})
    return number


def _one_number(tx: SimTransaction, found: Mapping[bytes, bytes | None]) -> int:
    """What all of them are of, where a transaction kept its locks to its end."""
    numbers = {int(value or b"0") for value in found.values()}
    if len(numbers) > 1:
        raise Violation("late", f"one transaction wrote them all, and they are {found}", About(txs=(tx.tx,)))
    return numbers.pop()
