"""A new primary makes the copies equal before it serves: what it fetches, what it issues again, what it closes."""

from __future__ import annotations

from collections.abc import Container

import pytest

from rebalance.deadlines import row_of, said, saying
from rebalance.messages import AskTail, CopyTail, Tail
from rebalance.partition import Role
from rebalance.rule import NewMap
from rebalance.table import Placement
from tests.rebalance.copies import Batch, Copies, Said, name_of
from tests.rebalance.test_transfers import READER, TROUBLES, move, parted, three
from tests.support.placed import placed_at_once
from wal import records as r
from wal.ids import EXPIRIES

NAME = name_of(0)
COMMON = 12
"""Where the copies stand that begin alike."""


def reaches(copies: Copies, only: Container[str], **rows: str | None) -> None:
    """A write of n1 that no other copy than these hears of."""
    copies.trouble = lambda _sender, to, said: int(not isinstance(said, Batch) or to in only)
    copies["n1"].put(0, **rows)
    copies.run()
    copies.trouble = None


def promote(copies: Copies, first: str, *others: str) -> None:
    """n1 is gone, and the others go on."""
    copies.leaves("n1")
    copies.map((first, *others), (first, *others), promote=True)


def served(copies: Copies) -> None:
    """The new primary serves, its copies are equal, and it goes on."""
    copies.trouble = None
    copies.wait(3)
    copies.judge()
    copies[copies.placements[0].owners[0]].put(0, more="rows")
    copies.wait(2)
    copies.judge()


def let_go(copies: Copies, gone: str, *told: str) -> None:
    """A light step without one of the copies takes effect on some of the nodes."""
    old = copies.placements[0]
    left = tuple(node for node in old.owners if node != gone)
    for node in told:
        local = copies[node].local[0]
        changed = placed_at_once(local, Placement(old.version + 1, old.epoch, left, left), node)
        copies[node]._group(local)
        copies[node].promotion.step(NewMap([local], [local] if changed else [], []))


def test_a_new_primary_does_not_wait_for_a_copy_that_is_let_go_meanwhile() -> None:
    copies = three()
    reaches(copies, ["n3"], k1="heard by n3")
    copies.trouble = lambda _sender, to, said: int(not (isinstance(said, AskTail) and to == "n1"))
    copies.map(("n2", "n3", "n1"), ("n1", "n2", "n3"), promote=True)
    copies.wait(2)
    roles = [copies["n2"].local[0].role]
    let_go(copies, "n1", "n2")
    copies.wait(2)
    roles.append(copies["n2"].local[0].role)
    assert roles == [Role.PROMOTING, Role.PRIMARY], "n1 has not answered, and need not"
    assert copies["n2"].rows(0) == copies["n3"].rows(0)
    assert copies["n2"].rows(0)[b"k1"][2] == b"heard by n3"


def test_what_counts_by_the_very_map_that_finds_it_promoting_is_owed_no_more() -> None:
    """Its batch waited for a copy that this map leaves out: so it serves when all who begin by the map are called."""
    copies = three()
    copies.map(("n2", "n3", "n1"), ("n1", "n2", "n3"), promote=True)
    copies.wait(3)
    local = copies["n2"].local[0]
    assert (local.role, copies["n2"].promotion.owed) == (Role.PRIMARY, {})
    copies["n2"].promotion.begin([local])
    assert copies["n2"].promotion.owed == {}, "else it would be said to promote for good"


def test_a_copy_that_was_let_go_has_nothing_to_say_to_a_new_primary_that_has_not_heard_of_it() -> None:
    copies = three()
    copies.trouble = lambda *_: 0
    copies.map(("n2", "n3", "n1"), ("n1", "n2", "n3"), promote=True)
    let_go(copies, "n1", "n1")
    tails: list[str] = []

    def listen(sender: str, _to: str, said: Said) -> int:
        tails.extend([sender] if isinstance(said, Tail) and said.copies else [])
        return 1

    copies.trouble = listen
    copies.wait(3)
    assert "n3" in tails
    assert "n1" not in tails
    assert copies["n2"].local[0].role is Role.PROMOTING, "what it does not have is not taken for what it had"


