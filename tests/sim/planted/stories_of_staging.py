"""Stories of transactions whose writes are staged: said before the commit, piece by piece, and asked about bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.messages import PrepareParts
from engine.protocol.requests import CommitTx, StageWrites
from tests.sim.clients import Client, Task
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key, told
from tests.sim.transactions import SimTransaction
from tests.sim.world import SECOND, Plant
from wal.ids import NodeId, piece_number

STAGING = Stories()
story = STAGING.story

X, Y, Z = key(0), key(1), key(2)
PIECE = len(Y) + 1
"""Bytes of a piece: a key with a value of one byte."""


def _written(stage: Stage, value: bytes, *names: bytes, client: Client | None = None) -> SimTransaction:
    """A transaction that writes some keys, and stages each but the first."""
    who = client or stage.client
    tx = SimTransaction(who, optimistic=True, timeout_ns=ANSWER_NS, at_once=1)
    stage.do(tx.put(NAMESPACE, dict.fromkeys(names, value)), who)
    return tx


def _hold(stage: Stage, kind: type[CommitTx | StageWrites], client: Client, number: int = 0) -> Rule:
    """The next such request of a client (about this piece) stands still on its way."""

    def matches(src: str, _: str, said: object) -> bool:
        return src == client.name and isinstance(said, kind) and number in (0, getattr(said, "number", 0))

    rule = Rule("a request", matches, drop=False, left=1)
    stage.world.network.rules.append(rule)
    return rule


@story
def a_coordinator_restarts_between_the_pieces_and_the_commit(plant: Plant | None) -> None:
    """n1 has all pieces of a transaction, and loses its power before the commit comes; the client stages them again."""
    with Stage(plant) as stage:
        tx = _written(stage, b"1", X, Y, Z)
        held = _hold(stage, CommitTx, stage.client)
        committing = stage.begin(tx.commit())
        stage.until(lambda: held.caught > 0, "the pieces are staged, and the commit is on its way")
        stage.power_cut("n1")
        stage.start("n1")
        stage.end(held)
        stage.until(lambda: committing.done, "the client is told how it ended")
        stage.must(told(committing), f"nothing stands in its way: {committing.failure!r}")
        found = [stage.get(name) for name in (X, Y, Z)]
        stage.must(found == [b"1"] * 3, f"a transaction is all or nothing: {found}")
        stage.curtain()


@story
def two_clients_stage_at_one_coordinator(plant: Plant | None) -> None:
    """The first one has staged, and its commit is on its way; the second one stages and commits. Then the first does."""
    with Stage(plant) as stage:
        other = stage.another()
        mine = _written(stage, b"1", X, Y)
        held = _hold(stage, CommitTx, stage.client)
        committing = stage.begin(mine.commit())
        stage.until(lambda: held.caught > 0, "the first has staged")
        stage.do(_written(stage, b"2", key(0, 1), Z, client=other).commit(), other)
        found = stage.get(Y), stage.get(Z)
        stage.must(found == (None, b"2"), f"nobody has committed the first one yet: {found}")
        stage.world.network.release([held], stage.world.network.held)
        stage.until(lambda: committing.done, "the first commits")
        stage.must(told(committing), "and may")
        found = stage.get(Y), stage.get(Z)
        stage.must(found == (b"1", b"2"), f"each wrote what was its own: {found}")
        stage.curtain()


def _half_is_staged(stage: Stage) -> None:
    """The first of two pieces is at n1, and the other one is on its way."""
    held = _hold(stage, StageWrites, stage.client, 2)
    stage.begin(_written(stage, b"1", X, Y, Z).commit())
    stage.until(lambda: held.caught > 0, "the first piece is staged")


@story
def a_client_hangs_up_when_half_is_staged(plant: Plant | None) -> None:
    """There is room for one transaction at a time, and the client that has begun goes. Its system lives, and says so."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, staged_bytes_max=2 * PIECE)) as stage:
        other = stage.another()
        _half_is_staged(stage)
        committing = stage.begin(_written(stage, b"2", X, Y, Z, client=other).commit(), other)
        stage.wait(SETTINGS.lock_lease_ms // 4)
        stage.must(not committing.done, "it waits for its turn")
        stage.client.die()
        stage.wait(SETTINGS.lock_lease_ms // 4)
        stage.must(told(committing), "nobody can commit any more what was staged by who has hung up")
        stage.curtain()


@story
def a_client_dies_when_half_is_staged(plant: Plant | None) -> None:
    """There is room for one transaction at a time, and the client that has begun goes with its system: nobody hears it."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, staged_bytes_max=2 * PIECE)) as stage:
        other, lost = stage.another(), stage.client
        _half_is_staged(stage)
        stage.world.network.cut("its system", [(lost.side, name) for name in stage.world.machines])
        lost.die()
        committing = stage.begin(_written(stage, b"2", X, Y, Z, client=other).commit(), other)
        stage.wait(SETTINGS.lock_lease_ms // 2)
        stage.must(not committing.done, "it waits for its turn")
        stage.wait(2 * SETTINGS.lock_lease_ms)
        stage.must(told(committing), "what nobody says more of is forgotten after a lease")
        stage.curtain()


@story
def a_part_is_asked_for_when_others_have_voted(plant: Plant | None) -> None:
    """One part may be on its way at a time, of three; the vote of the second one is late."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, staged_bytes_max=2 * PIECE)) as stage:
        late = stage.lose("prepare-parts", "n1", "n2")
        committing = stage.begin(_written(stage, b"1", X, Y, Z).commit())
        stage.until(lambda: late.caught > 0, "n2 is asked, and does not hear it")
        stage.wait(50)
        stage.must(not told(committing), "not all have voted")
        stage.end(late)
        stage.until(lambda: committing.done, "n2 is asked again")
        stage.must(told(committing), f"nothing stands in its way: {committing.failure!r}")
        found = [stage.get(name) for name in (X, Y, Z)]
        stage.must(found == [b"1"] * 3, f"a transaction is all or nothing: {found}")
        stage.curtain()


@story
def a_coordinator_dies_when_some_parts_were_asked_for(plant: Plant | None) -> None:
    """n1 and n2 have voted, n3 was not asked; n1 dies, and n2 recovers the transaction. The client commits it again."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, staged_bytes_max=2 * PIECE)) as stage:
        unasked = stage.lose("prepare-parts", "n1", "n3")
        tx = _written(stage, b"1", X, Y, Z)
        committing = stage.begin(tx.commit())
        stage.until(lambda: unasked.caught > 0, "n1 and n2 have voted")
        stage.power_cut("n1")
        stage.end(unasked)
        stage.until(lambda: committing.done, "the client is told how it ended", look_every=SECOND // 10)
        reader = stage.another()
        found = [stage.get(name, reader) for name in (X, Y, Z)]
        stage.must(found == [b"1" if told(committing) else None] * 3, f"a transaction is all or nothing: {found}")
        stage.curtain()


# What one writes in one partition, in pieces.

VALUE = bytes(600)
IN_PIECES = msgspec.structs.replace(SETTINGS, staged_bytes_max=4 << 10, supply_batch_bytes=1 << 10)
"""A key with such a value is a piece, and one may be on its way at a time; two are too much to begin an epoch with."""
MANY = [key(1, number) for number in range(4)]


def _large(stage: Stage) -> SimTransaction:
    """A transaction that is decided at n1, and has four pieces at n2."""
    tx = SimTransaction(stage.client, optimistic=True, timeout_ns=ANSWER_NS, at_once=1)
    stage.do(tx.put(NAMESPACE, {X: b"1"} | dict.fromkeys(MANY, VALUE)))
    return tx


def _lose_pieces(stage: Stage, first: int) -> Rule:
    """From this piece on nobody hears what he is asked to vote for."""

    def matches(_: str, __: str, said: object) -> bool:
        return isinstance(said, PrepareParts) and piece_number(said.tx) >= first

    rule = Rule("a piece", matches, drop=True)
    stage.world.network.rules.append(rule)
    return rule


def _all_or_nothing(stage: Stage, *, wanted: bool) -> None:
    reader = stage.another()
    found = [stage.get(X, reader) is not None, *(stage.get(name, reader) == VALUE for name in MANY)]
    stage.must(found == [wanted] * 5, f"a transaction is all or nothing: {found}")


def _dies(plant: Plant | None, who: tuple[NodeId, ...], pieces: int) -> None:
    """Some lose their power when so many pieces have voted; the others decide what comes of it, and they come back."""
    with Stage(plant, settings=IN_PIECES) as stage:
        lost = _lose_pieces(stage, pieces) if pieces < len(MANY) else stage.lose("finish")
        committing = stage.begin(_large(stage).commit())
        stage.until(lambda: lost.caught > 0, f"{pieces} pieces have voted")
        stage.must(pieces == len(MANY) or not told(committing), "not all have voted")
        stage.power_cut(*who)
        stage.wait(2 * SETTINGS.suspicion_ms)
        stage.end(lost)
        stage.start(*who)
        stage.until(lambda: committing.done, "the client is told how it ended", look_every=SECOND // 10)
        _all_or_nothing(stage, wanted=told(committing))
        stage.curtain()


@story
def a_participant_dies_between_the_pieces(plant: Plant | None) -> None:
    """n2 has voted for some pieces of four and dies; n3 leads what it led, and finds what is prepared."""
    for pieces in range(1, 5):
        _dies(plant, ("n2",), pieces)


@story
def a_coordinator_dies_between_the_pieces(plant: Plant | None) -> None:
    """n2 has voted for some pieces of four, n1 dies: recovery may commit if all of them are prepared, and else must not."""
    for pieces in range(1, 5):
        _dies(plant, ("n1",), pieces)


@story
def everybody_dies_between_the_pieces(plant: Plant | None) -> None:
    """All lose their power when some pieces of four are on their disks: those are prepared still, and not more."""
    for pieces in range(1, 5):
        _dies(plant, ("n1", "n2", "n3"), pieces)


def _leads_what_was_prepared(stage: Stage, lost: Rule) -> None:
    """n3 is here again, and leads what n2 led, which dies; nobody has heard of the outcome, which is to commit."""
    stage.wait(4 * SETTINGS.suspicion_ms)
    stage.power_cut("n2")
    stage.wait(2 * SETTINGS.suspicion_ms)
    stage.end(lost)
    stage.start("n2")
    _all_or_nothing(stage, wanted=True)
    stage.curtain()


@story
def a_checkpoint_while_pieces_are_prepared(plant: Plant | None) -> None:
    """n3 has four pieces in a checkpoint when its power fails; then n2 dies, and n3 leads what it led."""
    with Stage(plant, settings=IN_PIECES) as stage:
        lost, n3 = stage.lose("finish"), stage["n3"]
        committing = stage.begin(_large(stage).commit())
        stage.until(lambda: told(committing), "all have voted")
        stage.until(lambda: lost.caught > 0, "and nobody hears of the outcome")
        stage.world.command(n3, "checkpoint")
        stage.until(lambda: n3.node is not None and n3.node.checkpointing, "it begins", look_every=SECOND // 1_000)
        stage.until(lambda: n3.node is not None and not n3.node.checkpointing, "it is written")
        stage.power_cut("n3")
        stage.start("n3")
        _leads_what_was_prepared(stage, lost)


@story
def a_copy_comes_back_while_pieces_are_prepared(plant: Plant | None) -> None:
    """n3 was away when four pieces voted, and is told of what is prepared; then n2 dies, and n3 leads what it led."""
    with Stage(plant, settings=IN_PIECES) as stage:
        stage.power_cut("n3")
        stage.wait(2 * SETTINGS.suspicion_ms)
        lost = stage.lose("finish")
        committing = stage.begin(_large(stage).commit())
        stage.until(lambda: told(committing), "all have voted")
        stage.until(lambda: lost.caught > 0, "and nobody hears of the outcome")
        stage.start("n3")
        _leads_what_was_prepared(stage, lost)


# The same of one that is said again to another coordinator, which has room for more.

FEW = [key(2, number) for number in range(4)]
"""Where n3 leads."""
SOME = bytes(300)


def _said_again(stage: Stage, lost: Rule, voted: int) -> Task:
    """n1 has asked n3 for several pieces, of which this one voted, and is gone before its own vote is anywhere else."""
    for name in ("n2", "n3"):
        node = stage[name].node
        assert node is not None
        node.core.settings = stage[name].settings = msgspec.structs.replace(IN_PIECES, staged_bytes_max=1 << 20)
    stage.world.network.rules.append(lost)
    alone = stage.lose("replicate", "n1")
    tx = SimTransaction(stage.client, optimistic=True, timeout_ns=ANSWER_NS, at_once=1)
    stage.do(tx.put(NAMESPACE, {X: b"1"} | dict.fromkeys(FEW, SOME)))
    committing, n3 = stage.begin(tx.commit()), stage["n3"].node
    assert n3 is not None
    prepared = n3.core.replica.partition(2).prepared
    stage.until(lambda: voted in map(piece_number, prepared), "it has voted", look_every=SECOND // 1_000)
    stage.power_cut("n1")
    stage.end(lost, alone)
    return committing


def _pieces(name: str, holds: Callable[[int], bool]) -> Rule:
    def matches(_: str, __: str, said: object) -> bool:
        return isinstance(said, PrepareParts) and said.parts[0].partition == 2 and holds(piece_number(said.tx))

    return Rule(name, matches, drop=True)


@story
def what_was_asked_for_in_pieces_is_said_again_elsewhere(plant: Plant | None) -> None:
    """n3 has voted for the second piece, and not for the first; n1 dies, and n2 commits it. What is written then stays."""
    with Stage(plant, settings=IN_PIECES) as stage:
        committing = _said_again(stage, _pieces("the first piece", lambda piece: piece == 0), 1)
        unheard = stage.lose("resolve", "n3")
        stage.until(lambda: committing.done, "the client is told how it ended", look_every=SECOND // 10)
        other = stage.another()
        stage.put(FEW[1], b"later", other)
        stage.start("n1")
        stage.wait(4 * SETTINGS.suspicion_ms)
        stage.power_cut("n3")
        stage.wait(2 * SETTINGS.suspicion_ms)
        stage.end(unheard)
        stage.start("n3")
        stage.rest()
        found = stage.get(FEW[1], stage.another())
        stage.must(found == b"later", f"what was written after it is there: {found!r}")
        stage.curtain()


@story
def a_vote_for_a_piece_is_none_for_all_that_is_asked_for_elsewhere(plant: Plant | None) -> None:
    """n3 has voted for the first piece; n1 dies, n2 asks for all of it and dies, too, before it hears of a vote."""
    with Stage(plant, settings=IN_PIECES) as stage:
        committing = _said_again(stage, _pieces("the other pieces", lambda piece: piece > 0), 0)
        unheard = [stage.lose("vote", "n3", "n2"), stage.lose("resolve", "n3")]
        n2 = stage["n2"].node
        assert n2 is not None
        stage.until(lambda: bool(n2.core.replica.partition(0).prepared), "n2 has begun", look_every=SECOND // 100)
        stage.start("n1")
        stage.wait(4 * SETTINGS.suspicion_ms)
        stage.power_cut("n2")
        stage.wait(2 * SETTINGS.suspicion_ms)
        stage.end(*unheard)
        stage.start("n2")
        stage.until(lambda: committing.done, "the client is told how it ended", look_every=SECOND // 10)
        reader = stage.another()
        found = [stage.get(X, reader) is not None, *(stage.get(name, reader) == SOME for name in FEW)]
        stage.must(found == [told(committing)] * 5, f"a transaction is all or nothing: {found}")
        stage.curtain()
