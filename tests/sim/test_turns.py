"""Real nodes over the simulated network: what a change of topology costs, counted in work and not in time.

No turn does more than it may (`engine.turn.core.WORK_MAX`, and one piece of what is cut), and each fragment is looked at a
number of times that does not grow with how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from engine.data.sizes import BATCH_WORK
from engine.data.under_way import ISSUED_WORK
from engine.messages import Commit, CommitStep, Part, ProposeStep, Replicate
from engine.node.node import Node
from engine.protocol.requests import (
    KEYS_AT_ONCE,
    Admin,
    Check,
    CommitTx,
    Cut,
    Done,
    Failed,
    Get,
    GetStatus,
    Lock,
    Put,
    Report,
    Request,
    Scan,
    TakeCut,
    Unlock,
    Values,
)
from engine.state import replica, rows
from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS
from engine.state.held import FIT_BYTES
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.transactions.commits import Transaction
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event, LogMayShrink, Received, TrimLog
from engine.turn.settings import Settings
from engine.turn.turns import what
from rebalance import table as topologies
from rebalance.deadlines import row_of
from rebalance.demander import AGAIN_PARTS
from rebalance.demanding import PART_HAVES
from rebalance.fragment import FragmentState
from rebalance.lives import Life
from rebalance.messages import CopyReport, Demand, Have, SingleMap
from rebalance.partition import Role
from rebalance.ports import LITTLE, WORK_MAX
from rebalance.promotion import EPOCH_WORK
from rebalance.steps import Step
from tests.sim.costs import Costs, CountingStore, Modelled
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.world import SECOND, World
from tests.support.called import called
from tests.support.probes import heard
from wal.ids import EXPIRIES, NO_BALLOT, Fragment, NodeId, Version, fragment_name, partition_of
from wal.records import Committed, Range, Record, Trimmed, Update, Write

NODES: list[NodeId] = ["n1", "n2", "n3"]
READ_MAX = 10_000
"""Rows that one turn may look at."""
PIECE_MAX = 1_500
"""Of work in what one piece, or one event, may add to a turn that has a little room left."""


class Work(Observer):
    """The work of every turn, and how often a supplier chose a way."""

    def __init__(self) -> None:
        self.most = 0
        self.choices: Counter[str] = Counter()

    def started(self, machine: Machine) -> None:
        """Count what its supplier chooses."""
        supply: Any = self._node(machine).supply
        choose: Callable[..., Any] = supply._choose

        def counted(*arguments: Any, **options: Any) -> Any:
            self.choices[machine.name] += 1
            return choose(*arguments, **options)

        supply._choose = counted

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look what a turn did."""
        self.most = max(self.most, self._node(machine).core.work)

    @staticmethod
    def _node(machine: Machine) -> Node:
        assert machine.node is not None
        return machine.node


def _cluster(world: World, partitions: int, namespaces: int) -> None:
    """Three nodes, and a key in every fragment."""
    for name in NODES:
        world.add_machine(name)
    world.form(NODES)
    _put(world, partitions, namespaces, b"v")


def _put(world: World, partitions: int, namespaces: int, value: bytes) -> None:
    keys: dict[int, bytes] = {}
    number = 0
    while len(keys) < partitions:
        key = b"k%d" % number
        keys.setdefault(partition_of(key, partitions), key)
        number += 1
    topology = world.newest()
    assert topology is not None
    by_node: dict[NodeId, list[bytes]] = {}
    for partition, key in keys.items():
        primary = topology.placements[partition].primary
        assert primary is not None
        by_node.setdefault(primary, []).append(key)
    replies: list[object] = []
    asked = 0
    for name, mine in by_node.items():
        machine = world.machines[name]
        session = machine.new_session(replies.append)
        for namespace in range(namespaces):
            asked += 1
            tx = value + asked.to_bytes(15, "big")
            machine.receive(Asked(session, Put(asked, tx, f"ns{namespace}", mine, [value] * len(mine))))
    assert world.run_while(lambda: len(replies) < asked, at_most=60 * SECOND)
    assert all(isinstance(reply, Done) for reply in replies), replies[0]


def _whole(world: World) -> bool:
    if not world.serving(NODES):
        return False
    topology = world.newest()
    assert topology is not None
    return all(len(placement.in_sync) == len(NODES) for placement in topology.placements)


def _returned(partitions: int, namespaces: int, *, wiped: bool, costs: Costs | None = None) -> Work:
    """n3 goes, misses a write of every fragment, and is back with or without its disk; what that took."""
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=2), costs=costs) as world:
        work = Work()
        _cluster(world, partitions, namespaces)
        n3 = world.machines["n3"]
        n3.stop("killed", process_only=True)
        others = NODES[:2]
        assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(others), at_most=60 * SECOND)
        _put(world, partitions, namespaces, b"w")
        if wiped:
            n3.wipe()
        world.watch([work])
        for name in others:
            work.started(world.machines[name])
        n3.start()
        assert world.run_while(lambda: not _whole(world), at_most=300 * SECOND, look_every=SECOND // 5)
    return work


def _members(world: World) -> list[NodeId]:
    topology = world.newest()
    assert topology is not None
    return [member.node for member in topology.members]


def test_a_return_to_many_fragments_is_cut_into_turns() -> None:
    work = _returned(256, 16, wiped=False)
    assert work.most <= WORK_MAX + PIECE_MAX
    assert 256 * 16 <= sum(work.choices.values()) <= 2 * 256 * 16, "each fragment's way is chosen about once"


def test_a_wiped_node_is_supplied_without_looking_at_everything_again_and_again() -> None:
    once, twice = _returned(128, 2, wiped=True), _returned(256, 2, wiped=True)
    assert twice.most <= WORK_MAX + PIECE_MAX
    assert sum(once.choices.values()) >= 128 * 2, "each fragment's way is chosen"
    assert sum(twice.choices.values()) <= 2.5 * sum(once.choices.values())
    assert sum(twice.choices.values()) <= 4 * 256 * 2


@pytest.mark.parametrize("what_is_written", ["what is new", "what is there"])
def test_what_primaries_send_of_many_fragments_comes_together_and_is_left_to_later_turns(what_is_written: str) -> None:
    """Where turns take their time, what was sent in several of them is there at once; a second later it is stable."""
    partitions, namespaces = 512, 8
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=2), costs=Modelled()) as world:
        work = Work()
        if what_is_written == "what is there":
            _cluster(world, partitions, namespaces)
        else:
            _cluster(world, partitions, 0)
        world.watch([work])
        _put(world, partitions, namespaces, b"w")
        world.run_for(3 * SECOND)
    assert work.most <= WORK_MAX + BATCH_WORK + LITTLE


