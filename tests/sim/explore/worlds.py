"""The small worlds that there are."""

from __future__ import annotations

from collections import Counter

from engine.requests import Admin, Reply
from tests.sim.explore.nodes import Happening, ask
from tests.sim.explore.search import Fact, Might, SmallWorld, Walk
from wal import records as r
from wal.ids import NO_VERSION, NodeId, Version

THREE = ("n1", "n2", "n3")
RESEND_MS = 400


def _formed(walk: Walk) -> None:
    """A cluster of all, at rest."""
    names = list(walk.world.names)
    walk.happen(ask(names[0], Admin(1, "init", {"cluster": ["c1"], "nodes": names})))
    walk.deliver_all()
    walk.state = walk.state._replace(facts=frozenset())


class _Maps:
    """Which map followed which; a promise that is broken when a version has two successors."""

    def __init__(self) -> None:
        self._after: dict[bytes, Version] = {}  # what was accepted, as the successor of which version

    def notice(self, node: NodeId, said: r.Record | Reply) -> Fact | None:
        """A map is accepted somewhere, or committed."""
        match said:
            case r.Accepted(after, _, topology):
                self._after[topology] = after
                return None
            case r.Committed(_, topology) if topology in self._after and self._after[topology] != NO_VERSION:
                return Fact("committed", self._after[topology], topology)
            case _:
                return None

    @staticmethod
    def judge(facts: frozenset[Fact]) -> str:
        """One successor for each version."""
        maps = {(fact.about, fact.value) for fact in facts}
        twice = [about for about, count in Counter(about for about, _ in maps).items() if count > 1]
        return f"{twice[0]} is followed by more than one map" if twice else ""


_MAPS = _Maps()
MAPS = (_MAPS.notice, _MAPS.judge)
APART = (("n1", "n3"), ("n3", "n1"))


def _begin(node: NodeId, *names: NodeId) -> Happening:
    return Happening("begin", node, names=names)


TWO_COORDINATORS = SmallWorld(
    "two-coordinators",
    "n1 and n3 each begin an exchange, n1 with n2 and n3 with n2; each node may lose its power once",
    THREE,
    _formed,
    (
        Might(_begin("n1", "n1", "n2")),
        Might(_begin("n3", "n2", "n3")),
        Might(Happening("wait", "n1", ms=RESEND_MS)),
        Might(Happening("start", "n2")),
        Might(Happening("start", "n1")),
    ),
    *MAPS,
    depth=40,
    apart=APART,
)

LOST_DISK = SmallWorld(
    "lost-disk",
    "as two-coordinators, and the disk of n2, who votes for both, is lost once",
    THREE,
    _formed,
    (
        Might(_begin("n1", "n1", "n2")),
        Might(_begin("n3", "n2", "n3")),
        Might(Happening("wait", "n1", ms=RESEND_MS)),
        Might(Happening("wipe", "n2")),
    ),
    *MAPS,
    depth=40,
    apart=APART,
)

SECOND_BALLOT = SmallWorld(
    "second-ballot",
    "n1 begins an exchange with n2, and n3 does, and when n1 is outbid it begins another; nobody fails",
    THREE,
    _formed,
    (Might(_begin("n1", "n1", "n2"), 2), Might(_begin("n3", "n2", "n3"))),
    *MAPS,
    depth=40,
    apart=APART,
)

WORLDS: dict[str, SmallWorld] = {world.name: world for world in (SECOND_BALLOT, TWO_COORDINATORS, LOST_DISK)}
