"""A data directory as a tool sees it: what its node has, read from the files alone and never written.

It works on the directory of a stopped node, on a copy, and beside a live node. The state is the one a restart would
come to: the last checkpoint, folded with the log since by `engine.state.recover`. There is no second path. What is special
here is what a tool needs beyond a node:

* **A share.** `partitions` and `namespaces` narrow what is folded. Records of other fragments are dropped between their
  decoding and `apply`, rows of other fragments are never looked at. The log since the checkpoint is decoded by every
  reader of a share (60 MB in 0.2 s); applying it, which costs twenty times as much, and the rows are shared out.
* **A moving target.** A live node may finish a checkpoint and trim the log between our reading of the one and of the
  other: then we begin again from the newer checkpoint. The last block may be half written: a log that does not verify
  is read again before it is called damaged. What comes out is the node at one moment, which is a prefix of its log.
* **Damage.** A row that cannot be believed is told, and the rest of the fragment is read. A node must stop there.

Nothing here takes a lock that a node would wait for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.offline.live import is_live
from engine.offline.refusals import DoesNotFold, LogLost
from engine.offline.rows import Reading, Tell
from engine.offline.share import LogSince, Overtaken, Share, Window
from engine.state.held import Held
from engine.state.identity import Identity, no_directory, read_identity
from engine.state.recover import recover
from engine.state.replica import Replica
from engine.state.store import GONE, Entry, LayeredStore, Row
from engine.state.store_errors import StoreDamaged, StoreError
from engine.state.store_file import structure_problems
from engine.state.store_lmdb import LmdbStore
from rebalance import table as topologies
from rebalance.contents import Newest, Walk
from rebalance.fragment import FragmentState
from rebalance.image import FragmentImage
from rebalance.table import Topology
from wal import Block, DiskError, LogError, PartitionCounter
from wal import records as r
from wal.counters import CounterError
from wal.ids import Fragment, Namespace, TxId, Version

ATTEMPTS = 5
"""How often a reading that a live node overtook is begun again."""
PAGES_BYTES_MAX = 1 << 30
"""Up to this size the pages of a store are walked before LMDB opens it (about 120 MB/s)."""

SPLIT_ROWS = 128
"""A fragment is cut between runs of so many rows."""

_NOT_FOLDED = (ValueError, LookupError, AssertionError, CounterError)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The counters start+1 .. start+delta of one fragment, and the transaction that they belong to."""

    start: int
    delta: int
    tx: TxId


class FragmentView(msgspec.Struct, frozen=True):
    """One copy of one fragment, without its rows.

    `epochs` is the epoch table up to LWM; `digests` every counter of this copy whose digest is known; `tail` who wrote
    what is applied above `stable`. The fragment was not touched after `touched_ms`: the newest block that speaks of it, or
    the first one after the checkpoint; 0 if there is no such block. A `loading` copy was emptied and counts for nothing.
    The log has every record above `history_from`. `suspects` are keys whose rows are of counters that were undone.
    """

    name: Fragment
    counter: PartitionCounter
    epochs: list[tuple[int, int]] = []
    stable: int = 0
    digests: dict[int, int] = {}
    tail: list[Claim] = []
    loading: bool = False
    touched_ms: int = 0
    history_from: int = 0
    suspects: list[bytes] = []


class Prepared(msgspec.Struct, frozen=True):
    """A transaction in doubt: it was prepared at `since_ms`, or before; 0 if no block is there to tell."""

    record: r.Prepare
    since_ms: int


class PartitionView(msgspec.Struct, frozen=True):
    """What a copy of a partition has beside its fragments. `results` are outcomes as `rebalance.results` names them."""

    epoch: int = 0
    prepared: dict[TxId, Prepared] = {}
    results: Mapping[TxId, int] = {}


