"""Stories of ranges that transactions have scanned and of rows that come into them, and of writes on a condition."""

from __future__ import annotations

from engine.client.ends import CommitCall
from engine.client.scans import CountCall, ScanCall
from engine.errors import Conflict
from engine.messages import Replicated
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, Stories, key, told
from tests.sim.transactions import SimTransaction
from tests.sim.world import Plant

RANGES = Stories()
story = RANGES.story

LOW, HIGH = b"k", b"l"
"""All keys of the stage lie between."""


def _booking(stage: Stage, mine: bytes) -> SimTransaction:
    """A transaction that found nobody in the room, and takes it."""
    tx = stage.transaction(optimistic=True)
    found = stage.do(tx.scan(NAMESPACE, LOW, HIGH))
    stage.must(found == {}, f"nobody has the room, and the scan found {found}")
    stage.do(tx.put(NAMESPACE, {mine: b"booked"}))
    return tx


def _at_most_one(stage: Stage) -> None:
    booked = [name for name in (key(0), key(1)) if stage.get(name) is not None]
    stage.must(len(booked) <= 1, f"each of {booked} was booked because nobody had the room")
    stage.curtain()


@story
def two_take_the_room_one_after_the_other(plant: Plant | None) -> None:
    """Both have seen that nobody has the room; the first is done when the second commits."""
    with Stage(plant) as stage:
        first, second = _booking(stage, key(0)), _booking(stage, key(1))
        stage.do(first.commit())
        late = stage.begin(second.commit())
        stage.until(lambda: late.done, "the second is answered")
        stage.must(plant is not None or isinstance(late.failure, Conflict), f"the second was told {late.failure!r}")
        _at_most_one(stage)


@story
def two_take_the_room_and_one_is_not_decided_yet(plant: Plant | None) -> None:
    """The first is prepared, and has seen that nothing came; before it is decided the second does the same, and commits."""
    with Stage(plant) as stage:
        first, second = _booking(stage, key(0)), _booking(stage, key(1))
        stage.do(first.prepare())
        stage.do(first.look())
        late = stage.begin(second.commit())
        stage.until(lambda: late.done, "the second is answered")
        stage.do(first.decide())
        _at_most_one(stage)


@story
def the_room_is_taken_while_it_is_scanned(plant: Plant | None) -> None:
    """A booking is on its way to the copies, and does not count yet, when the room is scanned; it has its counter."""
    with Stage(plant) as stage:
        unheard = Rule("replicated", lambda _, to, said: to == "n1" and isinstance(said, Replicated), drop=False)
        stage.world.network.rules.append(unheard)
        booked = stage.begin_put(key(0), b"booked")
        stage.until(lambda: unheard.caught > 0, "the copies have the booking")
        late = _booking(stage, key(1))
        stage.world.network.release([unheard], stage.world.network.held)
        stage.until(lambda: told(booked), "the booking is acknowledged")
        ending = stage.begin(late.commit())
        stage.until(lambda: ending.done, "the second is answered")
        _at_most_one(stage)


@story
def the_room_is_taken_between_a_cut_and_a_look_at_it(plant: Plant | None) -> None:
    """Who reads at a cut finds nobody in the room, which was taken since."""
    with Stage(plant) as stage:
        late = stage.transaction(optimistic=True)
        stage.do(late.begin_at_a_cut())
        stage.put(key(0), b"booked")
        found = stage.do(late.scan(NAMESPACE, LOW, HIGH))
        stage.must(found == {}, f"nobody had the room at the cut, and the scan found {found}")
        stage.do(late.put(NAMESPACE, {key(1): b"booked"}))
        ending = stage.begin(late.commit())
        stage.until(lambda: ending.done, "the second is answered")
        _at_most_one(stage)


