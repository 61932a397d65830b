"""What a turn costs at the limits of data and transactions, in functions that it calls and in steps, and not in time.

Each is told of little and of much that was there before, and takes the same of both: costs grow with what changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from engine.data.counting import Counting
from engine.data.locks import LockTable
from engine.data.scans import SCAN_CHUNK_ROWS_MAX, SCAN_ROWS_MAX
from engine.node.node import Node
from engine.protocol.requests import (
    KEYS_AT_ONCE,
    Admin,
    CommitTx,
    Cut,
    Failed,
    Get,
    KeepCut,
    Lock,
    Put,
    Request,
    Rows,
    Scan,
    StageWrites,
    TakeCut,
    Unlock,
    Values,
)
from engine.state.store import SORTED_MAX, Page
from engine.transactions.deadlocks import CIRCLES_MAX
from engine.turn.effects import Effects
from engine.turn.events import Asked, ClientSeen, Event
from engine.turn.settings import Settings
from rebalance.ports import WORK_MAX
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.test_turns import NODES, Calls, Work
from tests.sim.world import SECOND, World
from wal.ids import NO_ERA, Era, Fragment, TxId, partition_of


def _tx(session: int, number: int = 1) -> TxId:
    return session.to_bytes(10, "big") + number.to_bytes(6, "big")


def _node(machine: Machine) -> Node:
    assert machine.node is not None
    return machine.node


def _keys_of(partition: int, count: int) -> list[bytes]:
    """So many keys of one of 64 partitions."""
    all_of_it = (key for key in map(b"k%d".__mod__, range(100 * count)) if partition_of(key, 64) == partition)
    return sorted(islice(all_of_it, count))


def _told(world: World, machine: Machine, events: Sequence[Event]) -> int:
    """How many functions were called by the turn that called the most, of those that took these events at once."""
    calls = world.costs = Calls()
    for event in events:
        machine.receive(event)
    world.run_for(SECOND // 100)
    return calls.most


# What is staged of large transactions.


def _of_staged(many: int) -> list[int]:
    """A hundred pieces, a hundred transactions given up, a connection that breaks and leases that end, beside so many."""
    found: list[int] = []
    with World(Draws(1), Settings(cluster="sim", partitions=1, backups=0)) as world:
        machine = world.add_machine("n1")
        world.form(["n1"])
        replies: list[object] = []
        one, other = machine.new_session(replies.append), machine.new_session(replies.append)

        def staged(number: int, session: int) -> Asked:
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", [b"k"], [b"v"])]
            return Asked(session, StageWrites(number, _tx(number), _tx(number), 0, 1, 9, writes))

        for number in range(many):
            machine.receive(staged(number, one))
        world.run_for(SECOND // 10)
        found.append(_told(world, machine, [staged(many + n, other) for n in range(100)]))
        given_up = [Asked(one, Unlock(n, _tx(n))) for n in range(100)]
        found.append(_told(world, machine, given_up))
        found.append(_told(world, machine, [ClientSeen(other, "", "")]))
        assert len(_node(machine).coordinator.staging._staged) == many - 100
        calls = world.costs = Calls()
        world.run_for(60 * SECOND)
        found.append(calls.most)
        assert not _node(machine).coordinator.staging._staged
        assert not any(isinstance(reply, Failed) for reply in replies), replies
    return found


def test_what_others_have_staged_costs_nobody_anything() -> None:
    few, many = _of_staged(1_000), _of_staged(4_000)
    for little, much in zip(few, many, strict=True):
        assert much <= little + 500, f"{few}, {many}"


# Snapshots.


def _of_cuts(many: int) -> list[int]:
    """Outcomes, a page and values of the past, cuts that are let go of, a member that is lost, and the end of all leases,
    beside so many snapshots, in each of which the same fragment was overwritten."""
    found: list[int] = []
    with World(Draws(1), Settings(cluster="sim", partitions=64, backups=2)) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        topology = world.newest()
        assert topology is not None
        machine = world.machines[topology.placements[0].primary or ""]
        replies: list[object] = []
        session = machine.new_session(replies.append)

        def ask(*requests: Request) -> list[object]:
            replies.clear()
            calls = world.costs = Calls()
            for request in requests:
                machine.receive(Asked(session, request))
            assert world.run_while(lambda: len(replies) < len(requests), at_most=10 * SECOND, look_every=SECOND // 1_000)
            found.append(calls.most)
            return list(replies)

        one, two = _keys_of(0, 600), _keys_of(1, 100)
        ask(Put(1, _tx(1), "n", one, [b"v"] * len(one)))
        cuts: list[Era] = []
        for number in range(many):
            for answer in ask(TakeCut(1, b"%016d" % number)):
                assert isinstance(answer, Cut), answer
                cuts.append(answer.cut)
            ask(Put(1, _tx(2, 1 + number), "n", one[:1], [b"%d" % number]))
        found.clear()
        every: list[Request] = [Scan(1, "n", [0], b"", None, 1_000, cut=cuts[0], marks=True), Get(2, "n", one, cut=cuts[0])]
        rows, values = sorted(ask(*every), key=lambda answer: isinstance(answer, Values))
        assert isinstance(rows, Rows)
        assert isinstance(values, Values)
        assert rows.values == [b"v"] * len(one)
        assert 200 < len(values.values) <= len(one), "of many cuts the rest is to be asked for again"
        assert all(value == b"v" for _, _, value in values.values)
        for number in range(100):
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", [one[number], two[number]], [b"w", b"w"])]
            machine.receive(Asked(session, CommitTx(number, _tx(3 + number), _tx(3 + number), True, writes, [], [])))
        calls = world.costs = Calls()
        world.run_for(SECOND // 10)
        found.append(calls.most)
        gone = [(cut, b"%016d" % number) for number, cut in enumerate(cuts)][1:-1:2]
        ask(KeepCut(1, *gone[0], over=True, others=gone[1:10]))
        calls = world.costs = Calls()
        next(world.machines[name] for name in NODES if name != machine.name).stop("killed", process_only=True)
        world.run_for(5 * SECOND)
        found.append(calls.most)
        assert len(_node(machine).cuts.leases) == many - 10
        calls = world.costs = Calls()
        world.run_for(20 * SECOND)
        found.append(calls.most)
        assert not _node(machine).cuts.leases
    return found


def test_a_turn_costs_the_same_however_many_snapshots_are_open() -> None:
    """But for those by which the one fragment was overwritten that is read: its readers ask one after the other."""
    few, many = _of_cuts(50), _of_cuts(200)
    for little, much in zip(few, many, strict=True):
        assert much <= 2 * little + 400, f"{few}, {many}"


# Locks.


class Busy(Calls):
    """The same, where each turn takes a while: so that what comes meanwhile is there at once."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        return super().turn(node, now, events)[0], SECOND // 1_000


