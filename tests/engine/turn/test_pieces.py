"""What nobody waits for takes little of each turn: who asks meanwhile is answered as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.cluster.steps import MOVING_OF_WORK
from engine.protocol.requests import Done, Get, Put, Values
from engine.turn.core import HURRIES_AT, WAITED_WORK
from engine.turn.effects import Effects
from engine.turn.events import Asked, CheckpointWritten, Event, WriteCheckpoint
from engine.turn.letting_go import FREED_AT_ONCE, FREED_OF_WORK, empty
from rebalance.demander import Demander
from rebalance.demanding import LOOKED_OF_WORK
from rebalance.entropy import TICKS
from rebalance.ports import LITTLE, MS, WORK_MAX
from tests.engine.data.test_sessions import Alone
from wal.ids import tx_of

CLIENT = b"a client.."
PARTITIONS = 1024
KEYS = 8 * PARTITIONS
ANSWERS = 512


def busy(alone: Alone) -> None:
    """Many keys in all of its partitions."""
    keys = [b"k%06d" % number for number in range(KEYS)]
    assert isinstance(alone.ask(Put(1, tx_of(CLIENT, 1), "acc", keys, [b"v"] * KEYS)), Done)


def turns_until(alone: Alone, events: list[Event], *, written: bool) -> int:
    """Turns, in each of which somebody asks and is answered, until a checkpoint is to be written, or nothing is left."""
    node = alone.node
    for count in range(1, KEYS):
        effects = node.turn(node.core.now + 1, [*events, Asked(1, Get(2, "acc", [b"k000001"]))])
        assert [type(reply) for _, reply in effects.reply] == [Values], "it does not wait for its turn"
        assert node.core.work <= 3 * LITTLE, "of what ends, of what begins, and of what was put off"
        events = []
        if any(isinstance(task, WriteCheckpoint) for task in effects.tasks) if written else not node.core.unhurried:
            return count
    raise AssertionError("it never comes to its end")


def test_a_checkpoint_is_made_and_let_go_of_a_little_in_each_turn() -> None:
    alone = Alone(PARTITIONS)
    busy(alone)
    alone.node.checkpoint_wanted = True
    assert turns_until(alone, [], written=True) > PARTITIONS // LITTLE, "a state of each fragment and of each partition"
    written = CheckpointWritten(alone.node.core.durable_lsn)
    assert turns_until(alone, [written], written=False) > 1


@pytest.mark.parametrize("waits", [False, True])
def test_a_checkpoint_for_which_a_transfer_waits_says_so(monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> None:
    """Who writes it gives way to everybody else, and what waits for it would wait for everybody, too."""
    node = Alone(1).node
    monkeypatch.setattr(Demander, "waits", property(lambda _: waits))
    monkeypatch.setattr(node.demander, "go_on", lambda: None)
    node.checkpoint_wanted = True
    turns = (node.turn(node.core.now + 1, []) for _ in range(KEYS))
    written = next(task for effects in turns for task in effects.tasks if isinstance(task, WriteCheckpoint))
    assert written.image.hurried is waits


@pytest.mark.parametrize("behind", [False, True])
def test_a_checkpoint_that_is_behind_gives_way_to_nobody(*, behind: bool) -> None:
    """Else clients that write more than the store takes come to wait for one that gets no processor."""
    alone = Alone(PARTITIONS)
    busy(alone)
    node = alone.node
    due = node.core.replica.store.active_bytes // HURRIES_AT
    node.core.settings = msgspec.structs.replace(node.core.settings, checkpoint_bytes=due - behind)
    node.checkpoint_wanted = True
    turns = (node.turn(node.core.now + 1, []) for _ in range(KEYS))
    written = next(task for effects in turns for task in effects.tasks if isinstance(task, WriteCheckpoint))
    assert written.image.hurried is behind


def test_a_checkpoint_is_late_when_the_next_one_is_due_or_a_transfer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(PARTITIONS)
    node = alone.node
    node.checkpoint_wanted = True
    turns_until(alone, [], written=True)
    late = [node.checkpoint_is_late]
    busy(alone)
    enough = node.core.replica.store.active_bytes
    for due in (enough, enough + 1):
        node.core.settings = msgspec.structs.replace(node.core.settings, checkpoint_bytes=due)
        late.append(node.checkpoint_is_late)
    monkeypatch.setattr(Demander, "waits", property(lambda _: True))
    late.append(node.checkpoint_is_late)
    node.checkpointing = False
    late.append(node.checkpoint_is_late)
    assert late == [False, True, False, True, False], "the last time none is under way"


def test_what_nobody_waits_for_is_not_put_off_for_ever() -> None:
    """However much is asked, each turn does a little of it."""
    alone = Alone(PARTITIONS)
    busy(alone)
    node = alone.node
    node.checkpoint_wanted = True
    asked: list[Event] = [Asked(1, Get(2, "acc", [b"k000001"]))] * (2 * WORK_MAX)
    turns = (node.turn(node.core.now + 1, asked) for _ in range(8 * PARTITIONS // LITTLE))
    assert any(isinstance(task, WriteCheckpoint) for effects in turns for task in effects.tasks)


def test_however_many_copies_are_to_be_compared_a_checkpoint_gets_on_as_beside_one() -> None:
    """Turns may be so few, on a busy machine, that each round of anti-entropy asks for more than they do: then a checkpoint
    that waits in one line with all of that is not written for as long as clients write, and they come to wait for it."""
    alone = Alone(PARTITIONS)
    busy(alone)
    node = alone.node
    tick = node.core.settings.anti_entropy_ms * MS // TICKS

    def turns(count: int) -> Iterator[Effects]:
        for _ in range(count):
            yield node.turn(node.core.now + tick, [Asked(1, Get(2, "acc", [b"k000001"]))])

    assert node.core.settings.anti_entropy_ms
    for _ in turns(4 * TICKS):
        assert len(node.core.unhurried) < 5
    node.checkpoint_wanted = True
    assert any(isinstance(task, WriteCheckpoint) for effects in turns(16 * PARTITIONS // LITTLE) for task in effects.tasks)


def test_what_an_earlier_turn_has_left_finds_room_however_much_came() -> None:
    """It gets on in any case, and the turn is no longer for that."""
    alone, pieces = Alone(PARTITIONS), list[int]()
    busy(alone)
    node = alone.node
    core = node.core

    def piece() -> None:
        pieces.append(core.turns)
        core.work += WAITED_WORK
        if len(pieces) < 5:
            core.resume(piece)

    asked: list[Event] = [Asked(1, Get(2, "acc", [b"k000001"]))] * (10 * WORK_MAX)
    core.resume(piece)
    began = core.turns
    while node.untaken or asked:
        node.turn(core.now + 1, asked)
        assert core.work <= WORK_MAX
        asked = []
    assert pieces == [began + at for at in range(1, 6)]


def test_a_turn_that_is_full_does_no_piece_more_and_the_next_one_begins_with_it() -> None:
    alone, done = Alone(PARTITIONS), list[str]()
    busy(alone)
    node = alone.node
    core = node.core

    def piece() -> None:
        done.append("piece")
        core.work += WORK_MAX // 2
        if done.count("piece") < 4:
            core.resume(piece)

    def little() -> None:
        done.append("little")
        core.work += LITTLE
        core.put_off(little)

    def large(_session: int, _request: Get) -> None:
        """One request that is as much as there may be in a turn."""
        done.append("large")
        core.work += WORK_MAX

    node._on_request[Get] = large  # type: ignore[assignment]  # it stands for whatever is large
    core.resume(piece)
    core.put_off(little)
    asked: list[Event] = [Asked(1, Get(2, "acc", [b"k"]))] * 3
    told = list[list[str]]()
    while asked or node.untaken or core.resumed:
        done_before = len(done)
        node.turn(core.now + 1, asked)
        told.append(done[done_before:])
        asked = []
    assert told == [
        ["little", "large"],
        ["little", "piece", "large"],
        ["little", "large"],
        ["little", "piece", "piece"],
        ["little", "piece"],
    ]


def test_the_answers_that_a_partition_keeps_are_work_for_a_checkpoint() -> None:
    """As they are taken in then, and written."""

    def work_of(answers: int) -> int:
        alone = Alone()
        for number in range(1, answers + 1):
            alone.put(CLIENT, number, 0)
        changes = alone.node.core.replica.changes
        alone.node.core.replica.freeze(0, [])
        return sum(changes.pieces())

    assert work_of(2 * ANSWERS) - work_of(ANSWERS) == ANSWERS // 16 + 1, "with their bytes"


def test_what_nobody_has_any_more_is_freed_in_pieces() -> None:
    """Of very many things that hold little, and of one that holds very much."""
    little = {number: {b"k": b"v"} for number in range(4 * FREED_AT_ONCE)}
    much = {b"k%d" % number: b"v" for number in range(8 * FREED_AT_ONCE)}
    held: list[dict[Any, Any]] = [little, {0: much}, {1: [b"k"] * 10}]
    least, left = FREED_AT_ONCE // FREED_OF_WORK, len(little) + len(much)
    for work in empty(held):
        now = len(little) + len(much)
        assert left - now <= FREED_AT_ONCE
        assert work < 2 * least
        left = now
    assert not any([little, much, *held])


def test_what_is_looked_through_is_work() -> None:
    """Of a map whether copies move, once; and of a copy of who rests whether it has a gap, for each record that comes."""
    alone = Alone(PARTITIONS)
    for number in range(2 * LOOKED_OF_WORK):
        alone.ask(Put(1, tx_of(CLIENT, number + 1), f"ns{number}", [b"k"], [b"v"]))
    core, demander, steps = alone.node.core, alone.node.demander, alone.node.steps
    assert core.topology is not None
    place = core.topology.place("ns0", b"k")
    core.work, steps._moving = 0, (None, 0)
    assert (steps.moving, steps.moving, core.work) == (0, 0, PARTITIONS // MOVING_OF_WORK)
    core.work = 0
    assert not demander.passes_over(place)
    assert not core.work, "it does not rest"
    demander.rest.until, demander._queue = 1 << 62, {"n2": {place: None}}
    assert not demander.passes_over(place)
    assert alone.node.core.work == 2