def hand_over(copies: Copies, to: str) -> None:
    """A handover step moves the primary, and takes effect on all nodes."""
    old = copies.placements[0]
    owners = (to, *(node for node in old.owners if node != to))
    for node in owners:
        local = copies[node].local[0]
        placed_at_once(local, Placement(old.version + 1, old.epoch + 1, owners, owners), node)
        copies[node]._group(local)
        copies[node].shipping.switch()
        copies[node].promotion.step(NewMap([local], [local], [local] if local.role is Role.PROMOTING else []))


def test_a_primary_that_is_moved_on_before_it_serves_begins_no_epoch() -> None:
    copies = three()
    reaches(copies, ["n3"], k1="heard by n3")
    copies.trouble = lambda _sender, _to, said: int(not isinstance(said, Tail))
    copies.map(("n2", "n3", "n1"), ("n1", "n2", "n3"), promote=True)
    copies.wait(2)
    assert copies["n2"].promotion.owed
    hand_over(copies, "n3")
    copies.trouble = None
    copies.wait(3)
    assert [copies[node].local[0].role for node in ("n2", "n3")] == [Role.BACKUP, Role.PRIMARY]
    assert not copies["n2"].promotion.owed
    assert not copies["n3"].promotion.owed
    assert copies["n2"].rows(0) == copies["n3"].rows(0)
    assert copies["n2"].rows(0)[b"k1"][2] == b"heard by n3"


def test_who_is_asked_in_several_messages_before_it_goes_by_the_step_answers_all_of_them() -> None:
    copies = three(partitions=2)
    copies.trouble = lambda *_: 0
    asked = copies["n3"]
    for number in (0, 1):
        asked.hear("n2", AskTail(asked.fence, [CopyTail(number, 2, [], [], writes=[], prepares=[])]))
    copies.wire.clear()
    moved = [asked.local[0], asked.local[1]]
    for local in moved:
        placed_at_once(local, Placement(local.placement.version + 1, 2, ("n2", "n1", "n3"), ("n2", "n1", "n3")), "n3")
    asked.promotion.step(NewMap(moved, [], []))
    told = [tail.partition for _, to, said in copies.wire if isinstance(said, Tail) and to == "n2" for tail in said.copies]
    assert told == [0, 1]


def test_what_only_a_survivor_has_is_fetched_from_it() -> None:
    copies = three()
    reaches(copies, ["n3"], k1="heard by n3")
    promote(copies, "n2", "n3")
    served(copies)
    assert copies["n2"].rows(0)[b"k1"][2] == b"heard by n3"
    assert copies["n2"].promotion.fetched == 1


def test_what_the_new_primary_has_and_a_survivor_lacks_is_issued_again() -> None:
    copies = three()
    reaches(copies, ["n2"], k1="heard by n2")
    promote(copies, "n2", "n3")
    served(copies)
    assert copies["n3"].rows(0)[b"k1"][2] == b"heard by n2"


def test_what_lies_beyond_a_gap_is_issued_again_and_the_gap_is_closed() -> None:
    copies = three()
    before = copies["n1"].replica.fragment(NAME).counter.hwm
    reaches(copies, [], k1="heard by nobody")
    reaches(copies, ["n2"], k2="beyond the gap")
    promote(copies, "n2", "n3")
    served(copies)
    for node in ("n2", "n3"):
        assert copies[node].rows(0)[b"k1"][2] == b"v1"
        assert copies[node].rows(0)[b"k2"][2] == b"beyond the gap"
    closed = [record for record in copies["n3"].records if isinstance(record, r.NoOp)]
    assert [gap for record in closed for gap in record.gaps] == [(NAME[0], before, 1)]


