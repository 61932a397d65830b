"""Every oracle finds the one thing that is wrong, and names itself; in the same world untouched none finds anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import msgspec
import pytest

from engine.client.calls import PutCall
from engine.host.links import unheard_ms
from engine.messages import Heartbeat, Life
from engine.protocol import redial
from engine.protocol.requests import Code, CommitTx, Done, Failed, GetStatus, Put, Reply, Status
from engine.protocol.roles import PEERS
from engine.state.store import CheckpointImage, Entry
from engine.turn.effects import Effects
from rebalance.partition import LocalPartition, Role
from rebalance.results import ABORTED, COMMITTED
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.network import MS
from tests.sim.oracles import Pulse, out_of_sync, unsettled
from tests.sim.oracles.copies import compare_maps
from tests.sim.oracles.deletions import Deletions
from tests.sim.oracles.entitled import LOOK_NS, SPARE, UNDER_WAY, Entitled
from tests.sim.oracles.log_records import LogFold
from tests.sim.oracles_tests.small import KEY, KEYS, NAME, PARTITIONS, Small, small_world
from tests.sim.recorder import Recorder
from tests.sim.run import come_to_rest
from tests.sim.violation import Violation
from tests.sim.workloads.load import Load
from tests.sim.world import SECOND
from wal import records as r
from wal.ids import DECISIONS, NO_VERSION, Ballot, Version, partition_of

TX = b"t" * 16


def test_a_world_in_which_all_is_well_is_left_alone() -> None:
    with small_world() as small:
        small.judge()
        assert unsettled(small.world) == ""


# Each of these does one thing that a node must never do.


def _decide(small: Small, machine: Machine, records: Sequence[r.Record]) -> None:
    effects = Effects()
    effects.log.extend(records)
    for watcher in small.world.watchers.decided:
        watcher.decided(machine, effects.log)
    for watcher in small.world.watchers.turned:
        watcher.turned(machine, [], effects)


def _row(machine: Machine, key: bytes, entry: Entry) -> None:
    assert machine.node is not None
    machine.node.core.replica.store.set(NAME, key, entry)


def _acknowledge(small: Small, tx: bytes) -> None:
    request = Put(77, tx, "acc", [KEY], [b"last"])
    for watcher in small.world.watchers.asked:
        watcher.asked(small.primary, 1, request)
    for watcher in small.world.watchers.answers:
        watcher.answers(small.primary, 1, Done(77), 0)


def reply_without_a_write(small: Small) -> None:
    _acknowledge(small, TX)


def reply_before_a_copy_has_it(small: Small) -> None:
    small.copy(small.backup).counter.cut(0)
    _acknowledge(small, small.put.tx)


def reply_before_a_copy_has_it_on_disk(small: Small) -> None:
    backup = small.backup
    assert backup.node is not None
    write = small.copy(small.primary).tail()[-1]
    again = msgspec.structs.replace(write, start=write.end, tx=TX)
    for machine in (small.primary, backup):
        assert machine.node is not None
        machine.node.core.replica.apply_write(again)
    _decide(small, small.primary, [r.Update([again])])
    for watcher in small.world.watchers.logged:
        watcher.logged(small.primary, [r.Update([again])], 0)
    backup._left_over = [r.Update([again])]
    _acknowledge(small, TX)


def close_what_was_acknowledged(small: Small) -> None:
    start = small.copy(small.primary).counter.lwm - 1
    _decide(small, small.primary, [r.NoOp(NAME[1], 9, [(NAME[0], start, 1)])])
    small.oracles.finish(small.world)


def give_a_counter_away_twice(small: Small) -> None:
    write = r.Write(*NAME, 9, 50, [b"a"], [b"1"], tx=TX)
    _decide(small, small.primary, [r.Update([write])])
    _decide(small, small.backup, [r.Update([msgspec.structs.replace(write, values=[b"2"])])])


def close_a_counter_that_was_given_away(small: Small) -> None:
    _decide(small, small.primary, [r.Update([r.Write(*NAME, 9, 50, [b"a"], [b"1"])])])
    _decide(small, small.backup, [r.NoOp(NAME[1], 9, [(NAME[0], 50, 1)])])


def lower_the_high_watermark(small: Small) -> None:
    small.copy(small.primary).counter._hwm = 0
    small.judge()


def commit_two_maps_as_one_version(small: Small) -> None:
    for machine, topology in ((small.primary, b"a"), (small.backup, b"b")):
        for watcher in small.oracles.all:
            if type(watcher).__name__ == "OneMap":
                watcher.logged(machine, [r.Committed(NO_VERSION, topology)], 1)


def commit_two_successors_of_one_version(small: Small) -> None:
    for machine, version in ((small.primary, Version(1, 1)), (small.backup, Version(2, 0))):
        topology = str(version).encode()
        _decide(small, machine, [r.Accepted(Version(1, 0), Ballot(1, machine.name), topology)])
        for watcher in small.oracles.all:
            if type(watcher).__name__ == "OneMap":
                watcher.logged(machine, [r.Committed(version, topology)], 1)


def serve_an_epoch_twice(small: Small) -> None:
    _decide(small, small.primary, [])
    assert small.backup.node is not None
    local: LocalPartition = small.backup.node.core.local[NAME[1]]
    local.role = Role.PRIMARY
    _decide(small, small.backup, [])


def forget_a_digest(small: Small) -> None:
    small.copy(small.backup).digest += 1
    small.judge()


def lose_a_row(small: Small) -> None:
    _row(small.backup, KEY, Entry(1, 1, b"first"))
    for _ in range(8):
        small.oracles.look(small.world)


def tell_two_outcomes(small: Small) -> None:
    _decide(small, small.primary, [r.Outcome(TX, NAME[1], 1, True, [])])
    _decide(small, small.backup, [r.Outcome(TX, NAME[1], 1, False, [])])


def commit_by_half(small: Small) -> None:
    _commit_by_half_at(small, small.copy(small.primary).counter.lwm - 1)


def _commit_by_half_at(small: Small, start: int) -> None:
    other = (NAME[1] + 1) % PARTITIONS
    halves = [r.Write("acc", p, 9, start, [b"a"], [b"1"], tx=TX) for p in (NAME[1], other)]
    votes = [r.Prepare(TX, w.partition, 9, [w], [], [NAME[1], other], NAME[1]) for w in halves]
    _decide(small, small.primary, [*votes, r.Outcome(TX, NAME[1], 9, True, [("acc", start, 1)])])
    _decide(small, small.primary, [r.NoOp(other, 10, [("acc", start, 1)])])
    small.oracles.finish(small.world)


def leave_a_vote_behind(small: Small) -> None:
    vote = r.Prepare(TX, NAME[1], 1, [], [("acc", KEY)], [NAME[1]], NAME[1])
    _decide(small, small.primary, [vote])
    assert small.backup.node is not None
    small.backup.node.core.replica.partition(NAME[1]).prepared[TX] = vote
    small.oracles.finish(small.world)


def apply_what_the_log_does_not_say(small: Small) -> None:
    for machine in small.world.running:
        assert machine.node is not None
        copy = small.copy(machine)
        machine.node.core.replica.apply_write(r.Write(*NAME, copy.epochs[-1][0], copy.counter.lwm, [KEY], [b"?"]))
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "LogRecords":
            oracle.finish(small.world)


def say_more_than_is_durable(small: Small) -> None:
    log = small.primary.log
    assert log is not None
    small.primary.depart(("n2",), Heartbeat(NO_VERSION, Life("x", 1, 0), 0, False, []), log.durable_lsn + 1)


def claim_more_than_is_durable(small: Small) -> None:
    small.primary.depart(("n2",), Heartbeat(NO_VERSION, Life("x", 1, 0), 1 << 30, False, []), 0)


def write_the_store_ahead_of_the_log(small: Small) -> None:
    for watcher in small.world.watchers.checkpoint:
        watcher.checkpoint(small.primary, CheckpointImage(1 << 30, {}, {}, {}, [], {}))


def recover_something_else(small: Small) -> None:
    _row(small.primary, KEY, Entry(1, 1, b"first"))
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Replay":
            oracle.started(small.primary)


def forget_a_tombstone_too_early(small: Small) -> None:
    behind = small.copy(small.backup)
    behind.clear(loading=True)
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Deletions":
            small.copy(small.primary).stable = 1
            oracle.look(small.world)


def bring_a_deleted_key_back(small: Small) -> None:
    name = ("acc", partition_of(KEYS[1], PARTITIONS))
    for machine in small.world.running:
        assert machine.node is not None
        machine.node.core.replica.store.set(name, KEYS[1], Entry(1, 1, b"first"))
    small.judge()


def keep_an_old_value_everywhere(small: Small) -> None:
    for machine in small.world.running:
        _row(machine, KEY, Entry(1, 1, b"first"))
    small.judge()


def keep_a_row_that_nobody_wrote(small: Small) -> None:
    for machine in small.world.running:
        _row(machine, b"stranger", Entry(1, 1, b"?"))
    small.judge()


def be_in_sync_without_being_whole(small: Small) -> None:
    small.copy(small.backup).loading = True
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Copies":
            oracle.look(small.world)


def tell_two_answers(small: Small) -> None:
    request = GetStatus(78, small.put.tx, NAME[1])
    for watcher in small.world.watchers.asked:
        watcher.asked(small.primary, 1, request)
    for watcher in small.world.watchers.answers:
        watcher.answers(small.primary, 1, Status(78, "aborted"), 0)


def apply_what_was_said_not_to_be(small: Small) -> None:
    _tell(small, Done(79, applied=False))
    _tell(small, Done(79))


def _tell(small: Small, reply: Reply) -> None:
    """Ask for a transaction, and answer that."""
    request = CommitTx(reply.id, TX, TX, True, [(NAME[0], [KEY], [b"1"])], [], [])
    for watcher in small.world.watchers.asked:
        watcher.asked(small.primary, 1, request)
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Answers":
            oracle.answers(small.primary, 1, reply, 0)


def write_again_what_was_written(small: Small) -> None:
    copy = small.copy(small.primary)
    start, epoch = copy.counter.lwm, copy.epochs[-1][0]
    again = r.Update([r.Write(*NAME, epoch, start, [KEY], [b"last"], tx=small.put.tx)])
    _decide(small, small.primary, [again])
    assert small.primary.node is not None
    small.primary.node.core.replica.apply(again)  # a counter that no copy has is of a history that was not
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Answers":
            oracle.finish(small.world)


def _decide_again(small: Small, outcome: int, again: int, *, part: r.Write | None = None) -> None:
    """A decision is written, forgotten, and written again; the transaction took part with this write."""
    tx, name = small.client.new_tx(), (DECISIONS, NAME[1])
    assert small.primary.node is not None
    replica = small.primary.node.core.replica
    epoch = replica.partition(NAME[1]).epoch
    start = replica.ensure_fragment(name).counter.lwm
    if part is not None:
        _decide(small, small.primary, [r.Update([msgspec.structs.replace(part, tx=tx)])])
    for at, given in enumerate((bytes([outcome, 0, 0]), None, bytes([again, 0, 0]))):
        update = r.Update([r.Write(*name, epoch, start + at, [tx], [given], tx=tx if given else small.client.new_tx())])
        _decide(small, small.primary, [update])
        replica.apply(update)
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Answers":
            oracle.finish(small.world)


def commit_what_was_forgotten_again(small: Small) -> None:
    _decide_again(small, COMMITTED, COMMITTED)


def abort_what_was_committed_and_forgotten(small: Small) -> None:
    _decide_again(small, COMMITTED, ABORTED)


def test_an_abort_may_be_written_again_when_it_was_forgotten() -> None:
    with small_world() as small:
        _decide_again(small, ABORTED, ABORTED)


def test_what_an_operator_gave_up_may_be_aborted_when_it_was_committed_and_forgotten() -> None:
    """A part of it that had ended is lost, and an older copy of that partition voted and asks how it ended."""
    elsewhere = (NAME[1] + 1) % PARTITIONS
    with small_world() as small:
        small.oracles.ledger.given_up[elsewhere] = None
        _decide_again(small, COMMITTED, ABORTED, part=r.Write(NAME[0], elsewhere, 9, 0, [KEY], [b"lost"]))


def _decides_at_once_and_dies(small: Small, *, logged: bool = False, left: bool = False) -> Machine:
    """A transaction is decided and ends in one turn, as where no other copy is waited for; then its node dies."""
    primary, number = small.primary, NAME[1]
    records: list[r.Record] = [
        r.Update([r.Write(DECISIONS, number, 9, 50, [TX], [bytes([COMMITTED])])]),
        r.Outcome(TX, number, 9, True, []),
    ]
    _decide(small, primary, records)
    for watcher in small.world.watchers.logged if logged else ():
        watcher.logged(primary, records, 0)
    if left:
        _decide(small, small.backup, records[1:])
    primary.stop("killed")
    assert primary.start()
    return primary


def test_what_was_decided_in_the_turn_in_which_a_node_died_may_end_otherwise() -> None:
    """Seed 88001 at 14c25be: prepared beforehand, so that whoever finds it undecided aborts it."""
    with small_world() as small:
        _decide(small, _decides_at_once_and_dies(small), [r.Outcome(TX, NAME[1], 10, False, [])])


def test_what_was_decided_and_is_on_a_disk_may_not() -> None:
    with small_world() as small:
        primary = _decides_at_once_and_dies(small, logged=True)
        with pytest.raises(Violation, match=r"is committed for .* and aborted for"):
            _decide(small, primary, [r.Outcome(TX, NAME[1], 10, False, [])])


def test_nor_what_had_left_for_another_node_and_is_there() -> None:
    """Replication leaves before the log is written (seed 3 at 2ae2fc0)."""
    with small_world() as small:
        primary = _decides_at_once_and_dies(small, left=True)
        with pytest.raises(Violation, match=r"is committed for .* and aborted for"):
            _decide(small, primary, [r.Outcome(TX, NAME[1], 10, False, [])])


def test_what_no_copy_has_took_no_effect() -> None:
    """Seed 900013: a primary that was alone in sync ended a transaction in the turn in which its log failed. Nobody was
    told, and the counters in one of its partitions were never issued again."""
    with small_world() as small:
        _commit_by_half_at(small, 50)


def commit_by_half_beside_what_was_given_up(small: Small) -> None:
    """What an operator let begin again excuses what was in it, and not that the others ended in two ways."""
    small.oracles.ledger.given_up[(NAME[1] + 2) % PARTITIONS] = None
    commit_by_half(small)


def remember_every_write(small: Small) -> None:
    copy = small.copy(small.primary)
    for number in range(100):
        copy.doubt({b"%d" % number: 0})
    for oracle in small.oracles.all:
        if type(oracle).__name__ == "Memory":
            oracle.finish(small.world)


def keep_what_is_over(small: Small) -> None:
    node = small.primary.node
    assert node is not None
    node.participant.owner_of.update({b"%d" % number: TX for number in range(3 * SPARE)})
    small.judge()


def keep_very_much_in_a_storm(small: Small) -> None:
    node = small.primary.node
    assert node is not None
    node.participant.owner_of.update({b"%d" % number: TX for number in range(UNDER_WAY + 3 * SPARE)})
    small.world.run_for(4 * LOOK_NS)
    for _ in small.world.running:
        for oracle in small.oracles.all:
            if isinstance(oracle, Entitled):
                oracle.look(small.world)


def keep_what_is_written_while_it_rests(small: Small) -> None:
    backup = small.backup
    assert backup.node is not None
    backup.node.demander.rest.until = 1 << 62
    backup.node.core.local[NAME[1]].role = Role.MOVING
    copy = small.copy(backup)
    for number in range(2):
        copy.apply(r.Write(*NAME, 1, copy.counter.highest_applied + 1 + number, [b"beyond"], [b""], stable=0))
        for oracle in small.oracles.all:
            if type(oracle).__name__ == "Memory":
                oracle.look(small.world)


def serve_nobody_although_all_are_well(small: Small) -> None:
    small.oracles.life.pulse = Pulse(small.world)
    primary = small.primary
    assert primary.node is not None
    primary.node.core.local[NAME[1]].role = Role.PROMOTING
    for _ in range(200):
        small.world.run_for(SECOND // 4)
        small.oracles.life.look(small.world)


@pytest.mark.parametrize(
    ("oracle", "misdeed"),
    [
        ("answers", tell_two_answers),
        ("answers", write_again_what_was_written),
        ("answers", commit_what_was_forgotten_again),
        ("answers", abort_what_was_committed_and_forgotten),
        ("answers", apply_what_was_said_not_to_be),
        ("memory", remember_every_write),
        ("memory", keep_what_is_written_while_it_rests),
        ("entitled", keep_what_is_over),
        ("entitled", keep_very_much_in_a_storm),
        ("life", serve_nobody_although_all_are_well),
        ("acknowledged", reply_without_a_write),
        ("acknowledged", reply_before_a_copy_has_it),
        ("acknowledged", reply_before_a_copy_has_it_on_disk),
        ("acknowledged-lost", close_what_was_acknowledged),
        ("counter-twice", give_a_counter_away_twice),
        ("counter-twice", close_a_counter_that_was_given_away),
        ("watermarks", lower_the_high_watermark),
        ("one-map", commit_two_maps_as_one_version),
        ("one-map", commit_two_successors_of_one_version),
        ("one-primary", serve_an_epoch_twice),
        ("log-records", apply_what_the_log_does_not_say),
        ("equal-counters", forget_a_digest),
        ("equal-counters", lose_a_row),
        ("atomicity", tell_two_outcomes),
        ("atomicity", commit_by_half),
        ("atomicity", commit_by_half_beside_what_was_given_up),
        ("atomicity", leave_a_vote_behind),
        ("durability", say_more_than_is_durable),
        ("durability", claim_more_than_is_durable),
        ("store-ahead", write_the_store_ahead_of_the_log),
        ("replay", recover_something_else),
        ("tombstones", forget_a_tombstone_too_early),
        ("deleted-key", bring_a_deleted_key_back),
        ("rows", keep_an_old_value_everywhere),
        ("rows", keep_a_row_that_nobody_wrote),
        ("copies", be_in_sync_without_being_whole),
    ],
)
def test_an_oracle_finds_what_is_wrong(oracle: str, misdeed: Callable[[Small], None]) -> None:
    with small_world() as small:
        with pytest.raises(Violation) as found:
            misdeed(small)
        assert found.value.oracle == oracle, str(found.value)


def test_who_was_told_that_a_condition_did_not_hold_is_refused_when_it_asks_again() -> None:
    with small_world() as small:
        _tell(small, Done(79, applied=False))
        _tell(small, Failed(79, Code.CONFLICT, "aborted"))


def test_rest_is_not_found_where_a_node_is_away_or_a_lock_is_held() -> None:
    with small_world() as small:
        primary = small.primary
        assert primary.node is not None
        primary.node.locks.try_all(TX, [("acc", KEY)])
        assert unsettled(small.world) == f"{primary.name}: locks is 1"
        assert out_of_sync(small.world) == ""
        small.backup.stop("killed")
        assert out_of_sync(small.world) == f"{small.backup.name} does not serve (killed)"


def test_what_is_logged_and_does_not_count_yet_is_no_rest() -> None:
    with small_world() as small:
        node, put = small.primary.node, PutCall(small.client.new_tx(), "acc", [KEY], [b"more"])
        assert node is not None
        small.client.spawn(small.client.call(put, timeout_ns=SECOND))
        assert small.world.run_while(lambda: not node.replication.open_records(), at_most=SECOND, look_every=50_000)
        assert unsettled(small.world) == f"{small.primary.name} has logged what does not count yet: update"
        assert small.world.run_while(lambda: bool(unsettled(small.world)), at_most=SECOND)


# Who must live.


def test_a_minority_or_a_node_that_is_cut_off_need_not_serve_and_who_can_must() -> None:
    with small_world() as small:
        life = small.oracles.life
        pulse = life.pulse = Pulse(small.world)
        assert small.backup.node is not None
        small.world.network.cut("away", [(a, b) for a in ("n1",) for b in ("n2", "n3")])
        _watch(small, 40 * SECOND)
        assert small.world.now - pulse.served_at < 2 * SECOND, "two of three are a majority, and have everything"
        small.world.network.cut("all", [(a, b) for a in ("n1", "n2", "n3") for b in ("n1", "n2", "n3") if a != b])
        _watch(small, 40 * SECOND)
        assert small.world.now - pulse.served_at > 39 * SECOND, "nobody can, and nobody is blamed"


def test_who_must_live_is_judged_in_the_calm_too() -> None:
    with small_world() as small:
        life = small.oracles.life
        life.pulse = Pulse(small.world)
        life.pulse.stopping = True  # as if no write of it was done any more
        small.backup.stop("killed", process_only=True)  # so that not every copy is in sync
        with pytest.raises(Violation) as found:
            come_to_rest(small.world, Load(Recorder(small.world)), life)
        assert found.value.oracle == "life"


def test_who_began_to_sync_in_its_disks_bad_minute_is_not_well_before_that_is_done() -> None:
    with small_world() as small:
        machine, at = small.primary, small.world.now
        machine.speed.slow, machine.speed.slow_until = 8 * SECOND // machine.speed.sync, at + SECOND
        small.client.spawn(small.client.call(PutCall(small.client.new_tx(), "acc", [KEY], [b"more"]), timeout_ns=SECOND))
        small.world.run_for(4 * SECOND)
        assert small.world.now > machine.speed.slow_until
        assert not machine.well
        small.world.run_for(5 * SECOND)
        assert machine.well


@pytest.mark.parametrize("again", [True, False], ids=["which is made anew", "which is not"])
def test_a_dead_connection_excuses_nobody_when_its_kernel_has_found_it(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three are left, and each of their connections is half-open."""
    if not again:
        monkeypatch.setattr(redial, "REDIAL_SECONDS", (3_600.0,))
    with small_world() as small:
        pulse = small.oracles.life.pulse = Pulse(small.world)
        for pair, way in product((("n1", "n2"), ("n2", "n1")), PEERS):
            small.world.network.reset(pair, (way,), after=unheard_ms(small.world.settings) * MS)
        small.world.machines["n3"].stop("killed", process_only=True)
        if again:
            _watch(small, 40 * SECOND)
            assert small.world.now - pulse.served_at < 2 * SECOND
            return
        with pytest.raises(Violation) as found:
            _watch(small, 60 * SECOND)
        assert found.value.oracle == "life"


