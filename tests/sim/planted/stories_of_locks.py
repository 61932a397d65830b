"""Stories of transactions that read and write the same keys, and wait in line."""

from __future__ import annotations

from random import Random

from engine.client.calls import PutCall, SwapCall
from engine.client.scans import ScanCall
from engine.errors import Conflict, Deadlock, LockTimeout
from engine.messages import Inquire, Replicate, Vote
from tests.sim.clients import Task
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key, told
from tests.sim.transactions import SimTransaction
from tests.sim.world import SECOND, Plant
from wal import records as r

LOCKS = Stories()
story = LOCKS.story


@story
def readers_and_a_writer(plant: Plant | None) -> None:
    """Two read a key beside each other, a third wants to write it, and a fourth, who came last, to read it."""
    with Stage(plant) as stage:
        x = key(0)
        stage.put(x, b"0")
        readers = [stage.transaction() for _ in range(2)]
        for reader in readers:
            stage.do(reader.get(NAMESPACE, [x]))
        writer, late = stage.transaction(), stage.transaction()
        writing = stage.begin(writer.put(NAMESPACE, {x: b"1"}))
        stage.wait(20)
        reading = stage.begin(late.get(NAMESPACE, [x]))
        stage.do(readers[0].commit())
        stage.wait(100)
        stage.must(not writing.done, "nobody writes what a transaction has read")
        stage.must(not reading.done, "nobody passes a writer who waits")
        stage.do(readers[1].commit())
        stage.until(lambda: told(writing), "the writer has its turn")
        stage.must(not reading.done, "nobody reads what a transaction writes")
        stage.do(writer.commit())
        stage.until(lambda: told(reading), "the last one has its turn")
        stage.must(reading.result == {x: b"1"}, f"it reads what was committed: {reading.result}")
        stage.do(late.commit())
        stage.curtain()


@story
def two_readers_want_to_write(plant: Plant | None) -> None:
    """Each of two readers of a key wants to write it: one gives way within a tenth of a second, and the other goes on."""
    with Stage(plant) as stage:
        x = key(1)
        stage.put(x, b"0")
        old, young = stage.transaction(), stage.transaction()
        stage.do(old.get(NAMESPACE, [x]))
        stage.wait(20)
        stage.do(young.get(NAMESPACE, [x]))
        going, giving = stage.begin(old.put(NAMESPACE, {x: b"1"})), stage.begin(young.put(NAMESPACE, {x: b"2"}))
        stage.wait(100)
        stage.must(giving.done and isinstance(giving.failure, Deadlock), f"the younger was told {giving.failure!r}")
        stage.must(not going.done, f"the older waits for the end of the younger; it was told {going.failure!r}")
        stage.do(young.rollback())
        stage.until(lambda: told(going), "the older goes on")
        stage.do(old.commit())
        stage.must(stage.get(x) == b"1", "what it has written is there")
        stage.curtain()


@story
def a_writer_gives_up_before_a_reader(plant: Plant | None) -> None:
    """A writer waits in vain for a reader; who stands behind it in line wants to read, too, and need not wait any more."""
    with Stage(plant) as stage:
        x = key(0)
        stage.put(x, b"0")
        reader, late = stage.transaction(), stage.transaction()
        stage.do(reader.get(NAMESPACE, [x]))
        writer = SimTransaction(stage.client, timeout_ns=ANSWER_NS, lock_timeout_ms=200)
        writing = stage.begin(writer.put(NAMESPACE, {x: b"1"}))
        stage.wait(20)
        reading = stage.begin(late.get(NAMESPACE, [x]))
        stage.until(lambda: writing.done, "the writer has waited long enough")
        stage.must(type(writing.failure) is LockTimeout, f"it waited in vain, and was told {writing.failure!r}")
        stage.wait(100)
        stage.must(told(reading), "who stood behind a writer that gave up reads what others read")
        for tx in (reader, late, writer):
            stage.do(tx.rollback())
        stage.curtain()


