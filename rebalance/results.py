"""The answers that were given, by transaction id, so that a retry after a lost reply gets the first one.

They are part of a partition: each is noted by the write that gave it, on every copy, and travels with it. The log says
which of them are forgotten (`wal.records.Forget`), and nothing else does; `engine.data.sessions` decides when they may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from wal.ids import SESSION_BYTES, TxId, end_of, tx_of

COMMITTED = 1
ABORTED = 2

TAKEN_IN = 512
"""So many commits are put on the list at most."""
LISTED_FROM = 20_000
"""Where there are more answers than that, it is known which are of which session: those of some are forgotten at once, and
nobody walks over all of them. Of fewer a walk takes a millisecond or two, and what is known would take as much memory."""


class Results:
    """Outcomes of one partition's transactions, and what was told of some of them beside that they were done (`answer`).

    `floor` is empty for as long as none was forgotten.

    `many`: there are so many that the primary should look which may go. When that is, is its own affair (`set_enough`),
    and not part of the state.

    Most are noted on copies where nobody ever asks. So a commit is only put on a list, which is taken in, in its order,
    before anything else is done: nothing can be told of it, but that it costs a third.

    Invariant: where sessions are listed, each id that has an outcome is in the list of its session.
    """

    __slots__ = ("_answers", "_committed", "_enough", "_listed", "_outcomes", "floor", "many")

    def __init__(
        self,
        outcomes: list[tuple[TxId, int]] | None = None,
        floor: TxId = b"",
        answers: Iterable[tuple[TxId, bytes]] = (),
    ) -> None:
        self._outcomes: dict[TxId, int] = dict(outcomes or [])
        self._answers: dict[TxId, bytes] = dict(answers)  # of ids that have an outcome
        self.floor = floor
        self.many = True
        self._enough = 0
        self._committed: list[TxId] = []  # noted last, not taken in
        self._listed: dict[bytes, list[TxId]] | None = None  # by session, where there are very many
        self._list(())

    def __len__(self) -> int:
        self._take_in()
        return len(self._outcomes)

    def get(self, tx: TxId) -> int | None:
        """COMMITTED, ABORTED, or None: not known here."""
        self._take_in()
        return self._outcomes.get(tx)

    def is_new(self, tx: TxId) -> bool:
        """Whether nothing is known of `tx`."""
        if self._committed:
            self._take_in()
        return tx not in self._outcomes

    def answer(self, tx: TxId) -> bytes | None:
        """What was told of `tx` beside its outcome, if anything was."""
        return self._answers.get(tx)

    def keep(self, tx: TxId, answer: bytes | None) -> None:
        """Remember what is told of an id, the outcome of which is noted; None: nothing more."""
        if answer is not None:
            self._answers[tx] = answer

    def answers(self) -> Mapping[TxId, bytes]:
        """All that `answer` would tell, to be looked at as long as nothing is noted."""
        return self._answers

    def set_enough(self, enough: int) -> None:
        """There are `many` when there are more than these."""
        self._enough = enough
        self.many = len(self) > enough

    def note_committed(self, tx: TxId) -> None:
        """`note` for COMMITTED."""
        committed = self._committed
        committed.append(tx)
        if len(committed) >= TAKEN_IN:
            self._take_in()

    def note(self, tx: TxId, outcome: int) -> None:
        """Remember an outcome; the first one stands for good within an epoch's history."""
        if outcome == COMMITTED:
            self.note_committed(tx)
            return
        self._take_in()
        self._outcomes[tx] = outcome
        self._list((tx,))
        self.many = len(self._outcomes) > self._enough

    def forget(self, tx: TxId) -> None:
        """The write that gave this outcome was undone."""
        self._take_in()
        self._outcomes.pop(tx, None)
        self._answers.pop(tx, None)

    def forget_up_to(self, answered: Collection[tuple[bytes, int]]) -> None:
        """The log says that of each of these sessions the answers up to a sequence number are forgotten."""
        self._take_in()
        ends = {session: end_of(session, sequence) for session, sequence in answered}
        if self._listed is not None:
            self._drop([tx for session, end in ends.items() for tx in self._taken(self._listed, session, end)])
            if len(self._outcomes) < LISTED_FROM // 2:
                self._listed = None
        else:
            end = ends.get
            self._drop([tx for tx in self._outcomes if tx < end(tx[:SESSION_BYTES], b"")])
        self.floor = max(self.floor, *(tx_of(session, sequence) for session, sequence in answered), b"")

    def merge(self, txs: list[TxId], outcomes: list[int], floor: TxId, answers: Iterable[tuple[TxId, bytes]] = ()) -> None:
        """Take over what another copy knows."""
        self._take_in()
        self.floor = max(self.floor, floor)
        self._answers.update(answers)
        self._outcomes.update(zip(txs, outcomes, strict=True))
        self._list(txs)

    def oldest(self, count: int) -> list[TxId]:
        """The ids that were noted first."""
        self._take_in()
        return list(islice(self._outcomes, count))

    def known_of(self, txs: Iterable[TxId]) -> tuple[dict[TxId, int], list[tuple[TxId, bytes]]]:
        """The outcomes of those of these that are known, and what was told of some of them."""
        self._take_in()
        outcomes, answers = self._outcomes, self._answers
        known = {tx: outcomes[tx] for tx in txs if tx in outcomes}
        return known, [(tx, answers[tx]) for tx in known if tx in answers] if answers else []

    def items(self) -> list[tuple[TxId, int]]:
        """All outcomes that are known."""
        self._take_in()
        return list(self._outcomes.items())

    def outcomes(self) -> Mapping[TxId, int]:
        """The same, to be looked at likewise."""
        self._take_in()
        return self._outcomes

    def _take_in(self) -> None:
        committed = self._committed
        if committed:
            self._committed = []
            self._outcomes.update(dict.fromkeys(committed, COMMITTED))
            self._list(committed)
            self.many = len(self._outcomes) > self._enough

    def _drop(self, gone: list[TxId]) -> None:
        outcomes, answers = self._outcomes, self._answers
        for tx in gone:
            outcomes.pop(tx, None)
            if answers:
                answers.pop(tx, None)

    @staticmethod
    def _taken(listed: dict[bytes, list[TxId]], session: bytes, end: TxId) -> list[TxId]:
        """Take the ids of a session before an end out of what is listed."""
        ids = listed.pop(session, [])
        if left := [tx for tx in ids if tx >= end]:
            listed[session] = left
        return [tx for tx in ids if tx < end]

    def _list(self, fresh: Iterable[TxId]) -> None:
        """Note of which sessions some ids are that have an outcome now, if that is noted; or of all, from now on."""
        if self._listed is None:
            if len(self._outcomes) <= LISTED_FROM:
                return
            self._listed, fresh = {}, self._outcomes
        listed = self._listed
        for tx in fresh:
            listed.setdefault(tx[:SESSION_BYTES], []).append(tx)
