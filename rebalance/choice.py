"""How one copy of one fragment catches up: nothing, history, what was changed, what differs, or all rows, and why.

The supplier decides when the demand arrives, because it alone knows both sides as they are now. The first question is
where the two histories part: the end of the last epoch that both tables have. What the joiner has beyond that was never
continued, and it must undo it. Then the cheapest sound kind of transfer is taken:

* **nothing**: same history up to the same counter, and the digests agree,
* **historical**: the supplier's log reaches back to what the joiner has, and less is missing than there are rows,
* **mutations**: the supplier remembers which keys were changed above that (`rebalance.mutations`), and these are fewer:
  it does not matter then whether the log reaches back,
* **differential**: neither is so, or the joiner cannot undo what it must, and it has rows that are worth comparing: the
  two tell each other what their rows add up to, leaf by leaf, and those under leaves that differ go (`rebalance.leaves`),
* **full** otherwise, and where there is nothing yet; the joiner is emptied first.

Both sides are told of in the same words, those of the demand (`rebalance.telling`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from rebalance.leaves import LEAF_BYTES, leaf_count
from rebalance.messages import Have
from wal.counters import PartitionCounter


class Kind(StrEnum):
    """The kinds of transfer."""

    NOTHING = "nothing"
    HISTORICAL = "historical"
    MUTATIONS = "mutations"
    DIFFERENTIAL = "differential"
    FULL = "full"


OF_ROWS = (Kind.MUTATIONS, Kind.DIFFERENTIAL, Kind.FULL)
"""Of these kinds rows go, and not updates."""

ASK_BYTES = 100
"""What it takes to ask for leaves, and to be told that there are some."""


class Amount(NamedTuple):
    """What there is of a fragment, about; `row_bytes` is what one row weighs in a batch."""

    rows: int
    row_bytes: int

    @property
    def in_full(self) -> int:
        """The bytes of all rows."""
        return self.rows * self.row_bytes

    def by_leaves(self, changed: int) -> int:
        """The bytes of all leaves, and at most, on average, of the rows under those that differ, where so many rows do."""
        leaves, changed = leaf_count(self.rows), min(changed, self.rows)
        beside = (self.rows - changed) * min(changed, leaves) // leaves
        return ASK_BYTES + LEAF_BYTES * leaves + (changed + beside) * self.row_bytes


class Choice(msgspec.Struct, frozen=True):
    """The kind of transfer, with its reason in words. `cut`: undo everything above it first (-1: nothing to undo).

    `missing` updates are to come; of kind nothing, once the joiner has undone, and asks again. Where they come from
    history, `has` are those that the joiner has when it has undone.
    """

    kind: Kind
    reason: str
    cut: int = -1
    missing: int = 0
    has: PartitionCounter | None = None


def divergence(mine: list[tuple[int, int]], my_end: int, theirs: list[tuple[int, int]], their_end: int) -> int:
    """The last counter up to which two histories, each an epoch table and its end, are known to be one.

    >>> divergence([(1, 1)], 16, [(1, 1), (2, 15)], 20)
    14
    """
    common = 0
    for a, b in zip(mine, theirs, strict=False):
        if a != b:
            break
        common += 1
    if not common:
        return 0
    my_last = mine[common][1] - 1 if common < len(mine) else my_end
    their_last = theirs[common][1] - 1 if common < len(theirs) else their_end
    return min(my_last, their_last)


def _known_epochs(joiner: Have, supplier: Have) -> list[tuple[int, int]]:
    """The joiner's epoch table, and with it the epochs of what it applied beyond a gap, if the supplier has the same there.

    Its own table tells only of what its low watermark has passed: a copy that has passed nothing has no table, whatever it
    applied. An update is known by its epoch and its counter, because an epoch has one primary, which hands out each counter
    once. Nothing is added where the tables differ, or the joiner passed what the supplier has of a later epoch.
    """
    table, theirs = joiner.epochs, supplier.epochs
    known = len(table)
    if not joiner.beyond or table != theirs[:known] or (known < len(theirs) and theirs[known][1] <= joiner.lwm):
        return table
    for start, delta, epoch in joiner.beyond:
        if not epoch == _epoch_at(theirs, start + 1) == _epoch_at(theirs, start + delta):
            return table
    newest = joiner.beyond[-1][2]
    return [entry for entry in theirs if entry[0] <= newest]


def _epoch_at(table: list[tuple[int, int]], counter: int) -> int:
    """The epoch in which a counter was issued, by an epoch table; 0 if it tells of none."""
    at = bisect_right(table, counter, key=lambda entry: entry[1])
    return table[at - 1][0] if at else 0


def choose(
    joiner: Have,
    supplier: Have,
    reach: int,
    rows: Callable[[int], int] | None,
    *,
    amount: Callable[[], Amount],
    changed: Callable[[int], int | None],
) -> Choice:
    """How `joiner` catches up with `supplier`, decided here and nowhere else.

    `reach`: the supplier's log holds every write above this counter; it was tried in vain if the joiner wants no history.
    `rows` counts those of the supplier, up to a limit, and is asked only where history or memory could do; None: history
    is preferred, however few rows there are. `amount` is asked where they cannot do, and the joiner has rows. `changed`:
    how many keys were changed above a counter, if that is remembered.
    """
    if joiner.no_history:
        reach = supplier.highest + 1
    if joiner.loading:
        if joiner.kept and (all_rows := amount()).by_leaves(0) < all_rows.in_full // 2:
            return Choice(Kind.DIFFERENTIAL, "the copy has rows, and it is not known which of them are right")
        return Choice(Kind.FULL, "the copy was emptied and not filled again")
    common = divergence(_known_epochs(joiner, supplier), joiner.highest, supplier.epochs, supplier.highest)
    cut = common if joiner.highest > common else -1
    lwm, ranges = joiner.lwm, joiner.ranges
    if cut >= 0:
        if cut < joiner.stable:
            parted = f"its history parts at {cut} and it can undo down to {joiner.stable} only"
            return _of_rows(parted, supplier.lwm - cut + joiner.highest - cut, amount)
        lwm = min(lwm, cut)
        ranges = [(start, min(delta, cut - start)) for start, delta in ranges if start < cut]
    mine = dict(supplier.digests)
    for counter, digest in joiner.digests:
        if counter <= lwm and mine.get(counter, digest) != digest:
            return Choice(Kind.FULL, f"the digests differ at {counter}")
    has = PartitionCounter(lwm)
    for start, delta in ranges:
        has.update(start, delta)
    missing = sum(delta for _, delta in has.missing(supplier.lwm))
    parted = f"history parts at {cut}; " if cut >= 0 else ""
    if not missing:
        return Choice(Kind.NOTHING, f"{parted}same history up to {supplier.lwm}", cut)
    reaches = lwm >= reach
    keys = changed(lwm) if rows is not None or not reaches else None
    if not reaches and keys is None:
        why = f"the log reaches back to {reach} and {lwm} is needed"
        if not joiner.highest:
            return Choice(Kind.FULL, why, cut, missing)
        return _of_rows(why, missing + (joiner.highest - cut if cut >= 0 else 0), amount)
    if rows is not None and not joiner.highest:  # each row is an update, and those that were changed often are several
        return Choice(Kind.FULL, "the copy is empty", cut, missing)
    remembered = keys is not None and (not reaches or keys < missing)
    fewest = keys if remembered and keys is not None else missing
    there = rows(fewest + 1) if rows is not None else 0
    if there and fewest >= there:
        what = "keys were changed" if remembered else "updates are missing"
        return Choice(Kind.FULL, f"{fewest} {what} and there are {there} rows", cut, missing)
    if not remembered:
        return Choice(Kind.HISTORICAL, f"{parted}{missing} updates are missing above {lwm}", cut, missing, has)
    if cut >= 0 or joiner.suspects:  # a row that was undone is in the way of one that is older
        return Choice(Kind.NOTHING, f"{parted}{fewest} keys were changed above, and come once it has undone", cut, missing)
    return Choice(Kind.MUTATIONS, f"{fewest} keys were changed above {lwm}, by {missing} updates", missing=missing)


def _of_rows(why: str, changed: int, amount: Callable[[], Amount]) -> Choice:
    """Rows have to go: those that differ, if so many updates leave enough of them alike, or all."""
    there = amount()
    kind = Kind.DIFFERENTIAL if there.by_leaves(changed) < there.in_full else Kind.FULL
    return Choice(kind, why, missing=changed)
