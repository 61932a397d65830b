"""What copies add up to instead of all that they have: the map that comes of it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.attempt import Attempt, Intent
from engine.cluster.claims import Claims
from engine.messages import Copies
from rebalance.fragment import FragmentState
from rebalance.lives import Life
from rebalance.messages import CopyReport, SingleMap
from rebalance.partition import PartitionState
from rebalance.plan import Change, first_topology, next_topology
from rebalance.ports import WORK_MAX, all_of
from rebalance.sums import ADDED_AT_ONCE, COMPARED_OF_WORK, NOT_WHOLE, in_doubt, reports_in, sums_in, sums_of
from rebalance.table import Candidate, Placement, Topology
from rebalance.telling import reports_of
from tests.support.called import called
from wal import records as r
from wal.ids import Ballot, Fragment, NodeId, Version

NAMES = ("n1", "n2", "n3", "n4")
PARTITIONS = 4
CANDIDATES = [Candidate(name, f"disk-{name}", 1, f"{name}:1", "") for name in NAMES]
BALLOT = Ballot(1, "n1")


class Copy(msgspec.Struct, frozen=True):
    """What one node has of one fragment."""

    lwm: int
    digest: int
    loading: bool = False
    doubted: bool = False


WHOLE = Copy(3, 30)
"""How it nearly always is."""
A_COPY = st.sampled_from([WHOLE, WHOLE, WHOLE, Copy(3, 31), Copy(2, 20), Copy(0, 0), Copy(3, 30, doubted=True)])
Node = Mapping[Fragment, Copy]
FRAGMENTS: list[Fragment] = [(namespace, number) for number in range(PARTITIONS) for namespace in ("a", "b")]


def partitions_of(node: Node) -> dict[int, PartitionState]:
    """The state of a node that has this."""
    found: dict[int, PartitionState] = {}
    for (namespace, number), copy in node.items():
        fragment = FragmentState.from_stable((namespace, number), (copy.lwm, copy.digest), [(1, 1)], [])
        if copy.loading:
            fragment.clear(loading=True)
        found.setdefault(number, PartitionState(number)).fragments[namespace] = fragment
    return found


def doubted_by(node: Node) -> dict[Fragment, None]:
    """What an operator has ordered anew there."""
    return {name: None for name, copy in node.items() if copy.doubted}


def lines_of(node: Node) -> list[CopyReport]:
    """All that it has."""
    fragments = {(ns, n): f for n, state in partitions_of(node).items() for ns, f in state.fragments.items()}
    found: list[CopyReport] = []
    _run(reports_of(fragments, doubted_by(node), found))
    return found


def sums_told(node: Node) -> list[tuple[int, int]]:
    """What it adds up to."""
    found: list[tuple[int, int]] = []
    _run(sums_of(partitions_of(node), doubted_by(node), found))
    return found


def single_of(name: NodeId, node: Node, *, sums: bool) -> SingleMap:
    """What it reports."""
    life = Life(f"disk-{name}", 1, 0, [])
    told = ([], sums_told(node)) if sums else (lines_of(node), None)
    return SingleMap(Version(1, 0), BALLOT, life, [], told[0], [], told[1])


class Coordinator:
    """One exchange in which these nodes report."""

    def __init__(self, old: Topology, nodes: Mapping[NodeId, Node], *, reset: Sequence[int] = ()) -> None:
        self.old, self.nodes = old, nodes
        here = [candidate for candidate in CANDIDATES if candidate.node in nodes]
        self.attempt = Attempt(old.version, BALLOT, Intent(here, reset=reset), 0, [])
        self.claims = NoClaims()
        self.asked: list[tuple[NodeId, list[int]]] = []

    def map(self, *, old_ones: Sequence[NodeId] = ()) -> Topology:
        """The map that comes of it; `old_ones` know of no sums."""
        attempt = self.attempt
        for name, node in self.nodes.items():
            attempt.report(name, single_of(name, node, sums=name not in old_ones))
        all_of(attempt.compare(self.old))
        for name in list(attempt.untold):
            self.asked.append((name, attempt.asking.partitions))
            copies: list[CopyReport] = []
            node = self.nodes[name]
            _run(reports_in(partitions_of(node), attempt.asking.partitions, doubted_by(node), copies))
            answer = Copies(self.old.version, BALLOT, attempt.asks_for, attempt.singles[name].life, copies)
            assert not attempt.answer(name, msgspec.structs.replace(answer, number=attempt.asks_for - 1))
            assert attempt.answer(name, answer)
        all_of(attempt.compare(self.old))
        assert not attempt.untold
        return next_topology(self.old, attempt.change(self.old, self.claims, 1)).topology


def _run(pieces: Iterator[int]) -> None:
    for _ in pieces:
        pass


class NoClaims(Claims):
    """Nobody is away."""

    def __init__(self) -> None:
        pass

    def sure(self) -> list[r.Claim]:
        return []


def by_lines(old: Topology, nodes: Mapping[NodeId, Node], *, reset: Sequence[int] = ()) -> Topology:
    """The map that comes of all that everybody has."""
    change = Change(
        candidates=[candidate for candidate in CANDIDATES if candidate.node in nodes],
        singles={name: single_of(name, node, sums=False) for name, node in nodes.items()},
        handover=[],
        baseline=old.baseline,
        map_hash=1,
        reset=reset,
    )
    return next_topology(old, change).topology


def a_map() -> Topology:
    """Four partitions of three copies, of four nodes."""
    return first_topology("id", "c", PARTITIONS, 2, CANDIDATES)


def of_all(old: Topology, copy: Copy = WHOLE) -> dict[NodeId, dict[Fragment, Copy]]:
    """Each node has this of what the map gives it."""
    return {
        name: {fragment: copy for fragment in FRAGMENTS if name in old.placements[fragment[1]].owners} for name in NAMES
    }


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Topology, dict[NodeId, dict[Fragment, Copy]], list[int], list[NodeId]]:
    """A map, what those who are left have, what begins again, and who knows of no sums."""
    old = a_map()
    lost = draw(st.sets(st.integers(0, PARTITIONS - 1), max_size=1))
    old = msgspec.structs.replace(
        old,
        placements=tuple(
            Placement(p.version, p.epoch, ("n9@disk",), ("n9@disk",), lost=True) if n in lost else p
            for n, p in enumerate(old.placements)
        ),
    )
    gone = draw(st.sets(st.sampled_from(NAMES[1:]), max_size=2))
    nodes: dict[NodeId, dict[Fragment, Copy]] = {}
    for name in NAMES:
        if name not in gone:
            nodes[name] = {f: draw(A_COPY) for f in FRAGMENTS if draw(st.integers(0, 9))}
            if not draw(st.integers(0, 4)):
                nodes[name] |= {draw(st.sampled_from(FRAGMENTS)): Copy(0, 0, loading=True)}
    reset = sorted(lost) if draw(st.booleans()) else []
    return old, nodes, reset, draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))


@given(worlds())
def test_the_map_is_the_one_that_comes_of_all_that_everybody_has(
    world: tuple[Topology, dict[NodeId, dict[Fragment, Copy]], list[int], list[NodeId]],
) -> None:
    old, nodes, reset, old_ones = world
    found = Coordinator(old, nodes, reset=reset).map(old_ones=old_ones)
    assert found == by_lines(old, nodes, reset=reset)


def test_nobody_is_asked_of_copies_that_are_alike() -> None:
    old = a_map()
    nodes = of_all(old)
    del nodes["n4"]
    coordinator = Coordinator(old, nodes)
    following = coordinator.map()
    assert coordinator.asked == []
    assert all("n4" not in placement.in_sync for placement in following.placements)


def test_only_partitions_of_which_the_copies_differ_are_asked_for() -> None:
    old = a_map()
    nodes = of_all(old)
    behind = old.placements[2].owners[1]
    nodes[behind]["b", 2] = Copy(2, 20)
    coordinator = Coordinator(old, nodes)
    following = coordinator.map()
    assert coordinator.asked == [(name, [2]) for name in NAMES]
    assert behind in following.placements[2].in_sync or behind in following.placements[2].owners


def test_a_copy_that_is_not_whole_says_so_and_nothing_else() -> None:
    node = {("a", 0): WHOLE, ("b", 0): Copy(0, 0, loading=True), ("a", 1): Copy(3, 30, doubted=True), ("a", 2): WHOLE}
    told = dict(sums_told(node))
    assert told[0] == told[1] == NOT_WHOLE
    assert told[2] != NOT_WHOLE
    assert sums_in(lines_of(node)) == told, "and so it is taken of who tells everything"


def test_an_answer_of_another_life_is_of_no_use() -> None:
    old = a_map()
    nodes = of_all(old)
    nodes["n1"]["a", 0] = Copy(2, 20)
    attempt = Coordinator(old, nodes).attempt
    for name, node in nodes.items():
        attempt.report(name, single_of(name, node, sums=True))
    all_of(attempt.compare(old))
    life = Life("disk-n1", 2, 0, [(1, 0)])
    assert not attempt.answer("n1", Copies(old.version, BALLOT, attempt.asks_for, life, []))
    assert "n1" in attempt.untold


def test_who_reports_while_copies_are_compared_is_compared_too() -> None:
    old = a_map()
    nodes = of_all(old)
    late = old.placements[0].owners[1]
    nodes[late]["a", 0] = Copy(2, 20)
    attempt = Coordinator(old, nodes).attempt
    for name, node in nodes.items():
        if name != late:
            attempt.report(name, single_of(name, node, sums=True))
    comparing = attempt.compare(old)
    next(comparing)
    attempt.report(late, single_of(late, nodes[late], sums=True))
    for _ in comparing:
        pass
    assert late in attempt.untold
    assert attempt.in_doubt == {0}


def test_to_compare_the_sums_of_very_many_partitions_is_work_in_pieces() -> None:
    """For each of them what every copy has said is looked up: 16,384 were taken for the half of a turn, and were 40 ms."""
    partitions, works = 4 * ADDED_AT_ONCE, list[int]()
    placement = Placement(1, 1, ("n1", "n2", "n3"), ("n1", "n2", "n3"))
    topology = msgspec.structs.replace(a_map(), placements=(placement,) * partitions)
    same = [(number, 7) for number in range(partitions)]
    singles = {n: SingleMap(Version(1, 0), BALLOT, Life(f"disk-{n}", 1, 0, []), [], [], [], sums=same) for n in NAMES[:3]}
    pieces = in_doubt(topology, singles, ())

    with called() as calls:
        works.extend(pieces)
    assert sum(works) >= partitions // COMPARED_OF_WORK
    assert max(works) <= WORK_MAX // 2
    assert calls.total() < partitions, "no name of a disk is looked into for each of them"


class Walked(list[int]):
    """Partitions that are to begin again; nobody may look through all of them for each of the map."""

    looks = 0

    def __contains__(self, number: object) -> bool:
        """One look through them."""
        self.looks += 1
        return super().__contains__(number)


def test_partitions_that_begin_again_are_not_looked_through_for_each_of_the_map() -> None:
    """Of 16,384 of which all had lost their disks that was a turn of 0.9 s, and of half of them 0.5."""
    partitions = 4 * ADDED_AT_ONCE
    placement = Placement(1, 1, ("n1", "n2", "n3"), ("n1", "n2", "n3"))
    topology = msgspec.structs.replace(a_map(), placements=(placement,) * partitions)
    singles = {n: SingleMap(Version(1, 0), BALLOT, Life(f"disk-{n}", 1, 0, []), [], [], [], sums=[]) for n in NAMES[:3]}
    reset = Walked(range(1, partitions, 2))
    assert all_of(in_doubt(topology, singles, reset)) == frozenset(reset)
    assert not reset.looks
