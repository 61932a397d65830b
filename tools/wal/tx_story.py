"""The story of a transaction, out of the logs of any number of nodes: votes, decision, outcomes, and how it came out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum

import msgspec

from rebalance.results import COMMITTED
from tools.wal.origins import Origins
from wal import Block, RawBlock
from wal import records as r
from wal.codec import FormatError
from wal.footer import Span, Told, among
from wal.ids import CLIENTS, DECISIONS, SESSION_BYTES, NodeId, TxId, fragment_name, piece_number, whole_of

_EPOCH, _FORGET, _ORIGIN = b"\xa5epoch", b"\xa6forget", b"\xa6origin"
"""Tags of records that may be about a transaction without naming it: they end its prepare, or speak of its session."""


FORGOTTEN = "forgotten"
KEPT_BYTES_MAX = 16 << 20
"""Of footers, so that the last ones are not read again for what concerns a transaction without naming it."""


class End(StrEnum):
    """How a transaction came out, by all that was read."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_DOUBT = "in doubt"
    TORN = "TORN"
    UNKNOWN = "unknown"


class Step(msgspec.Struct, frozen=True):
    """One record that speaks of it. `what` is in the words of the records: prepare, commit, rollback, decide, ..."""

    time_ms: int
    node: NodeId
    lsn: int
    what: str
    partition: int
    about: str


class TxStory:
    """One transaction."""

    def __init__(self, tx: TxId) -> None:
        self.tx = tx
        self._steps: dict[Step, None] = {}
        self._forgotten: dict[tuple[NodeId, int], Step] = {}
        self.participants: list[int] = []
        self.decision: bool | None = None
        self.decided = (0, 0)  # in which partition and epoch
        self.outcomes: dict[tuple[NodeId, int, int], bool] = {}  # of each piece that it has in a partition
        self.prepared: dict[tuple[NodeId, int, int], int] = {}  # to the epoch of the prepare that has no outcome yet

    def add(self, step: Step) -> None:
        """A record speaks of it. Of those that say that it was forgotten the first counts, by partition and node."""
        if step.what != FORGOTTEN:
            self._steps[step] = None
            return
        known = self._forgotten.get((step.node, step.partition))
        if known is None or step.lsn < known.lsn:
            self._forgotten[step.node, step.partition] = step

    @property
    def partitions(self) -> set[int]:
        """Those that it concerned."""
        return {*self.participants, *(step.partition for step in self._steps)}

    @property
    def steps(self) -> list[Step]:
        """All that speaks of it, in the order of time. What partitions forget that had no part in it says nothing of it."""
        mine = self.partitions
        forgotten = [step for step in self._forgotten.values() if step.partition in mine]
        return sorted([*self._steps, *forgotten], key=lambda step: (step.time_ms, step.node, step.lsn))

    @property
    def began_ms(self) -> int:
        """When it was first logged."""
        return min((step.time_ms for step in self._steps), default=0)

    def end(self) -> tuple[End, str]:
        """How it came out, and where it did not."""
        by_partition: dict[int, set[bool]] = {}
        for (_, partition, _), commit in self.outcomes.items():
            by_partition.setdefault(partition, set()).add(commit)
        ways = {commit for ways in by_partition.values() for commit in ways}
        if self.decision is not None:
            ways.add(self.decision)
        if len(ways) > 1:
            said = [
                f"{node}:p{partition} {'committed' if commit else 'rolled back'}"
                for (node, partition, _), commit in sorted(self.outcomes.items())
            ]
            decided = [] if self.decision is None else [f"decided to {'commit' if self.decision else 'abort'}"]
            return End.TORN, ", ".join([*decided, *dict.fromkeys(said)])
        doubtful = list(dict.fromkeys(f"{node}:p{partition}" for node, partition, _ in sorted(self.prepared)))
        if doubtful:
            return End.IN_DOUBT, ", ".join(doubtful)
        if not ways:
            return End.UNKNOWN, "nothing here says how it came out"
        end = End.COMMITTED if ways.pop() else End.ABORTED
        silent = [f"p{partition}" for partition in self.participants if partition not in by_partition]
        if silent and end is End.COMMITTED:
            return end, f"and nothing that was read tells of {', '.join(silent)}"
        return end, "everywhere"


