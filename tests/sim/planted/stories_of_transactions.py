"""Stories of transactions: half prepared, half told, in doubt, aborted, asked for again."""

from __future__ import annotations

import msgspec

from engine.client.calls import PutCall, SwapCall
from engine.errors import Conflict
from engine.messages import KINDS as MESSAGES
from engine.messages import PrepareParts, Replicate, Resolve, Vote
from engine.protocol.requests import Check, Request
from engine.transactions.coordinator import PREPARE_SECONDS_MAX
from tests.sim.clients import Client
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key, told
from tests.sim.transactions import SimTransaction
from tests.sim.workloads.rivals import Rivals
from tests.sim.world import SECOND, Plant
from wal import records as r
from wal.ids import DECISIONS

TRANSACTIONS = Stories()
story = TRANSACTIONS.story

# Transactions.


@story
def one_participant_was_not_prepared(plant: Plant | None) -> None:
    """The prepare reaches n1's partition and not n3's; n1 dies, and n2 recovers the transaction."""
    with Stage(plant) as stage:
        x, y = key(0), key(2)
        unasked = stage.lose("prepare-parts", "n1", "n3")
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.begin(tx.commit())
        stage.until(lambda: unasked.caught > 0, "n1 asks for the votes")
        stage.wait(50)
        stage.client.die()
        stage.power_cut("n1")
        stage.end(unasked)
        stage.rest()
        reader = stage.another()
        found = stage.get(x, reader), stage.get(y, reader)
        stage.must(found in ((None, None), (b"1", b"1")), f"a transaction is all or nothing: {found}")
        stage.curtain()


@story
def a_vote_comes_once_more_when_all_is_forgotten(plant: Plant | None) -> None:
    """n2 has read for a transaction; its vote for n3 stands still on its way, and comes when the outcome is forgotten."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, answers_kept=1)) as stage:
        stage.put(key(1), b"read")
        late = Rule("replicate", _is_vote_of_reader, drop=False, left=1)
        stage.world.network.rules.append(late)
        tx = stage.transaction()
        stage.do(tx.get(NAMESPACE, [key(1)]))
        stage.do(tx.put(NAMESPACE, {key(0): b"written"}))
        stage.do(tx.commit())
        for number in range(1, 5):
            stage.put(key(1, number), b"more")
        stage.wait(2_000)
        network = stage.world.network
        network.release([late], [held for held in network.held if held.rule is late])
        stage.wait(1_000)
        copy = stage["n3"].node
        assert copy is not None
        stage.must(not copy.core.replica.partition(1).prepared, "what is over is not in doubt again")
        stage.curtain()


@story
def it_is_asked_how_a_transaction_ended_when_all_is_forgotten(plant: Plant | None) -> None:
    """n2 has not heard of the outcome and asks for it; it hears, and its question arrives when nobody knows any more."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, answers_kept=1)) as stage:
        lost = stage.lose("finish", "n1", "n2")
        late = Rule("resolve", lambda src, _, said: src == "n2" and isinstance(said, Resolve), drop=False)
        stage.world.network.rules.append(late)
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {key(0): b"1", key(1): b"1"}))
        stage.do(tx.commit())
        stage.until(lambda: late.caught > 0, "n2 is in doubt, and asks")
        stage.end(lost)
        stage.wait(2_000)
        for number in range(1, 4):
            another = stage.transaction()
            stage.do(another.put(NAMESPACE, {key(0, number): b"1", key(1, number): b"1"}))
            stage.do(another.commit())
        stage.wait(2_000)
        decisions = _decisions(stage)
        network = stage.world.network
        network.release([late], [held for held in network.held if held.rule is late])
        stage.wait(1_000)
        stage.must(_decisions(stage) == decisions, "nobody is in doubt, and nothing is decided once more")
        stage.curtain()


def _decisions(stage: Stage) -> int:
    """How often something was written about outcomes in n1's partition."""
    node = stage["n1"].node
    assert node is not None
    return node.core.replica.fragment((DECISIONS, 0)).counter.lwm


def _is_vote_of_reader(src: str, dst: str, said: object) -> bool:
    if not isinstance(said, Replicate) or (src, dst) != ("n2", "n3"):
        return False
    return any(isinstance(record, r.Prepare) and not record.writes for record in said.records)


