"""Stories of what expires, while clocks jump and primaries fail."""

from __future__ import annotations

from engine.client.calls import PutCall
from tests.sim.network import MS
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, Stories, key, told
from tests.sim.world import Plant
from wal.ids import NodeId

EXPIRY = Stories()
story = EXPIRY.story

TTL_MS = 500
HOUR_MS = 3_600_000


def _put(stage: Stage, name: bytes, value: bytes, ttl_ms: int = TTL_MS) -> None:
    call = PutCall(stage.client.new_tx(), NAMESPACE, [name], [value], ttl_ms)
    stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))


def _stands(stage: Stage, name: NodeId, at: bytes) -> bool:
    node = stage[name].node
    assert node is not None
    held = node.core.replica.store.get((NAMESPACE, 0), at)
    return held is not None and held.value is not None


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
def what_had_expired_when_it_was_committed_is_not_read(plant: Plant | None) -> None:
    """A key is written by a transaction that takes longer than the key is to last. Somebody asks for it before the commit
    counts, and is answered when it does: the key's own delete is still on its way then."""
    with Stage(plant) as stage:
        lost = stage.lose("replicate", "n1")
        tx = stage.transaction()
        stage.do(tx.put_many(NAMESPACE, {key(0): b"short"}, TTL_MS))
        stage.do(tx.put(NAMESPACE, {key(1): b"stays"}))
        commit = stage.begin(tx.commit())
        stage.wait(2 * TTL_MS)
        unsure = stage.lose("confirmed", receiver="n1")
        read = stage.begin_get(key(0))
        stage.wait(20)
        stage.must(not told(read) and not _stands(stage, "n1", key(0)), "it is asked for before the commit counts")
        stage.end(lost)
        stage.until(lambda: _stands(stage, "n1", key(0)), "the commit counts", look_every=MS)
        lost = stage.lose("replicate", "n1")
        stage.end(unsure)
        stage.wait(200)
        stage.must(told(commit) and _stands(stage, "n1", key(0)), "the delete does not count yet")
        stage.must(not told(read) or read.result is None, "nobody is told of what has expired")
        stage.end(lost)
        stage.until(lambda: told(read), "the reader is told")
        stage.must(read.result is None, f"the key is gone; read {read.result!r}")
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
def who_gets_a_key_that_has_expired_keeps_it_for_nobody(plant: Plant | None) -> None:
    """A key's time is over while a transaction holds it, for which another one waits. When that has it, the key is on its
    way to be deleted, and a reader waits for that."""
    with Stage(plant) as stage:
        _put(stage, key(0), b"short")
        first, second = stage.transaction(), stage.transaction()
        stage.do(first.get(NAMESPACE, [key(0)]))
        locking = stage.begin(second.put(NAMESPACE, {key(0): b"another"}))
        stage.wait(TTL_MS - 100)
        stage.must(not locking.done, "the second one waits for the first")
        stage["n1"].wall_offset_ms = TTL_MS
        lost = stage.lose("replicate", "n1")
        stage.do(first.rollback())
        reading = stage.begin_get(key(0))
        stage.wait(100)
        stage.must(_stands(stage, "n1", key(0)), "the delete does not count yet")
        stage.must(not told(reading), f"whoever reads it waits; read {reading.result!r}")
        stage.end(lost)
        stage.until(lambda: told(reading) and told(locking), "both go on")
        stage.must(reading.result is None, f"the key is gone; read {reading.result!r}")
        stage.do(second.rollback())
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