@story
def what_was_read_is_held_by_the_next_primary(plant: Plant | None) -> None:
    """A transaction read y at n2 and writes x at n1. When it is prepared n2 dies; somebody writes y at n3."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        tx = stage.transaction()
        stage.do(tx.get(NAMESPACE, [y]))
        stage.do(tx.put(NAMESPACE, {x: b"1"}))
        stage.do(tx.prepare())
        stage.power_cut("n2")
        stage.until(lambda: stage.primary(1, "n3"), "n3 is primary of partition 1")
        other = stage.another()
        putting = stage.begin(other.call(PutCall(other.new_tx(), NAMESPACE, [y], [b"2"]), timeout_ns=ANSWER_NS), other)
        stage.wait(SETTINGS.lock_timeout_ms // 2)
        before = told(putting)
        committing = stage.begin(tx.commit())
        stage.until(lambda: committing.done and putting.done, "both are answered")
        stage.must(not (before and told(committing)), "nobody writes what was read before the transaction's end")
        stage.curtain()


@story
def a_claim_beside_others(plant: Plant | None) -> None:
    """One has a row of a range, and another one voted for a change of a second, when a third asks which it might lock."""
    with Stage(plant) as stage:
        rows = sorted((key(0), key(1), key(2)))
        for row in rows:
            stage.put(row, b"to do")
        holder, voter = stage.transaction(), stage.transaction()
        stage.do(holder.put(NAMESPACE, {rows[0]: b"mine"}))
        stage.do(voter.put(NAMESPACE, {rows[1]: None, key(3): b"new"}))
        stage.do(voter.prepare())
        page = ScanCall(NAMESPACE, b"k", b"l", 2, unlocked=True)
        claiming = stage.begin(stage.client.call(page, timeout_ns=ANSWER_NS))
        stage.wait(100)
        stage.must(told(claiming), "who looks for what is free waits for nobody")
        stage.must(page.rows == [(rows[2], b"to do")], f"of {rows} the last is free, and it was told {page.rows}")
        stage.do(holder.rollback())
        stage.do(voter.commit())
        page = ScanCall(NAMESPACE, b"k", b"l", 2, unlocked=True)
        stage.do(stage.client.call(page, timeout_ns=ANSWER_NS))
        found = [row for row, _ in page.rows]
        stage.must(found == sorted((rows[0], rows[2], key(3)))[:2], f"all is free, and it was told {found}")
        stage.curtain()


@story
def a_claim_beside_what_is_being_put(plant: Plant | None) -> None:
    """There are no jobs but two whose transaction voted. Who claims one is told neither that there is none nor of one
    before the outcome is known; and has one then."""
    with Stage(plant) as stage:
        jobs = {key(0): b"to do", key(1): b"to do"}
        putting, claimer = stage.transaction(), stage.transaction()
        stage.do(putting.put(NAMESPACE, jobs))
        stage.do(putting.prepare())
        claiming = stage.begin(claimer.claim(NAMESPACE, b"k", b"l", 1, sample=Random(1).sample))
        stage.wait(200)
        stage.must(not claiming.done, "nobody knows yet whether there is a job")
        stage.do(putting.commit())
        stage.until(lambda: told(claiming), "the claim is answered")
        first = min(jobs)
        stage.must(claiming.result == [(first, b"to do")], f"{first!r} is there, and it was told of {claiming.result}")
        stage.do(claimer.commit())
        stage.curtain()


@story
def a_job_comes_where_others_were_looked_for(plant: Plant | None) -> None:
    """Somebody looks for jobs again and again. Each that comes is found by the next look, and none that went."""
    with Stage(plant) as stage:

        def found() -> list[bytes]:
            page = ScanCall(NAMESPACE, b"k", b"l", 1, unlocked=True)
            stage.do(stage.client.call(page, timeout_ns=ANSWER_NS))
            return [row for row, _ in page.rows]

        stage.put(key(0, 1), b"to do")
        for number in (3, 2, 0):
            stage.must([found() for _ in range(3)][2] == [key(0, 1)], "it is there")
            stage.put(key(0, 1), None)
            stage.must(found() == [], "it is gone")
            stage.put(key(0, number), b"to do")
            stage.must(found() == [key(0, number)], f"the job {number} is there, and found was {found()}")
            stage.put(key(0, number), None)
            stage.put(key(0, 1), b"to do")
        stage.curtain()


# Keys that go on before the outcome counts.


def _committed_and_not_heard_of(stage: Stage, x: bytes, y: bytes) -> tuple[Rule, Task, SimTransaction]:
    """A transaction adds 1 to two keys, and its client is told; its outcome reaches no copy of partition 0. Another one had
    waited for the first key: the task, and the transaction."""
    for name in (x, y):
        stage.put(name, b"40")
    first, second = stage.transaction(), SimTransaction(stage.another(), timeout_ns=ANSWER_NS, lock_timeout_ms=5_000)
    stage.do(first.put(NAMESPACE, {x: b"41", y: b"41"}))
    waiting = stage.begin(second.get_many(NAMESPACE, [x], update=True), second.client)
    stage.wait(50)
    untold = _outcome_of(first)
    stage.world.network.rules.append(untold)
    stage.do(first.commit())
    return untold, waiting, second


def _outcome_of(tx: SimTransaction) -> Rule:
    """How a transaction ended does not reach the copies of partition 0."""

    def tells(_src: str, _dst: str, said: object) -> bool:
        records = said.records if isinstance(said, Replicate) else []
        return any(isinstance(record, r.Outcome) and (record.tx, record.partition) == (tx.tx, 0) for record in records)

    return Rule("the outcome", tells, drop=True)


@story
def a_key_goes_on_before_the_outcome_counts(plant: Plant | None) -> None:
    """Who stands in line for a key of a commit that is certain has it, and reads what was committed; it commits when all
    copies have heard of that."""
    with Stage(plant) as stage:
        x, y, z = key(0), key(1), key(2)
        untold, waiting, second = _committed_and_not_heard_of(stage, x, y)
        stage.wait(50)
        stage.must(told(waiting), "who stands in line does not wait until the outcome counts")
        stage.must(waiting.result == {x: b"41"}, f"what was committed is read: {waiting.result}")
        stage.do(second.put(NAMESPACE, {x: b"42", z: b"1"}), second.client)
        committing = stage.begin(second.commit(), second.client)
        stage.wait(100)
        stage.end(untold)
        stage.until(lambda: told(committing), "it is committed when that counts")
        stage.must((found := stage.get(x)) == b"42", f"both have added 1 to 40: {found!r}")
        stage.curtain()


@story
def a_key_that_went_on_is_read(plant: Plant | None) -> None:
    """A client was told of a commit, and another transaction has one of its keys by then, when somebody reads that."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        untold, waiting, second = _committed_and_not_heard_of(stage, x, y)
        stage.until(lambda: told(waiting), "who stands in line has the key")
        reading = stage.begin_get(x)
        stage.wait(100)
        stage.must(not told(reading) or reading.result == b"41", f"a read after a commit sees it: {reading.result}")
        stage.do(second.rollback(), second.client)
        call = SwapCall(stage.client.new_tx(), NAMESPACE, x, "always", new=b"1", how="add")
        adding = stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))
        stage.wait(100)
        stage.end(untold)
        stage.until(lambda: told(adding) and told(reading), "both are answered when the outcome counts")
        stage.must((found := stage.get(x)) == b"42", f"what was committed and the increment are there: {found!r}")
        stage.curtain()