def test_each_survivor_has_something_and_together_they_have_all() -> None:
    copies = three()
    reaches(copies, ["n2"], k1="heard by n2")
    reaches(copies, ["n3"], k2="heard by n3")
    reaches(copies, ["n2"], k3=None)
    promote(copies, "n3", "n2")
    served(copies)
    rows = copies["n3"].rows(0)
    assert (rows[b"k1"][2], rows[b"k2"][2], b"k3" in rows) == (b"heard by n2", b"heard by n3", False)


@pytest.mark.parametrize("to", [["n2"], ["n3"], ["n2", "n3"]], ids=str)
@pytest.mark.parametrize("first", ["n2", "n3"])
def test_a_reader_that_one_survivor_knows_is_known_to_all_of_them(first: str, to: list[str]) -> None:
    copies = three()
    copies.trouble = lambda _sender, other, said: int(not isinstance(said, Batch) or other in to)
    copies["n1"].prepare_reader(0, READER)
    copies.run()
    copies.trouble = None
    promote(copies, first, "n3" if first == "n2" else "n2")
    served(copies)
    assert all(READER in copies[node].replica.partition(0).prepared for node in ("n2", "n3"))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("kind", ["AskTail", "Tail", "Batch", "Taken"])
@pytest.mark.parametrize("what", TROUBLES)
def test_a_promotion_in_trouble_takes_longer(what: str, kind: str, nth: int) -> None:
    copies = three()
    reaches(copies, ["n3"], k1="heard by n3")
    reaches(copies, ["n2"], k2="heard by n2")
    seen = [0]

    def trouble(_sender: str, _to: str, said: Said) -> int:
        seen[0] += type(said).__name__ == kind
        return TROUBLES[what] if type(said).__name__ == kind and seen[0] == nth else 1

    copies.trouble = trouble
    promote(copies, "n2", "n3")
    copies.run()
    copies.wait(2)
    served(copies)


@pytest.mark.parametrize("after", range(8))
def test_a_promotion_that_ends_halfway_is_begun_anew_by_another(after: int) -> None:
    copies = three()
    reaches(copies, ["n3"], k1="heard by n3")
    reaches(copies, ["n2"], k2="heard by n2", k3=None)
    promote(copies, "n2", "n3")
    for _ in range(after):
        copies.step()
    copies.map(("n3", "n2"), ("n3", "n2"), promote=True)
    served(copies)


@pytest.mark.parametrize("after", range(8))
def test_a_new_primary_that_restarts_promotes_itself_anew(after: int) -> None:
    copies = three()
    reaches(copies, ["n3"], k1="heard by n3")
    reaches(copies, ["n2"], k2="heard by n2")
    promote(copies, "n2", "n3")
    for _ in range(after):
        copies.step()
    copies.leaves("n2")
    copies.returns("n2")
    copies.map(("n2", "n3"), ("n2", "n3"), promote=True)
    served(copies)


def test_a_partition_that_begins_again_with_a_copy_that_has_undone_writes_keeps_what_stands_there() -> None:
    """Nobody is left who could tell what stood there before; while that is awaited no other copy is compared with it."""
    copies = three()
    parted(copies)
    move(copies)
    undone = copies["n3"].replica.fragment(NAME).suspects
    while not undone and copies.step():
        undone = dict(copies["n3"].replica.fragment(NAME).suspects)
    assert undone == {b"k4": 0, b"k5": 0}
    copies.leaves("n1")
    copies.leaves("n2")
    copies.map(("n3",), ("n3",), promote=True)
    copies.wait(2)
    assert copies["n3"].replica.fragment(NAME).suspects == {}
    copies.returns("n2")
    copies.map(("n3", "n2"), ("n3",))
    copies.whole()
    copies.judge()


