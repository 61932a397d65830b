"""Who is set aside for being slow: never more than a minority, and not whoever merely hears late."""

from __future__ import annotations

import msgspec

from engine.cluster.pace import FORGIVEN_AFTER, Pace
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.settings import Settings
from rebalance.plan import first_topology
from rebalance.ports import MS
from rebalance.table import BACK_OFF_MS, Candidate, Placement, Topology, back_off_ms

NODES = ["n1", "n2", "n3", "n4", "n5"]


def a_pace(nodes: list[str] = NODES) -> tuple[Pace, Topology]:
    replica = Replica(LayeredStore(MemoryStore()))
    core = Core(Settings(), replica, node="n1", allocation="d1", incarnation=1, address="a", durable_lsn=0)
    candidates = [Candidate(n, f"d-{n}", 1, n, "") for n in nodes]
    topology = first_topology("c1", "stories", 8, 2, candidates)
    core.adopt(topology)
    return Pace(core), topology


def beats(pace: Pace, node: str, sync_ms: int, seconds: int) -> None:
    for _ in range(4 * seconds):
        pace.core.now += 250 * MS
        pace.heard(node, sync_ms, [])


def test_a_disk_is_slow_when_it_was_for_a_while() -> None:
    pace, topology = a_pace()
    beats(pace, "n3", 700, 4)
    assert pace.to_set_aside(topology, NODES) == {}
    beats(pace, "n3", 700, 2)
    assert pace.to_set_aside(topology, NODES) == {"n3": 1}
    beats(pace, "n3", 20, 1)
    assert pace.to_set_aside(topology, NODES) == {}


def test_what_is_slow_everywhere_is_not_one_disk() -> None:
    pace, topology = a_pace(["n1", "n2", "n3"])
    for _ in range(40):
        pace.core.now += 250 * MS
        for node in ("n2", "n3"):
            pace.heard(node, 900, [])
    assert pace.to_set_aside(topology, ["n1", "n2", "n3"]) == {}


def test_the_one_that_most_accusations_touch_is_in_the_way() -> None:
    pace, topology = a_pace()
    pace.heard("n1", 0, ["n4"])
    assert pace.to_set_aside(topology, NODES) == {"n4": 1}, "of two, the one that does not answer"
    pace.heard("n2", 0, ["n4", "n5"])
    pace.heard("n3", 0, ["n4"])
    assert pace.to_set_aside(topology, NODES) == {"n4": 1}
    pace.heard("n1", 0, [])
    pace.heard("n3", 0, [])
    pace.heard("n2", 0, ["n3", "n4", "n5"])
    assert pace.to_set_aside(topology, NODES) == {"n2": 1}, "nobody answers it: it is its own way out that is broken"


def test_who_is_waited_for_all_the_same_is_not_accused_of_it() -> None:
    pace, topology = a_pace()
    alone = tuple(Placement(1, 1, ("n1", "n2", "n3"), ("n1", "n2")) for _ in topology.placements)
    topology = msgspec.structs.replace(topology, placements=alone)
    pace.heard("n1", 0, ["n2"])
    assert pace.to_set_aside(topology, NODES) == {}, "one other would be left"
    assert pace.to_set_aside(msgspec.structs.replace(topology, aside={"n2": 1}), NODES) == {}
    pace.heard("n3", 0, ["n4", "n5"])
    assert pace.to_set_aside(msgspec.structs.replace(topology, aside={"n2": 1}), NODES) == {}, "and nobody waits for n3"
    pace.heard("n1", 0, ["n2"], ["n2"])
    pace.heard("n3", 0, [])
    assert pace.to_set_aside(msgspec.structs.replace(topology, aside={"n2": 1}), NODES) == {"n2": 2}, "it never answers"
    assert pace.is_mute("n2", NODES)


def test_a_minority_is_set_aside_at_most() -> None:
    pace, topology = a_pace(["n1", "n2", "n3"])
    aside = {"n2": 1}
    topology = Topology(**{name: getattr(topology, name) for name in Topology.__struct_fields__} | {"aside": aside})
    pace.heard("n1", 0, ["n3"])
    assert pace.to_set_aside(topology, ["n1", "n2", "n3"]) == {}


def test_times_double_and_are_forgiven() -> None:
    assert [back_off_ms(times) // BACK_OFF_MS for times in (1, 2, 3, 4, 7, 8, 100)] == [1, 2, 4, 8, 64, 64, 64]
    pace, topology = a_pace()
    topology = Topology(**{name: getattr(topology, name) for name in Topology.__struct_fields__} | {"aside": {"n3": -2}})
    pace.switch(topology)
    pace.core.now += FORGIVEN_AFTER * back_off_ms(2) * MS - 1
    assert pace.known(topology) == {"n3": -2}
    pace.core.now += 1
    assert pace.known(topology) == {}


def test_who_joins_too_slowly_is_asked_ever_later_and_another_life_of_it_at_once() -> None:
    pace, topology = a_pace(["n1", "n2", "n3"])
    rest = pace.core.settings.suspicion_ms * MS
    slow, again = Candidate("n4", "d4", 7, "n4", ""), Candidate("n4", "d4", 8, "n4", "")
    assert not pace.rests(slow)
    for times in (1, 2, 4, 8, 16, 32, 64, 64):
        pace.note_late(slow)
        pace.switch(topology)
        pace.core.now += times * rest - 1
        assert pace.rests(slow)
        assert not pace.rests(again), "it has started again, and may be quick now"
        pace.core.now += 1
        assert not pace.rests(slow)
    pace.note_late(again)
    pace.core.now += rest
    assert not pace.rests(again), "what befell the life before is forgotten"
    pace.note_late(again)
    candidates = [Candidate(n, f"d-{n}", 1, n, "") for n in ("n1", "n2", "n3", "n4")]
    pace.switch(first_topology("c1", "stories", 8, 2, candidates))
    assert not pace.rests(again), "it came to be a member"
