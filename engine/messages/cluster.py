"""What members say about who is here and what the next map is."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rebalance.lives import Life
from rebalance.messages import AskCopies, Copies, CopyReport, SingleMap
from rebalance.migrations import Paused
from rebalance.steps import Step
from wal import records as r
from wal.ids import NO_BALLOT, NO_VERSION, Ballot, Digest, Namespace, NodeId, Number, Version


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat", gc=False):
    """I live, I am at this version, and in this life the log on this disk is durable up to `durable_lsn`.

    `frozen`: I reported to an exchange that has not ended. `silent`: members that I do not hear, whoever else may.
    `voted_lsn`: all that I promised or accepted of the next version lies up to there. `cluster` and `map_hash` tell my map
    from another of the same version.

    `sync_ms`: the longest sync of my log since my last one. While a turn or a sync takes longer than the time between two
    of them, the last one is repeated: `busy_ms` says for how long this has been so, and `sync_ms` how much of it is the
    sync that is under way. `stalled`: copies that have not answered me for longer than it takes to be suspected, of the
    time that I had to spare.
    `emptied`: the map calls a copy of mine in sync that is not whole. `mute`: copies that have not answered me for longer
    than the slowest disk may take. `dropped`: namespaces that are being dropped or made, and of which I lead no row.
    `written`: some that are being made, and of which I lead one. `promoting`: by this map I am primary of partitions that I
    do not serve yet. `groups`: I know of namespaces that are in partitions of their own. `lets_go`: and of light steps by
    which somebody goes, and of ballots that stand without an exchange. `fences`: and of those that bring another baseline
    or other places of keys, or take a copy out. `anew`: partitions of which my copy is in sync by the map, and is to be
    taken anew; some of them, if that is all that is not whole here. `amends`: I know of light steps that bring a group,
    or by which a primary leaves a copy that is wrong. `backlogged`: my store does not keep up with what is written, so
    that nothing new is to be begun where my copy is waited for. `cramped`: my disk has no room for what my log goes on in.
    """

    version: Version
    life: Life
    durable_lsn: Number
    frozen: bool
    silent: list[NodeId]
    voted_lsn: Number = 0
    cluster: str = ""
    map_hash: Digest = 0
    sync_ms: Number = 0
    busy_ms: Number = 0
    stalled: list[NodeId] = msgspec.field(default_factory=list)
    emptied: bool = False
    mute: list[NodeId] = msgspec.field(default_factory=list)
    dropped: list[Namespace] = msgspec.field(default_factory=list)
    promoting: bool = False
    written: list[Namespace] = msgspec.field(default_factory=list)
    groups: bool = False
    lets_go: bool = False
    fences: bool = False
    anew: list[Number] = msgspec.field(default_factory=list)
    amends: bool = False
    backlogged: bool = False
    cramped: bool = False


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join", gc=False):
    """Let me in; repeated until a map lists this incarnation. `silent`: members of the map I know that I do not hear.

    `admits`: I know of light steps by which nodes join, and may be let in by one. `groups`, `lets_go`: as in a heartbeat.
    """

    node: NodeId
    allocation: str
    incarnation: Number
    address: str
    domain: str
    version: Version
    cluster: str
    silent: list[NodeId]
    admits: bool = False
    groups: bool = False
    lets_go: bool = False


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave", gc=False):
    """I am stopping on purpose, in this life: take me out, after handing my partitions over."""

    node: NodeId
    incarnation: Number = 0


class SetBaseline(msgspec.Struct, frozen=True, array_like=True, tag="set-baseline", gc=False):
    """An operator's order, passed on to the coordinator: these nodes are meant to hold data.

    It is given on the baseline that version `baselined` brought, and void for any other.
    """

    nodes: list[NodeId]
    baselined: Version = NO_VERSION


class ResetLost(msgspec.Struct, frozen=True, array_like=True, tag="reset-lost", gc=False):
    """An operator's order, passed on to the coordinator: lost partitions begin again with the best copies that are there.

    It is given on one version of the placement of each partition, and void for any other.
    """

    partitions: list[tuple[Number, Number]]  # (partition, version of its placement)


class SetNamespace(msgspec.Struct, frozen=True, array_like=True, tag="set-namespace", gc=False):
    """An operator's order, passed on to the coordinator: a namespace is to be like this from now on, or to be dropped.

    It is given on what version `seen` said of it, and void for anything else. `backups`: negative if they are not said.
    """

    name: Namespace
    seen: Version
    ttl_ms: Number = 0
    drop: bool = False
    backups: int = -1
    async_backups: Number = 0
    loss: str = ""


class SetMigrations(msgspec.Struct, frozen=True, array_like=True, tag="set-migrations", gc=False):
    """An operator's order, passed on to the coordinator: this holds for migrations from now on, all of it.

    It is given on what version `seen` said of them, and void for anything else.
    """

    seen: Version
    paused: Paused = Paused.NOTHING
    bytes_per_second: Number = 0


class Halt(msgspec.Struct, frozen=True, array_like=True, tag="halt", gc=False):
    """The operator stops the whole cluster, as it is at this version: stop, and hand nothing over."""

    version: Version


class Survey(msgspec.Struct, frozen=True, array_like=True, tag="survey", gc=False):
    """What is left on your disk? Asked when the majority is gone for good."""

    number: Number


class Surveyed(msgspec.Struct, frozen=True, array_like=True, tag="surveyed", gc=False):
    """All that one node has: its committed map, one that it accepted after it, and its copies."""

    number: Number
    life: Life
    address: str
    domain: str
    version: Version
    topology: bytes
    accepted_ballot: Ballot
    accepted: bytes
    claims: list[r.Claim]
    copies: list[CopyReport]


class Announce(msgspec.Struct, frozen=True, array_like=True, tag="announce", gc=False):
    """The version after `after` is being decided under this ballot; `handover` partitions change their primary.

    `sums`: of copies that are alike I need to know no more than what they add up to.
    """

    after: Version
    ballot: Ballot
    handover: list[Number]
    sums: bool = False


class Promise(msgspec.Struct, frozen=True, array_like=True, tag="promise", gc=False):
    """No lower ballot will be accepted; this is what was accepted before, if anything was. It is on disk at `voted_lsn`.

    `claims` is what I remember that others had promised: whoever began with less has forgotten it. `lasts`: the promise
    holds for every version to come, until a higher ballot. `hands_over`: I know of steps that move primaries. `admits`: and
    of those by which nodes join, and orders are carried out. `keeps`: what is proposed I find by its ballot when it is
    committed. `tells_apart`: what is proposed may be told as what it changes of the map that I have.
    """

    after: Version
    ballot: Ballot
    accepted_ballot: Ballot
    accepted: bytes
    life: Life
    voted_lsn: Number = 0
    claims: list[r.Claim] = msgspec.field(default_factory=list)
    lasts: bool = False
    hands_over: bool = False
    admits: bool = False
    keeps: bool = False
    tells_apart: bool = False


class Propose(msgspec.Struct, frozen=True, array_like=True, tag="full-map", gc=False):
    """The map proposed for the version after `after`; or only what it changes, and the hash of what comes of it."""

    after: Version
    ballot: Ballot
    topology: bytes
    step: Step | None = None
    map_hash: Digest = 0


class Accept(msgspec.Struct, frozen=True, array_like=True, tag="accept", gc=False):
    """The proposed map is on my disk at `voted_lsn`; the log is durable up to `durable_lsn` in this life."""

    after: Version
    ballot: Ballot
    life: Life
    durable_lsn: Number
    voted_lsn: Number = 0


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse", gc=False):
    """A higher ballot was promised."""

    after: Version
    ballot: Ballot
    promised: Ballot


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit", gc=False):
    """A committed map; or, to whom it was proposed, no more than the ballot under which that was, and the map's hash."""

    version: Version
    topology: bytes
    ballot: Ballot = NO_BALLOT
    map_hash: Digest = 0


