"""Where history is gone, the rows that differ go, and no others; whatever happens, the copy comes to be its primary's."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from rebalance import supplying, surveying
from rebalance.choice import Kind
from rebalance.demander import DIFFERS_MAX
from rebalance.leaves import LEAF_BYTES, Survey, Under, differing, leaf_count, leaf_of
from rebalance.messages import ROW_BYTES, Demand, Supply
from tests.rebalance.copies import NAMESPACE, Batch, Copies, Said, Settings, name_of
from tests.rebalance.test_transfers import end, move
from wal import records as r

ROWS = 60
NAME = name_of(0)


def away(*, rows: int = ROWS, value: str = "v" * 100, settings: Settings | None = None) -> Copies:
    """Three copies in sync; then n3 goes, and misses what follows."""
    copies = Copies("n1", "n2", "n3", settings=settings or Settings(supply_batch_bytes=1_000))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for at in range(rows):
        copies["n1"].put(0, **{f"k{at}": value})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    return copies


def back(copies: Copies) -> None:
    """It returns, and what it missed is in nobody's log any more."""
    copies.run()
    copies["n1"].trim()
    copies.returns("n3")
    move(copies)


def test_what_was_written_and_deleted_comes_and_little_else() -> None:
    copies = away(rows=300)
    for at in range(0, 300, 10):
        copies["n1"].put(0, **{f"k{at}": None if at % 20 else "changed"})
    copies["n1"].put(0, new="one")
    back(copies)
    end(copies)
    progress = copies["n3"].demander.progress
    assert progress.kinds[NAME] == Kind.DIFFERENTIAL
    assert 16 <= progress.rows["differential"] <= 1.5 * 31
    assert "full" not in progress.rows
    assert b"k10" not in copies["n3"].rows(0)


def test_many_small_fragments_are_compared_at_once_and_rows_come_when_room_was_made() -> None:
    many = 40
    copies = Copies("n1", "n2", "n3", partitions=many)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for number in range(many):
        copies["n1"].put(number, **{f"k{at}": "v" * 100 for at in range(20)})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    for number in range(many):
        copies["n1"].put(number, k1="changed", k2=None)
    told: dict[int, int] = {}
    batches = list[tuple[int, int]]()

    def look(_sender: str, to: str, said: Said) -> int:
        if isinstance(said, Supply) and to == "n3" and (said.session, said.batch) not in batches:
            batches.append((said.session, said.batch))
            for rows in said.rows:
                assert told[rows.partition] < len(batches), "rows come in a later batch than what they come in place of"
            told.update((found.partition, len(batches)) for found in said.differing)
        return 1

    copies.trouble = look
    back(copies)
    copies.run()
    copies.wait(3)
    assert sorted(told) == list(range(many))
    assert len(dict.fromkeys(told.values())) <= many // 4, "what differs is told of many at a time"
    sessions = dict.fromkeys(session for session, _ in batches)
    assert len(sessions) == 2, "the first one asks what the rows of all add up to"
    end(copies)


def test_leaves_of_many_rows_are_told_before_all_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveying, "ROWS_TOLD", 100)
    many = 12
    copies = Copies("n1", "n2", "n3", partitions=many)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for number in range(many):
        copies["n1"].put(number, **{f"k{at}": "v" * 100 for at in range(30)})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    for number in range(many):
        copies["n1"].put(number, k1="changed")
    told: list[int] = []

    def look(_sender: str, _to: str, said: Said) -> int:
        if isinstance(said, Demand) and (count := sum(bool(have.leaves) for have in said.haves)):
            told.append(count)
        return 1

    copies.trouble = look
    back(copies)
    copies.run()
    copies.wait(3)
    assert sum(told) == many
    assert 1 < len(told) <= many // 2
    end(copies)


def test_a_key_that_was_deleted_long_ago_goes_although_nobody_has_its_tombstone() -> None:
    copies = away()
    copies["n1"].put(0, k7=None)
    copies["n1"].put(0, k8=None)
    copies.wait()
    copies["n1"].put(0, k8="again")
    copies.wait()
    copies["n1"].checkpoint()
    assert copies["n1"].replica.store.get(NAME, b"k7") is None, "its tombstone is gone"
    back(copies)
    end(copies)
    assert copies["n3"].demander.progress.kinds[NAME] == Kind.DIFFERENTIAL
    assert b"k7" not in copies["n3"].rows(0)
    assert copies["n3"].rows(0)[b"k8"][2] == b"again"


