"""Everything one node has: the fold of its log.

`apply` takes one record and makes the node's state what it is after that record. It is called in three places and means
the same in each: when the node logs a record of its own or of a peer, when recovery replays the log over the last
checkpoint, and when an offline tool reads a directory. There is no second path.

The rule under it all: a fragment's state is a map key -> (epoch, counter, value or tombstone), and merge keeps the greater
(epoch, counter). Live writes, replayed ones, historical batches and full transfers may therefore arrive in any order.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from functools import partial
from typing import TypeAlias, assert_never

import msgspec

from engine.state.ahead import AllAhead, Watch, ahead_of
from engine.state.freezing import Changes
from engine.state.loaded import Loading
from engine.state.maps import Maps
from engine.state.node_image import NodeImage, version_in
from engine.state.rows import drop_unconfirmed, preload, put_one_by_one, unconfirmed
from engine.state.store import CheckpointImage, Entry, LayeredStore
from rebalance.by_fragment import ByFragment
from rebalance.fragment import KNOWN, NOTHING, CannotUndo, FragmentState
from rebalance.image import FragmentImage, PartitionImage, fragment_of
from rebalance.links import AllLinks
from rebalance.lives import lives_after
from rebalance.partition import Fragments, PartitionState, spans_of
from rebalance.results import ABORTED, COMMITTED, Results
from wal import records as r
from wal.ids import DECISIONS, NO_BALLOT, NO_VERSION, Ballot, Fragment, Namespace, TxId, Version
from wal.probe import probe

_Voted: TypeAlias = r.Promised | r.Accepted | r.Committed | r.Boot | r.Claimed


class Replica:
    """The state of one node. It changes only by `apply`, `apply_write` and what a checkpoint does."""

    def __init__(self, store: LayeredStore) -> None:
        self.store = store
        self.namespaces: dict[Namespace, None] = {}  # that ever had a fragment here, in this life
        self.partitions: dict[int, PartitionState] = {}
        self.fragments = Fragments(self.partitions)
        self.incarnation = 0
        self.lives: list[tuple[int, int]] = []  # this one last, each with where its log ended when it began
        self.claimed_at = NO_VERSION
        self.claims: list[r.Claim] = []  # of the disks of others
        self.promised: tuple[Version, Ballot] = (NO_VERSION, NO_BALLOT)
        self.maps = Maps()
        self.trimmed = 1  # the log has a record which says that it begins here
        self.tails = ByFragment[None]()  # fragments that may have a tail
        self.kept: Container[Fragment] = ()  # of these somebody reads the past, and no delete may be forgotten
        self.emptied: dict[Fragment, None] = {}  # cleared in this life because they could not undo; not whole again yet
        self.changes = Changes(store)
        self.ahead: AllAhead = {}  # what was worked out of what is applied now
        self.links = AllLinks()
        self.watch = Watch(store, self.links)

    # Looking.

    @property
    def committed(self) -> tuple[Version, bytes]:
        """The committed map, and its version."""
        return self.maps.committed

    @property
    def accepted(self) -> tuple[Version, Ballot, bytes]:
        """The map that was accepted last, for the version after which one, and under which ballot."""
        return self.maps.accepted

    def partition(self, number: int) -> PartitionState:
        """The partition's state, to be looked at; an empty one, which is nobody's, if nothing of it was ever here."""
        return self.partitions.get(number) or PartitionState(number)

    def fragment(self, name: Fragment) -> FragmentState:
        """The fragment's state, to be looked at; an empty one, which is nobody's, if nothing of it was ever here."""
        return self.fragments.get(name) or FragmentState(name)

    def ensure_fragment(self, name: Fragment) -> FragmentState:
        """The fragment's state, to be changed; from now on this copy has it."""
        return self.fragments.get(name) or self._add(FragmentState(self._one_name(name)))

    def _add(self, state: FragmentState) -> FragmentState:
        namespace, number = state.name
        self._ensure_partition(number).fragments[namespace] = state
        self.namespaces[namespace] = None
        return state

    def _one_name(self, name: Fragment) -> Fragment:
        """The same, of a string and a number that its fragments share: each record of the log comes with its own."""
        return sys.intern(name[0]), self._ensure_partition(name[1]).number

    def _ensure_partition(self, number: int) -> PartitionState:
        """The partition's state, to be changed."""
        if (state := self.partitions.get(number)) is None:
            state = self.partitions[number] = PartitionState(number)
        return state

    def drop_tail(self, name: Fragment) -> None:
        """A fragment was found to have no tail any more."""
        self.tails.pop(name, None)

    # The one apply.

    def apply(self, record: r.Record) -> bool:  # one case for each record, flat
        """Fold one record; True if it changed anything that a log must know."""
        if isinstance(record, r.Update):  # nearly every record is one, of one write
            writes = record.writes
            return self.apply_write(writes[0]) if len(writes) == 1 else self._apply_all(writes)
        if isinstance(record, r.Prepare):  # and of the rest nearly every one is of a transaction
            return self._prepare(record)
        if isinstance(record, r.Outcome):
            return self._outcome(record)
        match record:
            case r.History(writes):
                new = self._apply_all(writes)
                for name, came in spans_of(writes).items():
                    self._drop_ended(name, *came)
                return new
            case r.NoOp(partition, epoch, gaps):
                return self._close(partition, epoch, gaps)
            case r.EpochStart():
                return self._epoch_start(record)
            case r.Preload(namespace, partition):
                fragment = self.ensure_fragment((namespace, partition))
                self.changes.touch(fragment)
                preload(self.store, fragment, record)
                self.watch.brought(fragment.name, record.keys)
            case r.Results(partition, txs, outcomes, floor, answers):
                self._change_partition(partition).results.merge(txs, outcomes, floor, answers)
            case r.Forget(partition, _, answered):
                self._change_partition(partition).results.forget_up_to(answered)
            case r.FragmentClear(namespace, partition, _, gone, kept):
                self._clear((namespace, partition), gone=gone, kept=kept)
            case r.FragmentReady():
                self._ready(record)
            case r.Undo(namespace, partition, above):
                self._undo(self.ensure_fragment((namespace, partition)), above)
            case r.Trimmed():
                self._trimmed(record)
            case r.Checkpoint() | r.Compare() | r.Origin():
                pass
            case r.Stable(partition, _, counters):
                return self._note_stable(partition, counters)
            case _:
                self._apply_vote(record)
        return True

    def _apply_all(self, writes: list[r.Write]) -> bool:
        return True in [self.apply_write(write) for write in writes]

    def _apply_vote(self, record: _Voted) -> None:
        """The same, for what concerns no copy: which life this is, and what it has said and heard of the next map."""
        match record:
            case r.Promised(after, ballot):
                self.promised = (after, max(ballot, self.promised[1]))
            case r.Accepted(after, ballot):
                self.promised = (after, max(ballot, self.promised[1]))
                self.maps.accept(record)
            case r.Committed():
                self.maps.commit(record)
            case r.Boot(incarnation, at, before):
                before = lives_after(self.lives, incarnation, before)
                self.incarnation, self.lives = incarnation, [*before, (incarnation, at)]
            case r.Claimed(version, claims):
                self.claimed_at, self.claims = version, claims
            case _:
                assert_never(record)

    def apply_write(self, write: r.Write) -> bool:
        """Apply one write: counter, digest, rows, result. False if it was applied already.

        What stands here is `_apply_write` for the commonest case, which is worth it: each update of each copy, live or
        replayed, comes through here.
        """
        namespace, number = write.namespace, write.partition
        partition = self.partitions.get(number)
        if partition is None or namespace == DECISIONS:
            return self._apply_write(write)
        fragment = partition.fragments.get(namespace)
        if fragment is None or fragment.changed_for != self.changes.number or not fragment.follow(write):
            return self._apply_write(write)
        self.store.put(fragment.name, write.keys[0], Entry(write.epoch, write.start + 1, write.values[0]))
        tx = write.tx
        if tx:
            if number not in self.changes.partitions:
                self.changes.touch_partition(number, partition)
            partition.results.note_committed(tx)
            if write.answer is not None:
                partition.results.keep(tx, write.answer)
        return True

    def _apply_write(self, write: r.Write) -> bool:
        """The same, for every kind of write."""
        name = (write.namespace, write.partition)
        fragment = self.fragments.get(name) or self.ensure_fragment(name)
        first = fragment.changed_for != self.changes.number
        if first:
            self.changes.begin(fragment)
        ahead = ahead_of(self.ahead, fragment, write, self.watch) if self.ahead else None
        how = fragment.apply(write)
        if how == KNOWN:
            return False
        if first:
            self.changes.begun(fragment)
        self.tails[fragment.name] = None
        if write.closed:
            return True
        if write.tx:
            self._note_result(write)
        if ahead is not None:
            ahead.put_in(self.store, fragment)
        else:
            put_one_by_one(self.store, fragment, write, how)
        return True

    def _note_result(self, write: r.Write) -> None:
        number = write.partition
        results = self._change_partition(number).results
        if write.namespace == DECISIONS:
            for tx, outcome in zip(write.keys, write.values, strict=True):
                if outcome is not None:
                    results.note(tx, outcome[0])
        else:
            results.note(write.tx, COMMITTED)
            results.keep(write.tx, write.answer)

    def _prepare(self, record: r.Prepare) -> bool:
        tx, writes, number = record.tx, record.writes, record.partition
        state, changes = self.partition(number), self.changes
        held = state.prepared.get(tx)
        if held is not None and held.epoch >= record.epoch:
            return False
        for write in writes:
            known = state.fragments.get(write.namespace)
            if known is not None and known.counter.covers(write.start, write.closed or len(write.keys)):
                return False  # its outcome came first
        if not writes and state.results.get(tx) is not None:
            return False
        state = changes.partitions.get(number) or self._change_partition(number)
        state.prepared[tx] = record
        for write in writes:
            fragment = state.fragments.get(write.namespace) or self.ensure_fragment((write.namespace, number))
            if fragment.changed_for != changes.number:
                changes.touch(fragment)
            fragment.counter.reserve_to(write.start + (write.closed or len(write.keys)))
        return True

    def _drop_ended(self, name: Fragment, low: int, high: int) -> None:
        """A transfer brought these counters of a fragment, and so perhaps the end of what was prepared there: what that has
        held is not in doubt any more."""
        for tx, prepare in self.partition(name[1]).prepared_at(name[0], low, high):
            if all(self.fragment(w.fragment).counter.covers(w.start, w.delta) for w in prepare.writes):
                self._change_partition(name[1]).prepared.pop(tx, None)

    def _outcome(self, record: r.Outcome) -> bool:
        number, tx = record.partition, record.tx
        state = self.changes.partitions.get(number) or self._change_partition(number)
        prepared, results = state.prepared.pop(tx, None), state.results
        new = prepared is not None or results.get(tx) != (COMMITTED if record.commit else ABORTED)
        # Also where the prepare has yet to come (a MOVING copy may get them in any order): it is over then, not in doubt.
        if not record.commit:
            results.note(tx, ABORTED)
            return self._close(record.partition, record.epoch, record.ranges) or new
        results.note_committed(tx)
        if prepared is not None:
            for write in prepared.writes:
                self.apply_write(write)  # what a copy never saw prepared its supplier will give it
        return new

    def _close(self, partition: int, epoch: int, ranges: list[r.Range]) -> bool:
        new = False
        for namespace, start, delta in ranges:
            new = self.apply_write(r.Write(namespace, partition, epoch, start, [], values=[], closed=delta)) or new
        return new

    def _epoch_start(self, record: r.EpochStart) -> bool:
        state = self._ensure_partition(record.partition)
        for tx in record.ended:
            prepared = state.prepared.get(tx)
            if prepared is not None and not prepared.writes:
                del self._change_partition(record.partition).prepared[tx]
        if record.epoch <= state.epoch:
            return bool(record.ended)
        self._change_partition(record.partition).epoch = record.epoch
        # What an older primary had prepared and the new one knows of, it issues again with this epoch.
        state.prepared = {tx: p for tx, p in state.prepared.items() if p.epoch >= record.epoch}
        for namespace, first in record.firsts:
            fragment = self.ensure_fragment((namespace, record.partition))
            self.changes.touch(fragment)
            self.watch.void(fragment.name)
            try:
                self._forget_results(fragment.begin_epoch(record.epoch, first))
            except CannotUndo:
                self._empty(fragment.name)
        # A counter that only an older epoch reserved is free again; a stale reservation would leave a gap for ever.
        for fragment in state.fragments.values():
            fragment.counter.withdraw()
        self._reserve_again(record.partition)
        return True

    def _reserve_again(self, number: int) -> None:
        """What prepared transactions hold stays reserved, whatever became of the counters."""
        for namespace, end in self.partition(number).reserved().items():
            self.ensure_fragment((namespace, number)).counter.reserve_to(end)

    def _undo(self, fragment: FragmentState, above: int) -> None:
        self.changes.touch(fragment)
        self.watch.void(fragment.name)
        try:
            self._forget_results(fragment.cut(above))
        except CannotUndo:
            self._empty(fragment.name)
        self._reserve_again(fragment.name[1])

    def _empty(self, name: Fragment) -> None:
        """What must be undone is forgotten: nothing here can be relied on, and all of it must come anew."""
        probe("replica.emptied")
        self._clear(name, gone=False)
        self.emptied[name] = None

    def _forget_results(self, undone: list[r.Write]) -> None:
        for write in undone:
            if write.tx:
                self._change_partition(write.partition).results.forget(write.tx)

    def _trimmed(self, record: r.Trimmed) -> None:
        self.trimmed = max(record.first_lsn, self.trimmed)
        for namespace, partition, counter in record.dropped:
            fragment = self.ensure_fragment((namespace, partition))
            self.changes.touch(fragment)
            fragment.history_from = max(fragment.history_from, counter)

    def _ready(self, record: r.FragmentReady) -> None:
        fragment = self.ensure_fragment((record.namespace, record.partition))
        self.changes.touch(fragment)
        keys = self.unconfirmed(fragment, record.lwm) if record.full else []
        self.links.end(fragment, record)
        if record.full:
            self.emptied.pop(fragment.name, None)
            drop_unconfirmed(self.store, fragment, keys, record.lwm)
        self._drop_ended(fragment.name, 0, fragment.counter.highest_applied)

    def unconfirmed(self, fragment: FragmentState, lwm: int) -> list[bytes]:
        """Rows in doubt that go when a transfer up to `lwm` ends which has not told of them."""
        return unconfirmed(fragment, lwm, only_live=self.links.only_live(fragment.name))

    def _clear(self, name: Fragment, *, gone: bool, kept: bool = False) -> None:
        self.changes.keep(name)
        self.watch.void(name)
        if not kept:
            self.store.clear(name)
        state = self._change_partition(name[1])
        # What this copy answered rested on what it had. The supplier's answers come with its data.
        state.results = Results()
        if gone:
            self.changes.drop(name)
            self.drop_tail(name)
            self.emptied.pop(name, None)
            state.fragments.pop(name[0], None)
            for tx in [tx for tx, p in state.prepared.items() if any(w.fragment == name for w in p.writes)]:
                del state.prepared[tx]  # it is in doubt elsewhere
        else:
            fragment = self.ensure_fragment(name)
            tombstones = fragment.tombstones if kept else NOTHING
            fragment.clear(loading=True)
            self.links.begin(name)
            fragment.tombstones = tombstones
            self.changes.touch(fragment)
            self._reserve_again(name[1])

    def _note_stable(self, number: int, counters: list[tuple[Namespace, int]]) -> bool:
        moved = False
        for namespace, counter in counters:
            if (fragment := self.fragments.get((namespace, number))) is None:
                continue
            if fragment.changed_for != self.changes.number:
                self.changes.keep(fragment.name)
            if fragment.note_stable(counter):
                self.changes.touch(fragment)
                moved = True
                if not fragment.unstable and not fragment.beyond:
                    self.drop_tail(fragment.name)
                    self.store.pack(fragment.name)
        return moved

    def _change_partition(self, number: int) -> PartitionState:
        """The partition's state, to be changed now."""
        if (state := self.changes.partitions.get(number)) is None:
            state = self._ensure_partition(number)
            self.changes.touch_partition(number, state)
        return state

    # Checkpoints.

    def begin_checkpoint(self, lsn: int, open_records: list[r.Record]) -> CheckpointImage:
        """All of a checkpoint at once, for whoever has no turns. `open_records` are logged and not applied yet."""
        for _ in self.changes.prune(self.fragments, self.kept):
            pass
        image = self.freeze(lsn, open_records)
        for _ in self.changes.pieces():
            pass
        return image

    def freeze(self, lsn: int, open_records: list[r.Record]) -> CheckpointImage:
        """Begin a checkpoint of what has changed since the last one; `changes.pieces` has to come to its end."""
        exchange = self.promised, self.maps.accepted, self.maps.committed
        knows = self.lives, self.claimed_at, self.claims
        node = NodeImage(self.incarnation, *exchange, open_records, *knows, self.trimmed)
        return self.changes.freeze(lsn, node)

    def load(self, loaded: Loading) -> list[r.Record]:
        """Begin from a checkpoint; return its open records, to be folded before the log. Raises ValueError."""
        decode, ids = msgspec.msgpack.decode, dict[TxId, TxId]()
        try:
            for name, data in loaded.fragments:
                row = partial(version_in, partial(self.store.base.get, name))
                state = self._add(fragment_of(self._one_name(name), decode(data, type=FragmentImage), row))
                if state.unstable or state.beyond:
                    self.tails[state.name] = None
            for number, data in loaded.partitions:
                image = decode(data, type=PartitionImage)
                partition = self._ensure_partition(number)
                partition.epoch = image.epoch
                partition.prepared = {p.tx: p for p in image.prepared}
                outcomes = [(ids.setdefault(tx, tx), outcome) for tx, outcome in image.results]  # of many partitions each
                partition.results = Results(outcomes, image.floor, image.answers)
            for number in self.partitions:
                self._reserve_again(number)
            if "node" not in loaded.node:
                return []
            node = decode(loaded.node["node"], type=NodeImage)
        except msgspec.MsgspecError as error:
            raise ValueError(f"the checkpoint cannot be read: {error}") from error
        self.incarnation, self.lives, self.promised = node.incarnation, node.lives, node.promised
        self.claimed_at, self.claims = node.claimed_at, node.claims
        self.maps.load(node.committed, node.accepted)
        self.trimmed = node.trimmed
        return node.open

    def check(self) -> None:
        """Assert every fragment's invariant; for tests and the simulator."""
        for fragment in self.fragments.values():
            fragment.check()