def test_what_is_asked_for_again_is_cut_into_turns() -> None:
    """Of all that who comes back has asked for, and of which nothing has come: of two suppliers some parts each."""
    with World(Draws(1), Settings(cluster="sim", partitions=256, backups=2)) as world:
        work = Work()
        _cluster(world, 256, 16)
        n3 = world.machines["n3"]
        n3.stop("killed", process_only=True)
        others = NODES[:2]
        assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(others), at_most=60 * SECOND)
        n3.start()

        def is_asking() -> bool:
            sessions = n3.node.demander._sessions.values() if n3.node is not None else ()
            return len(sessions) == 2 and all(s.said >= AGAIN_PARTS for s in sessions)

        assert world.run_while(lambda: not is_asking(), at_most=60 * SECOND, look_every=SOON)
        world.network.cut("hears nothing", [(name, "n3") for name in others])
        demands = Demands()
        world.watch([work, demands])
        world.run_for(SECOND // 2)
    assert demands.all >= 2 * AGAIN_PARTS, "all of it is said again"
    assert work.most <= WORK_MAX + PIECE_MAX


PARTITIONS_MOST = 16_384
CALLS_MAX = 220_000
"""Of functions, in one turn. Of a map that changes all of them, each partition is looked at a dozen times in one."""
FIRST_CALLS_MAX = 60_000
"""The same, of the first map of so many: fewer than four for each of them."""


class Calls:
    """`tests.sim.costs.Costs`: for nothing, and how many functions the turn called that called the most."""

    def __init__(self) -> None:
        self.most = 0
        self.over = ""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        with called() as calls:
            effects = node.turn(now, events)
        if calls.total() > self.most:
            self.most, self.over = calls.total(), f"{node.core.node}: {what(events)}"
        return effects, 0


FRAGMENT_CALLS_MAX = 90_000
"""The same, of a turn in a cluster with as many fragments as there are here: fewer than six for each of them, in which
hundreds of writes come to count; each of them is applied and ended by itself, so that those of one key may go together."""


def test_no_turn_walks_over_all_fragments() -> None:
    """Not the single map of an exchange, nor the plan that comes of three of them."""
    calls = Calls()
    _returned(128, 128, wiped=False, costs=calls)
    assert calls.most <= FRAGMENT_CALLS_MAX, calls.over


def test_an_operator_is_told_of_all_fragments_in_pieces() -> None:
    """Of each what it is, and of some that are asked for no others."""
    calls = Calls()
    with World(Draws(1), Settings(cluster="sim", partitions=256, backups=2)) as world:
        _cluster(world, 256, 30)
        n3 = world.machines["n3"]
        n3.stop("killed", process_only=True)
        n3.wipe()
        n3.start()
        assert world.run_while(lambda: not _whole(world), at_most=300 * SECOND, look_every=SECOND // 5)
        _told(world, "n3", "checkpoint")
        world.run_for(5 * SECOND)
        work = Work()
        world.watch([work])
        world.costs = calls
        all_of_them = _told(world, "n3", "counters")
        some = _told(world, "n3", "counters", namespace=["ns3", "ns7"], partitions=["250", "900"])
        progress = _told(world, "n3", "progress")
        assert calls.most <= 25_000, calls.over
        assert work.most <= WORK_MAX + PIECE_MAX
        node = _node(world, "n3")
        assert list(all_of_them) == [fragment_name(name) for name in sorted(node.core.replica.fragments, key=_by_number)]
        for name, fragment in node.core.replica.fragments.items():
            told = all_of_them[fragment_name(name)]
            assert (told["lwm"], told["hwm"], told["ranges"]) == (fragment.counter.lwm, fragment.counter.hwm, [])
            assert (told["digest"], told["epoch"]) == (f"{fragment.digest:016x}", fragment.epochs[-1][0])
            assert (told["loading"], told["primary"], told["contents"]) == (False, node.core.local[name[1]].mine, None)
        assert sorted(some) == sorted(f"ns{of}/{number}" for of in (3, 7) for number in range(250, 256))
        assert all(told["contents"] is not None for told in some.values()), "few are asked for"
        assert progress["fragments"] == {"full": 256 * 30}
        assert len(progress["reasons"]) == 256 * 30


def _by_number(name: Fragment) -> tuple[int, int]:
    return name[1], int(name[0].removeprefix("ns"))


def _told(world: World, name: NodeId, command: str, **arguments: list[str]) -> dict[str, Any]:
    """What a node answers an operator."""
    replies: list[object] = []
    machine = world.machines[name]
    machine.receive(Asked(machine.new_session(replies.append), Admin(1, command, arguments)))
    assert world.run_while(lambda: not replies, at_most=60 * SECOND)
    (reply,) = replies
    assert isinstance(reply, Report), reply
    told: dict[str, Any] = msgspec.json.decode(reply.body)
    return told


class Begun:
    """`tests.sim.costs.Costs`: for nothing, and how many fragments began an epoch in the turn in which most did."""

    def __init__(self) -> None:
        self.most = 0
        self._begun = 0

    def begin(self, *_: object) -> None:
        """One does."""
        self._begun += 1

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        self._begun = 0
        effects = node.turn(now, events)
        self.most = max(self.most, self._begun)
        return effects, 0


def test_many_fragments_begin_an_epoch_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """On whoever comes to lead them and on the copies: each is to be stored anew, as it was and as it is."""
    begun, begin_epoch = Begun(), FragmentState.begin_epoch

    def begin(fragment: FragmentState, epoch: int, first: int) -> list[Write]:
        begun.begin()
        return begin_epoch(fragment, epoch, first)

    monkeypatch.setattr(FragmentState, "begin_epoch", begin)
    with World(Draws(1), Settings(cluster="sim", partitions=64, backups=2), costs=begun) as world:
        _cluster(world, 64, 128)
        begun.most = 0
        world.machines["n3"].stop("killed", process_only=True)
        assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(NODES[:2]), at_most=60 * SECOND)
    assert 0 < begun.most <= 2 * WORK_MAX // EPOCH_WORK


class Demands(Observer):
    """How many parts of demands a turn said that said the most; and how many were said in all."""

    def __init__(self) -> None:
        self.most = self.all = 0

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Count them."""
        said = sum(type(message) is Demand for _, message in effects.send)
        self.most, self.all = max(self.most, said), self.all + said


def test_the_largest_map_is_made_changed_and_taken_in_pieces() -> None:
    """A cluster is formed, and another node is to hold the data of one: both place all partitions.

    And the partitions that it asks for are no less to say because there is nothing in them.
    """
    calls, demands = Calls(), Demands()
    with World(Draws(1), Settings(cluster="sim", partitions=PARTITIONS_MOST, backups=2), costs=calls) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        assert calls.most <= FIRST_CALLS_MAX, f"{calls.most} calls: {calls.over}"
        world.add_machine("n4").start()
        assert world.run_while(lambda: len(_members(world)) < 4, at_most=60 * SECOND)
        world.watch([demands])
        world.command(world.machines["n1"], "baseline", {"nodes": ["n1", "n2", "n4"], "yes": []})
        baseline = ("n1", "n2", "n4")
        assert world.run_while(lambda: any(_baseline(m) != baseline for m in world.running), at_most=60 * SECOND)
        assert world.run_while(lambda: not demands.most, at_most=60 * SECOND)
        world.run_for(SECOND)
    assert calls.most <= CALLS_MAX, f"{calls.most} calls: {calls.over}"
    assert 0 < demands.most <= (WORK_MAX + PIECE_MAX) // PART_HAVES


LOST_CALLS_MAX = 8_000
"""The same, of the map by which a member is lost: fewer than one for two partitions, of which all is known before."""


class CallsOfMaps(Calls):
    """The same, of turns in which a map takes effect."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        before, most, over = node.core.version, self.most, self.over
        taken = super().turn(node, now, events)
        if node.core.version == before:
            self.most, self.over = most, over
        return taken


def test_the_map_by_which_a_member_is_lost_is_one_walk_over_all_partitions() -> None:
    """It changes each of them: what rules and the operator are told of that is found while it is looked at."""
    calls = CallsOfMaps()
    with World(Draws(1), Settings(cluster="sim", partitions=PARTITIONS_MOST, backups=2), costs=calls) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        world.run_for(SECOND)
        calls.most = 0
        world.machines["n3"].stop("killed", process_only=True)
        assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(NODES[:2]), at_most=60 * SECOND)
    assert 0 < calls.most <= LOST_CALLS_MAX, f"{calls.most} calls: {calls.over}"


