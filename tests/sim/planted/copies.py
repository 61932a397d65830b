"""Faults in the one apply, in catching up, and in what a checkpoint and a recovery keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from engine.data.batches import Batch
from engine.messages import Settled, Transfer
from engine.node.node import Node
from engine.state.recover import Replays, recover
from engine.state.store import LayeredStore
from rebalance.fragment import FragmentState
from rebalance.partition import LocalPartition, Role
from rebalance.ports import HistoryRead
from rebalance.supplying import preload_of
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, replace, swapped
from wal import LogTooNew
from wal import records as r
from wal.codec import FormatError, block_size, decode_block_header
from wal.ids import Fragment, NodeId
from wal.scan import RawBlock
from wal.segment_file import decode

COPIES = Faults()

# Apply.


@COPIES.fault("4, 7")
def applied_without_the_version_guard(machine: Machine) -> None:
    """A write that arrives late overwrites a row that a later one has written."""
    assert machine.node is not None
    replica = machine.node.core.replica

    def apply_write(original: Callable[..., bool], write: r.Write) -> bool:
        with swapped(replica.store, "get", lambda name, key: None):
            return original(write)

    around(replica, "apply_write", apply_write)


@COPIES.fault("5, 6")
def a_large_write_shows_piece_by_piece(machine: Machine) -> None:
    """What is worked out of a large write is put in as it comes, and not when all of it counts."""
    assert machine.node is not None
    store = machine.node.core.replica.store

    def work_out(original: Callable[..., Iterator[int]], batch: Batch) -> Iterator[int]:
        for work in original(batch):
            for ahead in (batch.ahead or {}).values():
                for key, entry in ahead.rows.items():
                    store.put(ahead.write.fragment, key, entry)
            yield work

    around(machine.node.replication, "_work_out", work_out)


@COPIES.fault("8")
def tombstones_dropped_at_once(machine: Machine) -> None:
    """A checkpoint drops every tombstone, whether or not all copies have passed it."""
    assert machine.node is not None

    def drop(original: Callable[..., int], fragment: FragmentState, keys: Sequence[bytes]) -> int:
        stable, fragment.stable = fragment.stable, fragment.counter.highest_applied
        dropped = original(fragment, keys)
        fragment.stable = stable
        return dropped

    around(machine.node.core.replica.changes, "_drop_tombstones", drop)


@COPIES.fault("8", rates={"power": 3.0, "kill": 3.0, "split": 3.0, "weather": 3.0, "one-way": 2.0})
def deletes_leave_no_tombstone(machine: Machine) -> None:
    """A delete takes the row away and leaves nothing that an older write would meet."""
    assert machine.node is not None
    replica = machine.node.core.replica

    def get(original: Callable[..., Any], name: Fragment, key: bytes) -> Any:
        entry = original(name, key)
        return entry if entry is None or entry.value is not None else None

    def apply_write(original: Callable[..., bool], write: r.Write) -> bool:
        right = replica.store.get
        with swapped(replica.store, "get", lambda name, key: get(right, name, key)):
            return original(write)

    around(replica, "apply_write", apply_write)


# Catching up.


@COPIES.fault("4, 8")
def full_transfer_without_clearing(machine: Machine) -> None:
    """A copy that is taken in full keeps what it had, so that what was deleted or undone meanwhile stays."""
    assert machine.node is not None
    core, demander = machine.node.core, machine.node.demander

    def prepare_for(original: Callable[..., None], session: Any, transfer: Transfer) -> None:
        def log(record: r.Record) -> None:
            if not isinstance(record, r.FragmentClear):
                right(record)

        right = core.log
        with swapped(core, "log", log):
            original(session, transfer)

    around(demander, "_prepare_for", prepare_for)


@COPIES.fault("4")
def own_suffix_not_undone(machine: Machine) -> None:
    """A joiner keeps what it has beyond the point where its history parts from the supplier's."""
    assert machine.node is not None

    def prepare_for(original: Callable[..., None], session: Any, transfer: Transfer) -> None:
        original(session, msgspec.structs.replace(transfer, cut=-1))

    around(machine.node.demander, "_prepare_for", prepare_for)


@COPIES.fault("4")
def undone_keys_not_fetched(machine: Machine) -> None:
    """A joiner that undid a suffix does not ask for the keys that it touched."""
    assert machine.node is not None
    supply = machine.node.supply

    def plan(original: Callable[..., Transfer], session: Any, have: Any, *chosen: Any) -> Transfer:
        transfer = original(session, have, *chosen)
        session.fetch = [(fragment, []) for fragment, _ in session.fetch]
        return transfer

    around(supply, "_plan", plan)


