"""Clients that do not end what they begin, and questions about transactions that nobody has heard of.

Whoever is told that a transaction was aborted may rely on it: a commit of it that comes later must be refused.
"""

from __future__ import annotations

from random import Random

from engine import errors
from engine.client.calls import LockCall
from engine.client.ends import CommitCall, StatusCall
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import ACCOUNTS, NODES_OF_RING, TIMEOUT_NS, Load, Step


def strays_of(load: Load, client: Client, rng: Random) -> Step:
    """Ask after the unknown, lock and forget, prepare and forget."""

    async def step(process: int) -> int:
        choice = rng.random()
        try:
            if choice < 0.4:
                await _ask_after_the_unknown(load, client, rng)
            elif choice < 0.7:
                owner = client.new_owner()
                keys = [key.encode() for key in rng.sample([*ACCOUNTS, *NODES_OF_RING], 2)]
                namespace = rng.choice(["bank", "ring"])
                await client.call(LockCall(owner, namespace, keys, 50), timeout_ns=TIMEOUT_NS)
            else:
                lasts_ns = (
                    rng.choice([1_000, 8_000]) * MS
                )  # where it does not come to the votes it keeps its locks for so long
                tx = SimTransaction(client, optimistic=rng.random() < 0.5, timeout_ns=TIMEOUT_NS, lasts_ns=lasts_ns)
                keys = [b"stray%d" % rng.randrange(6) for _ in range(3)]
                held = await tx.get("strays", keys)
                await tx.put("strays", {k: None if held[k] else b"%d" % load.element() for k in keys[:2]})
                await tx.prepare()
        except errors.Error as error:
            load.recorder.told(error)
        await client.pause(rng.randrange(800 * MS))
        return process

    return step


async def _ask_after_the_unknown(load: Load, client: Client, rng: Random) -> None:
    topology = client.router.topology
    if topology is None:
        return
    tx, key = client.new_tx(), b"stray%d" % rng.randrange(6)
    status = StatusCall(tx, topology.place("strays", key))
    await client.call(status, timeout_ns=TIMEOUT_NS)
    if status.outcome != "aborted":
        raise Violation("status", f"a transaction that nobody began is {status.outcome}", About(txs=(tx,)))
    await load.pause(client, rng.choice([1, 2_000]) * MS)
    writes: list[tuple[str, list[bytes], list[bytes | None]]]
    writes = [("strays", [key, b"stray%d" % rng.randrange(6)], [b"%d" % load.element()] * 2)]
    if writes[0][1][0] == writes[0][1][1]:
        writes = [("strays", [key], [b"%d" % load.element()])]
    commit = CommitCall(tx, tx, optimistic=True, writes=writes, locks=[], reads=[])
    commit.unanswered = True  # the id was spoken of already: it must not be exchanged for another
    await client.call(commit, timeout_ns=TIMEOUT_NS)
    if not load.given_up:
        raise Violation("status", "a transaction committed after its client was told that it was aborted", About(txs=(tx,)))
