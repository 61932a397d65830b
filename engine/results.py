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
    """Outcomes of one partition's transactions, newest `KEPT` at least. Invariant: every id kept is above the floor.

    Most are noted on copies where nobody ever asks. So a commit is only put on a list, which is taken in, in its order,
    before anything else is done: nothing can be told of it, but that it costs a third.
    """

    __slots__ = ("_committed", "_floor", "_outcomes")

    def __init__(self, outcomes: list[tuple[TxId, int]] | None = None, floor: TxId = b"") -> None:
        self._outcomes: dict[TxId, int] = dict(outcomes or [])
        self._floor = floor
        self._committed: list[TxId] = []  # noted last, not taken in

    @property
    def floor(self) -> TxId:
        """The newest id that was ever forgotten."""
        self._take_in()
        return self._floor

    def get(self, tx: TxId) -> int | None:
        """COMMITTED, ABORTED, or None: not known here."""
        self._take_in()
        return self._outcomes.get(tx)

    def is_new(self, tx: TxId) -> bool:
        """Whether `tx` was surely never answered here."""
        if self._committed:
            self._take_in()
        return tx not in self._outcomes and tx > self._floor

    def too_old(self, tx: TxId) -> bool:
        """Whether an unknown `tx` may have been answered and forgotten."""
        return tx <= self.floor

    def note_committed(self, tx: TxId) -> None:
        """`note` for COMMITTED."""
        committed = self._committed
        committed.append(tx)
        if len(committed) >= KEPT:
            self._take_in()

    def note(self, tx: TxId, outcome: int) -> None:
        """Remember an outcome; the first one stands for good within an epoch's history."""
        self._take_in()
        self._note(tx, outcome)

    def forget(self, tx: TxId) -> None:
        """The write that gave this outcome was undone."""
        self._take_in()
        self._outcomes.pop(tx, None)

    def merge(self, txs: list[TxId], outcomes: list[int], floor: TxId) -> None:
        """Take over what another copy knows."""
        self._floor = max(self.floor, floor)
        for tx, outcome in zip(txs, outcomes, strict=True):
            if tx > self._floor:
                self._note(tx, outcome)

    def items(self) -> list[tuple[TxId, int]]:
        """All outcomes that are known."""
        self._take_in()
        return list(self._outcomes.items())

    def _take_in(self) -> None:
        committed = self._committed
        if committed:
            self._committed = []
            for tx in committed:
                self._note(tx, COMMITTED)

    def _note(self, tx: TxId, outcome: int) -> None:
        outcomes = self._outcomes
        outcomes[tx] = outcome
        if len(outcomes) > 2 * KEPT:
            oldest = sorted(outcomes)[: len(outcomes) - KEPT]
            for old in oldest:
                del outcomes[old]
            self._floor = max(self._floor, oldest[-1])
