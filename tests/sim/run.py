"""One seed: a world, its storm, its calm, and the verdict.

The seed draws the cluster, the settings, the faults and the load. A run ends with the first violation, or when the
storm is over, the cluster has come to rest, and every history and every copy was judged.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

import msgspec

from engine.turn.settings import Settings
from rebalance.affinity import assign
from rebalance.table import back_off_ms
from tests.sim.calls import LARGE_SHARE, SMALL_SHARE, Calls
from tests.sim.costs import COSTS, Modelled
from tests.sim.differing import DIFFERING_LARGE_SHARE, DIFFERING_SHARE, differing
from tests.sim.draws import Draws
from tests.sim.faults import (
    DESTRUCTIVE,
    FULL,
    FULL_SHARE,
    GIVING_UP,
    GIVING_UP_SHARE,
    MAJORITY_LOST,
    MAJORITY_LOST_SHARE,
    NAMESAKE,
    NAMESAKE_SHARE,
    NARROW,
    NARROW_SHARE,
    ORDERED,
    ORDERED_SHARE,
    RATES,
    REFETCH,
    REFETCH_SHARE,
    ROT,
    ROT_SHARE,
    SLEEP,
    SLEEP_SHARE,
    TIRED,
    TIRED_SHARE,
    Faults,
)
from tests.sim.heckling import Heckler, heckle, talk
from tests.sim.knobs import AS_DRAWN, Knobs
from tests.sim.machine import Speed
from tests.sim.network import MS
from tests.sim.oracles import Life, Pulse, look_inside, out_of_sync, unsettled, watch
from tests.sim.recorder import Recorder
from tests.sim.rotting import write_cold
from tests.sim.shapes import Shape, draw_shape
from tests.sim.violation import Violation
from tests.sim.workloads import (
    ONE_KEY_SHARE,
    WORKLOADS,
    Bulk,
    Load,
    Many,
    empty,
    give_copies,
    judge,
    one_key_of,
    read_everything,
    set_up,
)
from tests.sim.workloads.operator import Looking, operate
from tests.sim.world import SECOND, Plant, World
from tests.support.probes import listen_here

STORM_NS = 15 * SECOND
DELIVERIES_MIN, DELIVERIES_MAX = 3_000, 8_000
EVENTS_MIN = 50_000
"""So much happens to a small seed in its storm. Where most nodes are away most of the time it is restarts, timers and
refusals instead of deliveries: to wait for those, too, took as long as ten other seeds."""
KINDS_MIN = 5
CALM_PACE = 4
"""In the calm there is less to do for clients: they pause for so much longer."""
LULL_PACE = 10
CALM_NS = 5 * SECOND
"""Where the calm takes longer than that, there is as little to do as in a lull until all copies are in sync."""
REST_NS = 60 * SECOND
"""A cluster of which nothing is wrong any more comes to rest within so much simulated time."""
LOOK_NS = 250 * MS
PATIENT = {
    "heartbeat_ms": 250,
    "suspicion_ms": 1_500,
    "connection_lost_ms": 500,
    "exchange_delay_ms": 150,
    "exchange_retry_ms": 1_000,
    "retransmit_ms": 400,
}
"""As a node has it where nobody says otherwise."""
HASTY = {
    "heartbeat_ms": 60,
    "suspicion_ms": 400,
    "connection_lost_ms": 120,
    "exchange_delay_ms": 40,
    "exchange_retry_ms": 200,
    "retransmit_ms": 100,
}
"""So that more happens in the same time."""
PACKAGES = ("wal", "rebalance", "engine")
LMDB_SHARE = 0.06
ARCHIVES_SHARE = 0.2
GROUPED_SHARE = 0.35
BEHIND_SHARE = 0.25
"""The share of the seeds in which namespaces may have asynchronous copies, whatever the cluster has."""
PIECES_SHARE, LITTLE_STAGED = 0.35, 64
"""The share of the seeds in which a node keeps so many bytes of what is staged: one piece at a time is asked about."""
LARGE_MAP_SHARE = 0.3
"""The share of the seeds of few partitions in which maps are treated as those of very many are: read in pieces before they
are taken, and told and logged as what they change, if that is little."""
APART_SHARE = 0.3
"""The share of the seeds in which the connections of a pair keep no order among each other, and one of them may break,
stand still or be narrow by itself."""
KERNELS_SHARE = 0.3
"""The share of the seeds in which who dials where nothing answers hangs, and a connection breaks where nothing passes."""
HECKLED_SHARE = 0.15
"""The share of the seeds in which a client asks what means nothing, in namespaces and under ids of its own."""
HECKLED = ("babble", "prattle")
OPERATED_SHARE = 0.3
"""The share of the seeds in which operators look at all that nodes tell, and order what is to be refused."""


@dataclass
class Result:
    """What came of a seed."""

    seed: int
    shape: Shape
    options: str
    drawn: list[str] = field(default_factory=list)  # the kinds of faults that it may have
    violation: Violation | None = None
    digest: str = ""
    deliveries: int = 0
    events: int = 0
    simulated_s: float = 0.0
    operations: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # operations that ended well, by workload
    errors: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    probes: Counter[str] = field(default_factory=Counter)
    unsaid: list[str] = field(default_factory=list)  # requests, and fields of them, that no client said
    written: int = 0  # rows, in bulk
    deleted: int = 0
    story: list[str] = field(default_factory=list)

    @property
    def shows_enough(self) -> bool:
        """Whether as much happened as a small seed's storm goes on for (`storm_is_over`)."""
        enough = max(self.deliveries, self.operations["ok"]) >= DELIVERIES_MIN or self.events >= EVENTS_MIN
        return enough and len(self.faults) >= KINDS_MIN