@story
def a_key_goes_on_from_what_is_refused(plant: Plant | None) -> None:
    """One participant has voted, and somebody stands in line for its key; the other's no is on its way."""
    with Stage(plant) as stage:
        x, y = key(0), key(2)
        stage.put(x, b"40")
        holder, waiter = stage.transaction(), SimTransaction(stage.another(), timeout_ns=ANSWER_NS, lock_timeout_ms=5_000)
        stage.do(holder.put(NAMESPACE, {y: b"mine"}))
        refused = stage.transaction(optimistic=True)
        stage.do(refused.put(NAMESPACE, {x: b"41", y: b"41"}))
        late = Rule("the no", lambda _src, to, said: to == "n1" and isinstance(said, Vote) and not said.yes, drop=False)
        stage.world.network.rules.append(late)
        committing = stage.begin(refused.commit())
        stage.wait(100)
        waiting = stage.begin(waiter.get_many(NAMESPACE, [x], update=True), waiter.client)
        stage.wait(100)
        stage.world.network.release([late], [held for held in stage.world.network.held if held.rule is late])
        stage.until(lambda: told(waiting) and committing.done, "both are answered")
        stage.must(isinstance(committing.failure, Conflict), f"it was refused, and told {committing.failure!r}")
        stage.must(waiting.result == {x: b"40"}, f"nothing of it is read: {waiting.result}")
        stage.do(waiter.commit(), waiter.client)
        stage.do(holder.commit())
        stage.curtain()


