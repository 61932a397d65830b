"""A namespace that is dropped and begun anew, now and then with another number of copies. What was acknowledged before a
drop was ordered is never read after it was seen to be over, whoever was away meanwhile, and on whatever disk somebody comes
back; and what is in it when it is to have other copies stays where it is. How long things last there changes, too."""

from __future__ import annotations

from random import Random

from engine import errors
from engine.client.calls import PutCall
from engine.client.namespaces import AskNodes
from engine.client.scans import ScanCall
from rebalance.namespaces import Stands
from tests.sim.checkers.history import Get
from tests.sim.clients import Client
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step

NAMESPACE = "ending"
KEYS = 12
MOST_BACKUPS = 3
TTLS_MS = ("0", "0", "400", "5000")


def ending_of(load: Load, client: Client, rng: Random) -> Step:
    """Put, scan, order a drop or see to the end of one."""
    ending = load.ending

    async def asked(arguments: dict[str, list[str]]) -> tuple[str, str]:
        """How it stands by the newest map that a primary has, and since when."""
        call = AskNodes(arguments)
        await client.call(call, timeout_ns=TIMEOUT_NS)
        said = [report[NAMESPACE] for report in call.reports if NAMESPACE in report]
        newest = max(said, key=lambda one: tuple(map(int, one["since"].split("."))), default={"stands": "", "since": "0.0"})
        return newest["stands"], newest["since"]

    async def put() -> None:
        data = b"%d" % load.element()
        call = PutCall(client.new_tx(), NAMESPACE, [b"e%d" % rng.randrange(KEYS)], [data])
        seen = ending.seen
        await client.call(call, timeout_ns=TIMEOUT_NS)
        if not seen and not ending.seen:
            ending.written.append(data)

    async def scan() -> None:
        gone = dict(ending.gone)
        page = ScanCall(NAMESPACE, b"e", None, 1_000)
        await client.call(page, timeout_ns=TIMEOUT_NS)
        for key, value in page.rows:
            if value in gone and not load.given_up:
                raise Violation("dropped", f"{value!r} came back after its namespace was dropped", About(keys=(key,)))

    async def drop() -> None:
        """Order one, or look whether the last is over, and order it again if it was lost."""
        if not ending.seen:
            written = list(ending.written)  # what is acknowledged while the answer is on its way may come after a drop
            stands, since = await asked({})
            if ending.seen or stands in {Stands.DROPPING, Stands.MAKING}:
                return
            ending.seen, ending.doomed = since, written
            ending.written = [data for data in ending.written if data not in written]
        stands, since = await asked({})
        seen = ending.seen
        if since == seen:
            order = {"name": [NAMESPACE], "seen": [since], "ttl_ms": ["0"], "drop": list[str]()}
            await asked(order)
        elif seen and stands == Stands.DROPPED:
            ending.gone |= dict.fromkeys(ending.doomed)
            ending.seen, ending.doomed, ending.drops = "", [], ending.drops + 1
        elif seen and stands != Stands.DROPPING:
            ending.seen, ending.written = "", ending.written + ending.doomed  # it was made meanwhile, and the order is void
            ending.doomed = []

    async def make() -> None:
        """Order copies of its own for one that seems to be gone; who has written to it just then may be in time."""
        stands, since = await asked({})
        if stands in {"", Stands.DROPPED}:
            backups = str(rng.randrange(1, MOST_BACKUPS + 1))  # what is on one disk alone would keep all of them whole
            order = {"name": [NAMESPACE], "seen": [since], "ttl_ms": [rng.choice(TTLS_MS)], "backups": [backups]}
            if client.world.behind:
                order["async_backups"] = [str(rng.randrange(2))]
            await asked(order)

    async def change() -> None:
        """Have what is put from now on last so long, where nobody says otherwise."""
        stands, since = await asked({})
        if stands in {"", Stands.THERE}:
            await asked({"name": [NAMESPACE], "seen": [since], "ttl_ms": [rng.choice(TTLS_MS)]})

    async def step(process: int) -> int:
        choice = rng.random()
        load.recorder.begin("ending", process, Get(NAMESPACE))
        try:
            if choice < 0.55:
                await put()
            elif choice < 0.85:
                await scan()
            elif ending.seen or choice < 0.88:
                await drop()
            elif choice > 0.96:
                await make()
            elif choice > 0.94:
                await change()
        except errors.UsageError:
            pass  # it is being dropped or made
        except errors.Error as error:
            return load.recorder.failed(process, error)
        load.recorder.end(process, "ok")
        return process

    return step