class Stand:
    """One node, or several, a session with the primary of a partition, and what it has answered."""

    def __init__(self, world: World, nodes: Sequence[str], keys: Sequence[bytes]) -> None:
        self.world = world
        for name in nodes:
            world.add_machine(name)
        world.form(list(nodes))
        self.replies: list[object] = []
        topology = world.newest()
        assert topology is not None
        place = partition_of(keys[0], len(topology.placements))
        self.machine = world.machines[topology.placements[place].primary or ""]
        self.session = self.machine.new_session(self.replies.append)

    @property
    def locks(self) -> LockTable:
        return _node(self.machine).locks

    def ask(self, *requests: Request) -> None:
        for request in requests:
            self.machine.receive(Asked(self.session, request))

    def lock_all(self, owner: TxId, keys: Sequence[bytes]) -> None:
        for at in range(0, len(keys), KEYS_AT_ONCE):
            self.ask(Lock(1, owner, "n", list(keys[at : at + KEYS_AT_ONCE]), 60_000))
        assert self.world.run_while(lambda: len(self.locks.keys_of(owner)) < len(keys), at_most=5 * SECOND)
        self.world.run_for(SECOND // 10)
        self.replies.clear()

    def calls(self, seconds: float, *requests: Request) -> int:
        """How many functions the turn called that called the most, while these were asked and for some time after."""
        calls = self.world.costs = Busy()
        self.ask(*requests)
        self.world.run_for(int(seconds * SECOND))
        return calls.most


def _one(count: int) -> list[bytes]:
    """Keys of one partition."""
    return [b"{one}%d" % number for number in range(count)]


MANY = 30_000
CALLS_MAX = 45_000
"""Of one turn over so many keys: fewer than two for each, where one that does all of it at once calls ten."""


@pytest.mark.parametrize("ends", ["too late", "given up"])
def test_who_waits_for_very_many_keys_gives_them_back_in_pieces(ends: str) -> None:
    """Half of them it has, for the others it stands in line; who looks for circles looks at some lines at a time."""
    keys = _one(MANY)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0, lock_timeout_ms=60_000)) as world:
        stand = Stand(world, ["n1"], keys)
        stand.lock_all(_tx(1), keys[::2])
        assert stand.calls(1, Put(2, _tx(2), "n", keys, [b"v"] * len(keys), within_ms=3_000)) <= CALLS_MAX
        assert len(stand.locks.keys_of(_tx(2))) == len(keys) // 2
        given_up = Admin(3, "give-up", {"tx": [_tx(2).hex()], "yes": []})
        assert stand.calls(2, *[given_up] * (ends == "given up")) <= CALLS_MAX
        refused = [reply for reply in stand.replies if isinstance(reply, Failed)]
        assert [reply.code for reply in refused] == ["LockTimeout"], stand.replies
        assert not stand.locks.keys_of(_tx(2))
        assert not stand.locks.awaited


