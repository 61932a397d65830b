"""One ballot of a coordinator: why it is begun, what has been answered, and whose answers count.

`engine.cluster.exchange` says what is done with it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence, Sized

import msgspec

from engine.cluster.claims import Claims
from engine.messages import Announce, AskCopies, Commit, Copies, Promise, Propose, SingleMap
from engine.turn.core import Core
from rebalance.baselines import can_decide
from rebalance.lives import Life, claims_by_node, disk_of, earlier, may_vote, set_back
from rebalance.migrations import Migrations
from rebalance.namespaces import NamespaceSettings
from rebalance.plan import Change
from rebalance.ports import MS
from rebalance.steps import Step
from rebalance.sums import in_doubt
from rebalance.table import Candidate, Group, Topology, hash_of
from wal import records as r
from wal.ids import NO_BALLOT, Ballot, Namespace, NodeId, Version

COPIES_OF_WORK = 5
"""So many lines of a single map are as much work as one thing that is decided, also where it is of no use any more."""


class Intent:
    """Why a coordinator begins an exchange: who should be in the next map, and what should change."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        handover: Sequence[int] = (),
        baseline: Sequence[NodeId] | None = None,
        leaving: Sequence[NodeId] = (),
        reset: Sequence[int] = (),
        aside: Mapping[NodeId, int] | None = None,
        mute: Sequence[NodeId] = (),
        namespaces: Mapping[Namespace, NamespaceSettings] | None = None,
        groups: Sequence[Group] = (),
        migrations: Migrations | None = None,
        surplus: Sequence[int] = (),
        missing: Sequence[int] = (),
        joins: Sequence[Candidate] = (),
        doubted: Mapping[int, Sequence[NodeId]] | None = None,
        by_step: bool = False,
        reason: str = "",
        can_wait: bool = False,
        gathers: bool = True,
    ) -> None:
        self.candidates = list(candidates)
        self.handover = list(handover)
        self.baseline = list(baseline) if baseline is not None else None
        self.leaving = list(leaving)
        self.reset = list(reset)
        self.aside = aside
        self.mute = list(mute)
        self.namespaces = namespaces or {}
        self.groups = list(groups)  # that come into the map
        self.migrations = migrations
        self.surplus = list(surplus)  # partitions with a copy that may go
        self.missing = list(missing)  # partitions of which a copy is to be made
        self.joins = list(joins)  # those candidates whom the map does not list in this life
        self.doubted = doubted or {}  # partition -> whose copies of it are to be out of the in-sync set
        self.by_step = by_step  # nobody has to stop for any of it, if a step is possible at all
        self.reason = reason
        self.can_wait = can_wait  # nobody is missed, asks, or is held up
        self.gathers = gathers  # other reasons may come with these: one map for all of them is better than several


