"""When a full transfer ends, the rows that it has not told of go in pieces; what came above it meanwhile stays."""

from __future__ import annotations

from typing import Any

import pytest

from engine.state.store import Entry
from rebalance.demander import Demander
from rebalance.ports import WORK_MAX
from rebalance.unconfirmed import KEYS_AT_ONCE
from tests.rebalance.copies import Copies, Settings, name_of
from tests.rebalance.test_transfers import end, move
from wal import records as r
from wal.ids import Fragment

MANY = 5 * KEYS_AT_ONCE
NAME = name_of(0)


def loading() -> Copies:
    """A copy is filled. What comes late is very many keys, of a write from before the transfer began; they were deleted
    since, and no tombstone of them is left."""
    copies = Copies("n1", "n2", "n3", settings=Settings(supply_batch_bytes=1_000))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for at in range(40):
        copies["n1"].put(0, **{f"k{at}": "v" * 100})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies["n1"].put(0, **{f"gone{at}": "late" for at in range(MANY)})
    copies.run()
    late = copies["n1"].records[-1]
    copies["n1"].put(0, **{f"gone{at}": None for at in range(MANY)})
    copies.run()
    copies["n1"].put(0, k1="later")
    copies.run()
    for _ in range(10):  # some go with each checkpoint
        copies["n1"].checkpoint()
    assert not copies["n1"].replica.fragment(NAME).tombstones
    copies["n1"].trim()
    copies.returns("n3", wiped=True)
    move(copies)
    while not copies["n3"].replica.fragment(NAME).loading:
        assert copies.step()
    assert isinstance(late, r.Update)
    copies["n3"].log(late)
    assert len(copies["n3"].replica.fragment(NAME).suspects) == MANY
    return copies


def looked_at(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of n3 each step looks up, from now on."""
    read, steps = [0], list[int]()
    store, before = copies["n3"].replica.store, copies["n3"].replica.store.get

    def get(name: Fragment, key: bytes) -> Entry | None:
        read[0] += 1
        return before(name, key)

    monkeypatch.setattr(store, "get", get)
    while copies.step():
        steps.append(read[0])
        read[0] = 0
    return steps


def test_what_a_transfer_has_not_told_of_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = loading()
    steps = looked_at(copies, monkeypatch)
    assert sum(steps) >= MANY
    assert max(steps) <= 2 * WORK_MAX, "of a turn"
    end(copies)
    assert b"gone0" not in copies["n3"].rows(0)
    fragment = copies["n3"].replica.fragment(NAME)
    assert not fragment.suspects
    assert not fragment.loading


LIVE = 30_000


def written_live(*, behind: bool = False) -> Copies:
    """A copy is filled, and very many single writes come meanwhile; `behind`: of keys that the transfer has passed."""
    copies = Copies("n1", "n2", "n3", settings=Settings(supply_batch_bytes=1_000))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    copies["n1"].put(0, **{f"k{at}": "v" * 100 for at in range(40)})
    copies.run()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies["n1"].put(0, k1="later")
    copies.run()
    copies["n1"].checkpoint()
    copies["n1"].trim()
    copies.returns("n3", wiped=True)
    move(copies)
    while not copies["n3"].replica.fragment(NAME).loading:
        assert copies.step()
    while behind and copies["n3"].replica.store.get(NAME, b"k0") is None:
        assert copies.step()
    key = b"behind%d" if behind else b"live%d"
    at, epoch = copies["n1"].replica.fragment(NAME).counter.lwm, copies["n1"].replica.partition(0).epoch
    for start in range(at, at + LIVE):
        write = r.Write(*NAME, epoch, start, [key % (start % 20_000)], values=[b"v"], stable=max(at, start - 3))
        for name in ("n1", "n2", "n3"):
            copies[name].log(r.Update([write]))
    assert len(copies["n3"].replica.fragment(NAME).beyond) == LIVE
    return copies


def test_what_was_written_live_is_linked_to_the_transfer_in_pieces() -> None:
    copies = written_live()
    replica, steps, before = copies["n3"].replica, list[int](), copies["n3"].replica.links.made
    while copies.step():
        steps.append(replica.links.made - before)
        before = replica.links.made
    assert sum(steps) == LIVE
    assert max(steps) <= 4 * WORK_MAX + 2 * KEYS_AT_ONCE, "of a turn"
    fragment = replica.fragment(NAME)
    fragment.check()
    assert not fragment.loading
    assert fragment.digest == copies["n1"].replica.fragment(NAME).digest
    end(copies)


class Unseen(dict[Any, Any]):
    """What nobody looks through."""

    def items(self) -> Any:
        """All of it."""
        raise AssertionError("all of it is looked through")

    keys = values = __iter__ = items


@pytest.mark.parametrize("gap", [False, True], ids=["all has come", "something lacks"])
def test_what_was_written_live_is_not_looked_through_in_the_step_in_which_the_copy_is_whole(
    gap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor let go of in it: of 300,000 keys that was 34 ms."""
    copies = written_live(behind=True)
    n3 = copies["n3"]
    fragment = n3.replica.fragment(NAME)
    if gap:
        last = fragment.counter.highest_applied
        n3.log(r.Update([r.Write(*NAME, n3.replica.partition(0).epoch, last + 1, [b"beyond"], values=[b"v"])]))
    fragment.beyond, fragment.suspects = Unseen(fragment.beyond), Unseen(fragment.suspects)
    held, log, left = (fragment.beyond, fragment.suspects), n3.log, list[int]()

    def logged(record: r.Record) -> None:
        log(record)
        if isinstance(record, r.FragmentReady):
            left.extend(map(len, held))

    monkeypatch.setattr(n3, "log", logged)
    while n3.replica.fragment(NAME).loading:
        assert copies.step()
    assert left == [LIVE + gap, 20_000 + gap], "they are let go of in pieces"
    assert len(fragment.beyond) == gap
    assert not fragment.suspects
    fragment.check()
    for _ in range(LIVE // 100):
        copies.step()
    assert not any(held)


def half_way() -> Copies:
    """Some of them have gone."""
    copies = loading()
    while len(copies["n3"].replica.fragment(NAME).suspects) == MANY:
        assert copies.step()
    assert copies["n3"].replica.fragment(NAME).suspects
    return copies


def test_what_is_written_meanwhile_stays() -> None:
    copies = half_way()
    n3, last = copies["n3"], f"gone{MANY - 1}"
    left = n3.replica.fragment(NAME).suspects
    assert b"gone0" in left
    assert last.encode() not in left
    copies["n1"].put(0, **{"gone0": "new", last: "new"})
    records = copies["n1"].records[-1]
    assert isinstance(records, r.Update)
    n3.log(records)
    end(copies)
    assert n3.rows(0)[b"gone0"][2] == b"new"
    assert n3.rows(0)[last.encode()][2] == b"new"
    assert b"gone1" not in n3.rows(0)


def test_a_copy_that_crashes_half_way_begins_anew() -> None:
    copies = half_way()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.returns("n3")
    assert copies["n3"].replica.fragment(NAME).loading, "its log says so"
    move(copies)
    end(copies)


def test_a_session_that_is_kept_from_its_end_comes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces the node leaves its map, and stays."""
    copies = half_way()
    n3 = copies["n3"]
    n3.frozen = True
    copies.run()
    assert n3.replica.fragment(NAME).loading
    n3.frozen = False
    began = list[int]()
    monkeypatch.setattr(Demander, "_prepare_for", lambda *_: began.append(1))
    copies.wait(2)
    assert not n3.replica.fragment(NAME).loading
    assert not began, "nothing is asked for anew"
    end(copies)
