"""What a node keeps for clients that may ask again, told with one node that is its own cluster."""

from __future__ import annotations

from engine.data.sessions import LOOKED_AT_ONCE, SESSIONS_MAX
from engine.node.node import Node
from engine.protocol.requests import (
    Code,
    Done,
    Failed,
    Get,
    GetStatus,
    KeepSessions,
    Put,
    Remap,
    Reply,
    Request,
    Status,
    Values,
)
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.events import Asked, Event
from engine.turn.settings import Settings
from rebalance.ports import MS
from wal import records as r
from wal.ids import TxId, tx_of

ANN, BOB = b"ann-------", b"bob-------"
RETENTION_MS = 60_000


class Alone:
    """A node by itself, with one partition or more, that keeps four answers without looking which may go."""

    def __init__(self, partitions: int = 1) -> None:
        settings = Settings(
            cluster="test",
            partitions=partitions,
            backups=0,
            answers_kept=4,
            result_retention_ms=RETENTION_MS,
            checkpoint_ms=86_400_000,
        )
        replica = Replica(LayeredStore(MemoryStore()))
        self.node = Node(settings, replica, node="n1", allocation="d1", address="n1:1", durable_lsn=0)
        self.records: list[r.Record] = []
        self.turn([])
        assert self.node.formation.form(1, 0, "c1", ["n1"]) == ""
        self.turn([])
        self.version = self.node.core.version.number

    def turn(self, events: list[Event], *, later_ms: int = 0) -> list[Reply]:
        """Turns until nothing more happens by itself at this moment; what clients are told."""
        told: list[Reply] = []
        now = self.node.core.now + later_ms * MS + 1
        while True:
            effects = self.node.turn(now, events)
            told += [reply for _, reply in effects.reply]
            self.records += effects.log
            events = []
            if effects.wake_at is None or effects.wake_at > now + 1:
                return told
            now += 1

    def idle(self, ms: int) -> None:
        """Time passes, and the node is there all the while."""
        step = self.node.core.settings.heartbeat_ms
        for _ in range(0, ms, step):
            self.turn([], later_ms=step)

    def ask(self, request: Request, *, later_ms: int = 0) -> Reply:
        """Ask one thing."""
        (reply,) = self.turn([Asked(1, request)], later_ms=later_ms)
        return reply

    def put(self, session: bytes, number: int, acked: int, value: bytes = b"v", *, version: int | None = None) -> Reply:
        """A write of one key."""
        tx = tx_of(session, number)
        return self.ask(Put(7, tx, "acc", [b"k"], [value], acked, self.version if version is None else version))

    def value(self) -> bytes | None:
        """What stands in the key."""
        held = self.ask(Get(8, "acc", [b"k"]))
        assert isinstance(held, Values)
        return held.values[0][2]

    def known(self) -> list[TxId]:
        """The ids whose answers are kept."""
        return [tx for tx, _ in self.node.core.replica.partition(0).results.items()]

    def code(self, reply: Reply) -> str:
        """Why it was refused."""
        assert isinstance(reply, Failed), reply
        return reply.code


def test_what_is_acknowledged_goes_when_answers_pile_up_and_what_is_not_stays() -> None:
    alone = Alone()
    alone.put(BOB, 1, 0)
    for number in range(1, 40):
        assert isinstance(alone.put(ANN, number, number - 1), Done)
    assert tx_of(BOB, 1) in alone.known(), "it was never acknowledged"
    assert tx_of(ANN, 39) in alone.known(), "nor was this"
    assert len(alone.known()) < 12
    assert any(isinstance(record, r.Forget) for record in alone.records), "the log says what was forgotten"


def test_the_newest_answers_stay_although_they_are_acknowledged() -> None:
    alone = Alone()
    for number in range(1, 40):
        alone.put(ANN, number, number - 1)
        if number > 1:
            assert tx_of(ANN, number - 1) in alone.known(), "who was just answered may still ask how it ended"
    assert any(isinstance(record, r.Forget) for record in alone.records)


def test_a_late_copy_of_what_was_answered_and_forgotten_is_not_executed() -> None:
    alone = Alone()
    alone.put(ANN, 1, 0, b"old")
    for number in range(2, 40):
        alone.put(ANN, number, number - 1, b"new")
    assert tx_of(ANN, 1) not in alone.known()
    assert alone.code(alone.put(ANN, 1, 0, b"old")) == Code.ANSWERED
    assert alone.value() == b"new"


