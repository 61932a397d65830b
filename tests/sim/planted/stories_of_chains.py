"""Stories of single writes that wait for one key, and are executed together when it is free."""

from __future__ import annotations

from engine.client.calls import SwapCall
from engine.messages import Replicate
from tests.sim.checkers import list_append
from tests.sim.clients import Client, Task
from tests.sim.network import MS, Rule, Weather
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, PARTITIONS, Stage, Stories, key, told
from tests.sim.recorder import Recorder
from tests.sim.violation import Violation
from tests.sim.workloads.load import Load
from tests.sim.workloads.one_key import NAME, Many, one_key_of, read
from tests.sim.world import Plant
from wal import records as r
from wal.ids import NodeId, TxId, partition_of

CHAINS = Stories()
story = CHAINS.story


def _add(stage: Stage, by: bytes) -> tuple[Task, SwapCall]:
    """Somebody new adds to the number."""
    who = stage.another()
    call = SwapCall(who.new_tx(), NAMESPACE, key(0), "always", new=by, how="add")
    return stage.begin(who.call(call, timeout_ns=ANSWER_NS), who), call


def _set(stage: Stage, when: str, old: bytes | None, new: bytes) -> tuple[Task, SwapCall]:
    who: Client = stage.another()
    call = SwapCall(who.new_tx(), NAMESPACE, key(0), when, old=old, new=new)
    return stage.begin(who.call(call, timeout_ns=ANSWER_NS), who), call


def _brings(said: object, tx: TxId) -> bool:
    """Whether a batch has what was written under an id."""
    records = said.records if isinstance(said, Replicate) else []
    return any(write.tx == tx for record in records if isinstance(record, r.Update) for write in record.writes)


def _held(stage: Stage, call: SwapCall, *, but: SwapCall | None = None, drop: bool = False) -> Rule:
    """What a call writes does not reach the copies, `but` beside what another one writes."""

    def matches(_src: str, _dst: str, said: object) -> bool:
        return _brings(said, call.tx) and (but is None or not _brings(said, but.tx))

    rule = Rule("what somebody adds", matches, drop=drop)
    stage.world.network.rules.append(rule)
    return rule


def _arrive(stage: Stage, held: Rule) -> None:
    """What was held goes on."""
    network = stage.world.network
    network.release([held], [each for each in network.held if each.rule is held])


@story
def the_primary_of_a_number_dies(plant: Plant | None) -> None:
    """Three add 1 to a number, two of whom wait for the first. What the second writes is lost, if it is said by itself,
    and the primary dies; whoever was not answered asks again."""
    with Stage(plant) as stage:
        stage.put(key(0), b"0")
        first, call = _add(stage, b"1")
        held = _held(stage, call)
        stage.wait(100)
        (second, lost), (third, after) = _add(stage, b"1"), _add(stage, b"1")
        dropped = _held(stage, lost, but=after, drop=True)
        stage.wait(100)
        stage.must(not (told(first) or told(second) or told(third)), "nobody is told of what no copy has")
        _arrive(stage, held)
        stage.wait(100)
        stage.power_cut("n1")
        stage.end(dropped)
        stage.until(lambda: told(first) and told(second) and told(third), "all are answered")
        sums = sorted(int(each.found or b"") for each in (call, lost, after))
        stage.must(sums == [1, 2, 3], f"each is told another sum: {sums}")
        stage.must((found := stage.get(key(0), stage.another())) == b"3", f"each has counted once: {found!r}")
        stage.curtain()


@story
def a_condition_is_looked_at_behind_a_write(plant: Plant | None) -> None:
    """Of two who wait for a key one writes it, and what the other would write has a condition, that does not hold then. No
    copy hears of what the one wrote, and the primary dies."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        first, call = _set(stage, "always", None, b"older")
        held = _held(stage, call)
        stage.wait(100)
        second, write = _set(stage, "always", None, b"new")
        third, condition = _set(stage, "equals", b"older", b"mine")
        lost = _held(stage, write, drop=True)
        stage.wait(100)
        _arrive(stage, held)
        stage.until(lambda: told(first), "the first one is answered")
        stage.wait(100)
        stage.must(not third.done, f"what no copy has is told to nobody: {condition.found!r}")
        stage.client.die()
        stage.power_cut("n1")
        stage.end(lost)
        stage.until(lambda: told(second) and told(third), "both are answered")
        stage.curtain()


def _leads(stage: Stage, name: str) -> NodeId:
    """The primary of a key."""
    number, leading = partition_of(name.encode(), PARTITIONS), list[NodeId]()

    def leads() -> bool:
        leading.extend(node for node in stage.world.machines if stage.primary(number, node))
        return bool(leading)

    stage.until(leads, f"somebody leads partition {number}")
    return leading[0]


@story
def many_write_one_key(plant: Plant | None) -> None:
    """Eight increment, append to, and conditionally set one key after another, several at a time, and ask again; meanwhile
    whoever leads the key loses its power, again and again."""
    with Stage(plant) as stage:
        world = stage.world
        world.network.weather = Weather(delay=8 * MS, jitter=8 * MS)
        load = Load(Recorder(world))
        many = load.many = Many()
        writers = [stage.client, *(stage.another() for _ in range(7))]
        for who in writers:
            rng = world.draws.of(f"one key of {who.name}")
            stage.begin(load.repeat(who, rng, one_key_of(load, who, rng), 20 * MS), who)
        for _ in range(4):
            stage.wait(400)
            name = _leads(stage, next(reversed(many.keys)))
            stage.power_cut(name)
            stage.left_out(name)
            stage.wait(100)
            stage.start(name)
            stage.until(lambda name=name: stage.listed(name), f"{name} is back")  # type: ignore[misc]
        load.stop()
        stage.until(lambda: all(task.done for who in writers for task in who.tasks), "all came to an end")
        stage.rest()
        for key_of_many in many.keys.values():
            stage.do(read(load, stage.client, key_of_many))
        found = list_append.check(many.history(load.recorder))
        if found:
            raise Violation(f"history-{NAME}", "\n".join(map(str, found)))
        stage.curtain()
