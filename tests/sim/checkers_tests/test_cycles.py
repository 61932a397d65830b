"""A reported cycle is one: each edge leads to the next, and the kinds of edges are those that its name allows."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from random import Random

from tests.sim.checkers.history import Anomaly
from tests.sim.checkers.list_append import check
from tests.sim.checkers_tests import crooked, honest

_EDGE = re.compile(r"^  (\S+) -(ww|wr|rw|time)( \S+)?-> (\S+): ", re.MULTILINE)


def test_every_cycle_is_closed_and_rightly_named() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(150):
        rng = Random(seed)
        history = honest.list_append(rng, 6, 60)
        for _ in range(rng.randint(1, 6)):
            history = rng.choice(crooked.LIES)(rng, history) or history
        for anomaly in check(history) + check(crooked.wild(rng, 8)):
            if anomaly.explanation.startswith("a cycle"):
                check_cycle(anomaly)
                kinds[anomaly.kind] += 1
    assert min(kinds[kind] for kind in ("G0", "G1c", "G-single", "G2", "strict-serializability")) > 5, kinds


def check_cycle(anomaly: Anomaly) -> None:
    """Assert that the story of a cycle fits its kind."""
    edges = _EDGE.findall(anomaly.explanation.split("\n  ...")[0])
    names = [operation.name for operation in anomaly.operations]
    if "\n  ..." not in anomaly.explanation:
        assert [edge[0] for edge in edges] == names, anomaly
        assert [edge[3] for edge in edges] == [*names[1:], names[0]], anomaly
    assert ("time", "time") not in pairwise(edge[1] for edge in edges), anomaly
    counts = Counter(edge[1] for edge in edges)
    match anomaly.kind:
        case "G0":
            assert set(counts) == {"ww"}, anomaly
        case "G1c":
            assert counts["wr"] >= 1, anomaly
            assert counts["rw"] == counts["time"] == 0, anomaly
        case "G-single":
            assert counts["rw"] == 1 or (counts == {"rw": 2} and edges[0][2] == edges[1][2]), anomaly
            assert counts["time"] == 0, anomaly
        case "G2":
            assert counts["rw"] >= 2, anomaly
            assert counts["time"] == 0, anomaly
        case "strict-serializability":
            assert counts["time"] >= 1, anomaly
        case _:
            raise AssertionError(f"not a cycle: {anomaly}")