def test_a_row_and_a_delete_that_nobody_else_had_are_not_in_the_way() -> None:
    """What the copy has of a history that was not continued is of greater counters than what it gets."""
    copies = away()
    copies.returns("n3")
    copies.map(("n3", "n1", "n2"), ("n1", "n2", "n3"), promote=True)
    copies.wait()
    copies.trouble = lambda sender, *_: 0 if sender == "n3" else 1
    copies["n3"].put(0, k1="alone", k2=None, only="here")
    copies.run()
    alone = copies["n3"].records[-1]
    assert isinstance(alone, r.Update)
    copies["n3"].log(alone)  # it counted there, as it would have if the others had been given up
    copies["n3"].log(r.Stable(0, 2, [(NAMESPACE, alone.writes[0].end)]))
    copies.trouble = None
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    copies["n1"].put(0, k9="went on")
    back(copies)
    end(copies)
    progress = copies["n3"].demander.progress
    assert progress.kinds[NAME] == Kind.DIFFERENTIAL
    assert "can undo down to" in progress.reasons[NAME]
    assert b"only" not in copies["n3"].rows(0)


def test_a_copy_that_has_nothing_right_gets_everything() -> None:
    copies = away()
    for at in range(ROWS):
        copies["n1"].put(0, **{f"k{at}": None})
        copies["n1"].put(0, **{f"other{at}": "o" * 100})
    back(copies)
    end(copies)
    assert copies["n3"].demander.progress.kinds[NAME] == Kind.FULL, "so much was changed that nobody asks for leaves"
    assert sum(key.startswith(b"other") for key in copies["n3"].rows(0)) == ROWS


