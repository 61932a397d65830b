"""The answers that were given, by transaction id, so that a retry after a lost reply gets the first one.

A partition keeps its newest ids. Ids carry the client's hybrid clock in front, so they order by age; the newest that was
ever forgotten is the floor, and an id at or below it that is not known here may have been answered before: it is refused
as too old rather than executed again.
"""

from __future__ import annotations

from wal.ids import TxId

COMMITTED = 1
ABORTED = 2

KEPT = 512
"""So many ids are always kept per partition; up to twice as many may be, because cutting one by one would cost more."""


class Results:
    """Outcomes of one partition's transactions, newest `KEPT` at least. Invariant: every id kept is above the floor."""

    __slots__ = ("_outcomes", "floor")

    def __init__(self, outcomes: list[tuple[TxId, int]] | None = None, floor: TxId = b"") -> None:
        self._outcomes: dict[TxId, int] = dict(outcomes or [])
        self.floor = floor

    def get(self, tx: TxId) -> int | None:
        """COMMITTED, ABORTED, or None: not known here."""
        return self._outcomes.get(tx)

    def is_new(self, tx: TxId) -> bool:
        """Whether `tx` was surely never answered here."""
        return tx not in self._outcomes and tx > self.floor

    def too_old(self, tx: TxId) -> bool:
        """Whether an unknown `tx` may have been answered and forgotten."""
        return tx <= self.floor

    def note(self, tx: TxId, outcome: int) -> None:
        """Remember an outcome; the first one stands for good within an epoch's history."""
        outcomes = self._outcomes
        outcomes[tx] = outcome
        if len(outcomes) > 2 * KEPT:
            oldest = sorted(outcomes)[: len(outcomes) - KEPT]
            for old in oldest:
                del outcomes[old]
            self.floor = max(self.floor, oldest[-1])

    def forget(self, tx: TxId) -> None:
        """The write that gave this outcome was undone."""
        self._outcomes.pop(tx, None)

    def merge(self, txs: list[TxId], outcomes: list[int], floor: TxId) -> None:
        """Take over what another copy knows."""
        self.floor = max(self.floor, floor)
        for tx, outcome in zip(txs, outcomes, strict=True):
            if tx > self.floor:
                self.note(tx, outcome)

    def items(self) -> list[tuple[TxId, int]]:
        """All outcomes that are known."""
        return list(self._outcomes.items())
