"""One share of a data directory, between the files and the fold: what `engine.offline.directory` hands to
`engine.state.recover`.

The fold does not know that it sees a share. Records of other fragments are dropped after they are decoded and before
they are applied: decoding is a twentieth of the cost, and a record's bytes are nobody's business but the codec's. No
record of one fragment changes another, so a share folds to what the whole would have folded to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from engine.state.identity import check_owner
from engine.state.loaded import Loaded, Loading
from engine.state.node_image import NodeImage
from engine.state.store import CheckpointImage, Entry, Row
from engine.state.store_errors import StoreDamaged
from engine.state.store_lmdb import LmdbStore
from rebalance.contents import Summed
from wal import Block, Finding, LogDamaged, Owner, SegmentInfo, begins, read
from wal import records as r
from wal.ids import Fragment, Namespace, TxId

DOUBTS = 3
"""How often a block that does not verify is read again, DOUBT_SECONDS apart, before the log is called damaged."""
DOUBT_SECONDS = 0.05


class Overtaken(Exception):
    """The log begins above what the checkpoint holds."""


class Share:
    """Which fragments are wanted."""

    def __init__(self, partitions: Collection[int] | None, namespaces: Container[Namespace] | None) -> None:
        self.everything = partitions is None and namespaces is None
        self.partitions = frozenset(partitions) if partitions is not None else None
        self._namespaces = namespaces

    def __contains__(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions

    def holds(self, fragment: Fragment) -> bool:
        """Whether a fragment is wanted."""
        return fragment[1] in self and (self._namespaces is None or fragment[0] in self._namespaces)

    def of(self, record: r.Record) -> r.Record | None:
        """What a record says of the share; None if that is nothing."""
        if self.everything:
            return record
        match record:
            case r.Update(writes) | r.History(writes):
                mine = [w for w in writes if self.holds(w.fragment)]
                return type(record)(mine) if mine else None
            case r.Trimmed(first_lsn, dropped):
                return r.Trimmed(first_lsn, [d for d in dropped if self.holds((d[0], d[1]))])
            case r.Preload() | r.FragmentClear() | r.FragmentReady() | r.Undo():
                return record if self.holds((record.namespace, record.partition)) else None
            case r.Compare() | r.Origin():
                return record if record.partition in self else None
            case r.Prepare() | r.Outcome() | r.NoOp() | r.EpochStart() | r.Results() | r.Stable() | r.Forget():
                return self._narrowed(record) if record.partition in self else None
            case r.Promised() | r.Accepted() | r.Committed() | r.Boot() | r.Claimed() | r.Checkpoint():
                return record

    def _narrowed(
        self, record: r.Prepare | r.Outcome | r.NoOp | r.EpochStart | r.Results | r.Stable | r.Forget
    ) -> r.Record:
        """The record of a wanted partition, about the wanted namespaces."""
        wanted = self._namespaces
        if wanted is None:
            return record
        replace = msgspec.structs.replace
        match record:
            case r.Prepare(writes=writes):
                return replace(record, writes=[w for w in writes if w.namespace in wanted])
            case r.Outcome(ranges=ranges):
                return replace(record, ranges=[x for x in ranges if x[0] in wanted])
            case r.NoOp(gaps=gaps):
                return replace(record, gaps=[x for x in gaps if x[0] in wanted])
            case r.EpochStart(firsts=firsts):
                return replace(record, firsts=[x for x in firsts if x[0] in wanted])
            case r.Stable(counters=counters):
                return replace(record, counters=[x for x in counters if x[0] in wanted])
            case r.Results() | r.Forget():
                return record


class LogSince:
    """The log since the checkpoint, one share of it, as `recover` replays it; and what its blocks say about time."""

    def __init__(
        self,
        path: Path,
        share: Share,
        owner: Owner,
        *,
        tolerant: bool = False,
        unread: bool = False,
        briefly: bool = False,
        hear: Callable[[Block], None] = lambda _: None,
    ) -> None:
        self.share = share
        self.passed_over: list[Finding] = []  # what is wrong, and costs nothing that is read here
        self.ended_ms = 0  # the time of the last block, whatever the checkpoint holds
        self._hear = hear
        self.begins = 1
        self.damage: Finding | None = None
        self.began = 0
        self.lsn = 0
        self.reaches = 0  # the last LSN of the log, whatever the checkpoint holds
        self.first_ms = self.time_ms = 0  # the first block's time, and the latest
        self.touched_ms: dict[Fragment, int] = {}
        self.prepared_ms: dict[tuple[TxId, int], int] = {}
        self._path = path
        self._owner = owner
        self._tolerant = tolerant
        self._unread = unread
        self._briefly = briefly  # of what the checkpoint holds nothing is verified

    def replay(self, from_lsn: int) -> Iterator[Records]:
        """The records from there to where the log ends now, or is damaged, if that is tolerated (`damage`).

        Raises Overtaken, LogError, DiskError.
        """
        self.began = self.lsn = from_lsn - 1
        self.begins = begins(self._path)
        doubts, doubted = 0, 0
        while not self._unread:
            try:
                for block in read(self._path, self.lsn + 1, owner=self._owner, passed=self._passed, briefly=self._briefly):
                    if block.first_lsn != self.lsn + 1:
                        raise Overtaken(
                            f"after LSN {self.lsn} the log goes on with LSN {block.first_lsn}: "
                            f"the records between are not there"
                        )
                    self._hear(block)
                    self.lsn = block.last_lsn
                    self.first_ms = self.first_ms or block.time_ms
                    self.time_ms = max(self.time_ms, block.time_ms)
                    yield Records([mine for x in block.records if (mine := self._noted(x, block.time_ms)) is not None])
                return
            except LogDamaged as error:
                doubts = doubts + 1 if error.lsn == doubted else 1
                if doubts > DOUBTS:
                    if self._tolerant:
                        self.damage = error.finding
                        return
                    raise
                doubted = error.lsn
                time.sleep(DOUBT_SECONDS)

    def _passed(self, found: SegmentInfo | Finding) -> None:
        if isinstance(found, Finding):
            self.passed_over.append(found)
            return
        self.reaches = max(self.reaches, found.last_lsn)
        self.ended_ms = max(self.ended_ms, found.last_time_ms)

    def _noted(self, record: r.Record, time_ms: int) -> r.Record | None:
        mine = self.share.of(record)
        match mine:
            case r.Update(writes) | r.History(writes):
                for write in writes:
                    self.touched_ms[write.namespace, write.partition] = time_ms
            case r.Prepare(tx=tx, partition=partition):
                self.prepared_ms[tx, partition] = time_ms
            case r.Preload() | r.FragmentClear() | r.FragmentReady() | r.Undo():
                self.touched_ms[mine.namespace, mine.partition] = time_ms
            case r.Outcome(partition=partition, ranges=gaps) | r.NoOp(partition=partition, gaps=gaps):
                for namespace, _, _ in gaps:
                    self.touched_ms[namespace, partition] = time_ms
            case (
                None
                | r.EpochStart()
                | r.Results()
                | r.Forget()
                | r.Promised()
                | r.Accepted()
                | r.Committed()
                | r.Boot()
                | r.Claimed()
                | r.Checkpoint()
                | r.Trimmed()
                | r.Stable()
                | r.Compare()
                | r.Origin()
            ):
                pass
            case _:
                assert_never(mine)
        return mine


class Records(msgspec.Struct, frozen=True):
    """A block's records, as far as they are wanted."""

    records: list[r.Record]