@pytest.mark.parametrize("outcome", ["nothing is prepared", "commit", "rollback"])
def test_what_was_undone_is_written_once_more_where_a_partition_begins_again_with_it(outcome: str) -> None:
    """A copy that never had it stands where this one stood, and has what stood there before. What is prepared comes after,
    whether anything comes of it or not: it has moved up, and below it stands what stood under its key."""
    held = outcome != "nothing is prepared"
    copies = begun_again({b"k4": b"committed"} if held else {})
    if held:
        end(copies, commit=outcome == "commit")
    rows = seen_by_another(copies)
    assert rows[b"k4"][2] == (b"committed" if outcome == "commit" else b"nobody")
    assert (b"k5" in rows, rows[b"k99"][2]) == (False, b"new")
    assert not sum(copies["n3"].supply.vouching.differed.values()), "counters tell of it"


@pytest.mark.parametrize("commit", [True, False])
def test_what_was_written_after_what_is_prepared_stays_after_it(commit: bool) -> None:
    """A copy that lagged may have a write to a key, and not have heard how the transaction ended that had it before."""
    copies = begun_again({b"k4": b"committed", b"k5": b"committed"}, then={"k4": "after"})
    end(copies, commit=commit)
    rows = seen_by_another(copies)
    assert rows[b"k4"][2] == b"after"
    assert (b"k5" in rows, rows[b"k99"][2]) == (commit, b"new")
    assert not sum(copies["n3"].supply.vouching.differed.values()), "counters tell of it"


@pytest.mark.parametrize("held", [{}, {b"k4": b"committed"}], ids=["free", "held"])
def test_what_is_written_once_more_expires_when_it_did(held: dict[bytes, bytes]) -> None:
    """Its deadline is said of the counter that it has now, and moves with it."""
    copies = begun_again(held, expires=True)
    if held:
        end(copies, commit=False)
    seen_by_another(copies)
    for node in ("n2", "n3"):
        rows = copies[node].rows(0)
        deadlines = {key: copies[node].replica.store.get((EXPIRIES, 0), row_of(NAME[0], key)) for key in (b"k4", b"k99")}
        found = {key: said(row.value) for key, row in deadlines.items() if row is not None and row.value is not None}
        assert found == {b"k4": (70, rows[b"k4"][1]), b"k99": (71, rows[b"k99"][1])}, node


def k4_expires(copies: Copies, at: int) -> None:
    """Another copy sees what the new primary has, and both have the deadline of that very row."""
    rows = seen_by_another(copies)
    for node in ("n2", "n3"):
        deadline = copies[node].replica.store.get((EXPIRIES, 0), row_of(NAME[0], b"k4"))
        assert deadline is not None
        assert deadline.value is not None
        assert said(deadline.value) == (at, rows[b"k4"][1]), node


def test_what_was_prepared_to_expire_does_when_it_has_moved() -> None:
    copies = begun_again({b"k4": b"committed"}, expires=True, ttl=80)
    end(copies, commit=True)
    k4_expires(copies, 80)


def test_what_was_written_to_expire_after_what_is_prepared_does_when_it_has_moved() -> None:
    """Its deadline was written in a fragment that has no gap, so that it is not issued again by itself."""
    copies = begun_again({b"k4": b"committed", b"k5": b"committed"}, then={"k4": "after"}, then_ttl=90)
    end(copies, commit=True)
    k4_expires(copies, 90)


def test_what_is_prepared_and_too_large_for_the_beginning_of_an_epoch_does_not_move() -> None:
    """It is issued before that begins, beside what came after it. What was undone under its keys is found by comparing."""
    copies = begun_again({b"k4": bytes(200)})
    end(copies, commit=False)
    assert seen_by_another(copies)[b"k4"][2] == b"nobody"
    assert sum(copies["n3"].supply.vouching.differed.values()) == 1


