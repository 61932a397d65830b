"""Cuts over their whole life: who gives them up and when, what is kept meanwhile, and whom they make wait."""

from __future__ import annotations

import msgspec

from engine import errors
from engine.client.calls import GetCall
from engine.client.cuts import KeepCutCall, TakeCutCall
from engine.data.cuts import LEASE_MS, WITHHELD_MS, Cuts
from tests.sim.clients import Task
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, key, told
from wal.ids import Era, NodeId

HOLDERS = (bytes(16), bytes([1]) * 16)


def _taking(stage: Stage, holder: bytes = HOLDERS[0]) -> tuple[TakeCutCall, Task]:
    call = TakeCutCall(holder)
    return call, stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))


def _taken(stage: Stage) -> Era:
    call, task = _taking(stage)
    stage.until(lambda: told(task), "a cut is taken")
    return call.cut


def _read(stage: Stage, name: bytes, cut: Era) -> bytes | errors.Error | None:
    call = GetCall(NAMESPACE, [name], cut=cut)
    task = stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))
    stage.until(lambda: task.done, "a cut is read")
    return task.failure if isinstance(task.failure, errors.Error) else call.values[0][2]


def _over(stage: Stage, cut: Era, holder: bytes) -> None:
    stage.do(stage.client.call(KeepCutCall(cut, holder, over=True), timeout_ns=ANSWER_NS))


def _cuts(stage: Stage, name: NodeId) -> Cuts:
    node = stage[name].node
    assert node is not None
    return node.cuts


def test_what_is_kept_goes_with_the_last_who_reads_it() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        taking = [_taking(stage, holder) for holder in (bytes([2]) * 16, *HOLDERS)]
        stage.until(lambda: all(told(task) for _, task in taking), "all have a cut")
        alone, first, second = (call.cut for call, _ in taking)
        stage.put(key(0), b"new")
        assert alone < first == second, "who asks while a round is under way shares the next"
        _over(stage, alone, bytes([2]) * 16)
        assert _cuts(stage, "n1").kept.bytes > 0
        _over(stage, first, HOLDERS[0])
        assert _read(stage, key(0), first) == b"old"
        _over(stage, first, HOLDERS[1])
        assert [_cuts(stage, name).kept.bytes for name in ("n1", "n2", "n3")] == [0, 0, 0]
        assert isinstance(_read(stage, key(0), first), errors.SnapshotLost)
        stage.curtain()


def test_readers_of_one_client_let_go_of_their_cuts_together() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        first, later = _taken(stage), _taken(stage)
        stage.put(key(0), b"new")
        assert first < later
        others = [(later, HOLDERS[0]), (later, HOLDERS[1]), ((first[0], first[1] - 1), HOLDERS[0])]
        stage.do(stage.client.call(KeepCutCall(first, HOLDERS[0], others=others), timeout_ns=ANSWER_NS))
        assert _read(stage, key(0), later) == b"old", "who reads on lets nobody go"
        stage.do(stage.client.call(KeepCutCall(first, HOLDERS[0], over=True, others=others), timeout_ns=ANSWER_NS))
        assert [_cuts(stage, name).kept.bytes for name in ("n1", "n2", "n3")] == [0, 0, 0]
        stage.curtain()


def test_who_was_never_known_lets_go_after_the_last_one_who_was() -> None:
    """The others of one request end the cut, and then comes the name of somebody who did not read here."""
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        cut = _taken(stage)
        (known,) = _cuts(stage, "n1").leases[cut].holders
        stage.do(stage.client.call(KeepCutCall(cut, b"?" * 16, over=True, others=[(cut, known)] * 2), timeout_ns=ANSWER_NS))
        assert all(stage[name].up and not _cuts(stage, name).leases for name in ("n1", "n2", "n3"))
        stage.curtain()


def test_a_reader_of_whom_nothing_is_heard_is_not_waited_for() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        cut = _taken(stage)
        stage.put(key(0), b"new")
        stage.wait(LEASE_MS - 1_000)
        assert _read(stage, key(0), cut) == b"old", "and that renews it, where it is read"
        stage.wait(LEASE_MS - 1_000)
        assert _cuts(stage, "n1").kept.bytes > 0
        assert not _cuts(stage, "n3").leases
        stage.wait(2_000)
        assert not _cuts(stage, "n1").leases
        assert _cuts(stage, "n1").kept.bytes == 0
        stage.curtain()


def test_answers_wait_for_a_member_that_is_gone_no_longer_than_they_may() -> None:
    patient = msgspec.structs.replace(SETTINGS, backups=1, suspicion_ms=6_000, connection_lost_ms=6_000)
    with Stage(None, settings=patient) as stage:
        silent = stage.lose("enter-era", receiver="n3")
        _, taking = _taking(stage)
        stage.until(lambda: silent.caught > 0, "a cut is being taken")
        stage.wait(50)
        began = stage.world.now
        putting = stage.begin_put(key(0), b"new")
        stage.until(lambda: told(putting), "the put is answered")
        assert WITHHELD_MS - 200 < (stage.world.now - began) // 1_000_000 < WITHHELD_MS + 200
        assert not taking.done
        stage.end(silent)
        stage.until(lambda: told(taking), "a later round comes to an end")
        stage.curtain()


def test_a_node_that_fails_while_a_cut_is_taken_is_left_out_of_it() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        stage.power_cut("n3")
        call, taking = _taking(stage)
        stage.until(lambda: told(taking), "a cut is taken by those that are left")
        stage.put(key(0), b"new")
        assert _read(stage, key(0), call.cut) == b"old"
        assert _read(stage, key(2), call.cut) is None
        stage.curtain()


def test_a_light_step_loses_no_cut() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.start("n3")
        newest = stage.world.newest

        def back() -> bool:
            map_now = newest()
            return map_now is not None and map_now.member("n3") is not None

        stage.until(back, "n3 is a member again")
        before = newest()
        cut = _taken(stage)
        stage.put(key(0), b"new")
        stage.rest()
        after = newest()
        assert before is not None
        assert after is not None
        assert before.fenced == after.fenced or before.version != after.version
        if before.fenced == after.fenced:
            assert _read(stage, key(0), cut) == b"old"
        stage.curtain()


def test_who_restarts_has_kept_nothing_and_says_so() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"old")
        cut = _taken(stage)
        stage.power_cut("n1", "n2", "n3")
        stage.start("n1", "n2", "n3")
        assert isinstance(_read(stage, key(0), cut), errors.SnapshotLost)
        later = _taken(stage)
        assert later > cut
        assert _read(stage, key(0), later) == b"old"
        stage.curtain()