def _baseline(machine: Machine) -> tuple[NodeId, ...]:
    assert machine.node is not None
    topology = machine.node.core.topology
    return topology.baseline if topology is not None else ()


def test_who_stood_still_takes_a_backlog_of_maps_in_several_turns() -> None:
    """And the single maps of an exchange that is over are no less to read."""
    partitions, maps, told = 2_048, 12, 12
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=2)) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        node = _node(world, "n1")
        newest = world.newest()
        assert newest is not None
        leader = newest.member("n2")
        assert leader is not None
        encoded = topologies.encode(newest)
        copies = [CopyReport("n", number, 0, 0, 0, 0) for number in range(partitions)]
        single = SingleMap(newest.version, NO_BALLOT, Life("", 0, 0, []), [], copies, [])
        events: list[Event] = [Received("n2", leader.allocation, leader.incarnation, single) for _ in range(told)]
        for number in range(newest.version.number + 1, newest.version.number + 1 + maps):
            before = ((newest.version, topologies.hash_of(encoded)),)
            newest = msgspec.structs.replace(newest, version=Version(number, 0), before=before)
            encoded = topologies.encode(newest)
            commit = Commit(newest.version, encoded)
            events.append(Received("n2", leader.allocation, leader.incarnation, commit))
        taken = list[int]()
        while events or node.untaken:
            effects = node.turn(world.now, events)
            taken.append(sum(type(record) is Committed for record in effects.log))
            events = []
        assert sum(taken) == maps
        assert max(taken) <= 3, taken
        assert taken[:2] == [0, 0], "what is of no use was read first"


def test_a_large_step_and_its_commit_come_in_turns_of_their_own() -> None:
    """Who stood still finds both before it: to read the second is as much as to read the first (seed 80032)."""
    partitions = 2_048
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=2)) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        node, newest = _node(world, "n1"), world.newest()
        leader = newest.member("n2") if newest is not None else None
        assert newest is not None
        assert leader is not None
        moved = [(number, msgspec.structs.replace(placed, version=9)) for number, placed in enumerate(newest.placements)]
        step = Step(newest.version, topologies.hash_of(topologies.encode(newest)), moved, [])
        said = (ProposeStep(NO_BALLOT, step), CommitStep(step))
        node.turn(world.now, [Received("n2", leader.allocation, leader.incarnation, each) for each in said])
        assert len(node.untaken) == 1
        node.turn(world.now, [])
        assert not node.untaken


def test_of_very_many_fragments_a_log_says_in_several_turns_what_it_no_longer_has() -> None:
    """Each is changed by that: of 262,144 it was one turn of 664 ms. And it goes when all of them are told."""
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world:
        world.add_machine("n1")
        world.form(["n1"])
        node, first = _node(world, "n1"), 7
        dropped = [(f"ns{at // 4}", at % 4, at) for at in range(1, 20_000)]
        events: list[Event] = [LogMayShrink(Trimmed(first, dropped))]
        told, most = list[Range](), 0
        while len(told) < len(dropped):
            effects = node.turn(world.now, events)
            trims = [record for record in effects.log if isinstance(record, Trimmed)]
            told += [each for trim in trims for each in trim.dropped]
            most, events = max(most, sum(len(trim.dropped) for trim in trims)), []
            whole = len(told) == len(dropped)
            assert effects.tasks == ([TrimLog(first)] if whole else [])
            assert node.core.replica.trimmed == (first if whole else 1)
        assert told == dropped
        assert most <= WORK_MAX
        assert all(node.core.replica.fragment((name, number)).history_from == at for name, number, at in dropped)


def test_demands_that_come_all_at_once_are_left_to_later_turns() -> None:
    """A node that could not listen for a while has a hundred of them before it, and has to look at each."""
    with World(Draws(1), Settings(cluster="sim", partitions=8, backups=2)) as world:
        _cluster(world, 8, 1)
        core, node = _node(world, "n1").core, _node(world, "n1")
        member = core.topology.member("n2") if core.topology is not None else None
        assert member is not None
        haves = [Have(f"ns{at}", 0, 0, 0, [], [], [], 0, False, False, []) for at in range(PART_HAVES)]
        demands = [Demand(core.version, 1, [0], haves, 1, part, 100) for part in range(100)]
        events = [Received("n2", member.allocation, member.incarnation, demand) for demand in demands]
        turns = 0
        while events or node.untaken:
            node.turn(world.now, events)
            assert core.work <= WORK_MAX + PIECE_MAX
            events, turns = [], turns + 1
        assert turns >= len(demands) * PART_HAVES // (WORK_MAX + PIECE_MAX)


def _node(world: World, name: NodeId) -> Node:
    node = world.machines[name].node
    assert node is not None
    return node


def _batch(*, locked: bool) -> tuple[Work, list[object]]:
    """10,000 keys of one node in one request; `locked`: a transaction takes the last key while it is being issued."""
    partitions = 512
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=0)) as world:
        work = Work()
        world.watch([work])
        machine = world.add_machine("n1")
        world.form(["n1"])
        keys = [b"k%d" % number for number in range(10_000)]
        replies: list[object] = []
        session = machine.new_session(replies.append)
        put = Put(1, b"p" * 16, "n", keys, [b"v"] * len(keys))
        begun = dict.fromkeys(partition_of(key, partitions) for key in keys)
        last = next(key for key in keys if partition_of(key, partitions) == list(begun)[-1])
        turns = machine.turns
        machine.receive(Asked(session, put))
        if locked:
            machine.receive(Asked(session, Lock(2, b"t" * 16, "n", [last], 1_000)))
            world.run_for(SECOND)
            assert [type(reply).__name__ for reply in replies] == ["Values"], "the batch waits for the transaction"
            machine.receive(Asked(session, Unlock(3, b"t" * 16)))
        assert world.run_while(lambda: not any(getattr(r, "id", 0) == 1 for r in replies), at_most=10 * SECOND)
        assert machine.turns - turns >= 5
        assert machine.node is not None
        store = machine.node.core.replica.store
        assert all(store.get(("n", partition_of(key, partitions)), key) for key in keys)
    return work, replies


def test_a_large_batch_is_cut_into_turns() -> None:
    work, replies = _batch(locked=False)
    assert work.most <= WORK_MAX + PIECE_MAX + 10_000 // 4, "it is looked at whole, and issued in pieces"
    assert [type(reply).__name__ for reply in replies] == ["Done"]


def test_a_transaction_may_come_between_the_pieces_of_a_batch() -> None:
    with heard() as reached:
        _, replies = _batch(locked=True)
    assert "write.cut_batch_asked_anew" in reached
    assert sorted(type(reply).__name__ for reply in replies) == ["Done", "Done", "Values"]