@story
def the_room_is_taken_while_a_cut_is_taken(plant: Plant | None) -> None:
    """A booking has its counter when the cut is taken, and counts when that has been read; a later one has counted."""
    with Stage(plant) as stage:
        unheard = Rule("replicated", lambda _, to, said: to == "n1" and isinstance(said, Replicated), drop=False)
        stage.world.network.rules.append(unheard)
        booked = stage.begin_put(key(0), b"booked")
        stage.until(lambda: unheard.caught > 0, "the copies have the booking")
        late = stage.transaction(optimistic=True)
        stage.do(late.begin_at_a_cut())
        found = stage.do(late.scan(NAMESPACE, LOW, HIGH))
        stage.must(found == {}, f"nobody had the room at the cut, and the scan found {found}")
        stage.world.network.release([unheard], stage.world.network.held)
        stage.until(lambda: told(booked), "the booking is acknowledged")
        stage.do(late.put(NAMESPACE, {key(1): b"booked"}))
        ending = stage.begin(late.commit())
        stage.until(lambda: ending.done, "the second is answered")
        _at_most_one(stage)


@story
def of_two_conditions_one_does_not_hold(plant: Plant | None) -> None:
    """What is said at once is not done, on neither node, if one of its conditions does not hold; and is told so."""
    with Stage(plant) as stage:
        one, other = key(0), key(1)
        stage.put(other, b"there")
        client = stage.client
        call = CommitCall(
            client.new_tx(),
            client.new_owner(),
            optimistic=True,
            writes=[(NAMESPACE, [one, other], [b"new", b"new"])],
            locks=[],
            reads=[],
            conditions=[(NAMESPACE, one, "absent", None, 0, 0), (NAMESPACE, other, "equals", b"another", 0, 0)],
        )
        stage.do(client.call(call, timeout_ns=ANSWER_NS))
        stage.must(not call.applied, "it was told that it is done")
        found = [stage.get(name) for name in (one, other)]
        stage.must(found == [None, b"there"], f"nothing was to be done, and there is {found}")
        stage.curtain()


@story
def rows_are_counted_while_one_after_the_other_is_in_doubt(plant: Plant | None) -> None:
    """Somebody has voted when it is counted, and that is waited for; who votes meanwhile, and is not decided, is not."""
    with Stage(plant) as stage:
        first, second = stage.transaction(), stage.transaction()
        stage.do(first.put(NAMESPACE, {key(0): b"1", key(1): b"1"}))
        stage.do(first.prepare())
        count = CountCall(NAMESPACE)
        counting = stage.begin(stage.client.call(count, timeout_ns=ANSWER_NS))
        stage.wait(20)
        stage.must(not counting.done, f"nobody knows yet whether there is a row, and {count.counted} were counted")
        stage.do(second.put(NAMESPACE, {key(0, 1): b"2", key(1, 1): b"2"}))
        stage.do(second.prepare())
        stage.do(first.commit())
        stage.wait(100)
        stage.must(told(counting), "who voted later is not waited for")
        stage.must(count.counted == 2, f"{count.counted} rows were counted, and there were two")
        stage.do(second.rollback())
        stage.curtain()


@story
def the_first_rows_are_looked_for_again_and_again(plant: Plant | None) -> None:
    """The first row of a range is taken, something new comes before it, and its primary goes: each scan shows it."""
    with Stage(plant) as stage:

        def first() -> list[bytes]:
            page = ScanCall(NAMESPACE, LOW, HIGH, 2)
            stage.do(stage.client.call(page, timeout_ns=ANSWER_NS))
            return [name for name, _ in page.rows]

        def seen(*expected: bytes) -> None:
            for _ in range(3):
                found = first()
                stage.must(found == list(expected), f"the first rows are {expected}, and a scan found {found}")

        one, two, three = sorted((key(0), key(1), key(2)))
        for name in (two, three):
            stage.put(name, b"there")
        seen(two, three)
        stage.put(one, b"new")
        seen(one, two)
        stage.put(two, None)
        seen(one, three)
        stage.power_cut("n1")
        stage.left_out("n1")
        seen(one, three)
        stage.put(one, None)
        seen(three)
        stage.start("n1")
        stage.curtain()