def _watch(small: Small, ns: int) -> None:
    for _ in range(ns // (SECOND // 4)):
        small.world.run_for(SECOND // 4)
        small.oracles.life.look(small.world)


# Maps, and logs, that are wrong by themselves.


def test_a_step_that_gives_up_a_copy_before_another_one_is_in_sync_is_found() -> None:
    with small_world() as small:
        before = small.world.newest()
        assert before is not None
        compare_maps(before, before, Counter())
        with pytest.raises(Violation, match=r"partition 1 had .* in sync"):
            compare_maps(before, _without_a_copy(before, 1), Counter())


def test_who_was_waited_for_although_it_is_slow_may_leave_when_enough_others_are_quick() -> None:
    with small_world() as small:
        newest = small.world.newest()
        assert newest is not None
        copies = newest.placements[1].in_sync
        before = msgspec.structs.replace(newest, aside={copies[-1]: 1, copies[0]: 1})
        after = msgspec.structs.replace(_without_a_copy(before, 1), aside={copies[-1]: 1, copies[0]: -1})
        compare_maps(before, after, Counter())
        alone = msgspec.structs.replace(_without_a_copy(_without_a_copy(before, 1), 1), aside=after.aside)
        with pytest.raises(Violation, match=r"partition 1 had .* in sync"):
            compare_maps(before, alone, Counter())
        with pytest.raises(Violation, match=r"partition 1 had .* in sync"):
            compare_maps(before, msgspec.structs.replace(after, aside={copies[-1]: -1, copies[0]: -1}), Counter())


def test_a_copy_that_is_ordered_anew_leaves_once_for_each_order() -> None:
    with small_world() as small:
        before = small.world.newest()
        assert before is not None
        after = _without_a_copy(before, 1)
        (gone,) = set(before.placements[1].in_sync) - set(after.placements[1].in_sync)
        ordered = Counter({(gone, 1): 2})
        compare_maps(before, after, ordered)
        compare_maps(before, after, ordered)
        assert not ordered
        with pytest.raises(Violation, match=r"partition 1 had .* in sync"):
            compare_maps(before, after, ordered)


def test_a_map_that_gives_a_vote_to_no_disk_is_found() -> None:
    with small_world() as small:
        before = small.world.newest()
        assert before is not None
        unknown = {node: disk for node, disk in before.allocations.items() if node != before.voters[-1]}
        with pytest.raises(Violation, match=f"gives votes to {before.voters[-1]}"):
            compare_maps(before, msgspec.structs.replace(before, allocations=unknown), Counter())


def test_a_step_in_which_a_node_died_may_have_a_copy_less() -> None:
    with small_world() as small:
        before = small.world.newest()
        assert before is not None
        gone = before.placements[1].in_sync[-1]
        members = tuple(member for member in before.members if member.node != gone)
        compare_maps(before, msgspec.structs.replace(_without_a_copy(before, 1), members=members), Counter())


def test_who_goes_by_a_decided_map_that_its_log_still_writes_waits_for_nobody_whom_that_leaves_out() -> None:
    with small_world() as small:
        newest, node = small.world.newest(), small.primary.node
        assert newest is not None
        assert node is not None
        gone = newest.placements[NAME[1]].in_sync[-1]
        small.copy(small.world.machines[gone]).clear(loading=True)
        small.copy(small.primary).stable = 1
        (oracle,) = (o for o in small.oracles.all if isinstance(o, Deletions))
        with pytest.raises(Violation, match=f"{gone}, in sync, has"):
            oracle.look(small.world)
        later = Version(newest.version.major + 1, 0)
        node.core.topology = msgspec.structs.replace(_without_a_copy(newest, NAME[1]), version=later)
        oracle.look(small.world)


def test_who_goes_by_a_decided_map_that_lets_its_copy_go_is_not_held_to_what_it_had() -> None:
    with small_world() as small:
        newest = small.world.newest()
        assert newest is not None
        holder = small.world.machines[newest.placements[NAME[1]].in_sync[-1]]
        assert holder.node is not None
        small.copy(holder).counter.cut(0)
        with pytest.raises(Violation, match=f"{holder.name} is in sync at {newest.version} and has"):
            _acknowledge(small, small.put.tx)
        later = Version(newest.version.major, newest.version.minor + 1)
        holder.node.core.topology = msgspec.structs.replace(_without_a_copy(newest, NAME[1]), version=later)
        _acknowledge(small, small.put.tx)


def _without_a_copy(before: Topology, number: int) -> Topology:
    placements = list(before.placements)
    old = placements[number]
    placements[number] = msgspec.structs.replace(old, in_sync=old.in_sync[:-1])
    return msgspec.structs.replace(before, placements=tuple(placements))


def test_a_counter_that_the_log_gives_to_two_updates_is_found() -> None:
    fold = LogFold()
    fold.take([r.Update([r.Write(*NAME, 1, 0, [b"a"], [b"1"])]), r.Update([r.Write(*NAME, 1, 0, [b"b"], [b"2"])])])
    assert fold.twice == [f"counter 1 of acc/{NAME[1]} is (b'a', b'1'), and then (b'b', b'2')"]


def test_a_counter_may_be_given_away_anew_once_a_later_epoch_began_there() -> None:
    fold = LogFold()
    first = r.Update([r.Write(*NAME, 1, 0, [b"a"], [b"1"])])
    fold.take([first, first, r.EpochStart(NAME[1], 2, [(NAME[0], 1)]), r.Update([r.Write(*NAME, 2, 0, [b"b"], [b"2"])])])
    assert fold.twice == []
