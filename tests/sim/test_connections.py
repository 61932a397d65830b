"""Nodes have three connections for each other: what befalls one of them, and the other two not."""

from __future__ import annotations

import msgspec
import pytest

from engine.data.sizes import size_of
from engine.host.links import unheard_ms
from engine.messages import Message, PrepareParts, Replicate
from engine.protocol.roles import BEAT, BULK, PEER, PEERS, Role
from engine.turn.settings import Settings
from tests.sim.network import MS, Pair, Rule
from tests.sim.observer import Observer
from tests.sim.planted.stage import NAMESPACE, PARTITIONS, SETTINGS, Stage, key, told
from tests.sim.transactions import SimTransaction
from wal.ids import NodeId

LARGE_BYTES = 1 << 20
UNHEARD_MS = unheard_ms(SETTINGS)


class _Large(Observer):
    """How many large batches came to a node."""

    def __init__(self, name: NodeId) -> None:
        self.count = 0
        self._name = name

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Count."""
        self.count += dst == self._name and _is_large(message)


class _Asked(Observer):
    """How often votes on what is large were asked for."""

    def __init__(self) -> None:
        self.count = 0

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Count."""
        self.count += src != dst and isinstance(message, PrepareParts)


def _is_large(said: object) -> bool:
    return isinstance(said, Replicate) and size_of(said.records) > LARGE_BYTES


def _written_to(settings: Settings = SETTINGS) -> Stage:
    stage = Stage(None, settings=settings)
    stage.world.network.apart = True
    for partition in range(PARTITIONS):
        stage.put(key(partition), b"first")
    return stage


@pytest.mark.parametrize("pair", [("n1", "n2"), ("n2", "n1")], ids=">".join)
def test_a_member_that_is_heard_and_to_which_no_write_comes_is_not_waited_for(pair: Pair) -> None:
    """Nor one from which no answer comes: who waits says so, and one of the two is set aside."""
    with _written_to() as stage:
        stage.world.network.reset(pair, (PEER,), after=UNHEARD_MS * MS)
        puts = [stage.begin_put(key(partition), b"second") for partition in range(PARTITIONS)]
        stage.wait(3_000)
        stage.must(all(task.done and told(task) for task in puts), "nobody waits for what does not get through")
        stage.curtain()


@pytest.mark.parametrize(
    ("way", "pair", "dies"),
    [
        (BEAT, ("n1", "n2"), "n3"),  # what an exchange asks does not come
        (BEAT, ("n2", "n1"), "n3"),  # nor what it is told
        (PEER, ("n2", "n3"), "n1"),  # what a new primary asks the copies
        (BULK, ("n3", "n2"), "n1"),  # and what they tell it
    ],
)
def test_a_dead_connection_is_found_before_long_where_nobody_can_be_spared(way: Role, pair: Pair, dies: NodeId) -> None:
    """By the kernel of whoever speaks, and by nothing else: over the others they hear each other."""
    with _written_to() as stage:
        stage.world.network.reset(pair, (way,), after=UNHEARD_MS * MS)
        stage.power_cut(dies)
        puts = [stage.begin_put(key(partition), b"second") for partition in range(PARTITIONS)]
        stage.wait(UNHEARD_MS - 100)
        stage.must(not all(task.done for task in puts), "some partition waits for that connection")
        stage.wait(2_500)
        stage.must(all(task.done and told(task) for task in puts), "all are served when it is made anew")
        stage.start(dies)
        stage.curtain()


@pytest.mark.parametrize("way", PEERS)
def test_only_the_connection_for_writes_has_writes_said_again_when_it_is_made_anew(way: Role) -> None:
    with _written_to() as stage:
        stage.wait(5_000)  # nothing small is said beside it, and answered before it
        primary = next(p for p in range(PARTITIONS) if stage.primary(p, "n1"))
        lost, came = Rule("lost", lambda _, to, said: to == "n2" and _is_large(said), drop=True), _Large("n2")
        stage.world.network.rules.append(lost)
        stage.world.watch([came])
        put = stage.begin_put(key(primary), bytes(4 * LARGE_BYTES))
        stage.until(lambda: lost.caught > 0, "it is said once")
        stage.end(lost)
        stage.world.network.reset(("n1", "n2"), (way,))
        stage.wait(1_500)
        stage.must(came.count == (way == PEER), f"{came.count} batches: it may be on its way for four seconds")
        stage.until(lambda: put.done, "then it is said again in any case")
        stage.curtain()


def _connected(stage: Stage, *pairs: Pair) -> bool:
    links, machines = stage.world.network.links, stage.world.machines
    return all(links[a, b].boots == (machines[a].boot, machines[b].boot) for a, b in pairs)


def test_as_kernels_do_it_a_cut_breaks_connections_and_who_dials_over_it_hangs() -> None:
    """It asks again a second after the way was found to be cut, though it is whole before."""
    both: tuple[Pair, ...] = (("n1", "n2"), ("n2", "n1"))
    with _written_to() as stage:
        stage.world.network.kernels = True
        stage.world.network.cut("apart", both)
        stage.wait(UNHEARD_MS - 100)
        stage.must(_connected(stage, *both), "nobody has found it yet")
        stage.wait(400)
        stage.must(not any(_connected(stage, pair) for pair in both), "what was said was not acknowledged for too long")
        stage.world.network.heal()
        stage.wait(600)
        stage.must(not any(_connected(stage, pair) for pair in both), "who dials hangs")
        stage.wait(300)
        stage.must(_connected(stage, *both), "and is answered when it asks again")
        stage.curtain()