def draw_settings(draw: Random, nodes: int) -> Settings:
    """Settings that make rare things happen soon."""
    segment = draw.choice([1 << 10, 2 << 10, 4 << 10, 64 << 10])
    patience = PATIENT if draw.random() < 0.3 else HASTY
    settings = Settings(
        cluster="sim",
        partitions=draw.choice([8, 16, 32]),
        backups=draw.choice([1, 2, 2, 2]) if nodes > 2 else 1,
        lock_lease_ms=draw.choice([300, 1_000, 3_000]),
        lock_timeout_ms=draw.choice([300, 1_500]),
        in_doubt_ms=draw.choice([100, 1_000]),
        answers_kept=draw.choice([1, 4, 256]),
        result_retention_ms=60_000,
        checkpoint_ms=draw.choice([100, 300, 2_000]),
        checkpoint_bytes=draw.choice([1 << 10, 4 << 10, 1 << 20]),
        max_parallel_migrations=draw.choice([1, 3, 10]),
        supply_batch_bytes=draw.choice([1 << 10, 16 << 10]),
        supply_credit=draw.choice([1, 4]),
        backlog_bytes_max=draw.choice([1 << 10, 8 << 10, 1 << 20]),
        prefer_history=draw.random() < 0.7,
        wal_segment_bytes=segment,
        wal_total_bytes=segment * draw.choice([3, 3, 12, 300]),
        exchange_drain_ms=draw.choice([200, 2_000]),
    )
    return msgspec.structs.replace(settings, **patience)


def run_seed(
    seed: int,
    *,
    rates: Mapping[str, float] | None = None,
    storm_ns: int = STORM_NS,
    plant: Plant | None = None,
    verbose: Callable[[str], None] | None = None,
    digest: bool = True,
    cost: str = "model",
    shape: Shape | None = None,
    knobs: Knobs = AS_DRAWN,
) -> Result:
    """Run one seed. `rates` replaces what the seed would draw of `RATES`; `plant` is done to each node that starts;
    `knobs` are what a person turned.

    `cost`: how long turns take (`tests.sim.costs`). `digest`: sum up the trace, which has to be printed for it. Where
    nobody asks for the trace none is kept, and a seed that finds something is run again with one. What is another thing
    in the next run, measured times or a plant that counts, is traced from the beginning.
    """
    asked = digest or verbose is not None or plant is not None or cost == "cpu"
    run = partial(_run_seed, seed, rates=rates, storm_ns=storm_ns, plant=plant, cost=cost, shape=shape, knobs=knobs)
    with _one_world_at_a_time():
        result = run(traced=asked, verbose=verbose, digest=digest)
    if result.violation is None or asked:
        return result
    with _one_world_at_a_time():
        again = run(traced=True, verbose=None, digest=False)
    if str(again.violation) != str(result.violation):
        result.story = [f"it has none: when it was run again for it, it found {again.violation or 'nothing'}"]
        return result
    return again


