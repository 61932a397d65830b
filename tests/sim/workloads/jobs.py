"""The book of a queue: who put, claimed and did which jobs, and whether that can have been.

A row of the queue is a job at a key, with a mark that is written once. Who claims is promised rows that nobody else has
locked, and that nobody else gets; the first ones, if they are free and no other one claims at the same moment. So

* what was done or put back by a transaction that was acknowledged is not claimed any more, and by nobody done again;
* what a transaction that commits has claimed is handed to nobody else before it asks to be committed;
* who is told of fewer rows than it has asked for was told of all that were free all the while;
* who is alone is told of the first ones of these, unless a row before them expires just then;
* and in the end each job that was put is done, once.

A row was surely free if nobody who may have held its key was there: those who asked for it, until they were over, and
longer if they may have left something behind. What became of one that was to be committed and was not answered nobody
knows: what it has touched is not asked about any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.sim.network import MS
from wal.ids import TxId

LEFT_BEHIND_NS = 60_000 * MS
"""For so long after its end a transaction may still hold something: leases and recovery end it."""
EXPIRED_AFTER_NS = 10_000 * MS
"""So long after it was put a row is gone that expires, whatever became of clocks."""
NEVER = 1 << 62


class Row(NamedTuple):
    """A job in its place. `mark` is another one each time that it is put."""

    key: bytes
    mark: int


class Finding(NamedTuple):
    """What cannot have been, and which keys and transactions it is about."""

    what: str
    keys: tuple[bytes, ...] = ()
    txs: tuple[TxId, ...] = ()


def key_of(place: int, job: int) -> bytes:
    """Where a job lies; its tag says which partition that is."""
    return b"q%09d{%d}" % (place, job)


def job_of(key: bytes) -> int:
    """The job that lies there."""
    return int(key.partition(b"{")[2][:-1])


class Attempt:
    """A transaction, or a single put, from its first call to its last answer. Times are those of the world (ns)."""

    __slots__ = (
        "asked",
        "changed",
        "committed",
        "committing",
        "did",
        "expiring",
        "found",
        "left",
        "limit",
        "put",
        "reverse",
        "rows",
        "since",
        "single",
        "steady",
        "touched",
        "tx",
        "until",
    )

    def __init__(self, tx: TxId, since: int) -> None:
        self.tx = tx
        self.since = since
        self.single = False  # a put without a transaction
        self.expiring = False
        self.put: dict[Row, None] = {}
        self.touched: dict[bytes, None] = {}  # keys that it asked to lock, or wrote
        self.limit, self.reverse = 0, False
        self.asked: int | None = None  # when it claimed
        self.found: int | None = None  # when it was told
        self.steady = False  # in less than any lease, in which nothing befell any node
        self.rows: list[Row] = []
        self.changed: dict[Row, None] = {}  # that it claimed, and deletes or puts back
        self.did: dict[int, int] = {}  # jobs, each with what was noted as its result
        self.committing: int | None = None  # when it asked for that
        self.committed: bool | None = None  # None: nobody knows
        self.left = True  # it may have left something locked
        self.until: int | None = None

    @property
    def claims_until(self) -> int:
        """When it claims nothing any more for certain."""
        if self.found is not None or self.asked is None:
            return self.found if self.found is not None else self.since
        return self.until + LEFT_BEHIND_NS if self.until is not None else NEVER

    def holds_until(self, key: bytes) -> int:
        """When it surely does not hold a key any more that it has touched.

        What it has written is in doubt for as long as it is locked, and whoever claims waits for that.
        """
        if self.until is None or (self.committed is None and self.committing is not None):
            return NEVER
        if self.committed and any(row.key == key for row in (*self.put, *self.changed)):
            return self.until
        return self.until + (LEFT_BEHIND_NS if self.left else 0)


class Jobs:
    """All attempts of one run. `waiting`: about so many rows are there."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.waiting = 0
        self.judged = 0  # claims that were told of all they asked for, or of less, beside rows that were surely free

    def begin(self, tx: TxId, now: int) -> Attempt:
        """Somebody is about to put or to claim."""
        attempt = Attempt(tx, now)
        self.attempts.append(attempt)
        return attempt

    def end(self, attempt: Attempt, now: int, *, committed: bool | None, left: bool = True) -> None:
        """It is over."""
        attempt.until, attempt.committed, attempt.left = now, committed, left
        if committed:
            self.waiting = max(0, self.waiting + len(attempt.put) - len(attempt.changed))

    def judge(self, results: Mapping[int, Sequence[int]]) -> list[Finding]:
        """All that cannot have been. `results`: what was noted of each job, when the queue was empty."""
        return [*self._of_results(results), *self.judge_claims()]

    def judge_claims(self) -> list[Finding]:
        """All that cannot have been of what was claimed so far, whether or not the queue can be emptied."""
        return [*self._of_rows(), *self._of_what_was_free()]

    def _of_results(self, results: Mapping[int, Sequence[int]]) -> Iterator[Finding]:
        """Each job is done once, and by whom it was told to be."""
        for job, noted in results.items():
            if len(noted) > 1:
                yield Finding(f"job {job} was done {len(noted)} times")
        for one in self.attempts:
            for job, result in one.did.items():
                there = result in results.get(job, ())
                if one.committed is not None and there != one.committed:
                    what = "what came of it is gone" if one.committed else "it was told to have failed"
                    yield Finding(f"job {job} was done by {one.tx.hex()}, and {what}", txs=(one.tx,))
            for row in one.put if one.committed and not one.expiring else ():
                if not results.get(job_of(row.key)):
                    yield Finding(
                        f"job {job_of(row.key)} was put at {_at(one.until)} and never done", (row.key,), (one.tx,)
                    )

    def _of_rows(self) -> Iterator[Finding]:
        """Who claimed which row: it was there, and nobody else's."""
        writers = {row: one for one in self.attempts for row in one.put}
        changed = {row: one for one in self.attempts if one.committed for row in one.changed}
        kept: dict[Row, list[Attempt]] = {}
        for one in self.attempts:
            for row in one.rows if one.committed else ():
                kept.setdefault(row, []).append(one)
            keys = [row.key for row in one.rows]
            if keys != sorted(set(keys), reverse=one.reverse) or len(keys) > one.limit > 0:
                yield Finding(f"{one.tx.hex()} asked for {one.limit} rows, and was told of {keys}", txs=(one.tx,))
        for one in self.attempts:
            asked, found = one.asked, one.found
            if asked is None or found is None:
                continue
            for row in one.rows:
                writer, by = writers.get(row), changed.get(row)
                about = f"{row.key!r} was claimed at {_at(asked)} by {one.tx.hex()}"
                if writer is None or writer.committed is False or writer.since > found:
                    yield Finding(f"{about}, and nobody had put it there", (row.key,), (one.tx,))
                elif by is not None and by is not one and _ended(by) < asked:
                    txs = (one.tx, by.tx)
                    yield Finding(f"{about}, and was gone since {_at(by.until)}, by {by.tx.hex()}", (row.key,), txs)
                elif by is not None and by is not one and one.committed and row in one.changed:
                    yield Finding(f"{about} and taken by {by.tx.hex()}, too", (row.key,), (one.tx, by.tx))
                for other in kept.get(row, ()):
                    since, until = other.found, other.committing
                    if other is not one and since is not None and until is not None and since < asked and found < until:
                        what = f"{about} while it was {other.tx.hex()}'s, since {_at(since)}"
                        yield Finding(what, (row.key,), (one.tx, other.tx))

    def _of_what_was_free(self) -> Iterator[Finding]:
        """Who claimed, beside rows that were there and free all the while."""
        touching: dict[bytes, list[Attempt]] = {}
        goes: dict[Row, int] = {}  # since when it may be gone
        for one in self.attempts:
            for key in dict.fromkeys([*one.touched, *(row.key for row in one.put)]):
                touching.setdefault(key, []).append(one)
            for row in one.changed if one.committed is not False else ():
                goes[row] = min(goes.get(row, NEVER), one.since)
        coming = [(_ended(one), row, one) for one in self.attempts if one.committed and not one.expiring for row in one.put]
        coming.sort(key=lambda each: each[:2], reverse=True)
        expiring = [(row, one) for one in self.attempts if one.expiring and one.committed is not False for row in one.put]
        there: dict[Row, Attempt] = {}
        others: list[Attempt] = []
        claims = sorted((one for one in self.attempts if one.asked is not None), key=lambda one: one.asked or 0)
        for number, one in enumerate(claims):
            asked, found = one.asked, one.found
            assert asked is not None
            while coming and coming[-1][0] < asked:
                _, row, writer = coming.pop()
                there[row] = writer
            there = {row: writer for row, writer in there.items() if goes.get(row, NEVER) > asked}
            others = [other for other in others if other.claims_until >= asked]
            if found is not None:
                behind = len(one.rows) < one.limit  # it was told of too few
                alone = not others and (number + 1 == len(claims) or (claims[number + 1].asked or 0) > found)
                alone = alone and not _may_expire_before(one, asked, found, expiring)
                for row in _missed(one, there) if behind or alone else ():
                    if not _free(row, one, asked, found, touching[row.key]):
                        continue
                    writer = there[row]
                    if not behind and not (writer.single or _ended(writer) + LEFT_BEHIND_NS < asked):
                        continue  # it may be locked by who put it, and that is not waited for
                    what = "there" if behind else "the first"
                    yield Finding(
                        f"{row.key!r}, put at {_at(writer.until)}, was {what} and free, and {one.tx.hex()}, which claimed "
                        f"{one.limit} from {_at(asked)} to {_at(found)}, was told of {[row.key for row in one.rows]}",
                        (row.key,),
                        (one.tx, writer.tx),
                    )
                self.judged += behind or alone
            others.append(one)