@story
def a_status_is_asked_before_the_commit_arrives(plant: Plant | None) -> None:
    """A client asks how its transaction ended before it began to; what it is told stays true."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        answer = stage.do(tx.status())
        committing = stage.begin(tx.commit())
        stage.until(lambda: committing.done, "the commit is answered")
        again = stage.do(tx.status())
        stage.must(answer == again, f"the outcome was told as {answer}, and then as {again}")
        stage.curtain()


@story
def one_of_two_keys_is_there_and_a_reader_finds_neither(plant: Plant | None) -> None:
    """A reader looks at x and y, and what is in one of them moves to the other and back while it reads and ends."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(y, b"here")
        tx = stage.transaction(optimistic=True)
        found = stage.do(tx.get_many(NAMESPACE, [x], in_part=True))  # as a scan reads: it is to be sure in the end
        stage.put(x, b"here")
        stage.put(y, None)
        found |= stage.do(tx.get_many(NAMESPACE, [y], in_part=True))
        stage.put(y, b"here")
        stage.put(x, None)
        late = Rule("the check of y", lambda _, to, said: to == "n2" and isinstance(said, Check), drop=False)
        stage.world.network.rules.append(late)
        ending = stage.begin(tx.commit())
        stage.wait(50)
        stage.put(x, b"here")
        stage.put(y, None)
        stage.world.network.release([late], stage.world.network.held)
        stage.until(lambda: ending.done, "the reader ends")
        neither = not found and told(ending)
        stage.must(not neither, "a reader was told that it saw neither, and one was always there")
        stage.curtain()


@story
def an_outcome_is_told_and_its_coordinator_dies(plant: Plant | None) -> None:
    """All are prepared and a vote never arrives, so n1 aborts; the decision reaches nobody, n1 dies, and n2 recovers."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        tx = SimTransaction(stage.client, optimistic=True, timeout_ns=2 * PREPARE_SECONDS_MAX * SECOND)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        untold = [stage.lose("vote", "n2", "n1")]
        committing = stage.begin(tx.commit())
        stage.wait(PREPARE_SECONDS_MAX * 1000 - 500)
        untold += [stage.lose("replicate", "n1"), stage.lose("finish", "n1")]
        stage.wait(1_000)
        aborted = committing.done and isinstance(committing.failure, Conflict)
        stage.power_cut("n1")
        stage.end(*untold)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        last = stage.status(tx.tx, 0, stage.another())
        stage.must(not aborted or last == "aborted", f"the outcome was told as aborted, and then as {last}")
        stage.curtain()


@story
def all_votes_are_there_and_the_coordinator_dies(plant: Plant | None) -> None:
    """n1 has all votes and tells its client; its decision reaches nobody, it dies, and n2 recovers."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        untold = _untold(stage)
        stage.do(tx.commit())
        stage.power_cut("n1")
        stage.end(*untold)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        reader = stage.another(without=["n1"])
        found = stage.get(x, reader), stage.get(y, reader)
        stage.must(found == (b"1", b"1"), f"a transaction whose commit was told is there: {found}")
        stage.curtain()