@COPIES.fault(
    "1, 4",
    harmless="""A copy that was told so does not reach the counters that its primary set as marks, so that nobody
    vouches for it; it asks again, and the log is known to be too short then.""",
)
def short_history_called_done(machine: Machine) -> None:
    """A supplier whose log ended early says that the history was supplied in full."""
    assert machine.node is not None

    def on_history(original: Callable[..., None], event: HistoryRead) -> None:
        original(HistoryRead(event.session, event.writes, event.done, []))

    around(machine.node.supply, "on_history", on_history)


@COPIES.fault("3, 10")
def history_without_closed_gaps(machine: Machine) -> None:
    """A supplier leaves the closed counters out of the history."""
    assert machine.node is not None

    def on_history(original: Callable[..., None], event: HistoryRead) -> None:
        writes = [write for write in event.writes if not write.closed]
        original(HistoryRead(event.session, writes, event.done, event.missed))

    around(machine.node.supply, "on_history", on_history)


@COPIES.fault("1, 4")
def vouched_for_on_its_own_word(machine: Machine) -> None:
    """A primary vouches for a MOVING copy as soon as that says that it has no gap."""
    assert machine.node is not None
    supply = machine.node.supply

    def on_settled(original: Callable[..., None], sender: NodeId, message: Settled) -> None:
        original(sender, message)
        if sender in supply.vouching.pending.get(message.partition, {}):
            supply.vouching.vouched[(message.partition, sender)] = None

    around(supply.vouching, "on_settled", on_settled)


@COPIES.fault("10")
def what_was_put_off_waits_for_one_supply_after_another(machine: Machine) -> None:
    """A copy asks for the next partitions before it takes what it had put off until the last ones came."""
    assert machine.node is not None
    replace(machine.node.demander, "between_demands", lambda: None)


@COPIES.fault("1, 4")
def vouched_for_without_waiting_for_it(machine: Machine) -> None:
    """A primary vouches for a MOVING copy that has reached its marks, but does not wait for its answers."""
    assert machine.node is not None
    supply, replication = machine.node.supply, machine.node.replication
    replace(supply.vouching, "_regroup", lambda local: None)
    replace(replication, "wait_for", lambda node, partition: None)
    replace(replication, "outstanding", lambda node, partition: False)


@COPIES.fault(
    "4",
    harmless="""Digests find what other rules have failed to prevent: without such a failure there is nothing to
    find.""",
)
def digests_not_compared(machine: Machine) -> None:
    """A supplier does not compare digests, when it chooses a kind of transfer and when it vouches."""
    assert machine.node is not None
    node = machine.node

    def choose(original: Callable[..., Any], have: Any, **more: Any) -> Any:
        return original(msgspec.structs.replace(have, digests=[]), **more)

    def on_settled(original: Callable[..., None], sender: NodeId, message: Settled) -> None:
        fragments = [(namespace, lwm, list[tuple[int, int]]()) for namespace, lwm, _ in message.fragments]
        original(sender, msgspec.structs.replace(message, fragments=fragments))

    around(node.supply, "_choose", choose)
    around(node.supply.vouching, "on_settled", on_settled)


@COPIES.fault(
    "1, 5",
    harmless="""A copy is vouched for only when it has what was promised by then, and so not before the transaction
    has ended; of one that only reads it is told when it settles.""",
)
def transactions_in_doubt_not_supplied(machine: Machine) -> None:
    """A supplier does not tell a MOVING copy of the transactions that are prepared."""
    assert machine.node is not None
    supply = machine.node.supply

    def send(original: Callable[..., None], session: Any, batch: Any) -> None:
        original(session, msgspec.structs.replace(batch, prepares=[]))

    around(supply, "_send", send)


@COPIES.fault("1, 4")
def live_writes_not_taken_while_moving(machine: Machine) -> None:
    """A MOVING copy answers live writes and throws them away."""
    assert machine.node is not None
    core, replication = machine.node.core, machine.node.replication

    def taken(original: Callable[..., Any], sender: NodeId, records: list[r.Record]) -> list[r.Record] | int | None:
        found: list[r.Record] | int | None = original(sender, records)
        if not isinstance(found, list):
            return found
        return [record for record in found if not _moves(core, record)]

    around(replication._taking, "of", taken)


def _moves(core: Any, record: r.Record) -> bool:
    return isinstance(record, r.Update) and any(core.local[w.partition].role is Role.MOVING for w in record.writes)


# Checkpoints and recovery.


@COPIES.fault("7")
def checkpoint_without_open_records(machine: Machine) -> None:
    """A checkpoint leaves out what is logged and does not count yet, and the log before it is not read again."""
    assert machine.node is not None

    def begin(original: Callable[..., Any], lsn: int, open_records: list[r.Record]) -> Any:
        return original(lsn, [])

    around(machine.node.core.replica, "freeze", begin)