def _run_seed(
    seed: int,
    *,
    rates: Mapping[str, float] | None,
    storm_ns: int,
    plant: Plant | None,
    verbose: Callable[[str], None] | None,
    digest: bool,
    cost: str,
    shape: Shape | None,
    knobs: Knobs,
    traced: bool,
) -> Result:
    draws = Draws(seed)
    draw = draws.of("options")
    count = draw.choice([3, 3, 3, 4, 5])
    settings = draw_settings(draw, count)
    if draws.of("archive").random() < ARCHIVES_SHARE:
        settings = msgspec.structs.replace(settings, wal_archive_bytes_per_s=1 << 20)
    remembers = draws.of("mutations").choice([0, 4 << 10, 64 << 20])
    staged = draws.of("staged writes").choice([2 << 10, 8 << 10, 1 << 20])
    if draws.of("pieces").random() < PIECES_SHARE:
        staged = LITTLE_STAGED
    settings = msgspec.structs.replace(settings, mutations_bytes=remembers, staged_bytes_max=staged)
    shape = draw_shape(draws, knobs.shape) if shape is None else shape
    if shape.widest:
        settings = msgspec.structs.replace(settings, **PATIENT)
    if shape.nodes or knobs.nodes is not None:
        count = knobs.nodes or shape.nodes
        settings = msgspec.structs.replace(settings, backups=min(settings.backups, count - 1))
    if knobs.backups is not None:
        settings = msgspec.structs.replace(settings, backups=knobs.backups)
    copies = draws.of("asynchronous copies").choice([0, 0, 0, 1, 2])  # on nodes that have no other copy
    settings = msgspec.structs.replace(settings, async_backups=max(0, min(copies, count - 1 - settings.backups)))
    storm_ns = shape.storm_ms * MS or storm_ns
    if knobs.storm_s is not None:
        storm_ns = int(knobs.storm_s * SECOND)
    settings = msgspec.structs.replace(
        settings,
        partitions=shape.partitions or settings.partitions,
        supply_batch_bytes=max(settings.supply_batch_bytes, shape.batch_bytes),
    )
    lmdb = draw.random() < LMDB_SHARE
    common = [
        kind
        for kind in RATES
        if kind not in (GIVING_UP, MAJORITY_LOST, NAMESAKE, ROT, ORDERED, TIRED, FULL, REFETCH, SLEEP, NARROW)
    ]
    swarm = {kind: RATES[kind] for kind in common if draw.random() < 0.5}
    while len(swarm) < 6:
        kind = draw.choice(common)
        swarm[kind] = RATES[kind]
    if draws.of("operator").random() < GIVING_UP_SHARE:
        swarm[GIVING_UP] = RATES[GIVING_UP]
    if draws.of("lost majority").random() < MAJORITY_LOST_SHARE:
        swarm[MAJORITY_LOST] = RATES[MAJORITY_LOST]
    if draws.of("namesake").random() < NAMESAKE_SHARE:
        swarm[NAMESAKE] = RATES[NAMESAKE]
    rotting = draws.of("rot")
    if rotting.random() < ROT_SHARE:
        swarm = {kind: rate for kind, rate in swarm.items() if kind not in (*DESTRUCTIVE, MAJORITY_LOST, GIVING_UP)}
        swarm[ROT] = RATES[ROT]
    if draws.of("orders about migrations").random() < ORDERED_SHARE:
        swarm[ORDERED] = RATES[ORDERED]
    if draws.of("who is set aside").random() < TIRED_SHARE:
        swarm[TIRED] = RATES[TIRED]
    if draws.of("sleep").random() < SLEEP_SHARE:
        swarm[SLEEP] = RATES[SLEEP]
    links = draws.of("links")
    if links.random() < NARROW_SHARE:
        swarm[NARROW] = RATES[NARROW]
    if shape.small:  # what is large takes seconds
        settings = msgspec.structs.replace(settings, link_bytes_per_s=links.choice([16 << 10, 64 << 10, 1 << 20]))
    apart = draws.of("connections").random() < APART_SHARE
    if draws.of("full disks").random() < FULL_SHARE:
        swarm[FULL] = RATES[FULL]
    if draws.of("copies ordered anew").random() < REFETCH_SHARE and ROT not in swarm:
        swarm[REFETCH] = RATES[REFETCH]
    used = dict(rates) if rates is not None else swarm
    if lmdb:
        used.pop("old-disk", None)
        used.pop(ROT, None)
    interval = rotting.choice([1_000, 3_000]) if ROT in used else 0
    behind = ROT not in used and draws.of("asynchronous copies of namespaces").random() < BEHIND_SHARE
    looks = 1_000 if settings.async_backups or behind else 0
    settings = msgspec.structs.replace(settings, anti_entropy_ms=interval or looks)
    options = (
        f"{shape.name}, {count} nodes, {settings.partitions} partitions, {settings.backups} backups, "
        f"{f'{settings.async_backups} asynchronous, ' if settings.async_backups else ''}"
        f"{'LMDB' if lmdb else 'memory'}"
    )
    result = Result(seed, shape, f"{options}; faults: {', '.join(sorted(used)) or 'none'}", list(used))
    reached: Counter[str] = Counter()
    deaf = listen_here(lambda name: reached.update((name,)))
    try:
        costs = COSTS[cost]()
        if isinstance(costs, Modelled) and costs.counted is None:
            costs.counted = Calls(draws.of("turns that are counted"), SMALL_SHARE if shape.small else LARGE_SHARE)
        with World(draws, settings, affinity=assign, plant=plant, costs=costs, traced=traced) as world:
            try:
                world.behind = behind
                world.network.apart = apart
                world.network.kernels = draws.of("kernels").random() < KERNELS_SHARE
                _live(
                    world,
                    count,
                    used,
                    storm_ns,
                    result,
                    lmdb=lmdb,
                    pause_ns=int(draw.choice([300, 800, 2_000]) * MS / knobs.density),
                )
            except Violation as violation:
                result.violation = violation
                result.story = world.trace.story(violation.about)
            result.deliveries, result.events = world.network.delivered, world.events
            result.simulated_s, result.unsaid = world.now / SECOND, world.said.never
            if verbose is not None:
                for line in world.trace.lines(chatter=False):
                    verbose(line)
            if digest:
                result.digest = world.trace.digest()
    finally:
        deaf()
    result.probes = reached
    return result


