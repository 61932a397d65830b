"""A node that is told to stop says for whom it waits: to its log, once, and whenever it is asked."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine.cluster.detector import Detector
from engine.cluster.leaving import LEAVE_MS_MAX, TOLD_MS, Leaving
from engine.messages import Leave
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.settings import Settings
from rebalance.plan import first_topology
from rebalance.ports import MS
from rebalance.table import Candidate, Placement, Topology

NODES = ["n1", "n2", "n3"]


def a_node(loading: int, partitions: int = 4) -> tuple[Leaving, Core]:
    """n1 of three; of so many partitions n3 loads a copy, and only n1 has all of them."""
    replica = Replica(LayeredStore(MemoryStore()))
    core = Core(Settings(), replica, node="n1", allocation="d-n1", incarnation=1, address="n1", durable_lsn=0)
    core.adopt(_loads(first_topology("c1", "f", partitions, 1, [Candidate(n, f"d-{n}", 1, n, "") for n in NODES]), loading))
    core.serving = True
    return Leaving(core, Detector(core)), core


def _loads(topology: Topology, loading: int) -> Topology:
    placements = [
        msgspec.structs.replace(p, owners=("n1", "n3"), in_sync=("n1",) if number < loading else ("n1", "n3"))
        for number, p in enumerate(topology.placements)
    ]
    return msgspec.structs.replace(topology, placements=tuple(placements))


def test_who_waits_for_a_copy_that_loads_says_so_once() -> None:
    leaving, core = a_node(loading=3)
    assert leaving.as_object() is None
    leaving.begin()
    for _ in range(8):
        leaving.say("n2")
        core.now += 250 * MS
    assert core.effects.notes == [
        "told to stop: it waits for n3 to load 3 partitions, of which nobody else who stays has a whole copy"
    ]
    assert leaving.as_object() == {"since_ms": 2_000, "loading": {"n3": 3}, "coordinator": "n2"}


class Walked(tuple[Placement, ...]):
    """All placements of a map, which count how often somebody walks over them."""

    walks = 0

    def __iter__(self) -> Iterator[Placement]:
        Walked.walks += 1
        return super().__iter__()


def test_whom_it_waits_for_is_looked_for_once_in_each_map() -> None:
    leaving, core = a_node(loading=3)
    leaving.begin()
    assert core.topology is not None
    for loading in (3, 2):
        core.adopt(msgspec.structs.replace(core.topology, placements=Walked(_loads(core.topology, loading).placements)))
        Walked.walks = 0
        for _ in range(8):
            leaving.say("n2")
            core.now += 250 * MS
            assert (leaving.as_object() or {})["loading"] == {"n3": loading}
        assert Walked.walks <= 1


def test_who_waits_for_the_coordinator_alone_says_so_when_it_lasts() -> None:
    leaving, core = a_node(loading=0)
    leaving.begin()
    leaving.say("n2")
    assert core.effects.notes == [], "the usual way takes a moment"
    for _ in range(8):
        core.now += TOLD_MS * MS
        leaving.say("n2")
    assert core.effects.notes == ["told to stop: it waits for n2, which coordinates, to let it go"]


def test_who_knows_of_no_coordinator_says_so() -> None:
    leaving, core = a_node(loading=0)
    leaving.begin()
    core.now += TOLD_MS * MS
    leaving.say(None)
    assert core.effects.notes == ["told to stop: it waits for somebody who coordinates to let it go"]


def test_what_it_waits_for_next_is_said_too() -> None:
    leaving, core = a_node(loading=1)
    leaving.begin()
    leaving.say("n2")
    assert core.topology is not None
    core.adopt(_loads(core.topology, 0))
    core.now += TOLD_MS * MS
    leaving.say("n2")
    assert [note.partition(": ")[2] for note in core.effects.notes] == [
        "it waits for n3 to load a partition, of which nobody else who stays has a whole copy",
        "it waits for n2, which coordinates, to let it go",
    ]


def test_who_was_not_let_go_ends_and_says_for_whom_it_waited() -> None:
    leaving, core = a_node(loading=2)
    leaving.begin()
    leaving.say("n2")
    core.now += (LEAVE_MS_MAX + 1) * MS
    for node in NODES[1:]:
        leaving.detector.heard(node)
    assert leaving.over() == (
        "told to; it was not let go within 30 s: it waited for n3 to load 2 partitions, of which nobody else who stays has "
        "a whole copy"
    )


def test_what_a_life_asked_that_has_ended_does_not_send_the_next_one_away() -> None:
    leaving, core = a_node(loading=0)
    assert core.topology is not None
    leaving.on_leave(Leave("n3", 1))
    alive = [Candidate(n, f"d-{n}", 1, n, "") for n in NODES]
    assert leaving.granted(core.topology, alive) == ["n3"]
    again = [*alive[:2], msgspec.structs.replace(alive[2], incarnation=2)]
    assert leaving.granted(core.topology, again) == [], "it came back before a map said that it had gone"


def test_only_who_was_in_a_cluster_leaves_it() -> None:
    leaving, core = a_node(loading=0)
    leaving.begin()
    core.serving = False  # the map that it knows is that of another life of it, or it was never let in
    assert leaving.over() == "told to; no cluster has let it in since it started"
    assert core.topology is not None
    leaving.switch(core.topology)
    assert leaving.over() == "left the cluster"