def test_what_was_sent_by_an_older_map_than_that_which_made_this_node_primary_is_sent_back() -> None:
    alone = Alone()
    assert isinstance(alone.put(ANN, 1, 0, version=1), Remap)
    assert alone.value() is None
    assert isinstance(alone.put(ANN, 1, 0), Done), "and by the new map it is done"
    assert isinstance(alone.put(ANN, 1, 0, version=1), Done), "what is known is answered whoever asks"


def test_a_silent_session_is_remembered_for_as_long_as_is_said_and_then_nobody_calls_it_aborted() -> None:
    alone = Alone()
    alone.put(BOB, 1, 0, b"bob")
    alone.idle(RETENTION_MS - 1_000)
    for number in range(1, 30):
        alone.put(ANN, number, number - 1)
    assert isinstance(alone.put(BOB, 1, 0), Done), "the first answer"
    alone.idle(RETENTION_MS + 1_000)
    for number in range(30, 60):
        alone.put(ANN, number, number - 1, b"ann")
    assert tx_of(BOB, 1) not in alone.known()
    assert alone.code(alone.put(BOB, 1, 0, b"bob")) == Code.ANSWERED
    assert alone.value() == b"ann"
    assert alone.code(alone.ask(GetStatus(9, tx_of(BOB, 1), 0))) == Code.FORGOTTEN


def test_a_node_that_was_stopped_for_an_hour_calls_nobody_silent_for_that_hour() -> None:
    alone = Alone()
    alone.put(BOB, 1, 0, b"bob")
    alone.put(ANN, 1, 0)
    alone.turn([], later_ms=3_600_000)
    for number in range(2, 60):
        alone.put(ANN, number, number - 1)
    for number in range(10):
        alone.put(b"eve%07d" % number, 1, 0, b"eve")  # old sessions are looked at for each new one
    assert isinstance(alone.put(BOB, 1, 0, b"bob"), Done), "the first answer"
    assert alone.value() == b"eve"