class LeadSteps(msgspec.Struct, frozen=True, array_like=True, tag="lead-steps", gc=False):
    """Promise this ballot, for what follows `version`, for me to lead light steps: nobody stops, nor says what he has."""

    version: Version
    ballot: Ballot


class Follows(msgspec.Struct, frozen=True, array_like=True, tag="follows", gc=False):
    """I promise it in this life: it is on disk at `voted_lsn`. `accepted`: something was, under an earlier ballot.

    `claims` is what I remember that others had promised.
    """

    version: Version
    ballot: Ballot
    accepted: bool
    life: Life
    voted_lsn: int
    claims: list[r.Claim]


class ProposeStep(msgspec.Struct, frozen=True, array_like=True, tag="propose-step", gc=False):
    """A light step, proposed under a ballot that a majority has promised before. Nobody stops for it."""

    ballot: Ballot
    step: Step


class AcceptStep(msgspec.Struct, frozen=True, array_like=True, tag="accept-step", gc=False):
    """The map of this step is on my disk at `voted_lsn`; the log is durable up to `durable_lsn` in this life."""

    after: Version
    ballot: Ballot
    life: Life
    durable_lsn: Number
    voted_lsn: Number


class CommitStep(msgspec.Struct, frozen=True, array_like=True, tag="commit-step", gc=False):
    """A committed light step."""

    step: Step


class AskMap(msgspec.Struct, frozen=True, array_like=True, tag="ask-map", gc=False):
    """You speak of a newer version than I have: send me its map."""

    version: Version


class CaughtUp(msgspec.Struct, frozen=True, array_like=True, tag="caught-up", gc=False):
    """A primary to the coordinator: these MOVING copies have everything I have, and I wait for them until another map.

    `claims` is how far their disks, and others, were heard to be durable. `placed` is the sender's map: a copy that was let
    go since, and is made anew, has not been vouched for.
    """

    version: Version
    copies: list[tuple[Number, NodeId]]
    claims: list[r.Claim] = msgspec.field(default_factory=list)
    placed: Version = NO_VERSION


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag="hand-over", gc=False):
    """Let nothing new begin on these partitions of yours, and say when what holds them up is over.

    Under the ballot `ballot`, which stands, a step after the map `version` is about to make others their primaries.
    """

    version: Version
    ballot: Ballot
    partitions: list[Number]


class Drained(msgspec.Struct, frozen=True, array_like=True, tag="drained", gc=False):
    """Nothing holds up the handover that you asked for."""

    version: Version
    ballot: Ballot


ToExchange: TypeAlias = Announce | Promise | SingleMap | AskCopies | Copies | Propose | Accept | Refuse | Commit | AskMap
ToSteps: TypeAlias = LeadSteps | Follows | ProposeStep | AcceptStep | CommitStep | CaughtUp
ToHandovers: TypeAlias = HandOver | Drained
ToFormation: TypeAlias = Announce | Promise | Propose | Accept | Refuse
ToMembership: TypeAlias = Heartbeat | Join | Leave | Halt | SetBaseline | ResetLost | SetNamespace | SetMigrations
ToRescue: TypeAlias = Survey | Surveyed
Order: TypeAlias = SetBaseline | ResetLost | SetNamespace | SetMigrations