class State:
    """What one node has, or a share of it. Rows are read from the store on demand, so close it, within minutes.

    `incarnation` is how often its node has started; 0 if neither log nor checkpoint knows of a start. `checkpoint_lsn`
    and `lsn` are where the fold began and ended; `time_ms` is the newest block's time, 0 if the log says nothing since
    the checkpoint. `topology` is the newest map that this node knows to be committed. `unequal` are fragments whose rows
    in the store, all of them whole, do not add up: the digest of contents that the last checkpoint wrote, and that of
    what was read. It fills while rows are read. `damage` is where the fold ended before the log did; `log_passed_over` is
    what else is wrong with the log and was come upon, and `log_ended_ms` the time of its last block. `log_begins` is its
    first LSN as the fold began: a node that runs trims it. A fragment that has rows in the store and no state, as no
    node leaves it, has a view without anything.
    """

    def __init__(self, path: Path, identity: Identity, store: LmdbStore, replica: Replica, since: LogSince) -> None:
        self.path = path
        self.identity = identity
        self.incarnation = replica.incarnation
        self.version: Version = replica.committed[0]
        self.topology: Topology | None = topologies.decode(replica.committed[1]) if replica.committed[1] else None
        self.checkpoint_lsn = since.began
        self.lsn = since.lsn
        self.time_ms = since.time_ms
        self.damage = since.damage
        self.log_begins = since.begins
        self.log_ended_ms = since.ended_ms
        self.log_passed_over = since.passed_over
        self.fragments = {
            name: view_of(state, since.touched_ms.get(name, since.first_ms))
            for name, state in replica.fragments.items()
            if since.share.holds(name)
        }
        self.partitions = {
            number: PartitionView(
                state.epoch,
                {tx: Prepared(p, since.prepared_ms.get((tx, number), since.first_ms)) for tx, p in state.prepared.items()},
                state.results.outcomes(),
            )
            for number, state in replica.partitions.items()
            if number in since.share
        }
        self.unequal: dict[Fragment, tuple[int, int]] = {}
        self._store = store
        # What the next checkpoint would do to the rows of the last one: the newest entries are these over those.
        self._cleared, self._changes = replica.store.freeze()
        self.fragments |= {
            name: FragmentView(name, PartitionCounter(), digests={0: 0})
            for name in store.stateless(since.share.partitions)
            if since.share.holds(name) and name not in self.fragments and name not in self._cleared
        }

    def reading(self, fragment: Fragment, on_damage: Tell, *, lower: bytes = b"", upper: bytes = b"") -> Reading:
        """The rows of a fragment, to be read beside those of other copies; tell `note` when it is at its end.

        With `lower` or `upper` those from that key on, and below that one.
        """
        cleared = fragment in self._cleared
        changes = self._changes.get(fragment, {})
        partitions = self.topology.partitions if self.topology is not None else 0
        if lower or upper:
            changes = {key: entry for key, entry in changes.items() if lower <= key and (not upper or key < upper)}
        return Reading(
            self._store, fragment, changes, on_damage, cleared=cleared, partitions=partitions, lower=lower, upper=upper
        )

    def note(self, fragment: Fragment, read: Reading) -> None:
        """All was read: whether the rows of the store add up to the digest that was written with them (`unequal`)."""
        if read.sums is not None:
            self.unequal[fragment] = read.sums

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of contents, by what the checkpoint wrote with its rows and what was applied since; no other row is
        looked at. None if it is not known, or cannot be read."""
        changes = self._changes.get(fragment)
        try:
            if not changes and fragment not in self._cleared:
                return self._store.contents(fragment)
            changes = changes or {}
            stored = None if fragment in self._cleared else self._store.contents(fragment)
            if stored is None and fragment not in self._cleared:
                return None
            held = Held(self._store, fragment)
            walk = Walk(stored, Newest(changes, {}), None if stored is None else held)
            while not walk.done:
                walk.step(len(changes))
        except StoreDamaged:
            return None
        return walk.digest

    def weights(self) -> dict[Fragment, int]:
        """How many updates each fragment of the checkpoint has had, wanted or not: about what it costs to read it."""
        return {
            name: PartitionCounter.from_bytes(msgspec.msgpack.decode(data, type=FragmentImage).counter).lwm
            for name, data in self._store.load().fragments.items()
        }

    def split_keys(self, fragment: Fragment, count: int) -> list[bytes]:
        """Keys that cut the rows of a fragment's checkpoint into so many ranges of about one length, or fewer."""
        prefix, found, start = len(self._store.prefix_of(fragment)[0]), list[bytes](), b""
        while rows := self._store.raw_rows(fragment, start, SPLIT_ROWS)[0]:
            found.append(rows[0][0][prefix:])
            start = rows[-1][0][prefix:] + b"\0"
        return list(dict.fromkeys(found[len(found) * at // count] for at in range(1, count) if found))

    def row(self, fragment: Fragment, key: bytes, on_damage: Tell) -> Entry | None:
        """The newest entry of one key, tombstones included; None where there is none, or damage, which is told."""
        changes = self._changes.get(fragment, {})
        if key in changes:
            entry = changes[key]
            return entry if entry is not GONE and entry.counter else None
        if fragment in self._cleared:
            return None
        try:
            return self._store.get(fragment, key)
        except StoreDamaged as damage:
            on_damage(damage.key, str(damage))
            return None

    def rows(self, fragment: Fragment, on_damage: Tell) -> Iterator[Row]:
        """The newest entry of each key, ascending, tombstones included; damage is told and its row left out.

        Once all are read, `unequal` says whether those of the store add up to the digest that was written with them.
        """
        read = self.reading(fragment, on_damage)
        yield from read.all()
        self.note(fragment, read)

    def close(self) -> None:
        """Release the store. Closing twice is harmless."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_directory(
    path: str | os.PathLike[str],
    *,
    partitions: Collection[int] | None = None,
    namespaces: Container[Namespace] | None = None,
    pages: bool = False,
    tolerant: bool = False,
    hear: Callable[[Block], None] = lambda _: None,
    log: bool = True,
    briefly: bool = False,
) -> State:
    """What the node of this directory has; only fragments of `partitions` and `namespaces`, if they are given.

    What the node has, its topology above all, is always there; with `namespaces`, the results of single writes to other
    ones are not. `pages` walks the store's pages first, up to PAGES_BYTES_MAX: a file that was cut short, or whose pages
    were damaged, can bring LMDB down, and the process with it. `tolerant` folds up to where the log is damaged
    (`State.damage`). Without `log` what lies there is the checkpoint, for who knows that the log says no more; `briefly`
    leaves unread what of the log the checkpoint holds, where a segment's notes tell. `hear` gets each block since the
    checkpoint, and some of them again where a live node went on meanwhile. Raises UsageError if this is no data directory,
    CorruptionError if it cannot be read.
    """
    path = Path(path)
    try:
        identity = read_identity(path)
        if identity is None:
            raise UsageError(no_directory(path))
        if pages:
            check_pages(path)
        store = LmdbStore(path / "store", read_only=True)
        try:
            owner, share = (identity.cluster, identity.node), Share(partitions, namespaces)
            if not log:
                since = LogSince(path / "wal", share, owner, unread=True)
                return State(path, identity, store, recover(LayeredStore(Window(store, share, owner)), since), since)
            return _read(path, identity, store, share, tolerant=tolerant, briefly=briefly, hear=hear)
        except BaseException:
            store.close()
            raise
    except NotADirectoryError:
        raise UsageError(f"{path} is not a data directory: expected a directory, found a file") from None
    except (StoreError, LogError, DiskError) as error:
        raise CorruptionError(str(error)) from error
    except OSError as error:
        raise CorruptionError(f"{path} cannot be read: {error.strerror}; is it mounted, and may you read it?") from error


def check_pages(path: Path) -> None:
    """Walk the pages of a directory's store, up to PAGES_BYTES_MAX. Raises CorruptionError."""
    file = path / "store" / "data.mdb"
    if not file.exists() or file.stat().st_size > PAGES_BYTES_MAX:
        return
    try:
        problems = structure_problems(path / "store")
    except StoreError as error:
        raise CorruptionError(str(error)) from error
    if problems and not is_live(path):  # beside a live node pages change while they are walked
        raise CorruptionError(
            f"{file}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if problems[1:] else "") + "; "
            "copy the directory again, or leave it out"
        )


# The fold.


def _read(
    path: Path,
    identity: Identity,
    store: LmdbStore,
    share: Share,
    *,
    tolerant: bool,
    briefly: bool,
    hear: Callable[[Block], None],
) -> State:
    seen = -1
    for _ in range(ATTEMPTS):
        owner = (identity.cluster, identity.node)
        since = LogSince(path / "wal", share, owner, tolerant=tolerant, briefly=briefly, hear=hear)
        try:
            replica = recover(LayeredStore(Window(store, share, owner)), since)
            if since.lsn == since.began and since.damage is None:
                _check_not_behind(path, since)
            return State(path, identity, store, replica, since)
        except Overtaken as error:
            if since.began == seen:
                raise LogLost(f"{path}: {error}; copy the directory again, or leave it out") from None
            seen = since.began
            store.renew()
        except _NOT_FOLDED as error:
            what = f"{type(error).__name__}: {error}"
            raise DoesNotFold(
                f"{path}: the log does not fold onto the checkpoint at LSN {since.began} ({what}); "
                f"`foreshore wal verify {path / 'wal'}` shows whether the log is whole"
            ) from error
    raise CorruptionError(f"{path}: its node trimmed the log {ATTEMPTS} times while it was read; copy the directory first")


def _check_not_behind(path: Path, since: LogSince) -> None:
    """The log says nothing since the checkpoint: it must at least reach up to it."""
    if since.reaches < since.began:
        raise LogLost(
            f"{path}: the checkpoint ends at LSN {since.began}, and the log at LSN {since.reaches}: "
            "expected a log that reaches so far; "
            "were store and wal copied at different moments?"
        )


# Values out of the fold.


def view_of(state: FragmentState, touched_ms: int) -> FragmentView:
    """What there is to say about a copy, beside its rows."""
    digests = dict(state.digests)
    digests |= {end: digest for end, digest, _ in state.unstable}
    digests |= {0: 0, state.stable: state.stable_digest, state.counter.lwm: state.digest}
    return FragmentView(
        state.name,
        state.counter.copy(),
        epochs=state.history,
        stable=state.stable,
        digests=digests,
        tail=[Claim(w.start, w.delta, w.tx) for w in state.tail()],
        loading=state.loading,
        touched_ms=touched_ms,
        history_from=state.history_from,
        suspects=sorted(state.suspects),
    )