class Attempt:
    """One ballot of a coordinator."""

    def __init__(self, after: Version, ballot: Ballot, intent: Intent, deadline: int, claims: list[r.Claim]) -> None:
        self.after = after
        self.ballot = ballot
        self.intent = intent
        self.deadline = deadline  # in the time that this node has to spare
        self.claims = claims  # made before the ballot was announced: by lives that came before any that answers it
        self.promises: dict[NodeId, Promise] = {}
        self.singles: dict[NodeId, SingleMap] = {}
        self.reports = 0  # so many came
        self.in_doubt: frozenset[int] = frozenset()  # partitions of which those who told sums are to tell all
        self.asks_for = 0  # the number of what they were asked for last
        self.told: dict[NodeId, Copies] = {}  # what they answered to that
        self.untold: dict[NodeId, None] = {}  # who has not answered
        self.proposed: bytes | None = None
        self.step: Step | None = None  # the same as what it changes, where maps are large
        self.accepts: dict[NodeId, None] = {}
        self.planning = False  # what to propose is being found out
        self.chosen = False  # a majority has accepted it: it is committed, whatever happens here

    def asks(self, node: NodeId, life: Life) -> bool:
        """Whether it is this disk that is to be in the map; another one may speak under a name that is no member's."""
        return any((c.node, c.allocation) == (node, life.allocation) for c in self.intent.candidates)

    def asks_of(self, node: NodeId) -> bool:
        """Whether anybody of this name is to be in the map."""
        return any(c.node == node for c in self.intent.candidates)

    @property
    def accepted(self) -> bytes:
        """The map that was accepted under the highest of the earlier ballots: it may be committed. b"": there is none."""
        highest = max((p.accepted_ballot for p in self.promises.values()), default=NO_BALLOT)
        if highest == NO_BALLOT:
            return b""
        return next(p.accepted for p in self.promises.values() if p.accepted_ballot == highest)

    def voted(self, topology: Topology, claims: Claims, node: NodeId) -> bool:
        """Whether a node's promise is here, and counts."""
        promise = self.promises.get(node)
        return promise is not None and may_vote(topology, node, promise.life, claims.known())

    def restarted(self, topology: Topology, claims: Claims, node: NodeId) -> bool:
        """Whether a voter's promise does not count although its disk is the right one: a later life may promise again."""
        promise = self.promises.get(node)
        mine = promise is not None and disk_of(topology, node) == promise.life.allocation
        return mine and not self.voted(topology, claims, node)

    def is_to_ask(self, topology: Topology, claims: Claims, node: NodeId) -> bool:
        """Whether a candidate has yet to say what it has, or to promise in a life that counts."""
        return node not in self.singles or self.restarted(topology, claims, node)

    def outlived(self, claims: Claims) -> list[NodeId]:
        """The nodes of which others know a life that claimed more and may be the later one.

        Its claim was heard of while the ballot was under way, so it does not tell whether the answer is late, or the disk
        was set back. Once it is known here before a ballot begins, it does.
        """
        heard = claims_by_node(claim for single in self.singles.values() for claim in single.claims)
        for about in heard.values():
            claims.learn(about)
        return [
            node
            for node, single in self.singles.items()
            if set_back(node, single.life, about := heard.get(node, []))
            and not set_back(node, single.life, earlier(single.life, self.claims, about))
        ]

    def lasting(self, topology: Topology) -> dict[NodeId, r.Claim]:
        """Whose promises hold for what follows this map, too, and where they lie: of a majority of its voters, in the lives
        that it lists; or nobody's.

        And the map must say where on their disks these promises lie, so that a disk which forgets one has no vote. Every
        member must know of promises that last, and of light steps.
        """
        claimed = {(c.node, c.allocation, c.incarnation): c.durable_lsn for c in topology.claims}
        known = dict.fromkeys(
            m.node
            for m in topology.members
            if (promise := self.promises.get(m.node)) is not None
            and promise.lasts
            and (promise.life.allocation, promise.life.incarnation) == (m.allocation, m.incarnation)
        )
        held = {
            n: r.Claim(n, life.allocation, life.incarnation, self.promises[n].voted_lsn)
            for n in topology.voters
            if n in known
            and (life := self.promises[n].life).allocation == disk_of(topology, n)
            and claimed.get((n, life.allocation, life.incarnation), 0) >= self.promises[n].voted_lsn > 0
        }
        return held if len(held) >= topology.majority and len(known) == len(topology.members) else {}

    def known_to_all(self, topology: Topology) -> tuple[bool, bool]:
        """Whether all members of a map know of steps that move primaries, and of those by which nodes join."""
        promises = [self.promises.get(m.node) for m in topology.members]
        return all(p is not None and p.hands_over for p in promises), all(p is not None and p.admits for p in promises)

    @property
    def announce(self) -> Announce:
        """What begins it."""
        return Announce(self.after, self.ballot, self.intent.handover, sums=True)

    @property
    def asking(self) -> AskCopies:
        """What those are asked who have reported sums."""
        return AskCopies(self.after, self.ballot, self.asks_for, sorted(self.in_doubt))

    def report(self, node: NodeId, single: SingleMap) -> None:
        """A candidate reports, for the first time or in another life."""
        if (known := self.singles.get(node)) is not None and known.life != single.life:
            self.told.pop(node, None)
        self.singles[node] = single
        self.reports += 1

    def leave_out(self, nodes: Sequence[NodeId]) -> None:
        """Of these it is not known what they have."""
        for node in nodes:
            self.singles.pop(node, None)
            self.told.pop(node, None)
        self.untold = {node: None for node in self.untold if node in self.singles}

    @property
    def awaited(self) -> list[NodeId]:
        """The candidates who have not reported, or not all that they were asked for."""
        return [c.node for c in self.intent.candidates if c.node not in self.singles or c.node in self.untold]

    @property
    def held(self) -> list[Sized]:
        """The long lists that it holds."""
        singles = [single.copies or single.sums or [] for single in self.singles.values()]
        return [*singles, *(copies.copies for copies in self.told.values())]

    def compare(self, topology: Topology) -> Generator[int, None, None]:
        """Find out in pieces where copies are not alike, and who has yet to tell all that it has of these partitions."""
        compared, doubts = -1, frozenset[int]()
        while compared != self.reports:  # else somebody reported meanwhile
            compared = self.reports
            doubts = yield from in_doubt(topology, dict(self.singles), self.intent.reset)
        if not doubts <= self.in_doubt:
            self.in_doubt, self.told = self.in_doubt | doubts, {}
            self.asks_for += 1
        summed = [n for n, single in self.singles.items() if single.sums is not None]
        self.untold = dict.fromkeys(n for n in summed if self.in_doubt and n not in self.told)

    def answer(self, node: NodeId, copies: Copies) -> bool:
        """A candidate has told what it was asked for last; whether this is of use."""
        single = self.singles.get(node)
        if copies.number != self.asks_for or node not in self.untold or single is None or single.life != copies.life:
            return False
        del self.untold[node]
        self.told[node] = copies
        return True

    def _reported(self, node: NodeId) -> SingleMap:
        """What a candidate has, of what is in doubt; of all else, that it has what the others have."""
        single, told = self.singles[node], self.told.get(node)
        if all(other.sums is None for other in self.singles.values()):
            return single
        copies = told.copies if told is not None else single.copies
        return msgspec.structs.replace(single, copies=[c for c in copies if c.partition in self.in_doubt])

    def _leaving(self, topology: Topology) -> Sequence[NodeId]:
        """Who is let go by the next map: nobody, where those who reported could not go on without them."""
        leaving = self.intent.leaving
        return leaving if topology.carried_by([n for n in self.singles if n not in leaving]) else []

    def _baseline(self, topology: Topology) -> Sequence[NodeId]:
        """Who is meant to hold data by the next map: who was, where those who reported could decide nothing by an order."""
        ordered, leaving = self.intent.baseline, self._leaving(topology)
        stay = [n for n in self.singles if n not in leaving]
        return ordered if ordered is not None and can_decide(ordered, stay) else topology.baseline

    def change(self, topology: Topology, claims: Claims, map_hash: int) -> Change:
        """What is to be planned, with those candidates who have answered."""
        intent, singles = self.intent, {node: self._reported(node) for node in self.singles}
        return Change(
            candidates=[_as_reported(topology, c, singles[c.node].life) for c in intent.candidates if c.node in singles],
            singles=singles,
            handover=intent.handover,
            baseline=self._baseline(topology),
            leaving=self._leaving(topology),
            voted={
                node: promise.voted_lsn
                for node, single in singles.items()
                if (promise := self.promises.get(node)) is not None and promise.life == single.life
            },
            claims=claims.sure(),
            map_hash=map_hash,
            reset=intent.reset,
            aside=intent.aside,
            mute=intent.mute,
            namespaces=intent.namespaces,
            groups=intent.groups,
            migrations=intent.migrations,
        )


