"""Going on from the disks that are left, when the majority of the voters is gone for good and the operator says so.

```
 the oldest that is left                 all others that are left
 Survey              ------------------>
                     <------------------  Surveyed: the committed map, an accepted one, what every copy here has
 the newest map, without those who are gone; the best copy of every partition; an epoch above all they can have seen
 Commit              ------------------>  as any newer map
```

This is no consensus: it is what is done when there can be none. So it is refused while a majority is heard of, and while a
disk of the cluster is near that was not named. It is refused unless forced, and says what would be lost first. The map
that it makes counts on from a version and epochs that those who are gone cannot have reached, so that they would have to
catch up if they came back after all; and it says in every log who did this, and what was taken from where.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import assert_never, get_args

import msgspec

from engine.cluster.claims import Claims
from engine.cluster.exchange import Exchange
from engine.cluster.foresight import MAP_BYTES_OF_WORK
from engine.messages import Commit, CopyReport, SingleMap, Survey, Surveyed
from engine.messages.cluster import ToRescue
from engine.protocol.requests import Code, Report
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import SessionId
from rebalance import table as topologies
from rebalance.plan import Change, planning
from rebalance.ports import MS
from rebalance.rule import Rule
from rebalance.salvage import INTERVENTIONS_KEPT, as_object
from rebalance.table import Candidate, Intervention, Placement, Taken, Topology
from wal.ids import NO_BALLOT, NodeId, Version
from wal.probe import probe

JUMP = 1_000
"""So many versions and epochs are passed over: those who are gone may have decided some of them."""
ANSWER_MS_MAX = 5_000
RAISED_AT_ONCE = 1_024
"""Partitions that get their new epochs in one piece,"""
RAISED_OF_WORK = 8
"""so many of which are as much work as one thing that is decided."""


class _Asked:
    """What the operator asked for, and the answers so far."""

    def __init__(self, session: SessionId, request: int, nodes: tuple[NodeId, ...], deadline: int, *, force: bool) -> None:
        self.session = session
        self.request = request
        self.nodes = nodes
        self.deadline = deadline
        self.force = force
        self.answers: dict[NodeId, Surveyed] = {}
        self.deciding = False  # all have answered, and it is being worked out what comes of that


class Rescue(Rule):
    """Both sides of a survey on one node."""

    takes = get_args(ToRescue)

    def __init__(self, core: Core, desk: Desk, claims: Claims, exchange: Exchange) -> None:
        super().__init__()
        self.core = core
        self.desk = desk
        self.claims = claims
        self.exchange = exchange
        self._asked: _Asked | None = None

    def begin(
        self,
        session: SessionId,
        request: int,
        nodes: tuple[NodeId, ...],
        near: list[NodeId],
        *,
        seen: Mapping[NodeId, Candidate],
        force: bool,
    ) -> str:
        """Ask those who are left; the answer follows. Or why not. `near` are all that are heard of; `seen` says with which
        disk each that was met."""
        core, topology = self.core, self.core.topology
        if topology is None:
            return "this node is in no cluster: ask one that is"
        if core.quorum:
            return (
                f"a majority of {', '.join(topology.voters)} is here: nothing is to be recovered by force; "
                "`foreshore cluster remove` and `reset-lost` do what a majority can"
            )
        if self._asked is not None:
            return f"another recovery with {', '.join(self._asked.nodes)} is under way here: ask again when it is over"
        if core.node not in nodes:
            return f"{core.node} is asked, and is not among {', '.join(nodes)}"
        unheard = [n for n in nodes if n != core.node and n not in near]
        others = [n for n in unheard if n in seen and _another_disk(topology, seen[n])]
        if others:
            who = ", ".join(others)
            return f"{who} came with another disk than the map lists: leave that out; it may join afterwards"
        if unheard:
            return f"not heard of: {', '.join(unheard)}; heard of: {', '.join([core.node, *near])}"
        more = [n for n in near if n not in nodes]
        if more:
            return (
                f"{', '.join(more)} {'is' if len(more) == 1 else 'are'} here too and may have the better disk: name "
                f"{'it' if len(more) == 1 else 'them'} as well, or stop {'it' if len(more) == 1 else 'them'} first"
            )
        self._asked = _Asked(session, request, nodes, core.now + ANSWER_MS_MAX * MS, force=force)
        self.alarm.by(self._asked.deadline)
        self._ask()
        return ""

    def _ask(self) -> None:
        asked = self._asked
        assert asked is not None
        self.core.send(tuple(n for n in asked.nodes if n not in asked.answers), Survey(asked.request))
        self.alarm.by(self.core.now + self.core.settings.retransmit_ms * MS)

    def tick(self) -> None:
        """Ask again; or give up."""
        asked = self._asked
        self.alarm.off()
        if asked is None:
            return
        if self.alarm.is_due(asked.deadline, self.core.now):
            missing = [n for n in asked.nodes if n not in asked.answers]
            self._refuse(asked, f"no answer from {', '.join(missing)} within {ANSWER_MS_MAX // 1_000} s")
        else:
            self._ask()

    def on(self, sender: NodeId, message: ToRescue) -> None:
        """Everything that is said about it."""
        match message:
            case Survey(number):
                self.core.in_pieces(self._survey(sender, number))
            case Surveyed():
                asked = self._asked
                if asked is None or asked.deciding or message.number != asked.request:
                    return
                if sender in asked.nodes:
                    asked.answers[sender] = message
                    if len(asked.answers) == len(asked.nodes):
                        asked.deciding = True
                        self.alarm.off()
                        self.core.in_pieces(self._decide(asked))
            case _:
                assert_never(message)

    def _survey(self, sender: NodeId, number: int) -> Iterator[int]:
        """Tell who asks what is here."""
        core, copies = self.core, list[CopyReport]()
        yield from self.exchange.reporting.copies(copies)
        version, committed = core.replica.committed
        ballot, accepted = self.exchange.accepted
        told = Surveyed(
            number,
            core.life,
            address=core.address,
            domain=core.settings.domain,
            version=version,
            topology=committed,
            accepted_ballot=ballot,
            accepted=accepted,
            claims=self.claims.known(),
            copies=copies,
        )
        core.send(sender, told)

    def _decide(self, asked: _Asked) -> Iterator[int]:
        """All have answered: make the map, in pieces."""
        here = self.core.topology
        assert here is not None
        empty = [n for n, a in asked.answers.items() if not a.topology]
        if empty:
            self._refuse(asked, f"{', '.join(empty)} has nothing of this cluster: leave it out; it may join afterwards")
            return
        maps = dict[NodeId, Topology]()
        for node, answer in asked.answers.items():
            maps[node] = topologies.decode(answer.topology)
            yield len(answer.topology) // MAP_BYTES_OF_WORK
        others = [n for n, m in maps.items() if m.cluster != here.cluster]
        if others:
            self._refuse(asked, f"{', '.join(others)} belongs to another cluster")
            return
        encoded = self._newest(asked, maps)
        old = topologies.decode(encoded)
        yield len(encoded) // MAP_BYTES_OF_WORK
        topology, taken = yield from self._recovered(asked, old, topologies.hash_of(encoded))
        told = _told(old, asked.nodes, taken)
        if not asked.force:
            self._refuse(asked, f"{told}; say --force if that is meant")
            return
        encoded = yield from topologies.encoding(topology)
        if not self.exchange.foresight.works_out(topology, lambda: self._take(asked, here, topology, encoded, told)):
            self._take(asked, here, topology, encoded, told)

    def _take(self, asked: _Asked, here: Topology, topology: Topology, encoded: bytes, told: str) -> None:
        """Go by the map that was made, unless another one has come `here` meanwhile, or a majority has."""
        core = self.core
        if core.topology is not here or core.quorum or core.parting:
            probe("rescue.another_map_came")
            self._refuse(asked, "others of the cluster were heard of meanwhile: ask again, if it is to be recovered still")
            return
        self._end()
        core.note(f"RECOVERED BY FORCE after {topology.interventions[-1].after}: {told}")
        rest = [n for n in asked.nodes if n != core.node]
        if rest:
            core.send(tuple(rest), Commit(topology.version, encoded))
        self.exchange.adopt(topology, encoded)
        core.next_turn(lambda: self._answer(asked, topology, told))  # it names each partition that has begun again

    def _answer(self, asked: _Asked, topology: Topology, told: str) -> None:
        body = as_object(topology.interventions[-1]) | {"version": str(topology.version), "told": told}
        self.desk.reply(asked.session, Report(asked.request, msgspec.json.encode(body)))

    def _newest(self, asked: _Asked, maps: dict[NodeId, Topology]) -> bytes:
        """The newest map that anybody knows; one accepted after it may have been committed by those who are gone."""
        newest = max(asked.nodes, key=lambda n: maps[n].version)
        after = [a for a in asked.answers.values() if a.version == maps[newest].version and a.accepted]
        if not after:
            return asked.answers[newest].topology
        return max(after, key=lambda a: a.accepted_ballot).accepted

    def _recovered(self, asked: _Asked, old: Topology, map_hash: int) -> Generator[int, None, tuple[Topology, list[Taken]]]:
        """The map of those who are left, and what it begins again with."""
        known = dict(zip((m.node for m in old.members), old.members, strict=True))
        nodes = sorted(asked.nodes, key=lambda n: known[n].order if n in known else old.next_order)
        change = Change(
            candidates=[
                Candidate(n, a.life.allocation, a.life.incarnation, a.address, a.domain)
                for n in nodes
                for a in [asked.answers[n]]
            ],
            singles={
                n: SingleMap(
                    old.version,
                    NO_BALLOT,
                    life=asked.answers[n].life,
                    claims=asked.answers[n].claims,
                    copies=asked.answers[n].copies,
                    vouched=[],
                )
                for n in nodes
            },
            handover=[],
            baseline=nodes,
            reset=range(len(old.placements)),
            claims=[claim for a in asked.answers.values() for claim in a.claims],
            map_hash=map_hash,
        )
        plan = (yield from planning(old, change, self.core.affinity)).topology
        placements = list[Placement]()
        for first in range(0, len(plan.placements), RAISED_AT_ONCE):
            some = plan.placements[first : first + RAISED_AT_ONCE]
            placements += [msgspec.structs.replace(p, epoch=p.epoch + JUMP) for p in some]
            yield len(some) // RAISED_OF_WORK
        taken = list(plan.interventions[-1].taken) if plan.interventions != old.interventions else []
        version = Version(old.version.major + JUMP, 0)
        forced = Intervention("recover", old.version, tuple(nodes), tuple(taken))
        return (
            msgspec.structs.replace(
                plan,
                version=version,
                baselined=version,
                placements=tuple(placements),
                interventions=(*old.interventions, forced)[-INTERVENTIONS_KEPT:],
            ),
            taken,
        )

    def _refuse(self, asked: _Asked, problem: str) -> None:
        self._end()
        self.desk.refuse(asked.session, asked.request, Code.USAGE, problem)

    def _end(self) -> None:
        self._asked = None
        self.alarm.off()


def _another_disk(topology: Topology, candidate: Candidate) -> bool:
    """Whether a node that was met has another disk than the member of its name."""
    member = topology.member(candidate.node)
    return member is not None and member.allocation != candidate.allocation


def _told(old: Topology, nodes: tuple[NodeId, ...], taken: list[Taken]) -> str:
    """What is given up, as a sentence."""
    gone = [n for n in old.voters if n not in nodes]
    said = f"goes on with {', '.join(nodes)}, without {', '.join(gone)}"
    if not taken:
        return f"{said}; an in-sync copy of every partition is there: nothing that was acknowledged is lost"
    empty = sum(not t.node for t in taken)
    return (
        f"{said}; {len(taken)} partitions have no in-sync copy here and go on with the best there is"
        f"{f', {empty} of them with nothing' if empty else ''}: updates that only {', '.join(gone)} had are lost"
    )