class TxReading:
    """Reads one node's log for some transactions; what it says of where they come from is noted in `origins`.

    `apart`: who chooses blocks does not know what was taken of those before.
    """

    def __init__(self, stories: dict[TxId, TxStory], node: NodeId, origins: Origins, *, apart: bool = False) -> None:
        self._stories = stories
        self._node = node
        self._sessions = {tx[:SESSION_BYTES] for tx in stories}
        self._origins = origins
        self._apart = apart
        self._told: tuple[int, int, list[Span]] = (0, 0, [])
        """A segment, up to where it was told of, and where clients are named there."""
        self._kept: deque[Told] = deque()
        self._kept_bytes = 0
        self.first_lsn = 0
        """The first record that names one of them; 0: there is none."""

    def ask(self, told: Told) -> list[Span] | None:
        """What is to be read of a segment; what tells of it is kept, as long as it is not much."""
        found = told.naming(self._stories, [CLIENTS])
        if found is not None:
            self._told = told.header.first_lsn, told.trailer.end, found[1]
            self._kept.append(told)
            self._kept_bytes += told.trailer.index_bytes
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= self._kept.popleft().trailer.index_bytes
        return found[0] if found is not None else None

    def silent(self, partitions: Collection[int]) -> list[int]:
        """Segments of which it is known that nothing concerns these partitions there."""
        found: list[int] = []
        for told in self._kept:
            with suppress(FormatError):
                if told.about(partitions) == []:
                    found.append(told.header.first_lsn)
        return found

    def choose(self, raw: RawBlock) -> bool:
        """Whether a block may speak of them. Each search costs as much as all else that is done with a block."""
        data, (segment, end, silent) = raw.data, self._told
        if raw.segment == segment and raw.offset < end:  # what does not name them is looked for behind all that does
            return among(silent, raw.offset) or any(tx in data for tx in self._stories)
        for session in self._sessions:
            if session in data:
                break
        else:
            return self._waiting and _EPOCH in data
        for tx in self._stories:
            if tx in data:
                return True
        return _FORGET in data or _ORIGIN in data or (self._waiting and _EPOCH in data)

    @property
    def _waiting(self) -> bool:
        """Whether one of them is prepared here and has not ended: a new epoch may end it without naming it."""
        return self._apart or any(at[0] == self._node for story in self._stories.values() for at in story.prepared)

    def take(self, block: Block) -> None:
        """Read on."""
        for lsn, record in enumerate(block.records, block.first_lsn):
            self._take(lsn, block.time_ms, record)

    def choose_about(self, raw: RawBlock) -> bool:
        """Whether a block may concern them without naming them."""
        data = raw.data
        return _EPOCH in data or (_FORGET in data and any(session in data for session in self._sessions))

    def take_about(self, block: Block) -> None:
        """What concerns them without naming them: it is read after all that names them."""
        for lsn, record in enumerate(block.records, block.first_lsn):
            if isinstance(record, r.EpochStart | r.Forget):
                self._take(lsn, block.time_ms, record)

    def _take(self, lsn: int, time_ms: int, record: r.Record) -> None:
        for tx, what, partition, about in self._said(record):
            story = self._stories.get(tx)
            if story is not None:
                self.first_lsn = min(lsn, self.first_lsn or lsn)
                story.add(Step(time_ms, self._node, lsn, what, partition=partition, about=about))

    def _said(self, record: r.Record) -> Iterator[tuple[TxId, str, int, str]]:
        match record:
            case r.Prepare(piece) if (tx := whole_of(piece)) in self._stories:
                story, at = self._stories[tx], (self._node, record.partition, piece_number(piece))
                story.participants = story.participants or list(dict.fromkeys(record.participants))
                if at not in story.outcomes:
                    story.prepared[at] = record.epoch
                again = f" issued again, first in e{record.origin}" if record.origin else ""
                about = f"e{record.epoch} decided-in=p{record.decision}{again} {_written(record.writes)}"
                yield tx, "prepare", record.partition, about
            case r.Outcome(piece, partition, epoch, commit) if (tx := whole_of(piece)) in self._stories:
                self._ended(piece, partition, commit=commit)
                yield tx, "commit" if commit else "rollback", partition, f"e{epoch}"
            case r.Update(writes) | r.History(writes):
                yield from self._writes(writes, "update" if isinstance(record, r.Update) else "history")
            case r.Results(partition, txs, outcomes):
                for piece, outcome in zip(txs, outcomes, strict=True):
                    if (tx := whole_of(piece)) in self._stories:
                        self._ended(piece, partition, commit=outcome == COMMITTED)
                        yield tx, "result", partition, f"{'committed' if outcome == COMMITTED else 'aborted'}, by transfer"
            case r.EpochStart(partition, epoch, _, ended):
                # What an older primary had prepared and the new one knows of, it issues again with its epoch.
                for story in self._stories.values():
                    for at, prepared in list(story.prepared.items()):
                        if at[:2] == (self._node, partition) and 0 < prepared < epoch:
                            del story.prepared[at]
                for tx in ended:
                    if tx in self._stories:
                        self._stories[tx].prepared.pop((self._node, partition, 0), None)
                        yield tx, "ended", partition, f"e{epoch}: it only read here"
            case r.Forget(partition, epoch, answered):
                for session, up_to in answered:
                    for tx in self._stories:
                        if tx[:SESSION_BYTES] == session and int.from_bytes(tx[SESSION_BYTES:], "big") <= up_to:
                            yield tx, FORGOTTEN, partition, f"e{epoch}: its client has the answer"
            case r.Origin(tx=tx):
                if tx[:SESSION_BYTES] in self._sessions:
                    self._origins.note(record)
            case _:
                pass

    def _writes(self, writes: Sequence[r.Write], what: str) -> Iterator[tuple[TxId, str, int, str]]:
        for write in writes:
            if write.namespace == DECISIONS:
                for tx, outcome in zip(write.keys, write.values, strict=True):
                    story = self._stories.get(tx)
                    if story is None:
                        continue
                    if outcome is None:
                        yield tx, "over", write.partition, "the decision is not needed any more"
                    else:
                        story.decision = outcome[:1] == bytes([COMMITTED])
                        story.decided = write.partition, write.issued
                        yield tx, "decide", write.partition, "commit" if story.decision else "abort"
            elif (tx := whole_of(write.tx)) in self._stories:
                self._ended(write.tx, write.partition, commit=not write.closed)
                self._stories[tx].decided = write.partition, write.issued
                how = f" issued again, first in e{write.origin}" if write.origin else ""
                yield tx, what, write.partition, f"e{write.epoch}{how} {_written([write])}"

    def _ended(self, piece: TxId, partition: int, *, commit: bool) -> None:
        story, at = self._stories[whole_of(piece)], (self._node, partition, piece_number(piece))
        story.outcomes[at] = commit
        story.prepared.pop(at, None)


