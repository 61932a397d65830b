"""Requests that are well formed and mean nothing: each is answered or refused, and nobody else notices.

`python -m tests.sim nonsense --seeds 1-300` looks further than the few clusters here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from engine.client.ends import StatusCall
from engine.errors import UsageError
from engine.messages import KINDS
from engine.protocol.requests import REQUESTS, Done, Failed, KeepCut, Reply, Request, Rows, Scan, Unlock, Values
from engine.protocol.wire import decode_messages, decode_requests, frame
from engine.turn.events import Asked, SessionId
from tests.sim.heckled import play
from tests.sim.machine import Machine
from tests.sim.nonsense import Nonsense
from tests.sim.planted.fault import around
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, key
from tests.sim.trace import FRAME_HEADER_BYTES
from tests.sim.violation import Violation
from tests.sim.world import Plant
from wal.ids import TxId

SEEDS = 5
INTERRUPTIONS = 200


def test_a_cluster_outlives_hecklers_and_serves_everybody_else() -> None:
    told: set[type[Reply]] = set()
    for seed in range(1, SEEDS + 1):
        heckler = play(seed, INTERRUPTIONS)
        assert heckler.asked_times > INTERRUPTIONS
        assert set(heckler.kinds) == set(REQUESTS)
        told |= set(heckler.told)
    assert {Done, Values, Rows, Failed} <= told, "some of it means something, and is done"


def _dies_of(machine: Machine) -> None:
    """Who lets go of one cut twice in one request ends the node."""
    assert machine.node is not None
    handlers = machine.node._on_request
    original = handlers[KeepCut]

    def on_keep(session: SessionId, request: Any) -> None:
        assert len(set(request.others)) == len(request.others)
        original(session, request)

    handlers[KeepCut] = on_keep


def _is_deaf_to(machine: Machine) -> None:
    """Who unlocks nothing is not answered."""
    assert machine.node is not None
    locking = machine.node.locking

    def on_unlock(original: Callable[..., None], session: SessionId, request: Unlock) -> None:
        if locking.locks.is_owner(request.owner):
            original(session, request)

    around(locking, "on_unlock", on_unlock)


def _remembers(machine: Machine) -> None:
    """Who gives up a transaction, which need not be there, is remembered, and ten others with it."""
    assert machine.node is not None
    participant = machine.node.participant

    def give_up(original: Callable[[TxId], None], owner: TxId) -> None:
        participant.owner_of |= {b"%d" % (len(participant.owner_of) + at): owner for at in range(10)}
        original(owner)

    around(machine.node.desk, "give_up", give_up)


@pytest.mark.parametrize(
    ("plant", "oracle"), [(_dies_of, "node-assertion"), (_is_deaf_to, "answered"), (_remembers, "memory")]
)
def test_what_nonsense_does_is_noticed(plant: Plant, oracle: str) -> None:
    with pytest.raises(Violation) as found:
        play(1, 2 * INTERRUPTIONS, plant=plant)
    assert found.value.oracle == oracle


# What hecklers found.


def test_who_asks_for_the_status_where_a_transaction_is_not_decided_is_told_so() -> None:
    """It has voted there, its decision's primary is away, and the node that is asked leads no more than a part of it."""
    with Stage(None) as stage:
        tx = stage.transaction()

        async def prepare() -> None:
            await tx.put(NAMESPACE, {key(0): b"v", key(1): b"v"})
            await tx.prepare()

        stage.do(prepare())
        asked = StatusCall(tx.tx, 1)
        task = stage.begin(stage.client.call(asked, timeout_ns=ANSWER_NS))
        stage.until(lambda: task.done, "the status is told or refused")
        assert isinstance(task.failure, UsageError)
        assert "is decided in partition 0, and not in 1" in str(task.failure)
        assert stage.status(tx.tx, 0, stage.client) == "aborted"
        stage.curtain()


def test_who_scans_no_partition_is_told_so_at_a_cut_too() -> None:
    told: list[Reply] = []
    with Stage(None) as stage:
        machine = stage["n1"]
        session = machine.new_session(told.append)  # type: ignore[arg-type]  # a session answers with replies
        for cut in ((0, 0), (1, 1)):
            machine.receive(Asked(session, Scan(1, NAMESPACE, [], b"", None, 10, cut=cut)))
            stage.wait(100)
        assert [reply.message for reply in told if isinstance(reply, Failed)] == ["no partition was given"] * 2
        stage.curtain()


# That everything is said, and that it would be noticed.


@pytest.mark.parametrize("kind", [*REQUESTS, *KINDS])
def test_every_field_of_every_kind_is_drawn(kind: type[msgspec.Struct]) -> None:
    nonsense = Nonsense(Random(kind.__name__))
    said = [nonsense.say(kind) for _ in range(200)]
    for field in kind.__struct_fields__:
        values = {repr(getattr(one, field)) for one in said}
        assert len(values) > 1, f"{kind.__name__}.{field} is always {values}"


def test_all_of_it_is_well_formed() -> None:
    nonsense = Nonsense(Random(1))
    for kinds, decode in ((REQUESTS, decode_requests), (KINDS, decode_messages)):
        for kind in kinds:
            for _ in range(20):
                said = nonsense.say(kind)
                nonsense.hear(said)
                assert decode(frame([said])[FRAME_HEADER_BYTES:]) == [said]


def test_what_was_heard_is_said_again() -> None:
    nonsense = Nonsense(Random(1))
    heard = Scan(7, "acc", [3, 5], b"from", b"to", 11)
    nonsense.hear(heard)
    said: list[Request] = [nonsense.say(Scan) for _ in range(300)]  # type: ignore[misc]  # it is a scan
    assert heard in said, "as it was"
    scans = [one for one in said if isinstance(one, Scan)]
    assert any(one.partitions == [5, 3] for one in scans)
    assert any(len(set(one.partitions)) < len(one.partitions) for one in scans)
    assert any(one.partitions == [] for one in scans)
    assert any(one.limit in (10, 12, 13) for one in scans)
    assert any(one.start == b"to" for one in scans)