@COPIES.fault("7")
def checkpoint_of_states_as_they_have_become(machine: Machine) -> None:
    """A checkpoint that takes several turns to encode stores each state as it is when its turn comes."""
    assert machine.node is not None
    changes = machine.node.core.replica.changes
    replace(changes, "keep", lambda name: None)
    replace(changes, "keep_partition", lambda number: None)


@COPIES.fault("7")
def checkpoint_in_one_turn(machine: Machine) -> None:
    """All that a checkpoint stores is encoded in the turn in which it begins."""
    assert machine.node is not None
    replace(machine.node.core, "little_by_little", lambda pieces: deque(pieces, maxlen=0))


@COPIES.fault("7")
def checkpoint_claims_more_than_it_holds(machine: Machine) -> None:
    """A checkpoint says that it contains what the log will have when it is written, not what it had when it began."""
    assert machine.node is not None
    node = machine.node

    def write(original: Callable[..., object], image: Any) -> object:
        return original(image._replace(lsn=node.core.durable_lsn))

    around(machine, "_write_checkpoint", write)


@COPIES.fault("7")
def checkpoint_of_rows_without_counters(machine: Machine) -> None:
    """A checkpoint stores the rows that changed, and the counters of the checkpoint before."""
    assert machine.node is not None

    def write(original: Callable[..., object], image: Any) -> object:
        return original(image._replace(fragments={name: data for name, data in image.fragments.items() if data is None}))

    around(machine, "_write_checkpoint", write)


@COPIES.fault("6, 7")
def checkpoint_before_the_log_is_synced(machine: Machine) -> None:
    """A checkpoint is written to the store while what it contains is in the log, but not on the disk."""
    assert machine.log is not None
    replace(machine.log, "sync", lambda: None)


@COPIES.fault("7")
def torn_tail_accepted(machine: Machine) -> None:
    """A node that starts takes the torn block at the end of its log for a whole one, whatever its checksum says."""
    assert machine.log is not None
    torn = machine.log.torn
    if torn is None or not torn.kept_as:
        return
    data = machine.disk.image(torn.kept_as).ljust(1 << 16, b"\0")  # trailing zeros of the block are not kept
    try:
        header = decode_block_header(data, 0, len(data))
        block = decode(RawBlock(torn.offset, header, data[: block_size(header.length)], 0), torn.segment)
    except (FormatError, LogTooNew):
        return
    _recover_again(machine, lambda blocks: [*blocks, block])


@COPIES.fault("7")
def recovery_ignores_the_last_block(machine: Machine) -> None:
    """A node that starts replays its log except for the last block."""
    _recover_again(machine, lambda blocks: blocks[:-1])


@COPIES.fault("7")
def recovery_ignores_the_log(machine: Machine) -> None:
    """A node that starts takes the checkpoint for all that it has."""
    _recover_again(machine, lambda blocks: [])


def _recover_again(machine: Machine, keep: Callable[[list[Any]], list[Any]]) -> None:
    """Start the node on other blocks than its log has."""
    assert machine.node is not None
    assert machine.log is not None
    log, core = machine.log, machine.node.core

    class Partly(Replays):
        begins = log.begins

        def replay(self, from_lsn: int) -> Iterator[Any]:
            return iter(keep(list(log.replay(from_lsn))))

    machine.node = Node(
        machine.settings,
        recover(LayeredStore(core.replica.store.base), Partly()),
        node=machine.name,
        allocation=machine.allocation,
        address=machine.address,
        durable_lsn=log.durable_lsn,
        affinity=machine.affinity,
        draw=core.incarnation,
    )
    assert machine.duties is not None
    machine.duties.node = machine.node


@COPIES.fault("4, 10")
def what_was_undone_is_still_asked_for(machine: Machine) -> None:
    """A copy with which a partition begins again goes on waiting to hear what stood under the writes that it has undone."""
    assert machine.node is not None

    def go_on(_local: Any, _again: Any, _wanted: Any, then: Callable[[], None]) -> Iterator[int]:
        then()
        yield 0

    replace(machine.node.promotion, "_write_once_more", go_on)


@COPIES.fault("4")
def what_was_undone_stays_what_it_is(machine: Machine) -> None:
    """A copy with which a partition begins again takes what stands under the writes that it has undone for what was there
    before, and writes it under no counter."""
    assert machine.node is not None
    core = machine.node.core

    def write_once_more(original: Callable[..., Iterator[int]], local: LocalPartition, *others: Any) -> Iterator[int]:
        for fragment in core.replica.partition(local.number).fragments.values():
            keys = list(fragment.suspects)
            if keys:
                rows = [(key, core.replica.store.get(fragment.name, key)) for key in keys]
                core.log(preload_of(fragment.name, rows))
        return original(local, *others)

    around(machine.node.promotion, "_write_once_more", write_once_more)