@story
def a_commit_is_asked_for_while_votes_are_on_their_way(plant: Plant | None) -> None:
    """A client asks for votes, and before they are there for the commit; the decision reaches nobody, and n1 dies."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        late = stage.lose("vote", "n2", "n1")
        stage.begin(tx.prepare())
        stage.wait(50)
        untold = _untold(stage)
        committing = stage.begin(tx.commit())
        stage.wait(50)
        stage.end(late)
        stage.wait(600)
        acknowledged = told(committing)
        stage.client.die()
        stage.power_cut("n1")
        stage.end(*untold)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        reader = stage.another(without=["n1"])
        found = stage.get(x, reader), stage.get(y, reader)
        stage.must(not acknowledged or found == (b"1", b"1"), f"a transaction whose commit was told is there: {found}")
        stage.curtain()


@story
def a_coordinator_that_was_left_out_gets_its_last_vote(plant: Plant | None) -> None:
    """What n1 asks of n3 stands still; n1 is left out, n2 finds that n3 is not prepared; then it comes to n3, and its vote
    to n1, who has heard of nothing."""
    with Stage(plant) as stage:
        x, y = key(0), key(2)
        network = stage.world.network
        asked = Rule("n3 is asked", lambda _, to, said: to == "n3" and isinstance(said, PrepareParts), drop=False)
        network.rules.append(asked)
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        committing = stage.begin(tx.commit())
        stage.wait(100)
        deaf = Rule("n1", lambda *link: "n1" in link[:2] and _concerns_no_vote(link[2]), drop=True)
        network.rules.append(deaf)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(500)
        network.release([asked], [held for held in network.held if held.rule is asked])
        stage.wait(500)
        acknowledged = told(committing)
        stage.client.die()
        stage.end(deaf)
        stage.rest()
        reader = stage.another()
        found = stage.get(x, reader), stage.get(y, reader)
        stage.must(not acknowledged or found == (b"1", b"1"), f"a transaction whose commit was told is there: {found}")
        stage.curtain()


def _concerns_no_vote(said: object) -> bool:
    return said.__class__ in MESSAGES and not isinstance(said, PrepareParts | Vote)


def _untold(stage: Stage) -> list[Rule]:
    """What n1 decides reaches no copy and no participant."""

    def decides(src: str, _: str, said: object) -> bool:
        records = said.records if src == "n1" and isinstance(said, Replicate) else []
        return any(w.namespace == DECISIONS for record in records if isinstance(record, r.Update) for w in record.writes)

    undecided = Rule("the decision", decides, drop=True)
    stage.world.network.rules.append(undecided)
    return [undecided, stage.lose("finish", "n1")]


@story
def a_client_rolls_back_what_was_voted_for(plant: Plant | None) -> None:
    """A client has the votes, and gives the transaction up; n1 dies, and the abort has reached nobody."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.prepare())
        untold = [stage.lose("replicate", "n1"), stage.lose("finish", "n1")]
        stage.begin(tx.rollback())
        stage.wait(50)
        stage.power_cut("n1")
        stage.end(*untold)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(SETTINGS.in_doubt_ms)
        stage.rest()
        reader = stage.another()
        stage.must(stage.get(x, reader) is None, "what was rolled back is not there")
        stage.must(stage.get(y, reader) is None, "what was rolled back is not there")
        stage.curtain()


@story
def a_key_is_read_while_its_outcome_is_on_its_way(plant: Plant | None) -> None:
    """A client was told of a commit; n2, where one of the keys is, has not heard of it yet."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        stage.lose("finish", "n1", "n2")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.commit())
        reading = stage.begin_get(y)
        stage.wait(100)
        if told(reading):
            stage.must(reading.result == b"1", "a read after a commit sees it")
        stage.curtain()
        found = stage.get(x), stage.get(y)
        stage.must(found == (b"1", b"1"), f"a transaction that was committed is there: {found}")


@story
def a_put_meets_a_lock(plant: Plant | None) -> None:
    """A transaction read a key under a lock and adds to it; somebody else puts the key meanwhile."""
    with Stage(plant) as stage:
        x = key(0)
        stage.put(x, b"0")
        other = stage.another()
        tx = stage.transaction()
        seen = stage.do(tx.get(NAMESPACE, [x]))[x]
        putting = stage.begin(other.call(PutCall(other.new_tx(), NAMESPACE, [x], [b"other"]), timeout_ns=ANSWER_NS), other)
        stage.wait(100)
        before = told(putting)
        stage.do(tx.put(NAMESPACE, {x: seen + b"+1"}))
        stage.do(tx.commit())
        stage.must(not before, "a put acknowledged while a transaction holds the key is lost under its write")
        stage.curtain()


@story
def a_retry_after_the_partition_moved(plant: Plant | None) -> None:
    """A put is answered by n1; n2 lost its disk and takes everything in full; n1 goes, and n2 is asked again."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        x, tx = key(0), stage.client.new_tx()
        stage.do(stage.client.call(PutCall(tx, NAMESPACE, [x], [b"first"]), timeout_ns=ANSWER_NS))
        stage["n2"].stop("its disk broke")
        stage["n2"].wipe()
        stage.put(x, b"second")
        stage.start("n2")
        stage.rest()
        stage.power_cut("n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        again = stage.another()
        stage.do(again.call(PutCall(tx, NAMESPACE, [x], [b"first"]), timeout_ns=ANSWER_NS), again)
        found = stage.get(x, again)
        stage.must(found == b"second", f"a write that was answered does not happen again: found {found!r}")
        stage.curtain()


@story
def an_increment_is_asked_for_again_after_the_partition_moved(plant: Plant | None) -> None:
    """n1 answers an increment; n2 lost its disk, takes everything in full, and is asked again when n1 is gone."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        x, tx = key(0), stage.client.new_tx()

        def ask(client: Client) -> bytes | None:
            call = SwapCall(tx, NAMESPACE, x, "always", new=b"2", how="add")
            stage.do(client.call(call, timeout_ns=ANSWER_NS), client)
            return call.found

        stage.put(x, b"40")
        first = ask(stage.client)
        stage["n2"].stop("its disk broke")
        stage["n2"].wipe()
        stage.put(x, b"100")
        stage.start("n2")
        stage.rest()
        stage.power_cut("n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        found = ask(stage.another())
        stage.must(first == found == b"42", f"who asks again is told what the first was: {first!r}, found {found!r}")
        stage.curtain()


@story
def a_conflict_in_one_partition(plant: Plant | None) -> None:
    """A transaction over two partitions read a key that somebody else changes before it commits."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        tx = stage.transaction(optimistic=True)
        stage.do(tx.get(NAMESPACE, [y]))
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.put(y, b"other")
        committing = stage.begin(tx.commit())
        stage.until(lambda: committing.done, "the commit is answered")
        stage.rest()
        found = stage.get(x), stage.get(y)
        stage.must(not told(committing), "a transaction whose reads do not hold any more is refused")
        stage.must(found == (b"0", b"other"), f"nothing of it is there: {found}")
        stage.curtain()


@story
def a_vote_waits_for_the_copies(plant: Plant | None) -> None:
    """n2's prepare record reaches no copy, and n2 loses its disk."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        lost = stage.lose("replicate", "n2")
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        committing = stage.begin(tx.commit())
        stage.wait(200)
        acknowledged = told(committing)
        stage["n2"].stop("its disk broke")
        stage["n2"].wipe()
        stage.client.die()
        stage.end(lost)
        stage.rest()
        reader = stage.another()
        found = stage.get(x, reader), stage.get(y, reader)
        stage.must(found in ((b"0", b"0"), (b"1", b"1")), f"a transaction is all or nothing: {found}")
        stage.must(not acknowledged or found == (b"1", b"1"), "a transaction that was committed is there")
        stage.curtain()


@story
def a_prepared_transaction_is_abandoned(plant: Plant | None) -> None:
    """A client prepares a transaction and does not come back: it is rolled back, and n3 hears of it when it returns."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, prefer_history=True)) as stage:
        stage.put(key(0), b"0")
        stage.power_cut("n3")
        stage.left_out("n3")
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {key(0): b"1", key(1): b"1"}))
        stage.do(tx.prepare())
        stage.put(key(0, 1), b"1")
        stage.wait(SETTINGS.lock_lease_ms + 1_000)
        stage.start("n3")
        stage.curtain()


