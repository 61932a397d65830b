"""Stories of a queue from which many claim, judged by the book of `tests.sim.workloads.jobs`."""

from __future__ import annotations

from random import Random

from tests.sim.planted.stage import SETTINGS, Stage, Stories
from tests.sim.recorder import Recorder
from tests.sim.transactions import SimTransaction
from tests.sim.workloads import Load, empty
from tests.sim.workloads.claiming import NAMESPACE, claim, do, queue_of
from tests.sim.workloads.jobs import Attempt, Row, key_of
from tests.sim.world import SECOND, Plant

QUEUES = Stories()
story = QUEUES.story

CLIENTS = 4
LASTS_NS = 20 * SECOND


@story
def many_claim_from_one_queue(plant: Plant | None) -> None:
    """Some put jobs and some claim them, and nothing goes wrong: each is done, once, and nobody else is told of it."""
    with Stage(plant, settings=SETTINGS) as stage:
        load = Load(Recorder(stage.world))
        for number in range(CLIENTS):
            client = stage.another()
            rng = Random(number)
            client.spawn(load.repeat(client, rng, queue_of(load, client, rng), SECOND // 10))
        stage.world.run_for(LASTS_NS)
        load.stop()
        stage.until(lambda: all(task.done for client in stage.world.clients.values() for task in client.tasks), "all end")
        stage.do(empty(load, stage.client, Random(CLIENTS)))
        stage.curtain()


@story
def two_claim_where_there_is_a_job_for_one(plant: Plant | None) -> None:
    """A job is claimed and held for a while, and another one may come: so who claims meanwhile asks for all. It comes to
    nothing, who claims is told that there is none, and the job is done once."""
    with Stage(plant) as stage:
        load, rng, row = Load(Recorder(stage.world)), Random(1), Row(key_of(1, 1), 1)
        jobs = load.jobs

        def begin() -> tuple[SimTransaction, Attempt]:
            tx = stage.transaction()
            return tx, jobs.begin(tx.tx, stage.world.now)

        tx, putting = begin()
        putting.put = {row: None}
        stage.do(tx.put(NAMESPACE, {row.key: b"%d" % row.mark}))
        stage.do(tx.commit())
        jobs.end(putting, stage.world.now, committed=True)
        (first, has), (second, hopes) = begin(), begin()
        has.limit = hopes.limit = 1
        stage.do(claim(first, has, 3, rng))
        stage.wait(100)
        third = stage.transaction()
        stage.do(third.put(NAMESPACE, {key_of(number, 1): b"1" for number in (2, 3)}))
        stage.do(third.prepare())
        claiming = stage.begin(claim(second, hopes, 3, rng))
        stage.wait(100)
        stage.do(third.rollback())
        stage.until(lambda: claiming.done, "the second is told")
        stage.do(second.rollback())
        jobs.end(hopes, stage.world.now, committed=False)
        stage.do(do(load, first, has, has.rows))
        has.changed, has.touched = dict.fromkeys(has.rows), {row.key: None}
        has.committing = stage.world.now
        stage.do(first.commit())
        jobs.end(has, stage.world.now, committed=True)
        stage.do(empty(load, stage.client, rng))
        stage.curtain()