def _missed(one: Attempt, there: Iterable[Row]) -> Iterator[Row]:
    """What is not among the rows of a claim, and ought to be if it was free."""
    told = set(one.rows)
    last = one.rows[-1].key if one.rows else b""
    for row in there:
        if row not in told and (len(one.rows) < one.limit or (row.key > last if one.reverse else row.key < last)):
            yield row


def _may_expire_before(one: Attempt, asked: int, found: int, expiring: Iterable[tuple[Row, Attempt]]) -> bool:
    """Whether a claim may have tried for a row that expired at that very moment: it goes on with any of the others then."""
    last = one.rows[-1].key if one.rows else b""
    return any(
        (row.key > last if one.reverse else row.key < last)
        for row, writer in expiring
        if writer.since < found and _ended(writer) + EXPIRED_AFTER_NS > asked
    )


def _free(row: Row, one: Attempt, asked: int, found: int, touching: Iterable[Attempt]) -> bool:
    """Whether nobody else can have held a row while somebody claimed."""
    if row.key in one.touched and not one.steady:
        return False  # its own lock may have been lost before it was told
    return all(each is one or each.since > found or each.holds_until(row.key) < asked for each in touching)


def _ended(one: Attempt) -> int:
    return one.until if one.until is not None else NEVER


def _at(ns: int | None) -> str:
    return f"{ns / 1e9:.6f}" if ns is not None else "?"