@story
def an_outcome_that_does_not_count_is_told_again(plant: Plant | None) -> None:
    """n2 has logged the outcome, nobody has answered for it yet, and n1 says again what it is."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.prepare())
        unanswered = stage.lose("replicated", receiver="n2")
        stage.do(tx.commit())
        stage.wait(1_500)
        stage.end(unanswered)
        stage.curtain()
        found = stage.get(x), stage.get(y)
        stage.must(found == (b"1", b"1"), f"a transaction that was committed is there: {found}")


@story
def a_lease_runs_out_while_the_outcome_is_unknown(plant: Plant | None) -> None:
    """A transaction is committed, n2 does not hear of it for longer than a lease, and another one wants its key."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        stage.lose("finish", "n1", "n2")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.commit())
        stage.wait(SETTINGS.lock_lease_ms + 500)
        _lock_and_look(stage, y)
        stage.curtain()


@story
def a_promotion_while_the_outcome_is_unknown(plant: Plant | None) -> None:
    """The same, and n2 dies before it hears of it: n3 has the transaction prepared, and a later write above it."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        stage.lose("finish", "n1")
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.commit())
        stage.put(key(1, 1), b"1")
        stage.power_cut("n2")
        stage.until(lambda: stage.primary(1, "n3"), "n3 is primary of partition 1")
        _lock_and_look(stage, y)
        stage.curtain()
        reader = stage.another()
        found = stage.get(x, reader), stage.get(y, reader)
        stage.must(found == (b"1", b"1"), f"a transaction that was committed is there: {found}")


def _lock_and_look(stage: Stage, name: bytes) -> None:
    """Another transaction locks a key whose transaction was committed; if it gets it, it sees what was committed."""
    other = SimTransaction(stage.another(without=["n2"] if not stage["n2"].up else []), timeout_ns=ANSWER_NS)
    looking = stage.begin(other.get(NAMESPACE, [name]), other.client)
    stage.wait(200)
    if told(looking):
        stage.must(looking.result == {name: b"1"}, f"who locks a key sees what was committed: {looking.result}")
    other.client.die()


@story
def a_lock_is_lost_with_its_primary(plant: Plant | None) -> None:
    """A transaction locked a key at n1, which is killed; somebody else writes it at n2; then the transaction commits."""
    with Stage(plant) as stage:
        x = key(0)
        stage.put(x, b"0")
        tx = stage.transaction()
        stage.do(tx.get(NAMESPACE, [x]))
        stage.do(tx.put(NAMESPACE, {x: b"0+1"}))
        stage["n1"].stop("killed", process_only=True)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.put(x, b"other", stage.another(without=["n1"]))
        committing = stage.begin(tx.commit())
        stage.until(lambda: committing.done, "the commit is answered")
        stage.must(not told(committing), "a transaction that has lost its locks is refused")
        stage.curtain()


@story
def a_copy_of_a_request_arrives_when_its_answer_is_forgotten(plant: Plant | None) -> None:
    """A copy of a write that stood still somewhere arrives after its client has the answer, and has written once more."""
    with Stage(plant, settings=FORGETFUL) as stage:
        x = key(0)
        late = _write(stage, x, b"first")
        for value in (b"second", b"third", b"fourth"):
            stage.put(x, value)
        stage.wait(50)
        _arrive(stage, late, "n1")
        stage.must(stage.get(x) == b"fourth", "what was answered is not executed again")
        stage.curtain()


@story
def a_copy_of_a_request_arrives_at_a_primary_that_knows_nothing_of_it(plant: Plant | None) -> None:
    """The same, and meanwhile n1 died: n2, which is primary now, has never heard of that client."""
    with Stage(plant, settings=FORGETFUL) as stage:
        x = key(0)
        late = _write(stage, x, b"first")
        for value in (b"second", b"third", b"fourth"):
            stage.put(x, value)
        stage.wait(50)
        stage.power_cut("n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        _arrive(stage, late, "n2")
        stage.must(stage.get(x, stage.another()) == b"fourth", "what was answered is not executed again")
        stage.curtain()


@story
def answers_pile_up_behind_one_that_was_lost(plant: Plant | None) -> None:
    """A write is done and its answer is lost; others pile up; then it is asked for again."""
    with Stage(plant, settings=FORGETFUL) as stage:
        x = key(0)
        tx = stage.client.new_tx()
        stage.do(stage.client.call(PutCall(tx, NAMESPACE, [x], [b"first"]), timeout_ns=ANSWER_NS))
        stage.client.router.identity.current.open[1] = stage.client.router.identity.current.low = 1  # as if it were lost
        for value in (b"second", b"third", b"fourth", b"fifth"):
            stage.put(x, value)
        stage.wait(50)
        stage.do(stage.client.call(PutCall(tx, NAMESPACE, [x], [b"first"]), timeout_ns=ANSWER_NS))
        stage.must(stage.get(x) == b"fifth", "what was done is not done again")
        stage.curtain()


FORGETFUL = msgspec.structs.replace(SETTINGS, answers_kept=1)


def _write(stage: Stage, name: bytes, value: bytes) -> Request:
    """Write, and keep a copy of the request as it was sent."""
    call = PutCall(stage.client.new_tx(), NAMESPACE, [name], [value])
    stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))
    return call.request(1 << 20, [0])


def _arrive(stage: Stage, late: Request, node: str) -> None:
    """The copy arrives."""
    stage.client.connections[stage[node].address].ask([late])
    stage.wait(100)


@story
def who_was_told_that_it_is_over_goes_on(plant: Plant | None) -> None:
    """Two transactions, one after the other: the second writes what the first has read, before the first one's outcome."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(y, b"0")
        rivals, late = Rivals(stage.world), stage.lose("finish", "n1", "n2")
        first, second = stage.transaction(), stage.transaction(optimistic=True)
        was = rivals.begin(first.tx, [x.decode(), y.decode()])
        stage.do(first.get(NAMESPACE, [y]))
        stage.do(first.put(NAMESPACE, {x: b"1", key(1, 1): b"1"}))
        stage.do(first.commit())
        rivals.committed(was)
        stage.wait(1)
        now = rivals.begin(second.tx, [y.decode()])
        stage.do(second.get(NAMESPACE, [y]))
        stage.do(second.put(NAMESPACE, {y: b"2"}))
        rivals.asks(now)
        committing = stage.begin(second.commit())
        stage.wait(50)
        if isinstance(committing.failure, Conflict):
            rivals.refused(now)
        stage.end(late)
        stage.until(lambda: told(committing), "the second one is committed")
        stage.curtain()