@contextmanager
def _one_world_at_a_time() -> Iterator[None]:
    """What a world keeps only grows: to walk all of it again and again for cycles finds nothing.

    It is a single cycle, and goes at its end; what was there before all worlds is not walked for that. Where none are
    collected anyway, its process goes with it. What a world of before had worked out, such as where copies belong, is
    forgotten: else nodes of this one would find it done, and have other turns than where it is alone in its process.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            for remembers in vars(module).values():
                if hasattr(remembers, "cache_clear"):
                    remembers.cache_clear()
    if not gc.isenabled():
        yield
        return
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.enable()


def _live(
    world: World, count: int, rates: dict[str, float], storm_ns: int, result: Result, *, lmdb: bool, pause_ns: int
) -> None:
    draw, shape = world.draws.of("live"), result.shape
    names, attention = [f"n{i}" for i in range(1, count + 1)], world.draws.of("how soon loops look")
    stores, links = world.draws.of("how fast stores are"), world.draws.of("what may wait for a peer")
    for name in names:
        sync, jitter = draw.choice([100_000, 1 * MS, 8 * MS]), draw.choice([0, 400_000])
        speed = Speed(
            sync=sync,
            jitter=jitter,
            slowness=draw.choice([1, 1, 1, 1, 4]),
            attention=attention.choice([0, 0, 100_000, 1 * MS, 5 * MS]),
            store=stores.choice([0, 0, 0, 10, 1_000, 20_000]),
        )
        world.add_machine(name, speed=speed, lmdb=lmdb).backlog_max = links.choice([4 << 10, 64 << 10, 128 << 20])
    oracles = watch(world)
    if shape.partitions or world.draws.of("maps").random() < LARGE_MAP_SHARE:
        world.large_map = 0
    share = DIFFERING_SHARE if shape.small else DIFFERING_LARGE_SHARE
    if world.draws.of("who is set differently").random() < share:
        _set_differently(world)
    world.form(names)
    recorder = Recorder(world)
    load, faults = Load(recorder), Faults(world, rates, pause_ns=pause_ns)
    load.given_up = oracles.ledger.given_up
    if world.draws.of("many write one key").random() < ONE_KEY_SHARE:
        load.many = Many()
    faults.majority.ledger = oracles.ledger
    bulk: Bulk | None = None
    looking: list[Looking] = []
    try:
        first = world.add_client("c0")
        grouping = world.draws.of("groups")
        if grouping.random() < GROUPED_SHARE and not shape.widest:
            grouped = first.spawn(give_copies(first, grouping))
            if not world.run_while(lambda: not grouped.done, at_most=60 * SECOND) or grouped.failure:
                raise Violation("liveness", f"namespaces are not given copies of their own: {grouped.failure}")
        begun = first.spawn(set_up(first))
        if not world.run_while(lambda: not begun.done, at_most=60 * SECOND) or begun.failure:
            raise Violation(
                "liveness", f"a cluster of which nothing is wrong does not take the first write: {begun.failure}"
            )
        if ROT in rates:
            cold = first.spawn(write_cold(first))
            world.run_while(lambda: not cold.done, at_most=60 * SECOND)
        for _ in range(shape.clients):
            _spawn(world, load, draw)
        heckling = world.draws.of("heckling")
        if heckling.random() < HECKLED_SHARE:
            _heckle(world, load, heckling)
        operating = world.draws.of("operators who look")
        if operating.random() < OPERATED_SHARE:
            looking = operate(load, operating)
        if shape.bulk:
            bulk = Bulk(
                load, world.draws.of("bulk"), namespaces=shape.namespaces, most=shape.bulk, narrow=shape.name == "deep"
            )
        oracles.life.pulse = Pulse(world)
        faults.begin()
        storm_from = world.now
        while not storm_is_over(world, faults, recorder, world.now - storm_from, storm_ns, shape):
            world.run_for(LOOK_NS)
            oracles.look(world)
            _look_at_clients(world)
            faults.hurried = world.network.delivered > DELIVERIES_MAX
            load.pace = LULL_PACE if faults.lulled or faults.sleep.lasts or shape.widest else 1
            while sum(client.alive and not client.sheltered for client in world.clients.values()) < shape.clients:
                _spawn(world, load, draw)
        look_inside(world)
        faults.calm()
        load.pace = LULL_PACE if shape.widest else CALM_PACE
        come_to_rest(world, load, oracles.life)
        _heal(world)
        if not oracles.ledger.given_up:
            _empty(world, load)
        oracles.look(world)
        oracles.finish(world)
        quiet_from = world.now
        last = world.add_client("last")
        reading = last.spawn(read_everything(load, last))
        if not world.run_while(lambda: not reading.done, at_most=REST_NS) or reading.failure:
            raise Violation("liveness", f"what was written cannot be read: {reading.failure}")
        if oracles.ledger.given_up:
            return  # what clients were told may be gone, and nothing else may be wrong
        if bulk is not None:
            heard = bulk.client.spawn(bulk.read())
            if not world.run_while(lambda: not heard.done, at_most=REST_NS) or heard.failure:
                raise Violation("liveness", f"what was written in bulk cannot be read: {heard.failure}")
        for workload, anomalies in judge(load, quiet_from).items():
            raise Violation(f"history-{workload}", "\n".join(map(str, anomalies[:5])))
    finally:
        if bulk is not None:
            result.written, result.deleted = bulk.written, bulk.deleted
        result.faults, result.errors = dict(faults.happened), dict(recorder.errors)
        result.done = recorder.done()
        result.done["orders again"] = faults.operators.again.total()
        result.done["operators"] = sum(each.told.total() for each in looking)
        result.operations = Counter({o: recorder.count(o) for o in ("ok", "fail", "info")})


def _set_differently(world: World) -> None:
    """Each node is set in its own way as it starts, and in another one each time."""
    draw = world.draws.of("how nodes are set")
    world.set_anew = lambda _: differing(world.settings, draw, draw_settings)


def storm_is_over(world: World, faults: Faults, recorder: Recorder, lasted_ns: int, storm_ns: int, shape: Shape) -> bool:
    """A storm is over at its time, or earlier if so much happened, or later if so little did.

    Nodes that are alone say nothing to each other: there what clients came to the end of counts as much, and where they
    come to the end of nothing, all that happened.
    """
    if faults.sleep.lasts:
        return False
    kinds = len(faults.happened) >= min(KINDS_MIN, len(faults.rates))
    delivered = world.network.delivered
    if lasted_ns < storm_ns:
        return kinds and delivered > (DELIVERIES_MAX if lasted_ns > storm_ns // 2 else 2 * DELIVERIES_MAX)
    enough = max(delivered, recorder.served) >= DELIVERIES_MIN or world.events >= EVENTS_MIN
    return lasted_ns >= shape.storms * storm_ns or (kinds and enough)


def _spawn(world: World, load: Load, draw: Random) -> None:
    """A client with every workload; it may live on a node's machine."""
    machines = [machine for machine in world.machines.values() if machine.up]
    host = draw.choice(machines) if machines and draw.random() < 0.1 else None
    wrong_by = draw.choice([0, 0, -5_000, 60_000])
    client = world.add_client(f"c{len(world.clients)}", host=host, wall_offset_ms=wrong_by)
    for name, workload in WORKLOADS.items():
        rng = world.draws.of(f"{name} of {client.name}")
        pause = draw.choice([100, 400, 1_200]) * MS
        client.spawn(load.repeat(client, rng, workload(load, client, rng), pause), f"{name} of {client.name}")
    if load.many is not None:
        rng = world.draws.of(f"one key of {client.name}")
        step, pause = one_key_of(load, client, rng), rng.choice([100, 400, 1_200]) * MS
        client.spawn(load.repeat(client, rng, step, pause), f"one key of {client.name}")


