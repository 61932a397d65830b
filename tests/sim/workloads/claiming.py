"""A queue: some put jobs, others claim the first ones that nobody else has, and do them.

A job is done when its row is deleted and its result is noted, in one transaction. What was claimed may be put back, where
it lay or at the end, given up, held for longer than its lease, or left alone. `tests.sim.workloads.jobs` is the judge.
"""

from __future__ import annotations

from random import Random

from engine import errors
from engine.client.calls import PutCall
from engine.client.scans import ScanCall
from tests.sim.checkers.history import Get
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.violation import About, Violation
from tests.sim.workloads.jobs import Attempt, Finding, Row, job_of, key_of
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step

NAMESPACE, RESULTS = "queue", "results"
LOW, HIGH = b"q", b"r"
WAITING_MAX = (30, 3)
"""No more are put while so many wait: much is to be done at one time, and little at another, `SPELL_NS` each."""
SPELL_NS = 3_000 * MS
STEADY_NS = 100 * MS
"""Less than any lease."""
TTLS_MS = (100, 3_000)
AT_ONCE = 10
"""So many are claimed together when the queue is emptied."""


def queue_of(load: Load, client: Client, rng: Random) -> Step:
    """Put jobs, or claim some."""
    candidates = rng.choice([3, 100])
    worker = _Worker(load, client, rng, candidates)

    async def step(process: int) -> int:
        recorder, jobs = load.recorder, load.jobs
        tx = SimTransaction(client, timeout_ns=TIMEOUT_NS, lock_timeout_ms=1_000)
        attempt = jobs.begin(tx.tx, client.world.now)
        recorder.begin("queue", process, Get(NAMESPACE))
        try:
            if jobs.waiting < WAITING_MAX[client.world.now // SPELL_NS % 2] and rng.random() < 0.45:
                await worker.put(tx, attempt)
            else:
                await worker.claim(tx, attempt)
        except errors.Error as error:
            maybe = error.maybe_committed and attempt.committing is not None
            jobs.end(attempt, client.world.now, committed=None if maybe else False)
            process = recorder.failed(process, error)
            if not attempt.single:
                await tx.rollback()
            return process
        finally:
            attempt.touched |= _asked_for(tx)
            attempt.tx = attempt.tx if attempt.single else tx.tx
            if attempt.until is None:  # its client died
                jobs.end(attempt, client.world.now, committed=None if attempt.committing is not None else False)
        recorder.end(process, "ok")
        await load.pause(client, load.pace * rng.randrange(400 * MS))
        return process

    return step


class _Worker:
    """What one client does with the queue."""

    def __init__(self, load: Load, client: Client, rng: Random, candidates: int) -> None:
        self._load = load
        self._client = client
        self._rng = rng
        self._candidates = candidates

    @property
    def _now(self) -> int:
        return self._client.world.now

    def _row(self, job: int | None = None) -> Row:
        """Where a job is put: a new one mostly at the end."""
        mark = self._load.element()
        at_the_end = job is not None or self._rng.random() < 0.7
        place = mark if at_the_end else self._rng.randrange(mark)
        return Row(key_of(place, mark if job is None else job), mark)

    async def put(self, tx: SimTransaction, attempt: Attempt) -> None:
        """Put new jobs: one, or several in one transaction."""
        rng, jobs = self._rng, self._load.jobs
        if rng.random() < 0.5:
            row = self._row()
            attempt.single, attempt.put, attempt.touched = True, {row: None}, {row.key: None}
            ttl_ms = rng.choice(TTLS_MS) if rng.random() < 0.1 else 0
            attempt.expiring = ttl_ms > 0
            attempt.committing = self._now
            attempt.tx = self._client.new_tx()
            call = PutCall(attempt.tx, NAMESPACE, [row.key], [b"%d" % row.mark], ttl_ms)
            await self._client.call(call, timeout_ns=TIMEOUT_NS)
            jobs.end(attempt, self._now, committed=True)
            return
        rows = [self._row() for _ in range(rng.randrange(1, 5))]
        attempt.put = dict.fromkeys(rows)
        await tx.put(NAMESPACE, {row.key: b"%d" % row.mark for row in rows})
        await self._decide(tx, attempt)

    async def claim(self, tx: SimTransaction, attempt: Attempt) -> None:
        """Claim some, and do them; or do something else with them."""
        rng, client = self._rng, self._client
        attempt.limit = rng.choice([1, 1, 1, 2, 5])
        attempt.reverse = rng.random() < 0.15
        await claim(tx, attempt, self._candidates, rng)
        if len(attempt.rows) < attempt.limit:
            self._load.jobs.waiting = 0  # but for what is locked; others have expired, or were done by who knows whom
        then = rng.random()
        if then < 0.15:
            idle = rng.choice([20, 100, 400, 400, 700, 3_500]) * MS  # for longer than its lease, sometimes
            await self._load.pause(client, idle)
        elif then < 0.18:  # it is never heard of again
            self._load.jobs.end(attempt, self._now, committed=False)
            tx.abandon()
            return
        for row in attempt.rows:
            choice = rng.random()
            if choice < 0.1:
                new = Row(row.key, self._load.element())
                attempt.put[new] = None
                await tx.put(NAMESPACE, {row.key: b"%d" % new.mark})
            elif choice < 0.18:
                new = self._row(job_of(row.key))
                attempt.put[new] = None
                await tx.put(NAMESPACE, {row.key: None, new.key: b"%d" % new.mark})
            elif choice < 0.25 and len(attempt.rows) > 1:
                continue
            else:
                await do(self._load, tx, attempt, [row])
            attempt.changed[row] = None
        await self._decide(tx, attempt)

    async def _decide(self, tx: SimTransaction, attempt: Attempt) -> None:
        """Commit, mostly."""
        jobs, then = self._load.jobs, self._rng.random()
        if then < 0.12:
            await tx.rollback()
            jobs.end(attempt, self._now, committed=False, left=not tx.free)
        elif then < 0.16 and tx.written:
            await tx.prepare()  # and whoever did not ask to commit can be sure that nothing commits it
            jobs.end(attempt, self._now, committed=False)
        else:
            attempt.committing = self._now
            await tx.commit()
            jobs.end(attempt, self._now, committed=True)


async def claim(tx: SimTransaction, attempt: Attempt, candidates: int, rng: Random) -> None:
    """Claim rows, and note which."""
    world = tx.client.world
    befallen = sum(machine.befallen for machine in world.machines.values())
    attempt.asked = world.now
    rows = await tx.claim(
        NAMESPACE, LOW, HIGH, attempt.limit, reverse=attempt.reverse, candidates=candidates, sample=rng.sample
    )
    attempt.found = world.now
    attempt.rows = [Row(key, int(mark)) for key, mark in rows]
    quiet = befallen == sum(machine.befallen for machine in world.machines.values())
    attempt.steady = quiet and attempt.found - attempt.asked < STEADY_NS


async def do(load: Load, tx: SimTransaction, attempt: Attempt, rows: list[Row]) -> None:
    """Note the results of jobs, beside them or elsewhere, and delete them."""
    attempt.did |= {job_of(row.key): load.element() for row in rows}
    keys = {job: b"{%d}" % job if job % 2 else b"%d" % job for job in map(job_of, (row.key for row in rows))}
    noted = await tx.get(RESULTS, keys.values())
    new = {key: b" ".join(filter(None, (noted[key], b"%d" % attempt.did[job]))) for job, key in keys.items()}
    await tx.put(RESULTS, new)
    await tx.put(NAMESPACE, {row.key: None for row in rows})


async def empty(load: Load, client: Client, rng: Random) -> None:
    """When nobody else puts or claims any more: do all that is left. Raises Violation if that cannot be, by the book."""
    _judged(load, load.jobs.judge_claims())
    await _do_some(load, client, rng)
    while not await _is_empty(client):
        await client.pause(500 * MS)  # somebody who is gone may hold it still
        await _do_some(load, client, rng)
    results: dict[int, list[int]] = {}
    start: bytes | None = b"\0"
    while start is not None:
        page = await client.call(ScanCall(RESULTS, start, None, 1_000), timeout_ns=10 * TIMEOUT_NS)
        results |= {int(key.strip(b"{}")): [int(one) for one in noted.split()] for key, noted in page.rows}
        start = page.next_start
    _judged(load, load.jobs.judge(results))


def _judged(load: Load, found: list[Finding]) -> None:
    """Raise Violation if there is anything to be said, unless an operator has given something up."""
    if found and not load.given_up:
        keys = tuple(dict.fromkeys(key for one in found for key in one.keys))
        txs = tuple(dict.fromkeys(tx for one in found for tx in one.txs))
        raise Violation("queue", "\n".join(one.what for one in found[:5]), About(keys=keys[:5], txs=txs[:5]))


async def _do_some(load: Load, client: Client, rng: Random) -> None:
    """Do what there is to be claimed, until there is nothing."""
    at_once = AT_ONCE
    while True:
        tx = SimTransaction(client, timeout_ns=10 * TIMEOUT_NS)
        attempt = load.jobs.begin(tx.tx, client.world.now)
        attempt.limit = at_once
        try:
            await claim(tx, attempt, AT_ONCE, rng)
            await do(load, tx, attempt, attempt.rows)
            attempt.changed = dict.fromkeys(attempt.rows)
            attempt.committing = client.world.now
            await tx.commit()
            load.jobs.end(attempt, client.world.now, committed=True)
        except errors.Error as error:
            load.recorder.told(error)
            load.jobs.end(attempt, client.world.now, committed=None if error.maybe_committed else False)
            await tx.rollback()
            at_once = max(1, at_once // 2)  # its lease may be too short for so many
        attempt.touched = _asked_for(tx)
        if not attempt.rows:
            return


async def _is_empty(client: Client) -> bool:
    page = ScanCall(NAMESPACE, LOW, HIGH, 1)
    await client.call(page, timeout_ns=10 * TIMEOUT_NS)
    return not page.rows


def _asked_for(tx: SimTransaction) -> dict[bytes, None]:
    return {key: None for namespace, key in tx.asked_for if namespace == NAMESPACE}