def _as_reported(topology: Topology, candidate: Candidate, life: Life) -> Candidate:
    """A candidate in the life that has answered. That may be the one that the map lists, which listens where the map says,
    while another one of its directory, or of a copy of it, asks to be let in from elsewhere."""
    listed = topology.member(candidate.node)
    if listed is not None and (listed.allocation, listed.incarnation) == (life.allocation, life.incarnation):
        return Candidate(listed.node, listed.allocation, listed.incarnation, listed.address, listed.domain)
    return Candidate(candidate.node, life.allocation, life.incarnation, candidate.address, candidate.domain)


def announce(core: Core, attempt: Attempt, claims: Claims) -> None:
    """Begin it, or ask again whoever has yet to answer."""
    topology = core.topology
    assert topology is not None
    asked = tuple(c.node for c in attempt.intent.candidates if attempt.is_to_ask(topology, claims, c.node))
    core.send(asked, attempt.announce)


def propose(core: Core, attempt: Attempt) -> None:
    """Propose the map that was found to all voters who have not accepted it."""
    assert attempt.proposed is not None
    assert core.topology is not None
    asked = [n for n in core.topology.voters if n not in attempt.accepts]
    told_apart = tuple(n for n in asked if attempt.step and (said := attempt.promises.get(n)) and said.tells_apart)
    if told_apart:
        makes = hash_of(attempt.proposed)
        core.send(told_apart, Propose(attempt.after, attempt.ballot, b"", attempt.step, makes))
    if whole := tuple(n for n in asked if n not in told_apart):
        core.send(whole, Propose(attempt.after, attempt.ballot, attempt.proposed))


def tell_commit(core: Core, attempt: Attempt, topology: Topology, encoded: bytes) -> None:
    """A map is chosen, whatever this disk says: that is told first of all, so that what follows is understood."""
    old = core.topology
    assert old is not None
    told = {m.node: None for m in (*old.members, *topology.members)}
    told |= dict.fromkeys(c.node for c in attempt.intent.candidates)
    told.pop(core.node, None)
    keep = tuple(n for n in told if n in old.voters and (promise := attempt.promises.get(n)) is not None and promise.keeps)
    if keep:
        core.send_early(keep, Commit(topology.version, b"", attempt.ballot, hash_of(encoded)))
    if others := tuple(node for node in told if node not in keep):
        core.send_early(others, Commit(topology.version, encoded))


def answers_by(core: Core) -> int:
    """Until when who is asked now may answer, in the time that this node has to spare."""
    return core.spare + (core.settings.exchange_drain_ms + core.settings.exchange_retry_ms) * MS


def ask_copies(core: Core, attempt: Attempt) -> None:
    """Ask those who have told sums only for what is in doubt: that promises nothing, and this disk may be slow."""
    if others := tuple(node for node in attempt.untold if node != core.node):
        core.send_early(others, attempt.asking)
    if core.node in attempt.untold:
        core.send(core.node, attempt.asking)
