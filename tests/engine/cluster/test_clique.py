"""The largest part that hears each other, against looking at every part there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import combinations
from operator import or_
from random import Random

from engine.cluster.clique import connected

NODES = ["n1", "n2", "n3", "n4", "n5"]


def of(nodes: list[str], broken: set[tuple[str, str]], voters: list[str]) -> list[str]:
    return connected(nodes[0], nodes, silent(broken), voters)


def silent(broken: set[tuple[str, str]]) -> dict[str, list[str]]:
    """Of each broken link one end says so, and some say it of nodes that are not asked about."""
    found: dict[str, list[str]] = {"n1": ["gone", "n1"]}
    for at, (a, b) in enumerate(sorted(broken)):
        said, of_whom = (a, b) if at % 2 else (b, a)
        found.setdefault(said, []).append(of_whom)
    return found


def every_part(nodes: list[str], broken: set[tuple[str, str]]) -> list[list[str]]:
    """All parts with the first node in which no link is broken."""
    first, *others = nodes
    parts = [[first, *some] for size in range(len(others) + 1) for some in combinations(others, size)]
    return [part for part in parts if not any(pair in broken for pair in combinations(part, 2))]


def worth(part: list[str], nodes: list[str], voters: list[str]) -> tuple[int, int, list[int]]:
    return (sum(n in voters for n in part), len(part), sorted((-nodes.index(n) for n in part), reverse=True))


def test_of_five_nodes_every_pattern_of_broken_links() -> None:
    links = list(combinations(NODES, 2))
    for voters in (NODES, ["n1", "n3", "n5"]):
        for pattern in range(1 << len(links)):
            broken = {link for bit, link in enumerate(links) if pattern >> bit & 1}
            best = max(every_part(NODES, broken), key=lambda part: worth(part, NODES, voters))
            assert of(NODES, broken, voters) == best


def test_of_parts_with_a_majority_the_one_that_has_most_of_the_data() -> None:
    """Whatever is broken, whoever has what: as of every part there is the best one is looked for."""
    draw = Random(11)
    links = list(combinations(NODES, 2))
    for _ in range(2_000):
        broken = {link for link in links if draw.random() < 0.4}
        has = {node: draw.getrandbits(6) for node in NODES}

        def kept(part: Iterable[str], has: dict[str, int] = has) -> int:
            return reduce(or_, (has[node] for node in part)).bit_count()

        def whole(part: list[str], kept: Callable[[Iterable[str]], int] = kept) -> tuple[object, ...]:
            votes, size, oldest = worth(part, NODES, NODES)
            return (min(votes, 3), kept(part), votes, size, oldest)

        best = max(every_part(NODES, broken), key=whole)
        assert connected("n1", NODES, silent(broken), NODES, enough=3, kept=kept) == best


def test_nodes_without_data_do_not_outweigh_voters() -> None:
    spares = ["s1", "s2", "s3"]
    broken = {("n2", spare) for spare in spares}
    assert of(["n1", *spares, "n2"], broken, ["n1", "n2"]) == ["n1", "n2"]


def test_whatever_is_broken_the_walk_ends_and_no_broken_link_is_left() -> None:
    nodes = [f"n{number}" for number in range(40)]
    draw = Random(7)
    broken = {link for link in combinations(nodes, 2) if draw.random() < 0.5}
    part = of(nodes, broken, nodes)
    assert len(part) >= 4
    assert not any(link in broken for link in combinations(part, 2))