def _heckle(world: World, load: Load, draw: Random) -> None:
    """A client talks, and another one makes nonsense of that."""
    client = world.add_client("heckler")
    client.sheltered = True
    heckler = Heckler(world, draw, [client])
    client.spawn(talk(client, draw, HECKLED, lambda: load.stopping), "talk")
    client.spawn(heckle(heckler, client, draw.choice([20, 100]) * MS, lambda: load.stopping), "nonsense")


def _look_at_clients(world: World) -> None:
    for client in world.clients.values():
        for task in client.tasks:
            if task.failure is not None:
                raise Violation("client", f"{task.name} was told {task.failure!r}, which it does not expect")


def _heal(world: World) -> None:
    """What rotted is found, and made right from a copy that is."""

    def wrong() -> bool:
        world.rotten.look(world)
        return bool(world.rotten) or bool(unsettled(world))

    if not world.run_while(wrong, at_most=REST_NS, look_every=LOOK_NS):
        raise Violation("rotten", f"what rotted was not healed: {world.rotten}; {unsettled(world)}")


def _empty(world: World, load: Load) -> None:
    """Every job that is left is done, and the cluster comes to rest again."""
    client = world.add_client("last claimer")
    doing = client.spawn(empty(load, client, world.draws.of("the last claims")))
    if not world.run_while(lambda: not doing.done, at_most=REST_NS) or doing.failure:
        raise Violation("liveness", f"the queue cannot be emptied: {doing.failure}")
    if not world.run_while(lambda: bool(unsettled(world)), at_most=REST_NS, look_every=LOOK_NS):
        raise Violation("liveness", f"the cluster does not come to rest when its queue is empty: {unsettled(world)}")


