"""Cycles in a dependency graph, named after Adya: the fewer kinds of edges a cycle needs, the worse it is.

| kind | needs | for example |
| --- | --- | --- |
| `G0` | `ww` | two transactions interleave their writes |
| `G1c` | `ww`, `wr` | each saw the other |
| `G-single` | and exactly one `rw` | read skew, lost update |
| `G2` | and several `rw` | write skew, long fork |
| `strict-serializability` | and time | a write that was seen before it was asked for |

Whether there is a cycle is decided exactly and in linear time, by strongly connected components. Only the search for
the *shortest* cycle within a component is bounded; if it is given up, a longer one, or `G2` for `G-single`, is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import networkx as nx

from tests.sim.checkers.dependencies import Dependencies, Edge, EdgeKind
from tests.sim.checkers.history import Kind

STEPS_MAX = 300_000
"""Edges that are looked at in search of one component's shortest cycle of one kind; about a second."""

_WW: frozenset[EdgeKind] = frozenset({"ww", "pass"})
_WR: frozenset[EdgeKind] = frozenset({"ww", "wr", "pass"})
_RW: frozenset[EdgeKind] = frozenset({"ww", "wr", "rw", "pass"})
_ALL: frozenset[EdgeKind] = frozenset({"ww", "wr", "rw", "time", "pass"})


class Step(NamedTuple):
    """One edge of a cycle, between two transactions; junctions are folded away."""

    source: int
    target: int
    edge: Edge


class Cycle(NamedTuple):
    """A cycle that no serial order can contain; the last step leads back to the first."""

    kind: Kind
    steps: list[Step]


def find_cycles(graph: Dependencies, explained: Collection[int] = ()) -> Iterator[Cycle]:
    """For each knot of transactions, one shortest cycle of each kind that is not implied by a worse one.

    A knot that only time ties, and that holds one of `explained`, is left out: its stale read was reported already.
    """
    skip = set(explained)
    for knot in _components(graph, range(len(graph.out)), _ALL):
        found = False
        for inner in _components(graph, knot, _RW):
            for cycle in _classify(graph, inner):
                found = True
                yield cycle
        if not found and skip.isdisjoint(knot):
            yield _shortest(graph, "strict-serializability", knot, _RW - {"pass"}, _ALL)


def _classify(graph: Dependencies, knot: list[int]) -> Iterator[Cycle]:
    """The kinds of cycle in a component that is tied by dependencies alone."""
    found = False
    for inner in _components(graph, knot, _WW):
        found = True
        yield _shortest(graph, "G0", inner, frozenset({"ww"}), _WW)
    for inner in _components(graph, knot, _WR):
        if _edges(graph, inner, frozenset({"wr"})):
            found = True
            yield _shortest(graph, "G1c", inner, frozenset({"wr"}), _WR)
    single = _search(graph, "G-single", knot, frozenset({"rw"}), _WR)
    if single:
        yield single
    elif not found:
        cycle = _shortest(graph, "G2", knot, frozenset({"rw"}), _RW)
        yield Cycle("G-single", cycle.steps) if _is_lost_update(cycle) else cycle


def _is_lost_update(cycle: Cycle) -> bool:
    """Two transactions that each missed the other's append to one key: whichever came first, `ww` leads back."""
    return len(cycle.steps) == 2 and len({step.edge.key for step in cycle.steps}) == 1


def _components(graph: Dependencies, nodes: Iterable[int], kinds: frozenset[EdgeKind]) -> list[list[int]]:
    """The strongly connected components of more than one node, over these kinds of edges, in a fixed order."""
    inside = set(nodes)
    picture: nx.DiGraph[int] = nx.DiGraph()
    picture.add_edges_from(
        (source, target)
        for source in sorted(inside)
        for target, edges in graph.out[source].items()
        if target in inside and any(edge.kind in kinds for edge in edges)
    )
    return sorted(sorted(part) for part in nx.strongly_connected_components(picture) if len(part) > 1)


def _edges(graph: Dependencies, knot: Collection[int], kinds: frozenset[EdgeKind]) -> list[Step]:
    inside = set(knot)
    return [
        Step(source, target, edge)
        for source in knot
        for target, edges in graph.out[source].items()
        if target in inside
        for edge in edges
        if edge.kind in kinds
    ]


def _shortest(
    graph: Dependencies, kind: Kind, knot: list[int], first: frozenset[EdgeKind], rest: frozenset[EdgeKind]
) -> Cycle:
    """As `_search`, for a knot that is known to hold such a cycle."""
    cycle = _search(graph, kind, knot, first, rest)
    assert cycle, f"no {kind} cycle in a component of {len(knot)} nodes"
    return cycle


def _search(
    graph: Dependencies, kind: Kind, knot: list[int], first: frozenset[EdgeKind], rest: frozenset[EdgeKind]
) -> Cycle | None:
    """The shortest cycle that begins with an edge of `first`, out of a transaction, and goes on with `rest`; or None."""
    inside = set(knot)
    best: list[Step] | None = None
    budget = STEPS_MAX
    for step in _edges(graph, knot, first):
        assert step.source < graph.transactions, f"a cycle cannot begin at a junction: {step}"
        path, steps = _path(graph, inside, step.target, step.source, rest)
        budget -= steps
        if path is not None:
            steps_folded = _fold(graph, [step, *path])
            if best is None or len(steps_folded) < len(best):
                best = steps_folded
        if budget < 0 or (best and len(best) == 2):
            break
    return Cycle(kind, best) if best else None


def _path(
    graph: Dependencies, inside: set[int], source: int, target: int, kinds: frozenset[EdgeKind]
) -> tuple[list[Step] | None, int]:
    """The path with the fewest dependencies (time and junctions are free), and how many edges were looked at."""
    came: dict[int, Step] = {}
    cost = {source: 0}
    done: set[int] = set()
    queue = deque([source])
    looked = 0
    while queue and target not in done:
        node = queue.popleft()
        if node in done:
            continue
        done.add(node)
        for after, edges in graph.out[node].items():
            looked += 1
            if after in done or after not in inside:
                continue
            free = next((edge for edge in edges if edge.kind in {"time", "pass"} and edge.kind in kinds), None)
            edge = free or next((edge for edge in edges if edge.kind in kinds), None)
            if edge is None:
                continue
            price = cost[node] + (0 if free else 1)
            if price < cost.get(after, price + 1):
                cost[after] = price
                came[after] = Step(node, after, edge)
                if free:
                    queue.appendleft(after)
                else:
                    queue.append(after)
    if target not in done:
        return None, looked
    path: list[Step] = []
    while target != source:
        path.append(came[target])
        target = came[target].source
    return path[::-1], looked


def _fold(graph: Dependencies, steps: list[Step]) -> list[Step]:
    """The same cycle over transactions only: junctions vanish, and a run of time becomes one edge."""
    folded: list[Step] = []
    for step in steps:
        last = folded[-1] if folded else None
        if last and last.target >= graph.transactions:
            after = step.edge.after if step.edge.kind == "pass" else None
            edge = last.edge if after is None else last.edge._replace(after=after)
            folded[-1] = Step(last.source, step.target, edge)
        else:
            folded.append(step)
    merged: list[Step] = []
    for step in folded:
        if merged and step.edge.kind == merged[-1].edge.kind == "time":
            merged[-1] = Step(merged[-1].source, step.target, step.edge)
        else:
            merged.append(step)
    return merged
