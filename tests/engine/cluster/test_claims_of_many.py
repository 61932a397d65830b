"""A hundred nodes tell an exchange what all have claimed: that is read once, and not once more for each of them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.cluster.attempt import Attempt, Intent
from engine.cluster.claims import Claims
from rebalance.lives import Life
from rebalance.messages import SingleMap
from rebalance.plan import first_topology
from rebalance.survivors import returned_disks, trusted_nodes
from rebalance.table import Candidate, disk_name
from tests.support.called import called
from wal.ids import Ballot, Version
from wal.records import Claim

NAMES = [f"n{number}" for number in range(100)]
CALLS_MAX = 3 * len(NAMES) * (len(NAMES) + 20)
"""Each of three looks takes each claim once, and of each node little more."""


class Heard(Claims):
    """Keeps what an attempt tells of claims."""

    def __init__(self) -> None:
        self.learnt: list[Claim] = []

    def learn(self, claims: Iterable[Claim]) -> None:
        """Keep them."""
        self.learnt += claims


def test_each_claim_is_looked_at_once() -> None:
    candidates = [Candidate(name, f"disk-{name}", 2, f"{name}:1", "") for name in NAMES]
    first = first_topology("id", "c", 1, 2, candidates)
    claims = [Claim(name, f"disk-{name}", 2, 10) for name in NAMES]
    version, ballot = Version(1, 0), Ballot(1, "n1")
    singles = {n: SingleMap(version, ballot, Life(f"disk-{n}", 2, 0), claims, [], []) for n in NAMES}
    singles["n7"] = SingleMap(version, ballot, Life("disk-n7", 3, 9), claims, [], [])  # it had claimed ten
    singles["n8"] = SingleMap(version, ballot, Life("disk-n8", 2, 0), [*claims, Claim("n8", "disk-n8", 5, 20)], [], [])
    attempt, heard = Attempt(version, ballot, Intent(candidates), 0, []), Heard()
    attempt.singles = singles
    alive = {c.node: c for c in candidates}
    with called() as calls:
        trusted = trusted_nodes(first, alive, singles, set(), [])
        disks = returned_disks(alive, singles)
        outlived = attempt.outlived(heard)
    assert [n for n in NAMES if n not in trusted] == ["n7"], "it began with less than the life that the map lists"
    assert [n for n in NAMES if disk_name(n, f"disk-{n}") not in disks] == ["n7", "n8"]
    assert outlived == ["n8"], "another life of its disk may be the later one"
    assert sorted({claim.node for claim in heard.learnt}) == sorted(NAMES)
    assert calls.total() <= CALLS_MAX, f"{calls.total():,} calls for {len(NAMES) ** 2:,} claims"