@pytest.mark.parametrize("off_ms", [1_000, UNHEARD_MS + 1_500])
def test_as_kernels_do_it_a_machine_that_was_off_is_dialed_when_it_speaks(off_ms: int) -> None:
    """And not before: until then connections to its last life hang, or who dials it does."""
    pairs: tuple[Pair, ...] = (("n1", "n3"), ("n2", "n3"), ("n3", "n1"), ("n3", "n2"))
    with _written_to() as stage:
        stage.world.network.kernels = True
        stage.power_cut("n3")
        stage.wait(off_ms)
        links = stage.world.network.links
        hangs = [links[a, "n3"].boots is not None for a in ("n1", "n2")]
        stage.must(hangs == [off_ms < UNHEARD_MS] * 2, "no system tells of it")
        stage.start("n3")
        stage.wait(100)
        stage.must(_connected(stage, *pairs), "whoever speaks is dialed")
        stage.curtain()


@pytest.mark.parametrize(("still_ms", "hung_up"), [(3_000, 0), (7_000, 1)])
def test_as_kernels_do_it_a_process_that_stands_still_is_connected_to_and_greets_when_it_goes_on(
    still_ms: int, hung_up: int
) -> None:
    with _written_to() as stage:
        network = stage.world.network
        network.kernels = True
        stage["n3"].pause()
        network.reset(("n1", "n3"))
        stage.wait(still_ms)
        link = network.links["n1", "n3"]
        stage.must(link.boots is None and link.dialing is not None, "who dials waits to be greeted")
        stage.must(link.redial.attempts == 1 + hung_up, f"nobody is asked again and again: {link.redial.attempts}")
        stage["n3"].resume()
        stage.wait(20)
        stage.must(_connected(stage, ("n1", "n3")), "it is greeted at once")
        stage.curtain()


def test_what_is_large_and_broke_with_the_connection_for_writes_is_said_again_where_it_has_none_of_its_own() -> None:
    """Nine megabytes are on their way, by the only connection that can be made, and break with it after six seconds."""
    with _written_to(msgspec.structs.replace(SETTINGS, wal_segment_bytes=16 << 20, wal_total_bytes=64 << 20)) as stage:
        world = stage.world
        first = next(p for p in range(PARTITIONS) if stage.primary(p, "n1"))
        lost = Rule("lost", lambda _, to, said: to == "n2" and _is_large(said), drop=True)
        world.network.rules.append(lost)
        put = stage.begin_put(key(first), bytes(9 * LARGE_BYTES))
        stage.until(lambda: lost.caught == 1, "n3 has it, and n2 has not")
        world.network.shut["n3", "n2", BULK] = None
        world.network.reset(("n3", "n2"), (BULK,))
        stage.power_cut("n1")
        stage.end(lost)
        world.network.narrow([("n3", "n2")], SETTINGS.link_bytes_per_s)
        stage.until(lambda: world.network.waits("n3", "n2") > 5_000 * MS, "n2 is told")
        stage.wait(6_000)
        world.network.reset(("n3", "n2"), (PEER,))
        stage.wait(10_500)
        stage.must(told(put), "its client is told: it was said again when the connection was made")
        world.network.widen()
        world.network.shut.clear()
        stage.start("n1")
        stage.curtain()


def test_a_vote_is_not_asked_for_again_while_what_is_prepared_comes_over_a_slow_link() -> None:
    """Nine megabytes to one participant, and from there to its copy, each over a link of one megabyte."""
    with _written_to(msgspec.structs.replace(SETTINGS, wal_segment_bytes=32 << 20, wal_total_bytes=128 << 20)) as stage:
        network, asked = stage.world.network, _Asked()
        first, other = (next(p for p in range(PARTITIONS) if stage.primary(p, name)) for name in ("n1", "n2"))
        stage.world.watch([asked])
        network.narrow([("n1", "n2"), ("n2", "n3")], SETTINGS.link_bytes_per_s)
        tx = SimTransaction(stage.client, optimistic=True, timeout_ns=40_000 * MS)
        stage.do(tx.put(NAMESPACE, {key(first): b"first"}))
        stage.do(tx.put(NAMESPACE, {key(other, number): bytes(3 * LARGE_BYTES) for number in range(3)}))
        commit = stage.begin(tx.commit())
        stage.world.run_while(lambda: not commit.done, at_most=40_000 * MS)
        stage.must(told(commit), "it is committed")
        stage.must(asked.count == 1, f"its vote is asked for once: {asked.count}")
        network.widen()
        stage.curtain()


def test_what_a_new_primary_is_told_is_not_told_again_while_it_comes_over_a_slow_link() -> None:
    """A part of four megabytes takes the link for as many seconds, and is asked for each second."""
    with _written_to(msgspec.structs.replace(SETTINGS, wal_segment_bytes=16 << 20, wal_total_bytes=64 << 20)) as stage:
        world = stage.world
        first = next(p for p in range(PARTITIONS) if stage.primary(p, "n1"))
        lost = Rule("lost", lambda _, to, said: to == "n2" and _is_large(said), drop=True)
        world.network.rules.append(lost)
        puts = [stage.begin_put(key(first, number), bytes(3 * LARGE_BYTES)) for number in range(2)]
        stage.until(lambda: lost.caught == len(puts), "n3 has them, and n2 has not")
        stage.power_cut("n1")
        stage.end(lost)
        world.network.narrow([("n3", "n2")], SETTINGS.link_bytes_per_s)
        most = [0]

        def served() -> bool:
            most[0] = max(most[0], world.network.waits("n3", "n2") // MS)
            return all(task.done for task in puts)

        stage.until(served, "n2 gets them, and leads")
        stage.must(all(map(told, puts)), "clients are told")
        stage.must(most[0] < 9_000, f"what waits for the link takes {most[0]} ms of it, and six would do")
        world.network.widen()
        stage.start("n1")
        stage.curtain()