def test_very_many_who_have_what_they_waited_for_are_told_in_turn() -> None:
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world:
        stand = Stand(world, ["n1"], _one(1))
        stand.lock_all(_tx(1), _one(1))
        stand.ask(*(Lock(number, _tx(number), "n", _one(1), 4_000, shared=True) for number in range(2, 15_000)))
        world.run_for(SECOND)
        assert stand.locks.waiters == 14_998
        assert stand.calls(1, Unlock(1, _tx(1))) <= CALLS_MAX
        assert len(stand.replies) == 14_999


def test_who_gives_up_counts_those_in_its_way_and_names_one() -> None:
    """A thousand readers of a key, and a thousand writers that wait in vain."""
    steps = 0
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world:
        stand = Stand(world, ["n1"], _one(1))
        stand.ask(*(Lock(number, _tx(number), "n", _one(1), 4_000, shared=True) for number in range(1_000)))
        world.run_for(SECOND // 2)
        stand.ask(*(Lock(number, _tx(number), "n", _one(1), 1_000) for number in range(1_000, 2_000)))
        world.run_for(SECOND // 2)
        sharing: Any = stand.locks._sharing

        class Counted(dict[TxId, bool]):
            """Readers, each of whom is a step."""

            def __iter__(self) -> Iterator[TxId]:
                nonlocal steps
                for reader in super().__iter__():
                    steps += 1
                    yield reader

        (key,) = sharing
        sharing[key] = Counted(sharing[key])
        stand.replies.clear()
        world.run_for(SECOND)
        told = [reply.message for reply in stand.replies if isinstance(reply, Failed)]
        assert len(told) == 1_000
        assert all("and 999 more" in message for message in told), told[0]
        assert steps <= 50_000, "as many as are looked at for circles now and then"


class Refused(Observer):
    """How many were refused in one turn at most."""

    def __init__(self) -> None:
        self.most = 0

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Count them."""
        self.most = max(self.most, sum(isinstance(reply, Failed) for _, reply in effects.reply))


def test_very_many_circles_are_opened_in_several_turns() -> None:
    """A thousand pairs on one node, each of two who wait for each other."""
    keys = _one(2_000)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0, lock_lease_ms=60_000)) as world:
        stand = Stand(world, ["n1"], keys)
        stand.ask(*(Lock(number, _tx(number), "n", [key], 4_000) for number, key in enumerate(keys)))
        world.run_for(SECOND // 2)
        stand.replies.clear()
        in_turn = Refused()
        world.watch([in_turn])
        crossing = [Lock(n, _tx(n), "n", [keys[n ^ 1]], 30_000, holding=True) for n in range(len(keys))]
        assert stand.calls(2, *crossing) <= 2 * CALLS_MAX
        refused = [reply for reply in stand.replies if isinstance(reply, Failed)]
        assert {reply.code for reply in refused} == {"Deadlock"}
        assert len(refused) == 1_000
        assert in_turn.most <= 2 * CIRCLES_MAX, "at once where they lie on one node, and at the coordinator"


class Held(Observer):
    """How many keys one transaction has held at most at the end of a turn."""

    def __init__(self) -> None:
        self.most = 0

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Count them."""
        self.most = max(self.most, len(_node(machine).locks.keys_of(_tx(1))))


def test_what_is_prepared_is_held_by_a_new_primary_in_pieces_and_let_go_of_by_who_lost_it() -> None:
    """Its old primary locks as many keys besides; it stands still, and is evicted."""
    keys = _one(MANY)
    other = next(key for key in map(b"o%d".__mod__, range(100)) if partition_of(key, 4) != partition_of(keys[0], 4))
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=2, lock_lease_ms=60_000)) as world:
        stand = Stand(world, NODES, keys)
        writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", [*keys, other], [b"v"] * (len(keys) + 1))]
        stand.ask(CommitTx(1, _tx(1), _tx(1), True, writes, [], [], prepare_only=True))
        assert world.run_while(lambda: not stand.replies, at_most=5 * SECOND)
        stand.lock_all(_tx(2), [b"{one}more%d" % number for number in range(MANY)])
        held = Held()
        world.watch([held])
        stand.machine.pause()
        assert stand.calls(4) <= CALLS_MAX
        assert held.most >= len(keys)
        topology = world.newest()
        assert topology is not None
        assert topology.placements[partition_of(keys[0], 4)].primary != stand.machine.name
        stand.machine.resume()
        assert stand.calls(2) <= CALLS_MAX
        assert not stand.locks.keys_of(_tx(1))
        assert not stand.locks.keys_of(_tx(2))
        assert not stand.locks.lets_go