def begun_again(
    held: dict[bytes, bytes],
    *,
    then: dict[str, str] | None = None,
    expires: bool = False,
    ttl: int = 0,
    then_ttl: int = 0,
) -> Copies:
    """n3 has undone three writes of which nobody heard, has what a transaction is to write, and leads alone.

    `then`: n1 has ended the transaction and has written this, of which n3 has heard the latter alone. Two of the writes
    that were undone `expires`, and what the transaction writes has a `ttl`, or what was written `then` (`then_ttl`).
    """
    copies = three()
    copies.map(("n3", "n1", "n2"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    copies.leaves("n2")
    copies.map(("n3", "n1"), ("n1", "n3"))
    copies.trouble = lambda sender, *_: 0 if sender == "n3" else 1
    copies["n3"].put(0, k4="nobody", k5=None, k99="new")
    if expires:
        rows, values = [row_of(NAME[0], b"k4"), row_of(NAME[0], b"k99")], [saying(70, COMMON + 1), saying(71, COMMON + 3)]
        write = r.Write(EXPIRIES, 0, copies["n3"].local[0].epoch, 0, rows, list(values))
        copies["n3"].decide(r.Update([write]), copies["n3"].local[0])
    copies.run()
    copies.trouble = None
    copies.leaves("n3")
    copies.map(("n1",), ("n1",), promote=True)
    copies.run()
    if held:
        local = copies["n1"].local[0]
        writes = [r.Write(*NAME, local.epoch, COMMON, list(held), list(held.values()))]
        if ttl:
            rows = [row_of(NAME[0], key) for key in held]
            counters = range(COMMON + 1, COMMON + 1 + len(held))
            writes.append(r.Write(EXPIRIES, 0, local.epoch, 0, rows, [saying(ttl, at) for at in counters]))
        copies["n1"].decide(r.Prepare(READER, 0, local.epoch, writes, [], [0], 0), local)
        copies.run()
    copies.returns("n3")
    copies.map(("n1", "n3"), ("n1",))
    mine = copies["n3"].replica.partition(0)
    while len(mine.prepared) < bool(held) or not mine.fragments[NAME[0]].suspects:
        assert copies.step()
    if then is not None:
        copies.trouble = lambda _, to, __: int(to != "n3")
        end(copies, commit=True, at="n1")
        copies.trouble = lambda _, to, said: int(to != "n3" or isinstance(said, Batch))
        writes = [
            r.Write(*NAME, local.epoch, COMMON + len(held), [k.encode() for k in then], [v.encode() for v in then.values()])
        ]
        if then_ttl:
            rows = [row_of(NAME[0], key) for key in writes[0].keys]
            counters = range(writes[0].start + 1, writes[0].end + 1)
            writes.append(r.Write(EXPIRIES, 0, local.epoch, 0, rows, [saying(then_ttl, at) for at in counters]))
        copies["n1"].decide(r.Update(writes), local)
        copies.run()
        copies.trouble = None
        assert [write.keys for write in copies["n3"].replica.fragment(NAME).above_lwm()] == [[k.encode() for k in then]]
    copies.leaves("n1")
    copies.map(("n3",), ("n3",), promote=True)
    copies.wait(2)
    assert copies["n3"].replica.fragment(NAME).suspects == {}
    assert list(copies["n3"].replica.partition(0).prepared) == ([READER] if held else [])
    return copies


def end(copies: Copies, *, commit: bool, at: str = "n3") -> None:
    """The transaction that is prepared ends."""
    local = copies[at].local[0]
    writes = copies[at].replica.partition(0).prepared[READER].writes
    closed = [] if commit else [(write.namespace, write.start, write.delta) for write in writes]
    copies[at].decide(r.Outcome(READER, 0, local.epoch, commit, closed), local)
    copies.run()


def seen_by_another(copies: Copies) -> dict[bytes, tuple[int, int, bytes]]:
    """n2 comes back, which stands where n3 had stood, becomes whole, and has these rows."""
    copies.returns("n2")
    assert copies["n2"].replica.fragment(NAME).counter.lwm == COMMON
    copies.map(("n3", "n2"), ("n3",))
    copies.whole()
    copies.judge()
    return copies["n2"].rows(0)