@pytest.mark.parametrize("seed", range(12))
def test_writes_go_on_all_the_while(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts and deletes come between any two pieces of the work on either side, late and doubled ones among them."""
    monkeypatch.setattr(surveying, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(supplying, "BATCH_WORK", 9)
    draw = Random(seed)
    copies = away()
    for at in range(6):
        copies["n1"].put(0, **{f"k{at}": draw.choice(["changed", None])})
    back(copies)
    copies.trouble = lambda *_: draw.choice([1] * 6 + [0, 2, -1])
    written = 0
    for _ in range(400):
        copies.step()
        if draw.random() < 0.15:
            written += 1
            copies["n1"].put(0, **{f"k{draw.randrange(ROWS + 10)}": draw.choice([f"live{written}", None])})
        if draw.random() < 0.03:
            copies.now += 100_000_000
            for copy in copies.copies.values():
                copy.tick()
    end(copies)
    assert written
    assert "differential" in copies["n3"].demander.progress.rows


def test_a_write_that_is_under_way_when_room_is_made_stays() -> None:
    """The copy has it from before, it does not count yet at the primary, and it lies under a leaf that differs."""
    copies = away()
    copies["n1"].put(0, k3="changed")
    back(copies)
    copies.run()
    copies.wait()
    copies.trouble = lambda sender, to, said: 0 if sender == "n2" and to == "n1" else 1
    copies["n1"].put(0, k3="under way")
    copies.run()
    assert copies["n3"].rows(0)[b"k3"][2] == b"under way"
    assert copies["n1"].rows(0)[b"k3"][2] == b"changed"
    copies["n3"].log(r.FragmentClear(*NAME, "broken off", kept=True))
    copies["n1"].supply.vouching.vouched.clear()
    copies["n3"].demander._again("n1", 0)
    copies.run()
    end(copies)
    assert copies["n3"].rows(0)[b"k3"][2] == b"under way"


@pytest.mark.parametrize("all_is_new", [False, True])
def test_what_broke_off_is_not_begun_all_over(all_is_new: bool) -> None:
    """A full transfer that ends halfway is gone on with by what differs: what has come stays, or none of it does."""
    copies = away(settings=Settings(supply_batch_bytes=1_000, supply_credit=1))
    copies.returns("n3", wiped=True)
    move(copies)
    while len(copies["n3"].rows(0)) < ROWS // 2:
        assert copies.step()
    came = len(copies["n3"].rows(0))
    assert came < ROWS
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies["n1"].put(0, k1="changed", k2=None)
    for at in range(3, ROWS if all_is_new else 3):
        copies["n1"].put(0, **{f"k{at}": "new" * 30})
    back(copies)
    end(copies)
    progress = copies["n3"].demander.progress
    assert progress.kinds[NAME] == Kind.DIFFERENTIAL
    assert all_is_new or progress.rows["differential"] < 1.5 * (ROWS - came) + 3


def test_a_copy_that_is_about_to_be_filled_claims_nothing_and_knows_it_when_it_restarts() -> None:
    copies = away()
    copies["n1"].put(0, k1="changed")
    back(copies)
    while not any(isinstance(record, r.FragmentClear) for record in copies["n3"].records):
        assert copies.step()
    assert len(copies["n3"].rows(0)) == ROWS, "nothing is cleared first"
    copies["n3"].checkpoint()
    copies.leaves("n3")
    copies.returns("n3")
    fragment = copies["n3"].replica.fragment(NAME)
    assert fragment.loading
    assert (fragment.counter.lwm, fragment.stable, fragment.epochs) == (0, 0, ())
    assert len(copies["n3"].rows(0)) == ROWS


def test_leaves_of_before_a_transfer_are_not_told_again_when_it_breaks_off() -> None:
    """Room was made beside a new key, which is deleted before anything comes: by the old leaves nothing would differ."""
    count = leaf_count(ROWS)
    beside = next(f"n{n}" for n in range(100_000) if leaf_of(b"n%d" % n, count) == leaf_of(b"k5", count))
    copies = away()
    copies["n1"].put(0, **{beside: "new"})
    back(copies)
    copies.trouble = lambda _sender, to, said: 0 if to == "n3" and isinstance(said, Supply) and said.rows else 1
    copies.run()
    assert b"k5" not in copies["n3"].rows(0), "room was made"
    copies["n1"].put(0, **{beside: None})
    copies.run()
    copies["n3"].demander._sessions.clear()  # as if nothing had been heard for long
    copies["n3"].demander._again("n1", 0)
    end(copies)
    assert b"k5" in copies["n3"].rows(0)


def test_leaves_that_pass_for_equal_are_found_by_the_contents_and_all_is_taken() -> None:
    """A supplier that compares badly: what it misses is found before it vouches for the copy."""
    copies = away()
    copies["n1"].put(0, k1="changed", k2=None)
    back(copies)

    def lie(sender: str, _to: str, said: Said) -> int:
        if isinstance(said, Demand) and sender == "n3":
            survey = Survey(copies["n1"].replica.store, NAME)
            survey.step(1_000)
            for at, have in enumerate(said.haves):
                if have.leaves:
                    same = survey.leaves(len(have.leaves) // LEAF_BYTES)
                    said.haves[at] = msgspec.structs.replace(have, leaves=same)
        return 1

    copies.trouble = lie
    move(copies)
    copies.run()
    copies.wait(DIFFERS_MAX)
    end(copies, differs=1)
    assert copies["n3"].demander.progress.kinds[NAME] == Kind.FULL


@pytest.mark.parametrize("leaves", [b"abc", b"x" * (LEAF_BYTES << 17)])
def test_what_can_be_no_leaves_is_as_if_nothing_was_said(leaves: bytes) -> None:
    copies = away()
    copies["n1"].put(0, k1="changed")
    back(copies)
    left = [3]

    def spoil(sender: str, _to: str, said: Said) -> int:
        if isinstance(said, Demand) and sender == "n3" and left[0]:
            for at, have in enumerate(said.haves):
                if have.leaves:
                    left[0] -= 1
                    said.haves[at] = msgspec.structs.replace(have, leaves=leaves)
        return 1

    copies.trouble = spoil
    copies.wait(4)
    assert not left[0]
    end(copies)


def test_an_answer_about_leaves_that_nobody_told_leaves_the_copy_as_it_is() -> None:
    copies = away()
    copies["n1"].put(0, k1="changed")
    back(copies)
    left = [1]

    def spoil(_sender: str, _to: str, said: Said) -> int:
        if isinstance(said, Supply) and said.differing and left[0]:
            left[0] -= 1
            said.differing[0] = msgspec.structs.replace(said.differing[0], bits=b"")
        return 1

    copies.trouble = spoil
    copies.wait(3)
    assert not left[0]
    end(copies)


def test_a_copy_in_sync_is_not_touched() -> None:
    copies = away()
    copies["n1"].put(0, k1="changed")
    copies.run()
    copies["n1"].trim()
    before = len(copies["n2"].records)
    back(copies)
    end(copies)
    new = copies["n2"].records[before:]
    assert not any(isinstance(record, r.FragmentClear | r.Preload | r.FragmentReady) for record in new)


# Which way is the cheapest.


def moved(copies: Copies) -> int:
    """The bytes of keys, values and leaves that go between n1 and n3 until it is whole, live batches aside."""
    total = [0]

    def weigh(sender: str, to: str, said: Said) -> int:
        if {sender, to} == {"n1", "n3"} and not isinstance(said, Batch):
            if isinstance(said, Demand):
                total[0] += sum(len(have.leaves) for have in said.haves)
            if isinstance(said, Supply):
                rows = [row for some in said.rows for row in zip(some.keys, some.values, strict=True)]
                rows += [row for write in said.writes for row in zip(write.keys, write.values, strict=True)]
                total[0] += sum(ROW_BYTES + len(key) + len(value or b"") for key, value in rows)
                total[0] += sum(len(found.bits) for found in said.differing)
        return 1

    copies.trouble = weigh
    move(copies)
    for _ in range(20):
        copies.run()
        if (0, "n3") in copies["n1"].supply.vouching.vouched:
            return total[0]
        copies.wait()
    raise AssertionError("it does not become whole")


@pytest.mark.parametrize("reaches", [True, False], ids=["log", "trimmed"])
@pytest.mark.parametrize("size", [1, 400])
@pytest.mark.parametrize("missing", [0, 1, 6, 30, 60, 90])
def test_no_other_way_would_have_moved_less(
    missing: int, size: int, reaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sound way is taken once, and the one that is chosen moves the fewest bytes."""
    took: dict[str, int] = {}
    chosen = ""
    for forced in ("", "historical", "differential", "full"):
        copies = away(value="v" * size)
        for at in range(missing):
            copies["n1"].put(0, **{f"k{(at * 7) % 75}": "w" * size})
        copies.run()
        if not reaches:
            copies["n1"].trim()
        copies.returns("n3")
        with monkeypatch.context() as patched:
            if forced:
                force(patched, forced)
            took[forced] = moved(copies)
        kind = copies["n3"].demander.progress.kinds[NAME]
        if not forced:
            chosen = kind
        elif kind != forced:
            del took[forced]  # it is not sound here
        end(copies)
    assert took[""] <= min(took.values()) + SLACK, f"{chosen}: {took}"


SLACK = 400
"""What a choice may be wrong by: rows under a leaf are so many on average only, and asking is not for nothing."""


def force(patched: pytest.MonkeyPatch, kind: str) -> None:
    """Nothing is weighed: what is sound is taken if it is this."""
    from rebalance import choice  # noqa: PLC0415

    huge = 1 << 40
    match kind:
        case "historical":
            patched.setattr("rebalance.supplying.count_rows", lambda *_: huge)
        case "differential":
            patched.setattr(choice.Amount, "by_leaves", lambda *_: -1)
            patched.setattr("rebalance.supplying.count_rows", lambda *_: huge)
        case _:
            patched.setattr(choice.Amount, "by_leaves", lambda *_: huge)
            patched.setattr("rebalance.supplying.count_rows", lambda *_: 1)


# Leaves.


def test_leaves_are_a_matter_of_rows_and_not_of_their_order_or_their_tombstones() -> None:
    copies = away()
    one = Survey(copies["n1"].replica.store, NAME)
    while not one.done:
        assert one.step(7) > 0
    two = Survey(copies["n2"].replica.store, NAME)
    two.step(1_000)
    count = leaf_count(ROWS)
    assert one.rows == two.rows == ROWS
    assert one.leaves(count) == two.leaves(count)
    copies["n1"].put(0, gone=None)
    copies["n1"].put(0, k5="other")
    copies.run()
    three = Survey(copies["n1"].replica.store, NAME)
    three.step(1_000)
    bits = differing(one.leaves(count), three.leaves(count))
    assert sum(map(int.bit_count, bits)) == 1
    beside = Under(count, bits).of((b"k%d" % at, 0) for at in range(ROWS))
    assert b"k5" in beside
    assert beside == [b"k%d" % at for at in range(ROWS) if leaf_of(b"k%d" % at, count) == leaf_of(b"k5", count)]