def _written(writes: Sequence[r.Write]) -> str:
    return " ".join(f"{fragment_name(write.fragment)}({write.start},{write.delta})" for write in writes)


class Finder:
    """Finds the transactions of a log that begin so, or have a label; the newest that were met, up to `keep`.

    `sessions` are those that the label is said of; it is met in a block before all that it is said of there.
    """

    def __init__(self, prefix: str, label: str | None, keep: int) -> None:
        self.found: dict[TxId, int] = {}
        self.more = False
        self._prefix = prefix
        self._label = label
        self._sessions: dict[bytes, None] = {}
        self._keep = keep
        self._needle = bytes.fromhex(prefix[: len(prefix) // 2 * 2]) if label is None else label.encode()

    def choose(self, raw: RawBlock) -> bool:
        """Whether a block may have one."""
        return self._needle in raw.data or any(session in raw.data for session in self._sessions)

    def take(self, block: Block) -> None:
        """Read on."""
        for record in block.records:
            for tx in self._named(record):
                if self._label is None and not tx.hex().startswith(self._prefix):
                    continue
                self.found.pop(tx, None)
                self.found[tx] = block.time_ms
                if len(self.found) > self._keep:
                    self.found.pop(next(iter(self.found)))
                    self.more = True

    def _named(self, record: r.Record) -> Iterator[TxId]:
        match record:
            case r.Origin(tx=tx, label=label):
                if label == self._label and record.labels_all:
                    self._sessions[tx[:SESSION_BYTES]] = None
                if label == self._label or (self._label is None and self._prefix):
                    yield tx
            case _ if self._label is not None:
                for tx in txs_of(record) if self._sessions else ():
                    if tx[:SESSION_BYTES] in self._sessions:
                        yield tx
            case _:
                yield from txs_of(record)


def txs_of(record: r.Record) -> Iterator[TxId]:
    """The transactions that a record is about."""
    match record:
        case r.Prepare(tx) | r.Outcome(tx):
            yield whole_of(tx)
        case r.Update(writes) | r.History(writes):
            for write in writes:
                yield from write.keys if write.namespace == DECISIONS else [whole_of(write.tx)] if write.tx else []
        case _:
            return