def test_a_session_that_says_that_it_lives_is_not_forgotten() -> None:
    alone = Alone()
    alone.put(BOB, 1, 0)
    for number in range(1, 60):
        alone.put(ANN, number, number - 1)
        alone.idle(RETENTION_MS // 10)
        alone.ask(KeepSessions(9, [(BOB, 0)]))
    assert tx_of(BOB, 1) in alone.known()


def test_who_asks_about_its_own_gets_an_exact_answer_whatever_was_forgotten_of_others() -> None:
    alone = Alone()
    for number in range(1, 40):
        alone.put(ANN, number, number - 1)
    assert alone.code(alone.ask(GetStatus(9, tx_of(BOB, 5), 0))) == Code.FORGOTTEN, "it may have been"
    assert alone.ask(GetStatus(9, tx_of(BOB, 5), 0, 3_000)) == Status(9, "aborted"), "it awaits the answer: it was not"
    assert alone.code(alone.put(BOB, 5, 4)) == Code.CONFLICT, "and never will be"


def test_a_session_that_is_too_far_ahead_is_refused_before_anything_is_done() -> None:
    alone = Alone()
    assert alone.code(alone.put(ANN, 70_000, 100)) == Code.USAGE
    assert alone.value() is None


def test_replaying_the_log_gives_what_the_node_remembers() -> None:
    alone = Alone()
    for number in range(1, 40):
        alone.put(ANN, number, number - 1)
        alone.put(BOB, number, number // 2)
    replayed = Replica(LayeredStore(MemoryStore()))
    for record in alone.records:
        replayed.apply(record)
    assert sorted(tx for tx, _ in replayed.partition(0).results.items()) == sorted(alone.known())
    assert replayed.partition(0).results.floor == alone.node.core.replica.partition(0).results.floor != b""


def test_what_is_not_over_in_a_partition_is_not_forgotten_there() -> None:
    """A transaction's decision is told before its outcome is noted in every partition: in its own it may be, too."""
    alone = Alone()
    alone.put(ANN, 1, 0)
    tx, prepared = tx_of(ANN, 1), alone.node.core.replica.partition(0).prepared
    prepared[tx] = r.Prepare(tx, 0, epoch=1, writes=[], locks=[], participants=[0], decision=0)
    for number in range(2, 40):
        alone.put(ANN, number, number - 1)
    assert tx in alone.known(), "its outcome would be noted once more, before it is forgotten or after"
    del prepared[tx]
    for number in range(40, 140):
        alone.put(ANN, number, number - 1)
    assert tx not in alone.known()


def invent(alone: Alone, acked: int, count: int = SESSIONS_MAX + 100) -> None:
    """Somebody says so many names of sessions, as the writes of a client do."""
    for number in range(count):
        alone.node.sessions.hear(tx_of(b"%010d" % number, acked + 1), acked)


def test_sessions_that_acknowledged_nothing_make_room_for_others() -> None:
    """To let go of them loses nothing; who acknowledged something is remembered, and what it has is not done again."""
    alone = Alone()
    for number in range(1, 40):
        alone.put(ANN, number, number - 1)
    alone.put(BOB, 1, 0, b"bob")
    invent(alone, 0)
    assert len(alone.node.sessions._heard) == SESSIONS_MAX
    assert tx_of(ANN, 1) not in alone.known()
    assert alone.code(alone.put(ANN, 1, 0, b"again")) == Code.ANSWERED
    assert isinstance(alone.put(BOB, 1, 0, b"again"), Done), "it was let go of, and has the first answer all the same"
    assert alone.value() == b"bob"
    for number in range(1, 60):
        alone.put(b"eve-------", number, number - 1)
    assert tx_of(BOB, 1) in alone.known(), "nor is its answer forgotten, since its silence begins anew"


def test_where_all_have_acknowledged_something_a_new_session_is_refused_before_anything_is_done() -> None:
    alone = Alone()
    alone.put(ANN, 1, 0, b"ann")
    alone.put(ANN, 2, 1, b"ann")
    invent(alone, 1)
    assert len(alone.node.sessions._heard) == SESSIONS_MAX
    refused = alone.put(BOB, 1, 0, b"bob")
    assert alone.code(refused) == Code.BUSY
    assert isinstance(refused, Failed)
    assert refused.retryable
    assert alone.value() == b"ann"
    assert isinstance(alone.put(ANN, 3, 2, b"more"), Done), "who is known goes on"
    alone.idle(2 * RETENTION_MS + 1_000)
    assert isinstance(alone.put(BOB, 1, 0, b"bob"), Done), "some have been silent for long enough"


def test_to_say_that_sessions_live_makes_nobody_remember_them() -> None:
    alone = Alone()
    for number in range(100):
        alone.ask(KeepSessions(9, [(b"%010d" % (100 * number + at), 5) for at in range(100)]))
    assert not alone.node.sessions._heard


def test_where_very_many_answers_grow_old_together_some_partitions_are_looked_at_in_each_turn() -> None:
    alone = Alone(partitions=32)
    node = alone.node
    for number in range(32):
        for at in range(3_000):
            node.core.replica.partition(number).results.note_committed(tx_of(b"%010d" % number, 1 + at))
        node.sessions.crowd(number)
    alone.turn([])
    most, forgotten = 0, dict[int, None]()
    for _ in range(RETENTION_MS // 100 + 20):
        log = node.turn(node.core.now + 100 * MS, []).log
        said = [record.partition for record in log if isinstance(record, r.Forget)]
        most = max(most, len(said))
        forgotten |= dict.fromkeys(said)
    assert len(forgotten) == 32
    assert most < 20, "each is much of a turn"
    assert all(len(node.core.replica.partition(number).results) == 2 for number in range(32)), "all but the newest"


def test_of_more_answers_than_are_looked_at_once_all_go_when_they_are_acknowledged() -> None:
    """One request that takes long keeps all that its client was told after it; then they go faster than others come."""
    alone, many = Alone(), 4 * LOOKED_AT_ONCE
    results = alone.node.core.replica.partition(0).results
    for number in range(1, many):
        results.note_committed(tx_of(ANN, number))
    for number in range(many, many + 20):
        alone.put(ANN, number, acked=number - 1)
    assert len(results) < 20