class Window:
    """The checkpoint, as far as it is wanted. A row that cannot be believed is no row to the fold: `State.rows` tells."""

    def __init__(self, store: LmdbStore, share: Share, owner: Owner) -> None:
        self._store = store
        self._share = share
        self._owner = owner

    def load(self) -> Loaded:
        """The states of the share, and the node's. Raises StoreForeign where it is another node's."""
        return self.loading().all()

    def loading(self) -> Loading:
        """The same, one state after the other."""
        share = self._share
        loaded = self._store.loading(share.partitions)
        check_owner(self._store.path, loaded.node, self._owner)
        if share.everything:
            return loaded
        return Loading(
            loaded.lsn,
            {name: self._own(data) if name == "node" else data for name, data in loaded.node.items()},
            ((name, data) for name, data in loaded.fragments if share.holds(name)),
            loaded.partitions,
        )

    def _own(self, data: bytes) -> bytes:
        node = msgspec.msgpack.decode(data, type=NodeImage)
        mine = [x for record in node.open if (x := self._share.of(record)) is not None]
        return msgspec.msgpack.encode(msgspec.structs.replace(node, open=mine))

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry, or None where it, or its place, is damaged."""
        try:
            return self._store.get(fragment, key)
        except StoreDamaged:
            return None

    def scan(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[Row]:
        """As the store does it."""
        return self._store.scan(fragment, start, limit, down=down)

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """As the store does it."""
        return self._store.digests(fragment, start, limit)

    def held(self, fragment: Fragment, keys: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """As the store does it."""
        return self._store.held(fragment, keys)

    def keys(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """As the store does it."""
        return self._store.keys(fragment, start, limit)

    def contents(self, fragment: Fragment) -> int | None:
        """As the store has it."""
        return self._store.contents(fragment)

    def sum_some(self, fragment: Fragment, start: bytes, limit: int) -> Summed:
        """As the store does it."""
        return self._store.sum_some(fragment, start, limit)

    def fitting(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> tuple[int, int]:
        """As the store does it."""
        return self._store.fitting(fragment, start, limit, down=down)

    def fitting_of(self, fragment: Fragment, keys: Sequence[bytes]) -> tuple[int, int]:
        """As the store does it."""
        return self._store.fitting_of(fragment, keys)

    def live(self, fragment: Fragment) -> int | None:
        """As the store has it."""
        return self._store.live(fragment)

    def write(self, image: CheckpointImage) -> None:
        """Never."""
        raise AssertionError(f"a tool does not write: {image.lsn}")

    def renew(self) -> None:
        """See the node's last checkpoint."""
        self._store.renew()

    def close(self) -> None:
        """Release the files."""
        self._store.close()
