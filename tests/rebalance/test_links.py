"""What came live while a copy was filled follows the transfer: it comes to the same whether it was linked beforehand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.state.replica import Replica
from engine.state.rows import unconfirmed
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.chained import DIGEST_EVERY, entries_of
from rebalance.image import fragment_of
from tests.rebalance.copies import name_of
from tests.support.images import image_of
from wal import records as r

NAME = name_of(0)
UP_TO, DIGEST = 1_000, 7
READY = r.FragmentReady(*NAME, UP_TO, DIGEST, epochs=[(1, 1)], full=True)
MANY = 3 * DIGEST_EVERY


def write(start: int, epoch: int = 1, keys: int = 1, *, value: bytes | None = b"v", stable: int = 0) -> r.Update:
    """So many keys."""
    named = [b"k%d" % at for at in range(start, start + keys)]
    return r.Update([r.Write(*NAME, epoch, start, named, [value] * keys, stable=stable)])


STORIES: dict[str, list[r.Record]] = {
    "nothing came": [],
    "some is from before the transfer": [write(UP_TO - 3), write(UP_TO - 1), write(UP_TO), write(UP_TO + 1)],
    "a gap is left": [write(UP_TO), write(UP_TO + 5)],
    "it came in another order": [write(UP_TO + 2), write(UP_TO + 1, value=None), write(UP_TO)],
    "of several keys, and closed": [write(UP_TO, keys=3), r.NoOp(0, 1, [(NAME[0], UP_TO + 3, 4)]), write(UP_TO + 7)],
    "of another epoch": [write(UP_TO), r.EpochStart(0, 2, [(NAME[0], UP_TO + 2)], []), write(UP_TO + 1, 2)],
    "some is undone": [
        *(write(at) for at in range(UP_TO, UP_TO + 9)),
        r.Undo(*NAME, UP_TO + 4, []),
        *(write(at, 2, value=b"another") for at in range(UP_TO + 4, UP_TO + 9)),
    ],
    "it is emptied again": [write(UP_TO), r.FragmentClear(*NAME, "a story"), write(UP_TO, 2, value=b"another")],
    "from the first counter on": [write(at) for at in range(UP_TO + 5)],
    "very many": [write(at, stable=at - 2) for at in range(UP_TO, UP_TO + MANY)],
}


def told(story: list[r.Record], link: Callable[[Replica], object]) -> Replica:
    """A copy to which that happens while it is filled."""
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(r.EpochStart(0, 1, [], []))
    replica.apply(r.FragmentClear(*NAME, "a story"))
    for record in story:
        replica.apply(record)
        link(replica)
    fragment = replica.fragment(NAME)
    undone = any(isinstance(record, r.Undo) for record in story) or any(
        isinstance(record, r.EpochStart) for record in story
    )
    assert replica.links.only_live(NAME) is not undone
    assert sorted(replica.unconfirmed(fragment, UP_TO)) == sorted(unconfirmed(fragment, UP_TO, only_live=False))
    replica.apply(READY)
    replica.check()
    assert not replica.links.only_live(NAME)
    return replica


@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_linked_beforehand_it_comes_to_the_same(story: list[r.Record], most: int) -> None:
    at_once = told(story, lambda _: None)
    beforehand = told(story, lambda replica: replica.links.make(replica.fragment(NAME), UP_TO, DIGEST, most))
    fragments = [replica.fragment(NAME) for replica in (at_once, beforehand)]
    assert image_of(fragments[0]) == image_of(fragments[1])
    assert fragments[0].digest == fragments[1].digest
    rows = [replica.store.scan(NAME, b"", 100_000) for replica in (at_once, beforehand)]
    assert rows[0] == rows[1]
    assert not len(beforehand.links)


def test_linked_to_another_history_it_is_linked_anew() -> None:
    story = STORIES["of several keys, and closed"]
    wrong = told(story, lambda replica: replica.links.make(replica.fragment(NAME), UP_TO, DIGEST + 1, 5))
    assert wrong.fragment(NAME).digest == told(story, lambda _: None).fragment(NAME).digest


def test_what_is_linked_beforehand_is_not_linked_again() -> None:
    replica = told(STORIES["very many"], lambda replica: replica.links.make(replica.fragment(NAME), UP_TO, DIGEST, 5))
    assert replica.links.made == MANY


@pytest.mark.parametrize("ahead", [False, True], ids=["not worked out", "worked out ahead"])
def test_a_large_write_is_linked_in_pieces(ahead: bool) -> None:
    """Seed 1703: one of 32,675 keys was linked in a turn that had room for 8,000."""
    large, made, most = write(UP_TO, keys=MANY), list[int](), MANY // 10

    def link(replica: Replica) -> None:
        fragment = replica.fragment(NAME)
        if not fragment.beyond:
            return
        if ahead:
            (written,) = fragment.beyond.values()
            fragment.note_digested(written, entries_of(written, 0, MANY), None, None)
        while some := replica.links.make(fragment, UP_TO, DIGEST, most):
            made.append(some)
        assert not fragment.digested

    replica = told([large], link)
    assert sum(made) == MANY == replica.links.made
    assert max(made) <= most
    assert replica.fragment(NAME).digest == told([large], lambda _: None).fragment(NAME).digest


def test_what_is_linked_of_a_large_write_is_not_linked_again_at_the_end() -> None:
    stories: list[list[r.Record]] = [
        [write(UP_TO, keys=MANY)],
        [r.NoOp(0, 1, [(NAME[0], UP_TO, MANY)]), write(UP_TO + MANY)],
    ]
    for story in stories:
        replica = told(story, lambda replica: replica.links.make(replica.fragment(NAME), UP_TO, DIGEST, MANY // 10))
        assert replica.links.made == MANY + len(story) - 1
        assert replica.fragment(NAME).digest == told(story, lambda _: None).fragment(NAME).digest


def test_a_copy_that_comes_back_while_it_is_filled_knows_of_which_counter_each_live_row_is() -> None:
    """Or it would drop them all where the transfer ends."""
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(r.FragmentClear(*NAME, "a story"))
    for record in STORIES["some is from before the transfer"]:
        replica.apply(record)
    fragment = replica.fragment(NAME)
    back = fragment_of(NAME, image_of(fragment))
    assert back.suspects == fragment.suspects
    assert replica.unconfirmed(back, UP_TO) == [b"k997", b"k999"]
