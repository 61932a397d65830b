"""Keys that are put once and expire. What was seen to be gone is gone; what was kept stays; and, where no wall clock was
set wrong, nothing is read after its time, nor gone before it."""

from __future__ import annotations

from random import Random

from engine import errors
from engine.client.calls import GetCall, PutCall, SwapCall
from engine.client.namespace import expiry_call, expiry_in
from engine.client.scans import ScanCall
from tests.sim.checkers.history import Get
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step

NAMESPACE = "fleeting"
BESIDE = "lasting"
TTLS_MS = (50, 400, 2_000, 20_000)
KNOWN_MAX = 40
"""So many of the last keys are read again."""


class Fleeting:
    """One key. Times are those of the world (ns). `kept`: since when it is known to stay; `gone`: since when to be gone."""

    __slots__ = ("begun", "data", "done", "gone", "kept", "may_stay", "ttl_ms")

    def __init__(self, data: bytes, begun: int, done: int, ttl_ms: int) -> None:
        self.data = data
        self.begun = begun
        self.done = done
        self.ttl_ms = ttl_ms
        self.kept: int | None = None
        self.may_stay = False  # somebody tried to keep it
        self.gone: int | None = None

    def read(self, load: Load, since: int, until: int, *, there: bool, right: bool) -> None:
        """Somebody has read it in between; `right`: no wall clock was ever set wrong."""
        problem = ""
        if load.given_up:
            return
        if there and self.gone is not None and since > self.gone:
            problem = "came back after it was seen to be gone"
        elif not there and self.kept is not None and since > self.kept:
            problem = "is gone, and was kept"
        elif right and there and not self.may_stay and since > self.done + self.ttl_ms * MS + MS:
            problem = f"is read {(since - self.done) // MS} ms after it was put"
        elif right and not there and until < self.begun + self.ttl_ms * MS - MS:
            problem = f"is gone {(until - self.begun) // MS} ms after it was put"
        if problem:
            raise Violation("expiry", f"{self.data!r}, which lasts {self.ttl_ms} ms, {problem}", About(keys=(self.data,)))
        if not there and (self.gone is None or until < self.gone):
            self.gone = until


async def _put(client: Client, rng: Random, data: bytes, ttl_ms: int) -> None:
    """Put a key that expires: by itself, if there is none, or in a transaction, perhaps in a piece that is staged."""
    how = rng.random()
    if how < 0.6:
        await client.call(PutCall(client.new_tx(), NAMESPACE, [data], [b"-"], ttl_ms), timeout_ns=TIMEOUT_NS)
        return
    if how < 0.7:
        call = SwapCall(client.new_tx(), NAMESPACE, data, "absent", new=b"-", ttl_ms=ttl_ms)
        await client.call(call, timeout_ns=TIMEOUT_NS)
        return
    tx = SimTransaction(client, optimistic=rng.random() < 0.5, timeout_ns=TIMEOUT_NS, at_once=rng.choice([1, 1 << 20]))
    try:
        await tx.put_many(BESIDE, {b"beside " + data: b"-"})
        await tx.put_many(NAMESPACE, {data: b"-"}, ttl_ms)
        await tx.commit()
    except errors.Error:
        await tx.rollback()
        raise


def fleeting_of(load: Load, client: Client, rng: Random) -> Step:
    """Put a key that expires, or read, scan or keep one of the last."""
    world, known = client.world, load.fleeting

    def right() -> bool:
        return not any(machine.wall_offset_ms for machine in world.machines.values())

    async def step(process: int) -> int:
        choice, since = rng.random(), world.now
        load.recorder.begin("fleeting", process, Get(NAMESPACE))
        try:
            if choice < 0.4 or not known:
                data, ttl_ms = b"f%d" % load.element(), rng.choice(TTLS_MS)
                await _put(client, rng, data, ttl_ms)
                known.append(Fleeting(data, since, world.now, ttl_ms))
                del known[:-KNOWN_MAX]
            elif choice < 0.45:
                one = rng.choice(known)
                asked = expiry_call(NAMESPACE, one.data)
                ends = expiry_in(await client.call(asked, timeout_ns=TIMEOUT_NS))
                if ends is not None and one.kept is not None and since > one.kept and not load.given_up:
                    raise Violation("expiry", f"{one.data!r} was kept, and is to expire", About(keys=(one.data,)))
            elif choice < 0.8:
                some = rng.sample(known, min(len(known), rng.randrange(1, 6)))
                read = await client.call(GetCall(NAMESPACE, [one.data for one in some]), timeout_ns=TIMEOUT_NS)
                for one, (_, _, value) in zip(some, read.values, strict=True):
                    one.read(load, since, world.now, there=value is not None, right=right())
            elif choice < 0.9:
                before = list(known)
                page = ScanCall(NAMESPACE, b"f", None, 10_000)
                await client.call(page, timeout_ns=TIMEOUT_NS)
                found = dict(page.rows)
                for one in before if page.next_start is None else ():
                    one.read(load, since, world.now, there=one.data in found, right=right())
            else:
                one = rng.choice(known)
                one.may_stay = True
                keep = SwapCall(client.new_tx(), NAMESPACE, one.data, "present", how="keep")
                await client.call(keep, timeout_ns=TIMEOUT_NS)
                one.read(load, since, world.now, there=keep.applied, right=right())
                if keep.applied and one.kept is None:
                    one.kept = world.now
        except errors.Error as error:
            return load.recorder.failed(process, error)
        load.recorder.end(process, "ok")
        return process

    return step