# Doubt.


def test_for_very_many_outcomes_that_are_overdue_is_asked_in_several_turns() -> None:
    """Of transactions that their clients have prepared, and hold back: who coordinates them is asked again and again."""
    many = 3_000
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0, lock_lease_ms=60_000)) as world:
        stand = Stand(world, ["n1"], _one(1))
        for number in range(many):
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [
                ("n", [b"{one}%d" % number, b"{two}%d" % number], [b"v", b"v"])
            ]
            stand.ask(CommitTx(number, _tx(number), _tx(number), True, writes, [], [], prepare_only=True))
        assert world.run_while(lambda: len(stand.replies) < many, at_most=5 * SECOND)
        node = _node(stand.machine)
        assert len(node.participant.in_doubt()) == many
        asked: list[int] = []
        ask = node.participant._ask_for_outcome

        def counted(tx: TxId, number: int, holder: TxId) -> None:
            asked.append(node.core.turns)
            ask(tx, number, holder)

        node.participant._ask_for_outcome = counted  # type: ignore[method-assign]
        world.costs = Busy()
        world.run_for(3 * SECOND // 2)
        assert len(asked) >= many
        assert max(Counter(asked).values()) <= WORK_MAX + 1


# Reads.


@pytest.mark.parametrize("past", [False, True], ids=["now", "at a cut"])
def test_of_one_partition_very_many_rows_are_read_in_pieces(past: bool) -> None:
    keys = _one(35_000)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world:
        stand = Stand(world, ["n1"], keys)
        for at in range(0, len(keys), KEYS_AT_ONCE):
            stand.ask(Put(1, _tx(1, 1 + at), "n", keys[at : at + KEYS_AT_ONCE], [b"v"] * len(keys[at : at + KEYS_AT_ONCE])))
        stand.ask(TakeCut(2, b"%016d" % 1))
        world.run_for(SECOND)
        cut = next(reply.cut for reply in stand.replies if isinstance(reply, Cut))
        stand.replies.clear()
        work = Work()
        world.watch([work])
        place = partition_of(keys[0], 4)
        stand.ask(Scan(3, "n", [place], b"", None, SCAN_ROWS_MAX, cut=cut if past else NO_ERA))
        world.run_for(SECOND)
        (rows,) = stand.replies
        assert isinstance(rows, Rows)
        assert rows.keys == sorted(keys)[:SCAN_ROWS_MAX]
        assert work.most <= WORK_MAX + SORTED_MAX + SCAN_CHUNK_ROWS_MAX, "what a page puts in order, and reads"


@pytest.mark.parametrize("how", ["now", "stale", "when they expire", "what has expired"])
def test_very_many_who_read_very_many_keys_are_answered_in_several_turns(how: str) -> None:
    """All of them have the one confirmation of the copies, or the one delete, for which they have waited."""
    keys = _one(KEYS_AT_ONCE)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=2)) as world:
        stand = Stand(world, NODES, keys)
        stand.ask(Put(1, _tx(1), "n", keys, [b"v"] * len(keys), ttl_ms=1_000 if how == "what has expired" else 0))
        world.run_for(SECOND * 9 // 10)
        stand.replies.clear()
        if how == "what has expired":
            for name in NODES:
                world.machines[name].wall_offset_ms = 1_000
        stale, age_ms = how == "stale", 0 if how == "stale" else -1
        every = [Get(n, "n", keys, stale=stale, age_ms=age_ms, expiry=how == "when they expire") for n in range(40)]
        assert stand.calls(5, *every) <= CALLS_MAX * (3 if how == "what has expired" else 1)
        assert [len(reply.values) for reply in stand.replies if isinstance(reply, Values)] == [len(keys)] * len(every)


def test_of_very_many_partitions_some_are_counted_in_each_turn() -> None:
    many = 16_384
    counting = Counting(
        Scan(1, "n", list(range(many)), b"", None, 1, count=True), lambda _name: (lambda _: (1, 0), 0), _no_page
    )
    turns = 0
    while not counting.done:
        turns += 1
        assert counting.go_on(WORK_MAX, lambda _number, _start, _next: False) <= WORK_MAX
    assert counting.reply().count == many
    assert turns >= many // WORK_MAX


def _no_page(fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
    raise AssertionError("nothing is walked")