def come_to_rest(world: World, load: Load, life: Life) -> None:
    """The load goes on in the calm until every copy is in sync, ends, and then everything must come to rest.

    Life is judged until then: nothing is wrong any more that could excuse a cluster which serves nobody.
    """

    def lacks() -> bool:
        life.look(world)
        return bool(out_of_sync(world))

    newest = world.newest()
    often = max(map(abs, newest.aside.values()), default=0) if newest is not None else 0
    at_most = REST_NS + (back_off_ms(often) * MS if often else 0)
    if not world.run_while(lacks, at_most=CALM_NS, look_every=LOOK_NS):
        load.pace = LULL_PACE
    if not world.run_while(lacks, at_most=at_most - CALM_NS, look_every=LOOK_NS):
        raise Violation("liveness", f"not every copy comes to be in sync: {out_of_sync(world)}")
    world.run_for(SECOND)
    assert life.pulse is not None
    life.pulse.stopping = True
    load.stop()

    def busy() -> bool:
        return any(not task.done for client in world.clients.values() for task in client.tasks)

    if not world.run_while(busy, at_most=REST_NS, look_every=LOOK_NS):
        stuck = [t.name for c in world.clients.values() for t in c.tasks if not t.done]
        raise Violation("liveness", f"these still wait for an answer: {', '.join(stuck)}; {unsettled(world)}")
    _look_at_clients(world)
    if not world.run_while(lambda: bool(unsettled(world)), at_most=REST_NS, look_every=LOOK_NS):
        raise Violation("liveness", f"the cluster does not come to rest: {unsettled(world)}")
