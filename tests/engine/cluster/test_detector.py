"""Who is suspected, and who counts as heard, of those who come into a map together."""

from __future__ import annotations

from engine.cluster.detector import Detector
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.settings import Settings
from rebalance.plan import first_topology
from rebalance.ports import MS
from rebalance.table import Candidate, Topology

SUSPICION = Settings().suspicion_ms * MS
NODES = ["n1", "n2", "n3", "n4", "n5"]


def a_map(nodes: list[str], lives: dict[str, int] | None = None) -> Topology:
    lives = lives or {}
    return first_topology("c1", "stories", 8, 1, [Candidate(n, f"d-{n}", lives.get(n, 1), n, "") for n in nodes])


def a_detector(topology: Topology) -> Detector:
    replica = Replica(LayeredStore(MemoryStore()))
    core = Core(Settings(), replica, node="n1", allocation="d-n1", incarnation=1, address="a", durable_lsn=0)
    core.now = 1_000 * MS
    core.adopt(topology)
    detector = Detector(core)
    detector.listen()
    detector.expect()
    return detector


def later(detector: Detector, ns: int, *heard: str) -> None:
    """So long passes, and these are heard all the time."""
    end, beat = detector.core.now + ns, detector.core.settings.heartbeat_ms * MS
    while detector.core.now < end:
        detector.core.now = min(end, detector.core.now + beat)
        detector.listen()
        for node in heard:
            detector.heard(node)


def takes(detector: Detector, topology: Topology) -> None:
    detector.core.adopt(topology)
    detector.switch()
    detector.expect()


def test_who_comes_into_a_map_is_expected_from_then_on_whenever_it_was_heard_before() -> None:
    detector = a_detector(a_map(NODES))
    takes(detector, a_map(["n1", "n2", "n3"]))
    later(detector, 2 * SUSPICION, "n2", "n3")
    assert detector.silent() == []
    takes(detector, a_map(NODES))
    assert detector.silent() == []
    assert detector.next_suspicion() == detector.core.now + SUSPICION + 1
    later(detector, SUSPICION + MS, "n2", "n3", "n4")
    assert detector.silent() == ["n5"], "it was to be heard, and was not"


def test_who_is_another_life_is_expected_and_who_was_in_the_map_before_is_not() -> None:
    detector = a_detector(a_map(NODES))
    later(detector, 2 * SUSPICION, "n2", "n3")
    takes(detector, a_map(NODES, {"n5": 2}))
    assert detector.silent() == ["n4"]


def test_who_comes_into_a_map_expects_all_who_are_in_it() -> None:
    detector = a_detector(a_map(NODES))
    takes(detector, a_map(["n2", "n3", "n4"]))
    later(detector, 2 * SUSPICION, "n2")
    assert "n4" in detector.silent()
    takes(detector, a_map(NODES))
    assert detector.silent() == []


def test_who_is_only_expected_makes_no_majority() -> None:
    detector = a_detector(a_map(NODES))
    takes(detector, a_map(["n1", "n2", "n3"]))
    later(detector, 2 * SUSPICION, "n2")
    takes(detector, a_map(NODES))
    assert not detector.has_quorum(), "n4 and n5 were not heard"
    detector.heard("n5")
    assert detector.has_quorum()


def test_whose_connection_breaks_is_expected_no_longer_than_who_was_heard() -> None:
    detector = a_detector(a_map(["n1", "n2", "n3"]))
    later(detector, 2 * SUSPICION, "n2", "n3")
    takes(detector, a_map(NODES))
    detector.lost("n4")
    later(detector, detector.core.settings.connection_lost_ms * MS + MS, "n2", "n3", "n5")
    assert detector.silent() == ["n4"]