def test_many_keys_are_read_locked_and_checked_in_pieces() -> None:
    keys = [b"k%d" % number for number in range(10_000)]
    with World(Draws(1), Settings(cluster="sim", partitions=512, backups=0)) as world:
        work = Work()
        machine = world.add_machine("n1")
        world.form(["n1"])
        replies: list[object] = []
        session = machine.new_session(replies.append)
        machine.receive(Asked(session, Put(1, b"p" * 16, "n", keys, [b"v"] * len(keys))))
        assert world.run_while(lambda: not replies, at_most=10 * SECOND)
        world.watch([work])

        def ask(request: Request) -> object:
            replies.clear()
            machine.receive(Asked(session, request))
            assert world.run_while(lambda: not replies, at_most=10 * SECOND)
            return replies[0]

        read = ask(Get(2, "n", keys))
        assert isinstance(read, Values)
        assert [value for _, _, value in read.values] == [b"v"] * KEYS_AT_ONCE, "the rest is to be asked for again"
        locked: list[bytes] = []
        while len(locked) < len(keys):
            answer = ask(Lock(3, b"t" * 16, "n", keys[len(locked) :], 1_000))
            assert isinstance(answer, Values)
            locked += keys[len(locked) : len(locked) + len(answer.values)]
        held = [("n", key) for key in keys]
        reads = [("n", key, epoch, counter) for key, (epoch, counter, _) in zip(keys, read.values, strict=False)]
        assert isinstance(ask(Check(4, b"t" * 16, held, reads)), Done)
        assert isinstance(ask(Check(5, b"t" * 16, held[-1:], [])), Failed), "the locks went with the check"
        assert work.most <= WORK_MAX + PIECE_MAX + KEYS_AT_ONCE // 2


def test_a_large_transaction_is_put_into_parts_in_pieces() -> None:
    keys = [b"k%d" % number for number in range(10_000)]
    with World(Draws(1), Settings(cluster="sim", partitions=64, backups=0)) as world:
        work = Work()
        machine = world.add_machine("n1")
        world.form(["n1"])
        replies: list[object] = []
        session = machine.new_session(replies.append)
        world.watch([work])
        commit = CommitTx(1, b"t" * 16, b"o" * 16, True, [("n", keys, [b"v"] * len(keys))], [], [])
        machine.receive(Asked(session, commit))
        machine.receive(Asked(session, msgspec.structs.replace(commit, id=2)))
        machine.receive(Asked(session, GetStatus(3, b"t" * 16, partition_of(keys[0], 64))))
        assert world.run_while(lambda: len(replies) < 3, at_most=10 * SECOND)
        assert sorted(type(reply).__name__ for reply in replies) == ["Done", "Done", "Status"]
        assert machine.node is not None
        store = machine.node.core.replica.store
        assert all(store.get(("n", partition_of(key, 64)), key) for key in keys)
        assert work.most <= 2 * (WORK_MAX + PIECE_MAX), (
            "what is ended in a turn is applied in it, as nobody else has a copy"
        )


