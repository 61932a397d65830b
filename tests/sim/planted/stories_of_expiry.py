"""Stories of what expires, while clocks jump and primaries fail."""

from __future__ import annotations

from engine.client.calls import PutCall
from engine.messages import Replicate
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, Stories, key, told
from tests.sim.world import Plant
from wal.ids import EXPIRIES, NodeId
from wal.records import Update

EXPIRY = Stories()
story = EXPIRY.story

TTL_MS = 500
HOUR_MS = 3_600_000


def _put(stage: Stage, name: bytes, value: bytes, ttl_ms: int = TTL_MS) -> None:
    call = PutCall(stage.client.new_tx(), NAMESPACE, [name], [value], ttl_ms)
    stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))


def _stands(stage: Stage, name: NodeId, at: bytes, partition: int = 0) -> bool:
    node = stage[name].node
    assert node is not None
    held = node.core.replica.store.get((NAMESPACE, partition), at)
    return held is not None and held.value is not None


def _is_delete(said: object) -> bool:
    return isinstance(said, Replicate) and any(
        isinstance(record, Update) and any(write.namespace == EXPIRIES and None in write.values for write in record.writes)
        for record in said.records
    )


@story
def what_expires_goes_from_every_copy(plant: Plant | None) -> None:
    """A key expires, and nobody reads it. Its backups' clocks are an hour fast, and that is nothing to them."""
    with Stage(plant) as stage:
        stage["n2"].wall_offset_ms = HOUR_MS
        _put(stage, key(0), b"short")
        stage.put(key(0, 1), b"stays")
        stage.wait(TTL_MS // 2)
        stage.must(stage.get(key(0)) == b"short", "a value lasts as long as was said")
        stage.compare()
        stage.until(lambda: not any(_stands(stage, name, key(0)) for name in ("n1", "n2", "n3")), "it goes everywhere")
        stage.must(stage.get(key(0, 1)) == b"stays", "what was put to stay stays")
        stage.curtain()


@story
def what_has_expired_is_not_read(plant: Plant | None) -> None:
    """A key is read in the moment at which its time is over."""
    with Stage(plant) as stage:
        _put(stage, key(0), b"short", ttl_ms=10_000)
        stage["n1"].wall_offset_ms = 10_000
        stage.must(stage.get(key(0)) is None, "nobody is told of what has expired")
        stage.curtain()


@story
def what_was_prepared_when_it_was_asked_for_has_expired_when_it_is_read(plant: Plant | None) -> None:
    """A transaction is acknowledged, and of one key its primary does not know that yet; the key's time passes. It is
    asked for, and before the copies have confirmed that its primary is one still, it comes to count."""
    with Stage(plant) as stage:
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {key(0): b"beside"}))
        stage.do(tx.put_many(NAMESPACE, {key(1): b"short"}, TTL_MS))
        leads = next(name for name in ("n1", "n2", "n3") if stage.primary(1, name))
        unfinished = stage.lose("finish", receiver=leads)
        stage.do(tx.commit())
        stage.wait(2 * TTL_MS)
        undeleted = Rule("the delete", lambda src, _, said: src == leads and _is_delete(said), drop=True)
        stage.world.network.rules.append(undeleted)
        unconfirmed = stage.lose("confirm", leads)
        read = stage.begin_get(key(1), stage.another())
        stage.wait(20)
        stage.end(unfinished)
        stage.until(lambda: _stands(stage, leads, key(1), 1), "it counts")
        stage.end(unconfirmed)
        stage.wait(1_000)
        stage.end(undeleted)
        stage.until(lambda: read.done, "the read is answered")
        stage.must(told(read) and read.result is None, f"what has expired is not read: {read.result}")
        stage.curtain()


@story
def a_clock_that_is_slow_brings_nothing_back(plant: Plant | None) -> None:
    """A reader is told that a key is gone, while its delete does not reach the copies. Then the primary fails, and the
    next one has a clock that is an hour slow."""
    with Stage(plant) as stage:
        _put(stage, key(0), b"short", ttl_ms=10_000)
        stage["n2"].wall_offset_ms = stage["n3"].wall_offset_ms = -HOUR_MS
        lost = stage.lose("replicate", "n1")
        stage["n1"].wall_offset_ms = 10_000
        read = stage.begin_get(key(0))
        stage.wait(100)
        gone = told(read)
        stage.power_cut("n1")
        stage.client.die()
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        found = stage.get(key(0), stage.another())
        stage.must(not gone or found is None, f"what was seen to be gone is gone; found {found!r}")
        stage.curtain()


@story
def what_is_put_since_stays(plant: Plant | None) -> None:
    """A key that was to expire is put again, to stay."""
    with Stage(plant) as stage:
        _put(stage, key(0), b"short")
        stage.put(key(0), b"stays")
        stage.wait(4 * TTL_MS)
        stage.must(stage.get(key(0)) == b"stays", "a later value is another one")
        stage.curtain()


@story
def a_transaction_keeps_what_it_has_read(plant: Plant | None) -> None:
    """A key's time is over while a transaction holds it, which reads it again."""
    with Stage(plant) as stage:
        _put(stage, key(0), b"short")
        tx = stage.transaction()
        stage.do(tx.get(NAMESPACE, [key(0)]))
        stage.wait(2 * TTL_MS)
        stage.must(stage.get(key(0)) == b"short", "nothing changes under a transaction")
        stage.do(tx.put(NAMESPACE, {key(0): b"stays"}))
        stage.do(tx.commit())
        stage.wait(2 * TTL_MS)
        stage.must(stage.get(key(0)) == b"stays", "what it has written is another value")
        stage.curtain()


@story
def a_new_primary_deletes_what_expires_later(plant: Plant | None) -> None:
    """The primary fails before a key's time is over: the next one sees to it that it goes, though nobody reads it."""
    with Stage(plant) as stage:
        _put(stage, key(0), b"short", ttl_ms=6_000)
        stage.power_cut("n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(7_000)
        stage.must(not _stands(stage, "n2", key(0)), "it is deleted in time")
        stage.curtain()
