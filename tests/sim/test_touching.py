"""What a transaction touches of very many keys is held in pieces: all of it is as it was, or nothing is held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.messages import Part
from engine.node.node import Node
from engine.protocol.requests import CommitTx, Done, Failed, Put, Reply, Request
from engine.state.ahead import LARGE_KEYS
from engine.transactions.touching import INTERRUPTED, Want
from engine.turn.events import Asked
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.world import SECOND, World
from tests.support.probes import heard
from wal.ids import partition_of

PARTITIONS = 4
MANY = 3 * LARGE_KEYS
TX, OTHER = b"t" * 16, b"o" * 16


def _keys(number: int, count: int) -> list[bytes]:
    """So many keys of a partition."""
    found = (key for key in (b"k%d" % at for at in range(2 * PARTITIONS * count + 100)))
    return [key for key in found if partition_of(key, PARTITIONS) == number][:count]


class _One:
    """A node of its own, with very many rows in partition 0."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.replies: dict[int, Reply] = {}

        def note(reply: object) -> None:
            assert isinstance(reply, Reply)
            self.replies[reply.id] = reply

        self.session = machine.new_session(note)
        self.keys = _keys(0, MANY)
        self.elsewhere = _keys(1, 1)
        assert isinstance(self.ask(Put(1, b"p" * 16, "n", self.keys, [b"v"] * MANY)), Done)

    @property
    def node(self) -> Node:
        assert self.machine.node is not None
        return self.machine.node

    def say(self, request: Request) -> None:
        """Ask, and do not wait."""
        self.machine.receive(Asked(self.session, request))

    def ask(self, request: Request) -> Reply:
        """Ask, and wait for the answer."""
        self.say(request)
        assert self.world.run_while(lambda: request.id not in self.replies, at_most=20 * SECOND)
        return self.replies[request.id]

    def commit(self, number: int, *, stale: int | None = None) -> CommitTx:
        """An optimistic one that has read them all, writes the last and one elsewhere; `stale`: which it read long ago."""
        store = self.node.core.replica.store
        held = [store.get(("n", 0), key) for key in self.keys]
        reads = [("n", key, row.epoch, row.counter) for key, row in zip(self.keys, held, strict=True) if row is not None]
        if stale is not None:
            reads[stale] = (*reads[stale][:3], reads[stale][3] - 1)
        written = [self.keys[-1], *self.elsewhere]
        return CommitTx(number, TX, TX, True, [("n", written, [b"w"] * len(written))], [], reads)

    def is_free(self) -> bool:
        """Nobody holds anything, or is about to."""
        self.world.run_for(SECOND)
        return self.node.locks.idle and not self.node.participant.touching.is_under_way(TX, 0)


@contextmanager
def _one() -> Iterator[_One]:
    with World(Draws(1), Settings(cluster="sim", partitions=PARTITIONS, backups=0)) as world:
        machine = world.add_machine("n1")
        world.form(["n1"])
        yield _One(world, machine)


def test_what_has_read_very_many_keys_commits() -> None:
    with _one() as one:
        assert isinstance(one.ask(one.commit(2)), Done)
        row = one.node.core.replica.store.get(("n", 0), one.keys[-1])
        assert row is not None
        assert row.value == b"w"
        assert one.is_free()


def test_one_stale_read_in_the_last_piece_lets_go_of_all() -> None:
    with _one() as one, heard() as reached:
        answer = one.ask(one.commit(2, stale=MANY - 1))
        assert isinstance(answer, Failed)
        assert "was changed since it was read" in answer.message
        assert "tx.pinned_in_vain" in reached
        assert one.is_free()


def test_a_piece_waits_for_the_outcome_of_another_transaction() -> None:
    """Which writes a key that this one writes blindly."""
    with _one() as one, heard() as reached:
        blind = CommitTx(3, TX, TX, True, [("n", [*one.keys, *one.elsewhere], [b"w"] * (MANY + 1))], [], [])
        other = CommitTx(2, OTHER, OTHER, True, [("n", [one.keys[-1]], [b"o"])], [], [], prepare_only=True)
        assert isinstance(one.ask(other), Done)
        one.say(blind)
        one.world.run_for(SECOND // 10)
        assert "tx.a_piece_is_blocked" in reached, one.replies.get(3)
        assert 3 not in one.replies
        assert isinstance(one.ask(CommitTx(4, OTHER, OTHER, True, other.writes, [], [])), Done)
        assert one.world.run_while(lambda: 3 not in one.replies, at_most=20 * SECOND)
        assert isinstance(one.replies[3], Done)
        assert {one.node.core.replica.store.get(("n", 0), key).value for key in one.keys} == {b"w"}  # type: ignore[union-attr]
        assert one.is_free()


def test_one_that_is_aborted_while_it_is_being_held_holds_nothing() -> None:
    with _one() as one:
        touching = one.node.participant.touching
        one.say(one.commit(2))
        assert one.world.run_while(lambda: not one.node.locks.keys_in_doubt(0), at_most=SECOND, look_every=1)
        assert touching.is_under_way(TX, 0), "the first of its pieces are pinned"
        touching.end(TX, 0, TX)
        one.world.run_for(SECOND // 100)
        assert not touching.is_under_way(TX, 0)
        assert not one.node.locks.keys_in(TX, 0)
        assert not list(one.node.locks.keys_in_doubt(0))


def test_who_asks_again_while_it_is_let_go_of_is_to_ask_once_more() -> None:
    with _one() as one, heard() as reached:
        touching = one.node.participant.touching
        one.say(one.commit(2))
        assert one.world.run_while(lambda: not one.node.locks.keys_in_doubt(0), at_most=SECOND, look_every=1)
        told: list[object] = []
        touching.pin_all(
            Want(TX, TX, Part(0, [], [], []), optimistic=True, votes=True), still=lambda: True, then=told.append
        )
        assert told == [INTERRUPTED]
        assert "tx.asked_while_it_is_let_go_of" in reached
        assert one.world.run_while(lambda: 2 not in one.replies, at_most=SECOND)
        assert isinstance(one.replies[2], Done), "what is under way goes on"
        assert one.is_free()
