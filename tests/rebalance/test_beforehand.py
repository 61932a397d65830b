"""While a copy is away its primary sums up what it has, so that nobody has to when the copy returns."""

from __future__ import annotations

import pytest

from rebalance import beforehand
from rebalance.choice import Kind
from rebalance.ports import LITTLE, WORK_MAX
from tests.rebalance.copies import Copies, name_of
from tests.support.probes import heard
from wal import records as r

ROWS = WORK_MAX + 1
"""More than a primary sums up at once."""


def three(rows: int = ROWS, *, partitions: int = 1) -> Copies:
    """Three copies in sync, with so many rows in each partition that lie in no checkpoint, but those of n3."""
    copies = Copies("n1", "n2", "n3", partitions=partitions)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for number in range(partitions):
        copies["n1"].put(number, **{f"k{at}": "v" for at in range(rows)})
    copies.run()
    copies["n3"].checkpoint()
    return copies


def away(copies: Copies) -> None:
    """n3 is gone, and nobody has anything to do."""
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.run()


def back(copies: Copies) -> None:
    """n3 returns, and is whole; it lacked what history can tell, and no row was moved."""
    copies.returns("n3")
    copies["n3"].checkpoint()
    copies.map(("n1", "n2", "n3"), ("n1", "n2"))
    copies.run()
    copies.whole()
    copies.judge()
    assert not copies["n1"].supply.vouching.differed
    assert Kind.FULL not in copies["n3"].demander.progress.kinds.values()


def was_asked(copies: Copies) -> bool:
    """Whether n3 was asked what it contains, between the writes."""
    return any(isinstance(record, r.Compare) for record in copies["n3"].records)


def test_what_was_summed_up_while_a_copy_was_away_is_compared_at_once_however_much_it_is() -> None:
    copies = three()
    with heard() as reached:
        away(copies)
    assert "contents.summed_up_beforehand" in reached
    back(copies)
    assert not was_asked(copies)


def test_a_copy_that_returns_before_that_is_asked() -> None:
    copies = three()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    back(copies)
    assert was_asked(copies)


@pytest.mark.parametrize("written", [{"k1": "new"}, {"k1": None}, {"another": "key"}])
def test_what_was_written_since_is_summed_up_anew(written: dict[str, str | None]) -> None:
    copies = three()
    away(copies)
    copies["n1"].put(0, **written)
    copies.run()
    back(copies)
    assert was_asked(copies)


def test_what_another_primary_had_summed_up_is_not_known_to_the_next_nor_to_itself_when_it_leads_again() -> None:
    copies = three()
    away(copies)
    known = copies["n1"].supply.vouching.beforehand
    fragment = copies["n1"].replica.fragment(name_of(0))
    assert known.of(fragment) is not None
    copies.map(("n2", "n1"), ("n1", "n2"), promote=True)
    assert known.of(fragment) is None
    copies.run()
    assert copies["n2"].supply.vouching.beforehand.of(copies["n2"].replica.fragment(name_of(0))) is not None
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    back(copies)


def test_a_checkpoint_in_between_changes_nothing_of_it() -> None:
    copies = three()
    away(copies)
    copies["n1"].checkpoint()
    known = copies["n1"].supply.vouching.beforehand.of(copies["n1"].replica.fragment(name_of(0)))
    assert known == copies["n1"].replica.store.base.contents(name_of(0))
    back(copies)
    assert not was_asked(copies)


def test_of_few_rows_nothing_is_kept_and_of_what_is_whole_nothing_any_more() -> None:
    copies = three(beforehand.ROWS_LEAST - 1, partitions=4)
    copies["n1"].put(2, **{f"more{at}": "v" for at in range(2)})
    copies.run()
    away(copies)
    known = copies["n1"].supply.vouching.beforehand
    assert [n for n in range(4) if known.of(copies["n1"].replica.fragment(name_of(n))) is not None] == [2]
    back(copies)
    assert all(known.of(copies["n1"].replica.fragment(name_of(n))) is None for n in range(4))


def test_what_is_too_much_to_be_listed_is_left_to_whoever_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beforehand, "ROWS_MOST", ROWS - 1)
    copies = three()
    away(copies)
    assert copies["n1"].supply.vouching.beforehand.of(copies["n1"].replica.fragment(name_of(0))) is None
    back(copies)
    assert was_asked(copies)


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beforehand, "KEPT_MAX", 2)
    copies = three(beforehand.ROWS_LEAST, partitions=4)
    away(copies)
    known = copies["n1"].supply.vouching.beforehand
    assert sum(known.of(copies["n1"].replica.fragment(name_of(n))) is not None for n in range(4)) == 2
    back(copies)


def test_it_is_done_in_pieces_which_a_turn_hardly_notices() -> None:
    copies = three(partitions=2)
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    most = 0
    while copies["n1"].go_on():
        most = max(most, copies["n1"].work)
    assert 0 < most <= 3 * LITTLE
