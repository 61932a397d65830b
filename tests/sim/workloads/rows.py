"""Scans of a few rows that a transaction holds locked, against its own gets of them, while others wait to write them.

A scan goes up or down. They are all that there is in their namespace, so that counting it must tell as many.
"""

from __future__ import annotations

from random import Random

from engine import errors
from engine.client.scans import CountCall, ScanCall
from tests.sim.checkers.history import Scan
from tests.sim.clients import Client
from tests.sim.transactions import SimTransaction
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step, give_up

ROWS = tuple(f"{{rows}}{i}" for i in range(8))
"""They lie in one partition."""
LOW, HIGH = "{rows}", "{rows~"


def rows_of(load: Load, client: Client, rng: Random) -> Step:
    """Lock, get, scan, write or delete some, commit: the scan counts if the locks were held to the end."""

    async def step(process: int) -> int:
        recorder = load.recorder
        tx = SimTransaction(client, timeout_ns=TIMEOUT_NS, lock_timeout_ms=rng.choice([100, 1_000]))
        recorder.begin("rows", process, Scan(LOW, HIGH))
        try:
            held = await tx.get("rows", [key.encode() for key in ROWS])
            scan = ScanCall("rows", LOW.encode(), HIGH.encode(), 100, reverse=rng.random() < 0.5)
            await client.call(scan, timeout_ns=TIMEOUT_NS)
            count = CountCall("rows") if rng.random() < 0.3 else None
            if count is not None:
                await client.call(count, timeout_ns=TIMEOUT_NS)
            if rng.random() < 0.7:
                chosen = rng.sample(ROWS, rng.randrange(1, 4))
                new = {k.encode(): None if rng.random() < 0.4 else str(load.element()).encode() for k in chosen}
                await tx.put("rows", new)
            await tx.commit()
        except errors.Error as error:
            # The scan did not happen for certain. Whether the writes did is for those who find them to say.
            recorder.told(error)
            recorder.end(process, "fail")
            await give_up(tx, load, rng)
            return process
        if count is not None and count.counted != len(scan.rows):
            raise Violation(
                "count", f"rows: {len(scan.rows)} were locked and scanned, {count.counted} counted", About(txs=(tx.tx,))
            )
        in_order = reversed(scan.rows) if scan.reverse else scan.rows
        found = tuple((key.decode(), int(value)) for key, value in in_order)
        gets = tuple((key.decode(), int(value) if value is not None else None) for key, value in held.items())
        recorder.end(process, "ok", Scan(LOW, HIGH, found, gets))
        return process

    return step