@pytest.mark.parametrize("ends", ["in time", "too late"])
def test_a_batch_of_one_partition_that_waits_for_a_transaction_is_taken_or_given_up_as_a_whole(ends: str) -> None:
    keys = _one_partition(10_000)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0, lock_timeout_ms=1_000)) as world:
        machine = world.add_machine("n1")
        world.form(["n1"])
        work = Work()
        replies: list[object] = []
        session = machine.new_session(replies.append)
        machine.receive(Asked(session, Lock(1, b"t" * 16, "n", keys[-1:], 1_000)))
        assert world.run_while(lambda: not replies, at_most=SECOND)
        world.watch([work])
        calls = Calls()
        world.costs = calls
        machine.receive(Asked(session, Put(2, b"p" * 16, "n", keys, [b"v"] * len(keys))))
        world.run_for(SECOND // 2)
        node = _node(world, "n1")
        assert len(node.locks.keys_of(b"p" * 16)) == len(keys) - 1
        if ends == "in time":
            machine.receive(Asked(session, Unlock(3, b"t" * 16)))
        assert world.run_while(lambda: len(replies) < (3 if ends == "in time" else 2), at_most=2 * SECOND)
        if ends == "in time":
            assert [type(reply).__name__ for reply in replies] == ["Values", "Done", "Done"]
            assert all(node.core.replica.store.get(("n", 0), key) for key in keys)
        else:
            assert isinstance(replies[1], Failed)
            assert node.locks.keys_of(b"t" * 16) == [("n", keys[-1])]
        assert world.run_while(lambda: node.locks.is_owner(b"p" * 16), at_most=SECOND)
        assert work.most <= WORK_MAX + PIECE_MAX
        assert calls.most <= 5 * len(keys), calls.over


@pytest.mark.parametrize("optimistic", [True, False])
def test_very_many_keys_of_a_transaction_are_pinned_for_nothing_when_an_exchange_comes_before_they_are_logged(
    optimistic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, owner = _one_partition(10_000), b"t" * 16
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world:
        machine = world.add_machine("n1")
        world.form(["n1"])
        node = _node(world, "n1")
        replies: list[object] = []
        session = machine.new_session(replies.append)
        locked = len(keys) if optimistic else 0
        while locked < len(keys):
            replies.clear()
            machine.receive(Asked(session, Lock(1, owner, "n", keys[locked:], 1_000)))
            assert world.run_while(lambda: not replies, at_most=SECOND)
            assert isinstance(replies[0], Values)
            locked += len(replies[0].values)
        may_log, pinned = node.coordinator._may_log, list[int]()

        def stopped_before(transaction: Transaction, part: Part) -> bool:
            """When all are pinned, and once, an exchange has begun."""
            pinned.append(sum(node.locks.is_pinned(owner, ("n", key)) for key in keys))
            node.core.frozen = pinned.count(len(keys)) == 1 and pinned[-1] == len(keys)
            said = may_log(transaction, part)
            node.core.frozen = False
            return said

        monkeypatch.setattr(node.coordinator, "_may_log", stopped_before)
        commit = CommitTx(2, owner, owner, optimistic, [("n", keys, [b"v"] * len(keys))], [], [])
        machine.receive(Asked(session, commit))
        world.run_for(SECOND // 10)
        assert max(pinned) == len(keys), replies
        assert not any(node.locks.is_pinned(owner, ("n", key)) for key in keys)
        assert len(node.locks.keys_of(owner)) == (0 if optimistic else len(keys)), "who had locked them has them still"
        machine.receive(Asked(session, msgspec.structs.replace(commit, id=3)))
        world.run_for(SECOND // 10)
        assert pinned.count(len(keys)) == 2
        assert [type(reply).__name__ for reply in replies[-2:]] == ["Remap", "Done"]
        assert not node.locks.keys_of(owner)


KEYS_OF_ONE = 20_000
SOON = SECOND // 10_000


class Halves(Observer):
    """At no turn's end has any node a part of some keys of one partition; and nobody applies a large write unprepared."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.unprepared = 0

    def started(self, machine: Machine) -> None:
        """Count the keys of large writes that are applied before they were worked out."""
        assert machine.node is not None
        replica: Any = machine.node.core.replica
        apply: Callable[..., bool] = replica._apply_write

        def counted(write: Write) -> bool:
            if len(write.keys) > LARGE_KEYS and (write.fragment, write.start) not in replica.ahead:
                self.unprepared += len(write.keys)
            return apply(write)

        replica._apply_write = counted

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look at the first key, at one in the middle and at the last, where a copy is not just loading them."""
        assert machine.node is not None
        local = machine.node.core.local
        if not local or local[0].role not in (Role.PRIMARY, Role.BACKUP):
            return
        store = machine.node.core.replica.store
        held = [store.get(("n", 0), key) for key in (self.keys[0], self.keys[len(self.keys) // 2], self.keys[-1])]
        values = [None if entry is None else entry.value for entry in held]
        assert values[0] == values[1] == values[2], f"{machine.name} shows a part of a batch: {values}"


def _one_partition(count: int) -> list[bytes]:
    """So many keys of partition 0 of 4."""
    return [key for key in (b"k%d" % number for number in range(5 * count)) if partition_of(key, 4) == 0][:count]


def _settings() -> Settings:
    return Settings(cluster="sim", partitions=4, backups=2)


def _led(world: World) -> Machine:
    topology = world.newest()
    assert topology is not None
    primary = topology.placements[0].primary
    assert primary is not None
    return world.machines[primary]


def _watch_halves(world: World, keys: list[bytes]) -> tuple[Work, Halves]:
    work, halves = Work(), Halves(keys)
    for machine in world.machines.values():
        halves.started(machine)
    world.watch([work, halves])
    return work, halves


def test_many_keys_of_one_partition_are_written_and_deleted_in_pieces_and_seen_at_once() -> None:
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        work, halves = _watch_halves(world, keys)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)
        for number, value in enumerate((b"v", b"w", None), 1):
            primary.receive(Asked(session, Put(number, bytes([number]) * 16, "n", keys, [value] * len(keys))))
            assert world.run_while(lambda wanted=number: len(replies) < wanted, at_most=60 * SECOND)  # type: ignore[misc]
        assert [type(reply).__name__ for reply in replies] == ["Done"] * 3
        assert work.most <= WORK_MAX + PIECE_MAX
        assert not halves.unprepared, "every node works a large write out before it applies it"
        assert world.run_while(lambda: not _agreed(world, 3 * len(keys)), at_most=10 * SECOND)


TAKEN_WORK = LARGE_KEYS // KEYS_OF_WORK + 50
"""What a copy counts for a large write when it takes it."""


class Steps(Observer):
    """What one turn does of a write of very many keys that expire: it works out some of it, logs it, or sends it."""

    def __init__(self, primary: Machine) -> None:
        self.logs = self.sends = 0
        self.primary = primary.name
        assert primary.node is not None
        core, expiry = primary.node.core, primary.node.writes.expiry
        says: Any = expiry.deadline_of

        def said(write: Write, ttl_ms: int, rows: list[bytes] | None = None) -> Write:
            assert rows is not None, "the rows that say when very many keys expire are made ahead"
            assert core.work <= ISSUED_WORK, "to issue a large write is a turn by itself"
            return says(write, ttl_ms, rows)  # type: ignore[no-any-return]

        expiry.deadline_of = said  # type: ignore[method-assign]

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look what a turn did."""
        logs = any(_writes_many(record) for record in effects.log)
        if logs and machine.name != self.primary:
            assert Work._node(machine).core.work <= TAKEN_WORK, "to take a large write is a turn by itself"
        sends = any(isinstance(said, Replicate) and any(map(_writes_many, said.records)) for _, said in effects.early)
        assert not (logs and sends), f"{machine.name} logs and sends a large write in one turn"
        self.logs += logs
        self.sends += sends


def _writes_many(record: Record) -> bool:
    return isinstance(record, Update) and any(len(write.keys) > LARGE_KEYS for write in record.writes)


def test_what_very_many_keys_that_expire_take_is_spread_over_turns() -> None:
    """Each has a row more, which says when; a copy takes a batch of them in a turn that does nothing else."""
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        _, halves = _watch_halves(world, keys)
        primary = _led(world)
        steps = Steps(primary)
        world.watch([steps])
        replies: list[object] = []
        put = Put(1, b"p" * 16, "n", keys, [b"v"] * len(keys), ttl_ms=60_000)
        primary.receive(Asked(primary.new_session(replies.append), put))
        assert world.run_while(lambda: not replies, at_most=60 * SECOND)
        assert isinstance(replies[0], Done)
        assert (steps.logs, steps.sends) == (3, 1)
        for name in NODES:
            store = _node(world, name).core.replica.store
            said = [store.get((EXPIRIES, 0), row_of("n", key)) for key in keys]
            assert all(row is not None and row.value is not None for row in said), name
        assert not halves.unprepared


class Looks(Observer):
    """How many rows were read in one turn, at most."""

    def __init__(self) -> None:
        self.most = 0
        self._before: dict[NodeId, int] = {}

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look what a turn did."""
        assert machine.node is not None
        store = machine.node.core.replica.store
        assert isinstance(store, CountingStore)
        self.most = max(self.most, store.read - self._before.get(machine.name, 0))
        self._before[machine.name] = store.read


class BytesRead:
    """`tests.sim.costs.Costs`: for nothing, and how many bytes of rows were read of a store in one turn, at most."""

    def __init__(self) -> None:
        self.most = 0

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        base = node.core.replica.store.base
        assert isinstance(base, MemoryStore)
        before = base.bytes_read
        effects = node.turn(now, events)
        self.most = max(self.most, base.bytes_read - before)
        return effects, 0


def test_large_rows_are_scanned_proven_and_compared_a_few_at_a_time() -> None:
    """However many were asked for: as rows of a fragment, or as a row of each of many."""
    read, size = BytesRead(), 256 << 10
    keys = [*_one_partition(48), *(b"k%d" % number for number in range(48))]
    settings = Settings(cluster="sim", partitions=32, backups=2, anti_entropy_ms=300)
    with World(Draws(1), settings, costs=read) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        replies: list[object] = []
        for number, key in enumerate(keys, 1):
            owner = _owner(world, partition_of(key, 32))
            owner.receive(
                Asked(owner.new_session(replies.append), Put(number, b"%16d" % number, "n", [key], [bytes(size)]))
            )
        assert world.run_while(lambda: len(replies) < len(keys), at_most=60 * SECOND)
        for machine in world.running:
            _node(world, machine.name).checkpoint_wanted = True
        world.run_for(SECOND)
        read.most = 0
        world.run_for(20 * SECOND)  # all is read and compared, several times
        assert 0 < read.most <= 4 * FIT_BYTES
        machine = _owner(world, partition_of(keys[0], 32))
        led = [number for number in range(32) if _owner(world, number) is machine]
        replies.clear()
        machine.receive(Asked(machine.new_session(replies.append), Scan(1_000, "n", led, b"", None, 1_000)))
        assert world.run_while(lambda: not replies, at_most=60 * SECOND)
        assert read.most <= 8 * FIT_BYTES


def _owner(world: World, partition: int) -> Machine:
    topology = world.newest()
    primary = topology.placements[partition].primary if topology is not None else None
    assert primary is not None
    return world.machines[primary]


def test_what_many_keys_overwrite_is_kept_for_who_reads_a_snapshot_in_pieces() -> None:
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)
        for number in (1, 2):
            looks = Looks()
            world.watch([looks])
            primary.receive(Asked(session, Put(number, bytes([number]) * 16, "n", keys, [b"%d" % number] * len(keys))))
            assert world.run_while(lambda wanted=2 * number - 1: len(replies) < wanted, at_most=60 * SECOND)  # type: ignore[misc]
            assert looks.most <= READ_MAX, f"{looks.most} rows are looked at in one turn"
            primary.receive(Asked(session, TakeCut(10 + number, b"reader".ljust(16))))
            assert world.run_while(lambda wanted=2 * number: len(replies) < wanted, at_most=60 * SECOND)  # type: ignore[misc]
        cut = replies[1]
        assert isinstance(cut, Cut)
        node = _node(world, primary.name)
        kept = {key: node.cuts.kept.at(cut.cut, ("n", 0), key) for key in keys}
        assert {held.value if held is not None else None for held in kept.values()} == {b"1"}


def _goes_and_misses(world: World, keys: list[bytes], replies: list[object]) -> Machine:
    """A backup that is away while very many of the keys of its partition are written again, and starts again."""
    primary = _led(world)
    session = primary.new_session(replies.append)
    for number, some in enumerate((keys, [b"%s-more" % key for key in keys]), 1):
        where = [key for key in some if partition_of(key, 4) == 0]
        primary.receive(Asked(session, Put(number, bytes([number]) * 16, "n", where, [b"old"] * len(where))))
        assert world.run_while(lambda wanted=number: len(replies) < wanted, at_most=60 * SECOND)  # type: ignore[misc]
    copy = world.machines[next(name for name in NODES if name != primary.name)]
    copy.stop("killed", process_only=True)
    others = [other for other in NODES if other != copy.name]
    assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(others), at_most=60 * SECOND)
    primary.receive(Asked(session, Put(3, b"p" * 16, "n", keys, [b"v"] * len(keys))))
    assert world.run_while(lambda: len(replies) < 3, at_most=60 * SECOND)
    copy.start()
    return copy


def test_many_keys_that_come_as_history_are_worked_out_in_pieces() -> None:
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        copy = _goes_and_misses(world, keys, [])
        halves = Halves(keys)
        halves.started(copy)
        assert world.run_while(lambda: not _whole(world), at_most=60 * SECOND)
        progress = _node(world, copy.name).demander.progress
        assert progress.updates == {"historical": len(keys)}
        assert not halves.unprepared, "a copy works a large write out before it applies it, also where it comes late"


def test_another_map_comes_while_history_is_worked_out() -> None:
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings(), costs=Modelled()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        copy = _goes_and_misses(world, keys, [])
        node = _node(world, copy.name)
        begun: list[int] = []
        works_out = node.core.works_out

        def noted(writes: Sequence[Write], go_on: Callable[[], None], *, again: bool = False) -> bool:
            begins = works_out(writes, go_on, again=again)
            begun.extend([node.core.turns] * begins)
            return begins

        node.core.works_out = noted  # type: ignore[method-assign]
        assert world.run_while(lambda: not begun, at_most=60 * SECOND, look_every=SOON)
        other = next(name for name in NODES if name not in (copy.name, _led(world).name))
        world.machines[other].stop("killed", process_only=True)
        assert node.core.resumed, "half of it is worked out"
        world.machines[other].start()
        assert world.run_while(lambda: not _whole(world), at_most=60 * SECOND)
        stores = [_node(world, name).core.replica.store for name in NODES]
        assert len({tuple(store.get(("n", 0), key) for key in keys) for store in stores}) == 1


def _only_one_has_heard(world: World, keys: list[bytes], lacks: int) -> tuple[Machine, NodeId, NodeId]:
    """Keys are written, and the first or second copy (`lacks`) hears nothing of it before their primary is lost: that
    primary, the next one, and the other copy."""
    for name in NODES:
        world.add_machine(name)
    world.form(NODES)
    old, topology = _led(world), world.newest()
    assert topology is not None
    _, heir, other = topology.placements[0].owners
    deaf, has = (heir, other) if lacks == 1 else (other, heir)
    world.network.cut("hears nothing", [(old.name, deaf)])
    session = old.new_session(lambda reply: None)
    old.receive(Asked(session, Put(1, b"1" * 16, "n", keys, [b"v"] * len(keys))))
    assert world.run_while(lambda: not _has(world, has, keys), at_most=SECOND, look_every=SOON)
    assert not _has(world, deaf, keys)
    old.stop("killed", process_only=True)
    world.network.heal()
    return old, heir, other


@pytest.mark.parametrize("lacks", [1, 2])
def test_many_keys_that_a_new_primary_fetches_or_gives_are_worked_out_in_pieces(lacks: int) -> None:
    """Of the two copies that are left one has not heard of them: that of the next primary, or the other."""
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        old, heir, other = _only_one_has_heard(world, keys, lacks)
        work, halves = _watch_halves(world, keys)
        assert world.run_while(lambda: not (_has(world, heir, keys) and _has(world, other, keys)), at_most=60 * SECOND)
        assert _node(world, heir).promotion.fetched == (len(keys) if lacks == 1 else 0)
        old.start()
        assert world.run_while(lambda: not _whole(world), at_most=60 * SECOND)
        assert not halves.unprepared, "who takes them works them out first"
        assert work.most <= WORK_MAX + PIECE_MAX


def _beyond_a_gap(world: World, keys: list[bytes], lacks: int | None) -> tuple[Machine, NodeId, NodeId]:
    """Keys are written above a counter of which no copy hears, and the first or second copy (`lacks`) hears nothing of
    them either before their primary is lost: that primary, the next one, and the other copy."""
    for name in NODES:
        world.add_machine(name)
    world.form(NODES)
    old, topology = _led(world), world.newest()
    assert topology is not None
    _, *copies = topology.placements[0].owners
    session = old.new_session(lambda reply: None)
    for what_is_put, deaf in (([b"%s-less" % keys[0]], copies), (keys, copies[lacks - 1 : lacks] if lacks else [])):
        world.network.heal()
        world.network.cut("hears nothing", [(old.name, name) for name in deaf])
        old.receive(Asked(session, Put(1, what_is_put[0].ljust(16), "n", what_is_put, [b"v"] * len(what_is_put))))
        world.run_for(SECOND // 100)
    assert world.run_while(lambda: not all(_has(world, n, keys) for n in copies if n not in deaf), at_most=SECOND)
    old.stop("killed", process_only=True)
    world.network.heal()
    for name in copies:
        assert _has(world, name, keys) == (name not in deaf)
        assert _node(world, name).core.replica.fragment(("n", 0)).counter.lwm == 0
    return old, copies[0], copies[1]


@pytest.mark.parametrize("lacks", [None, 1, 2])
def test_many_keys_beyond_a_gap_are_issued_again_in_pieces(lacks: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both copies have undone them then, or one has not heard of them: that of the next primary, or the other."""
    keys, at_once = _one_partition(KEYS_OF_ONE), list[int]()

    def put_at_once(store: LayeredStore, fragment: FragmentState, write: Write, how: int) -> None:
        at_once.append(len(write.keys))
        rows.put_one_by_one(store, fragment, write, how)

    with World(Draws(1), _settings()) as world, heard() as reached:
        old, heir, other = _beyond_a_gap(world, keys, lacks)
        work, halves = _watch_halves(world, keys)
        monkeypatch.setattr(replica, "put_one_by_one", put_at_once)
        copies = [_node(world, name).core.replica for name in (heir, other)]
        assert world.run_while(
            lambda: any(copy.fragment(("n", 0)).counter.lwm <= len(keys) for copy in copies), at_most=60 * SECOND
        )
        assert work.most <= WORK_MAX + PIECE_MAX
        assert max(at_once, default=0) <= LARGE_KEYS, "what was worked out stands, though its rows were undone meanwhile"
        old.start()
        assert world.run_while(lambda: not (_whole(world) and _agreed(world, len(keys) + 1)), at_most=60 * SECOND)
    assert {"promotion.issued_again", "promotion.closed_gaps"} <= set(reached)
    assert not halves.unprepared, "who takes them works them out first"


@pytest.mark.parametrize(
    ("loses", "lacks", "works_out"),
    [
        (_only_one_has_heard, 1, "promotion.works_out_what_it_fetches"),
        (_beyond_a_gap, None, "promotion.works_out_what_it_issues_again"),
    ],
)
def test_another_map_comes_while_a_new_primary_works_out_what_it_takes(
    loses: Callable[..., tuple[Machine, NodeId, NodeId]], lacks: int | None, works_out: str
) -> None:
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings(), costs=Modelled()) as world, heard() as reached:
        old, heir, other = loses(world, keys, lacks)
        assert world.run_while(lambda: works_out not in reached, at_most=60 * SECOND, look_every=SOON)
        assert _node(world, heir).core.replica.fragment(("n", 0)).counter.lwm == 0
        version = _node(world, heir).core.version
        world.machines[other].stop("killed", process_only=True)
        for machine in (old, world.machines[other]):
            machine.start()
        assert world.run_while(lambda: not (_whole(world) and _has(world, old.name, keys)), at_most=60 * SECOND)
        assert _node(world, heir).core.version > version
        stores = [_node(world, name).core.replica.store for name in NODES]
        assert len({tuple(store.get(("n", 0), key) for key in keys) for store in stores}) == 1


def test_many_keys_that_come_to_a_copy_which_is_being_filled_are_held_against_its_rows_in_pieces() -> None:
    """Some of its rows are newer, others are not; and a transfer brings more of them meanwhile."""
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)

        def put(number: int, some: list[bytes]) -> None:
            primary.receive(Asked(session, Put(number, bytes([number]) * 16, "n", some, [b"%d" % number] * len(some))))

        put(1, keys)
        assert world.run_while(lambda: not replies, at_most=60 * SECOND)
        name = next(name for name in NODES if name != primary.name)
        copy = world.machines[name]
        copy.stop("killed", process_only=True)
        copy.wipe()
        others = [other for other in NODES if other != name]
        assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(others), at_most=60 * SECOND)
        copy.start()

        def is_being_filled() -> bool:
            fragment = copy.node.core.replica.fragment(("n", 0)) if copy.node is not None else None
            return fragment is not None and fragment.loading and not _node(world, name).demander.demanded(0)

        looks = Looks()
        world.watch([looks])
        assert world.run_while(lambda: not is_being_filled(), at_most=60 * SECOND, look_every=SOON)
        replica, looks.most = _node(world, name).core.replica, 0
        with heard() as reached:
            put(2, keys)
            put(3, keys[:10])
            assert world.run_while(lambda: len(replies) < 3, at_most=60 * SECOND)
            assert world.run_while(lambda: not (_whole(world) and _agreed(world, 2 * len(keys) + 10)), at_most=60 * SECOND)
        assert looks.most <= READ_MAX, f"{looks.most} rows are looked at in one turn"
        assert "ahead.looked" in reached
        led = _node(world, primary.name).core.replica.store
        assert all(replica.store.get(("n", 0), key) == led.get(("n", 0), key) for key in keys)


def test_what_many_keys_overwrite_is_read_at_the_latest_when_a_checkpoint_is_finished() -> None:
    keys = _one_partition(2 * LARGE_KEYS)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world:
        machine = world.add_machine("n1")
        world.form(["n1"])
        node, replies = _node(world, "n1"), list[object]()
        session = machine.new_session(replies.append)

        def checkpoint() -> None:
            node.checkpoint_wanted = True
            assert world.run_while(lambda: node.core.replica.store.changed(("n", 0)) > 0, at_most=60 * SECOND)

        machine.receive(Asked(session, Put(1, b"1" * 16, "n", keys, [b"old"] * len(keys))))
        assert world.run_while(lambda: not replies, at_most=60 * SECOND)
        checkpoint()
        machine.receive(Asked(session, TakeCut(2, b"reader".ljust(16))))
        assert world.run_while(lambda: len(replies) < 2, at_most=60 * SECOND)
        next_turn, leaves = node.core.next_turn, node.replication._dispatch_large

        def no_room(go_on: Callable[[], None]) -> None:
            if go_on == leaves:
                next_turn(go_on)

        node.core.next_turn = no_room  # type: ignore[method-assign]
        machine.receive(Asked(session, Put(3, b"3" * 16, "n", keys, [b"new"] * len(keys))))
        assert world.run_while(lambda: len(replies) < 3, at_most=60 * SECOND)
        assert node.cuts.kept.has_unread()
        checkpoint()
        assert not node.cuts.kept.has_unread()
        assert isinstance(replies[1], Cut)
        held = [node.cuts.kept.at(replies[1].cut, ("n", 0), key) for key in keys]
        assert {entry.value for entry in held if entry is not None} == {b"old"}


@pytest.mark.parametrize("how", ["a batch", "a transaction over two partitions"])
def test_a_snapshot_is_taken_while_many_keys_are_being_written(how: str) -> None:
    """All that they overwrite is kept for it, though nobody knew of it when they began; and each row is read once."""
    keys = _one_partition(KEYS_OF_ONE)
    other = [key for key in (b"k%d" % number for number in range(50)) if partition_of(key, 4) == 1][:1]
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)
        primary.receive(Asked(session, Put(1, b"1" * 16, "n", keys, [b"old"] * len(keys))))
        assert world.run_while(lambda: not replies, at_most=60 * SECOND)
        node = _node(world, primary.name)
        looks = Looks()
        world.watch([looks])
        world.run_for(SECOND)
        node.checkpoint_wanted = True  # so that they are not in memory
        assert world.run_while(lambda: node.core.replica.store.changed(("n", 0)) > 0, at_most=60 * SECOND)
        looks.most = 0
        cut_at = len(replies) + 1
        if how == "a batch":
            primary.receive(Asked(session, Put(2, b"2" * 16, "n", keys, [b"new"] * len(keys))))
            hwm = node.core.replica.fragment(("n", 0)).counter
            assert world.run_while(lambda: hwm.hwm < 2 * len(keys), at_most=60 * SECOND, look_every=SOON)
        else:
            written = [*keys, *other]
            locks = [("n", key) for key in written]
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", written, [b"new"] * len(written))]
            primary.receive(Asked(session, CommitTx(2, b"2" * 16, b"o" * 16, True, writes, locks, [])))
            assert world.run_while(
                lambda: not node.core.replica.partition(0).prepared, at_most=60 * SECOND, look_every=SOON
            )
        primary.receive(Asked(session, TakeCut(3, b"reader".ljust(16))))
        assert world.run_while(lambda: len(replies) < cut_at + 1, at_most=60 * SECOND)
        cut = next(reply for reply in replies[1:] if isinstance(reply, Cut))
        assert world.run_while(node.cuts.kept.has_unread, at_most=60 * SECOND)
        assert looks.most <= READ_MAX, f"{looks.most} rows are looked at in one turn"
        if how == "a batch":
            assert len(node.cuts.kept._rows[cut.cut]["n", 0]) == len(keys)
            assert node.cuts.kept.bytes > 0
        found = {key: node.cuts.kept.at(cut.cut, ("n", 0), key) for key in keys}
        values = {held.value if held is not None else None for held in found.values()}
        assert len(values) == 1, "none of them, or all"
        assert how != "a batch" or values == {b"old"}


def test_what_many_keys_overwrite_is_noted_for_a_snapshot_before_they_count() -> None:
    """The step in which they do is the longest turn of all, and would be three times as long."""
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        replies: list[object] = []
        primary = _led(world)
        session, node = primary.new_session(replies.append), _node(world, primary.name)
        asked: list[Request] = [
            Put(1, b"1" * 16, "n", keys, [b"old"] * len(keys)),
            TakeCut(2, b"reader".ljust(16)),
            Put(3, b"3" * 16, "n", keys, [b"new"] * len(keys)),
        ]
        with heard() as reached:
            for request in asked:
                before = len(replies)
                primary.receive(Asked(session, request))
                assert world.run_while(lambda before=before: len(replies) == before, at_most=60 * SECOND)  # type: ignore[misc]
        cut = next(reply for reply in replies if isinstance(reply, Cut)).cut
        assert all((held := node.cuts.kept.at(cut, ("n", 0), key)) and held.value == b"old" for key in keys)
        assert "cut.entered" in reached
        assert "cut.kept_at_once" not in reached


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in one partition", "in two"])
@pytest.mark.parametrize("optimistic", [False, True], ids=["pessimistic", "optimistic"])
def test_a_transaction_of_many_keys_of_one_partition_ends_in_pieces_and_is_seen_at_once(
    elsewhere: bool, optimistic: bool
) -> None:
    keys = _one_partition(KEYS_OF_ONE)
    other = [key for key in (b"k%d" % number for number in range(50)) if partition_of(key, 4) == 1][:1]
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        work, halves = _watch_halves(world, keys)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)
        owner, written = b"o" * 16, [*keys, *(other if elsewhere else [])]

        def ask(request: Request) -> object:
            replies.clear()
            primary.receive(Asked(session, request))
            assert world.run_while(lambda: not replies, at_most=60 * SECOND)
            return replies[0]

        at = 0
        while at < len(keys) and not optimistic:
            answer = ask(Lock(1, owner, "n", keys[at:], 1_000))
            assert isinstance(answer, Values)
            at += len(answer.values)
        if elsewhere and not optimistic:
            topology = world.newest()
            assert topology is not None
            machine = world.machines[topology.placements[1].primary or ""]
            machine.receive(Asked(machine.new_session(replies.append), Lock(1, owner, "n", other, 1_000)))
            assert world.run_while(lambda: len(replies) < 2, at_most=60 * SECOND)
        locks = [] if optimistic else [("n", key) for key in written]
        commit = CommitTx(2, b"t" * 16, owner, optimistic, [("n", written, [b"v"] * len(written))], locks, [])
        assert isinstance(ask(commit), Done)
        work.most = 0
        answer = ask(Get(3, "n", [keys[0], keys[-1]]))
        assert isinstance(answer, Values)
        assert [value for _, _, value in answer.values] == [b"v", b"v"]
        answer = ask(Lock(4, b"another owner id", "n", keys[-1:], 1_000))
        assert isinstance(answer, Values), "whoever waited for its keys has them when they are let go of"
        assert not halves.unprepared, "every node works a large write out before it applies it"
        assert work.most <= WORK_MAX + PIECE_MAX
        assert not len(_node(world, primary.name).writes.locks.keys_of(owner))


def _has(world: World, name: NodeId, keys: list[bytes]) -> bool:
    """Whether a node has the last of these keys."""
    return _node(world, name).core.replica.store.get(("n", 0), keys[-1]) is not None


def _agreed(world: World, lwm: int) -> bool:
    """Whether all copies stand at a counter, with the same digest."""
    copies = [_node(world, name).core.replica.fragment(("n", 0)) for name in NODES]
    return all(copy.counter.lwm == lwm and copy.digest == copies[0].digest for copy in copies)


def test_puts_come_between_the_pieces_of_a_large_write_of_their_keys() -> None:
    """What has a greater counter stays, also where it is applied before the large write, which lies below."""
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)
        primary.receive(Asked(session, Put(1, b"1" * 16, "n", keys, [b"v"] * len(keys))))
        counter = _node(world, primary.name).core.replica.ensure_fragment(("n", 0)).counter
        assert world.run_while(lambda: counter.hwm < len(keys), at_most=10 * SECOND, look_every=SOON)
        assert not replies, "it is under way"
        primary.receive(Asked(session, Put(2, b"2" * 16, "n", keys[5:6], [b"later"])))
        assert world.run_while(lambda: len(replies) < 2, at_most=10 * SECOND)
        assert world.run_while(lambda: not _agreed(world, len(keys) + 1), at_most=10 * SECOND)
        for name in NODES:
            store = _node(world, name).core.replica.store
            found = [store.get(("n", 0), key) for key in keys[4:7]]
            assert [entry.value for entry in found if entry is not None] == [b"v", b"later", b"v"]


class Once(Observer):
    """Does something after the first turn in which something has become so."""

    def __init__(self, world: World, so: Callable[[], bool], do: Callable[[], None]) -> None:
        self._world = world
        self._so = so
        self._do = do
        self.done = False

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look."""
        if not self.done and self._so():
            self.done = True
            self._world.after(0, self._do)


@pytest.mark.parametrize("some", [False, True])
def test_a_transaction_that_locks_a_key_before_a_large_write_has_it_goes_first(some: bool) -> None:
    """A write that holds none of its keys yet stands in line; one that holds `some` lets go of them, and asks anew."""
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0)) as world, heard() as reached:
        machine = world.add_machine("n1")
        world.form(["n1"])
        assert machine.node is not None
        locks = machine.node.locking.locks
        replies: list[object] = []
        session = machine.new_session(replies.append)
        lock = Lock(2, b"t" * 16, "n", keys[-1:], 1_000)

        def has_some() -> bool:
            return locks.is_pending(("n", keys[0])) is some and not locks.is_pending(("n", keys[-1]))

        once = Once(world, has_some, lambda: machine.receive(Asked(session, lock)))
        world.watch([once])
        machine.receive(Asked(session, Put(1, b"p" * 16, "n", keys, [b"v"] * len(keys))))
        world.run_for(SECOND // 2)
        assert [type(reply).__name__ for reply in replies] == ["Values"], "the batch waits for the transaction"
        machine.receive(Asked(session, Unlock(3, b"t" * 16)))
        assert world.run_while(lambda: len(replies) < 3, at_most=10 * SECOND)
        assert once.done
        assert ("write.large_one_asked_anew" in reached) is some
        assert "write.waited_for_transaction" in reached
        assert locks.idle
        assert not any(locks.is_pending(("n", key)) for key in keys)


def test_a_copy_dies_while_a_large_write_is_worked_out() -> None:
    keys = _one_partition(KEYS_OF_ONE)
    with World(Draws(1), _settings()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        _, halves = _watch_halves(world, keys)
        replies: list[object] = []
        primary = _led(world)
        session = primary.new_session(replies.append)
        primary.receive(Asked(session, Put(1, b"1" * 16, "n", keys, [b"v"] * len(keys))))
        counter = _node(world, primary.name).core.replica.ensure_fragment(("n", 0)).counter
        assert world.run_while(lambda: counter.hwm < len(keys), at_most=10 * SECOND, look_every=SOON)
        backup = next(name for name in NODES if name != primary.name)
        world.machines[backup].stop("killed", process_only=True)
        assert world.run_while(lambda: not replies, at_most=60 * SECOND)
        assert isinstance(replies[0], Done)
        world.machines[backup].start()
        halves.started(world.machines[backup])
        assert world.run_while(lambda: not (_whole(world) and _agreed(world, len(keys))), at_most=60 * SECOND)