@story
def the_primary_dies_when_a_key_has_gone_on(plant: Plant | None) -> None:
    """A commit was told, and another transaction that has its key by then is to be prepared, too, when n1 dies. The second
    soon comes to nothing; that the first is committed is not known at n2 yet when its key is read there."""
    with Stage(plant) as stage:
        x, y, z = key(0), key(1), key(2)
        untold, waiting, second = _committed_and_not_heard_of(stage, x, y)
        stage.until(lambda: told(waiting), "who stands in line has the key")
        unasked = stage.lose("prepare-parts", "n1", "n3")
        stage.do(second.put(NAMESPACE, {x: b"42", z: b"1"}), second.client)
        stage.begin(second.commit(), second.client)
        stage.wait(100)
        stage.power_cut("n1")
        stage.client.die()
        second.client.die()
        unknown = Rule("about the first", lambda *link: isinstance(link[2], Inquire) and link[2].tx != second.tx, drop=True)
        stage.world.network.rules.append(unknown)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.end(unasked)
        stage.wait(500)
        reading = stage.begin_get(x, stage.another(without=("n1",)))
        stage.wait(300)
        stage.must(not told(reading) or reading.result == b"41", f"a read after a commit sees it: {reading.result}")
        stage.end(unknown, untold)
        stage.until(lambda: told(reading), "it is answered when the outcome is known")
        stage.must(reading.result == b"41", f"a read after a commit sees it: {reading.result}")
        stage.curtain()


@story
def who_found_a_vote_is_asked_for_another(plant: Plant | None) -> None:
    """n2 has voted and dies; n3, which was not asked yet, leads what it led and finds that it is prepared. Then it is asked
    for its own part, and told who has the locks. All of them are free when the transaction is over."""
    with Stage(plant) as stage:
        names = x, y, z = key(0), key(1), key(2)
        unasked = stage.lose("prepare-parts", "n1", "n3")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {x: b"1"}))
        stage.do(tx.put(NAMESPACE, dict.fromkeys([y, z], b"1")))
        committing = stage.begin(tx.commit())
        stage.until(lambda: unasked.caught > 0, "n1 asks for the votes")
        stage.wait(50)
        stage.power_cut("n2")
        stage.until(lambda: stage.primary(1, "n3"), "n3 is primary of partition 1")
        stage.end(unasked)
        stage.until(lambda: committing.done, "the client is told how it ended", look_every=SECOND // 10)
        reader = stage.another()
        found = [stage.get(name, reader) for name in names]
        stage.must(found == [b"1" if told(committing) else None] * 3, f"a transaction is all or nothing: {found}")
        for name in names:
            stage.put(name, b"2", reader)
        stage.start("n2")
        stage.curtain()
