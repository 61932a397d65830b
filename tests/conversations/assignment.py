"""Conversations with the rule that makes the next map (`rebalance.plan.next_topology`), a pure function.

```
map 3.1 n1 n2 n3 [backups=2]    the last committed map: its members, all in the baseline, and its partitions:
  p0 e1 n1 n2 n3
  p1 e2 n2 n3 moving n1
  p2 e4 LOST in-sync n1
next [leaving=n3] [handover=0,1] [baseline=n1,n2]    what the exchange learned, a line for every node that reported:
  n1 acc/0:lwm=5,highest=8,stable=4,digest=ab
  n2 life=2 lsn=50 heard=n1:70 vouches=p0:n3
  n3 disk=new life=2
adopt                                      the map that was proposed is the committed one now
ideal | wanted | surplus                   where copies should be; primaries that can move there; copies that may go
stamp                                      the partition versions, and the number that stands for all of them
```

A node's disk is called after it, its life is 1 and began at LSN 100, unless its line says otherwise. What `heard` says is
what a first life was heard to claim.
"""

from __future__ import annotations

import msgspec

from engine.messages import CopyReport, Life, SingleMap
from rebalance.moves import Better, better_of
from rebalance.plan import Change, Plan, next_topology
from rebalance.table import Candidate, Member, Placement, Topology, stamp
from tests.conversations.in_turn import in_turn
from tests.conversations.speech import placement_line
from tests.conversations.story import Command, Interpreter, StoryError
from wal.ids import Ballot, NodeId, Version
from wal.records import Claim


class AssignmentStory(Interpreter):
    """The last map, and what would follow it."""

    def __init__(self) -> None:
        self.topology: Topology | None = None
        self.plan: Plan | None = None

    @property
    def old(self) -> Topology:
        """The committed map."""
        if self.topology is None:
            raise StoryError("there is no map yet")
        return self.topology

    def on_map(self, command: Command) -> None:
        version = command.word("a version").split(".")
        backups = int(command.option("backups") or 2)
        nodes = tuple(command.rest())
        placements = tuple(_placement(n, Command(line, [], command.line)) for n, line in enumerate(command.body))
        self.topology = Topology(
            version=Version(int(version[0]), int(version[1])),
            cluster="c1",
            name="stories",
            partitions=len(placements),
            backups=backups,
            members=tuple(Member(node, f"disk-{node}", 1, "", order) for order, node in enumerate(nodes, 1)),
            baseline=nodes,
            placements=placements,
            allocations={node: f"disk-{node}" for node in nodes},
            domains={},
            next_order=len(nodes) + 1,
        )
        self.topology.check()

    def on_next(self, command: Command) -> list[str]:
        old = self.old
        leaving, handover = command.option("leaving"), command.option("handover")
        baseline = command.option("baseline")
        singles: dict[NodeId, SingleMap] = {}
        candidates: list[Candidate] = []
        for text in command.body:
            node, single = _single(Command(text, [], command.line), old)
            singles[node] = single
            candidates.append(
                Candidate(node, single.life.allocation, single.life.incarnation, "", old.domains.get(node, ""))
            )
        change = Change(
            candidates=candidates,
            singles=singles,
            handover=[int(p) for p in handover.split(",")] if handover else [],
            baseline=baseline.split(",") if baseline else old.baseline,
            leaving=leaving.split(",") if leaving else [],
        )
        self.plan = plan = next_topology(old, change, in_turn)
        lines = [f"{plan.topology.version} {' '.join(m.node for m in plan.topology.members)}"]
        lines += [placement_line(number, p) for number, p in enumerate(plan.topology.placements)]
        return lines + [f"note: {note}" for note in plan.notes]

    def on_adopt(self, _: Command) -> None:
        if self.plan is None:
            raise StoryError("nothing was proposed")
        self.topology = self.plan.topology

    def on_ideal(self, _: Command) -> list[str]:
        old = self.old
        table = in_turn(old.baseline, old.domains, old.partitions, old.backups + 1)
        return [f"p{number} {' '.join(owners)}" for number, owners in enumerate(table)]

    def on_wanted(self, _: Command) -> str:
        return " ".join(f"p{number}" for number in self._moves().ready(self.old)) or "none"

    def on_surplus(self, _: Command) -> str:
        return " ".join(f"p{number}" for number in self._moves().surplus) or "none"

    def _moves(self) -> Better:
        return better_of(self.old, [m.node for m in self.old.members], in_turn)

    def on_stamp(self, _: Command) -> str:
        versions = " ".join(f"p{number}={p.version}" for number, p in enumerate(self.old.placements))
        return f"{versions} stamp={stamp(self.old):016x}"


def _placement(number: int, words: Command) -> Placement:
    if words.verb != f"p{number}":
        raise StoryError(f"expected p{number}: {words.text}")
    epoch = int(words.word("an epoch").removeprefix("e"))
    lost = words.flag("LOST")
    words.flag("in-sync")
    nodes = words.rest()
    at = nodes.index("moving") if "moving" in nodes else len(nodes)
    in_sync, moving = tuple(nodes[:at]), tuple(nodes[at + 1 :])
    return Placement(1, epoch, (*in_sync, *moving), in_sync, lost)


def _single(words: Command, old: Topology) -> tuple[NodeId, SingleMap]:
    node = words.verb
    heard, vouches = words.option("heard"), words.option("vouches")
    known = old.member(node)
    disk = words.option("disk") or (known.allocation if known else f"disk-{node}")
    life, lsn = int(words.option("life") or 1), int(words.option("lsn") or 100)
    single = SingleMap(
        old.version,
        Ballot(1, "n1"),
        Life(disk, life, lsn, [(1, 0)] if life > 1 else []),
        [Claim(n, f"disk-{n}", 1, int(lsn)) for n, lsn in (h.split(":") for h in heard.split(","))] if heard else [],
        [],
        [(int(p[1:]), n) for p, n in (v.split(":") for v in vouches.split(","))] if vouches else [],
    )
    copies = [_report(word) for word in words.rest()]
    return node, msgspec.structs.replace(single, copies=copies)


def _report(word: str) -> CopyReport:
    name, _, said = word.partition(":")
    namespace, _, partition = name.partition("/")
    facts = dict(fact.split("=") for fact in said.split(",") if fact)
    lwm = int(facts.pop("lwm", 0))
    highest, stable = int(facts.pop("highest", lwm)), int(facts.pop("stable", lwm))
    digest = int(facts.pop("digest", "0"), 16)
    if facts:
        raise StoryError(f"not understood in {word}: {', '.join(facts)}")
    return CopyReport(namespace, int(partition), lwm, highest, stable, digest)
