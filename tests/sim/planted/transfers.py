"""Faults in what copies tell each other: rows in full, rows after an undo, and the tail when a primary is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.data import batches
from engine.data.batches import PATIENCE_MAX, Batch
from engine.messages import AskTail, Credit, Settled
from engine.state import freezing
from rebalance import demanding, supplying
from rebalance.fragment import FragmentState
from rebalance.image import TakenFragment, take_down
from rebalance.partition import LocalPartition
from rebalance.ports import MS, Node
from rebalance.surveying import Room
from tests.sim.machine import Machine
from tests.sim.planted.copies import full_transfer_without_clearing
from tests.sim.planted.fault import Faults, around, during, replace
from wal import records as r
from wal.ids import Fragment, NodeId

TRANSFERS = Faults()


@TRANSFERS.fault("4")
def full_transfer_loses_rows(machine: Machine) -> None:
    """A supplier whose full transfer takes more than one look leaves out a row of each but the last."""
    assert machine.node is not None

    def batch(original: Callable[..., Any], session: Any, **more: Any) -> Any:
        if session.full and more.get("rows") and not more.get("done"):
            more["rows"] = [_without_one(rows) for rows in more["rows"]]
        return original(session, **more)

    around(machine.node.supply, "_batch", batch)


def _without_one(rows: r.Preload) -> r.Preload:
    columns = (rows.epochs[:-1], rows.counters[:-1], rows.keys[:-1], rows.values[:-1])
    return r.Preload(rows.namespace, rows.partition, *columns)


@TRANSFERS.fault("4")
def contents_not_compared(machine: Machine) -> None:
    """A primary vouches for a copy that has reached its counters, whatever it contains."""
    assert machine.node is not None
    supply = machine.node.supply

    def vouch(local: LocalPartition, node: NodeId, message: Settled) -> None:
        supply.vouching.vouched[(local.number, node)] = None

    replace(supply.vouching, "_compare", vouch)


@TRANSFERS.fault("4")
def rows_lost_and_contents_not_compared(machine: Machine) -> None:
    """A full transfer loses rows, and the primary vouches for the copy that took it without comparing contents."""
    full_transfer_loses_rows(machine)
    contents_not_compared(machine)


@TRANSFERS.fault("4")
def rows_lost_and_believed_unasked(machine: Machine) -> None:
    """A full transfer loses rows, and its primary does not look at what the copy says, unasked, that it contains."""
    full_transfer_loses_rows(machine)
    assert machine.node is not None
    replace(machine.node.supply.vouching, "_compares_now", lambda _number, _node, said: said.contents is not None)


@TRANSFERS.fault("1, 4")
def what_was_said_in_an_earlier_session_is_believed(machine: Machine) -> None:
    """A primary takes what a copy said, unasked, before it began anew for what it contains now."""
    assert machine.node is not None
    vouching = machine.node.supply.vouching

    def compares_now(original: Callable[..., bool], number: int, node: NodeId, said: Settled) -> bool:
        session: Any = vouching._supplied.get(number, {}).get(node)
        return original(number, node, msgspec.structs.replace(said, session=session))

    around(vouching, "_compares_now", compares_now)


@TRANSFERS.fault("4, 8")
def not_cleared_and_contents_not_compared(machine: Machine) -> None:
    """A copy that is taken in full keeps what it had, and its primary does not compare contents."""
    full_transfer_without_clearing(machine)
    contents_not_compared(machine)


class _NoRoom(Room):
    """It takes away nothing."""

    def step(self, core: Node) -> bool:
        """What lies under the leaves that differ stays."""
        return True


@TRANSFERS.fault(
    "4, 8",
    harmless="""The primary finds other contents than its own before it vouches for the copy, which is emptied then, and
    takes all rows.""",
    both="no-room-and-contents-not-compared",
)
def what_differs_is_not_taken_away(machine: Machine) -> None:
    """A copy that is told which leaves differ keeps what it has under them, so that what was deleted meanwhile stays."""
    assert machine.node is not None
    during(machine, machine.node.demander, "_take", demanding, "Room", _NoRoom)


@TRANSFERS.fault("4, 8")
def no_room_and_contents_not_compared(machine: Machine) -> None:
    """A copy keeps what it has under leaves that differ, and its primary does not compare contents."""
    what_differs_is_not_taken_away(machine)
    contents_not_compared(machine)


@TRANSFERS.fault(
    "4, 8",
    harmless="""The primary finds other contents than its own before it vouches for the copy, which is emptied then, and
    takes all rows.""",
    both="deletes-not-remembered-and-contents-not-compared",
)
def deletes_are_not_remembered(machine: Machine) -> None:
    """A primary that remembers which keys were changed leaves out those that were deleted."""
    assert machine.node is not None
    store = machine.node.core.replica.store

    def since(original: Callable[..., Any], name: Fragment, counter: int) -> Any:
        found = original(name, counter)
        if found is not None:
            rows = {key: store.get(name, key) for key in found.keys}
            found.keys = [key for key, row in rows.items() if row is not None and row.value is not None]
        return found

    around(machine.node.mutations, "since", since)


@TRANSFERS.fault("4, 8")
def deletes_not_remembered_and_contents_not_compared(machine: Machine) -> None:
    """A primary remembers no deletes, and does not compare contents."""
    deletes_are_not_remembered(machine)
    contents_not_compared(machine)


@TRANSFERS.fault("10")
def a_transfer_waits_for_no_checkpoint(machine: Machine) -> None:
    """A copy takes what its supplier sends as fast as it comes, whatever its memory holds already."""
    assert machine.node is not None
    replace(machine.node.core, "crowded", lambda: False)


@TRANSFERS.fault("10")
def what_waits_for_a_checkpoint_is_forgotten(machine: Machine) -> None:
    """A copy that waited for a checkpoint does not go on when one has begun."""
    assert machine.node is not None
    replace(machine.node.demander, "go_on", lambda: None)


@TRANSFERS.fault(
    "4",
    harmless="""The primary finds other contents than its own before it vouches for the copy, which is emptied then, and
    takes all rows.""",
    both="old-leaves-and-contents-not-compared",
)
def old_leaves(machine: Machine) -> None:
    """A copy whose transfer broke off tells once more what its rows added up to before room was made for it."""
    assert machine.node is not None
    replace(machine.node.demander.surveys, "changed", lambda name: None)
    replace(machine.node.demander.surveys, "switch", lambda gone: None)


@TRANSFERS.fault("4")
def old_leaves_and_contents_not_compared(machine: Machine) -> None:
    """A copy tells leaves of before its transfer broke off, and its primary does not compare contents."""
    old_leaves(machine)
    contents_not_compared(machine)


@TRANSFERS.fault(
    "4, 8",
    harmless="""The primary finds other contents than its own before it vouches for the copy, which is emptied then, and
    takes all rows.""",
    both="told-late-and-contents-not-compared",
)
def told_late_where_rows_differ(machine: Machine) -> None:
    """A supplier says under which leaves rows differ in the batch that brings them, and not before: no room was made."""
    assert machine.node is not None
    late: list[Any] = []

    def batch(original: Callable[..., Any], session: Any, **more: Any) -> Any:
        if found := more.get("differing"):
            late.extend(found)
            more["differing"] = []
        if more.get("rows"):
            more["differing"] = late[:]
            late.clear()
        return original(session, **more)

    around(machine.node.supply, "_batch", batch)


@TRANSFERS.fault("4, 8")
def told_late_and_contents_not_compared(machine: Machine) -> None:
    """A supplier says with the rows themselves where they differ, and does not compare contents."""
    told_late_where_rows_differ(machine)
    contents_not_compared(machine)


@TRANSFERS.fault("4, 8")
def unconfirmed_and_contents_not_compared(machine: Machine) -> None:
    """What came live while a copy was loading stays whatever the transfer says, and contents are not compared."""
    unconfirmed_rows_stay(machine)
    contents_not_compared(machine)


@TRANSFERS.fault(
    "4, 8",
    harmless="""The primary finds other contents than its own before it vouches for the copy, which takes them once
    more.""",
    both="unconfirmed-and-contents-not-compared",
)
def unconfirmed_rows_stay(machine: Machine) -> None:
    """A row that came live while a copy was loading stays, although the transfer that covers it does not tell of it."""
    assert machine.node is not None

    replace(machine.node.core.replica, "unconfirmed", lambda fragment, lwm: [])


@TRANSFERS.fault("1")
def a_word_is_taken_back(machine: Machine) -> None:
    """A primary that vouches for a copy begins it anew when it is asked to, though a light step may rely on its word."""
    assert machine.node is not None
    vouching = machine.node.supply.vouching

    def begin_anew(original: Callable[..., None], hold: LocalPartition, node: NodeId) -> None:
        vouching.vouched.pop((hold.number, node), None)
        original(hold, node)

    around(vouching, "begin_anew", begin_anew)
    replace(vouching, "stands_for", lambda number, node: False)


@TRANSFERS.fault("10")
def asked_again_at_once(machine: Machine) -> None:
    """A copy asks a primary that has nothing to give yet again as soon as it has said so."""
    assert machine.node is not None
    demander = machine.node.demander

    def demand(original: Callable[..., None]) -> None:
        demander._pauses.clear()
        original()

    around(demander, "_demand", demand)


@TRANSFERS.fault("10")
def settled_is_said_as_often_as_ever(machine: Machine) -> None:
    """A copy that waits for the next map tells its primary that it is settled, again and again at the same pace."""
    assert machine.node is not None

    def say(original: Callable[..., bool], primary: NodeId, number: int, **how: bool) -> bool:
        original(primary, number, **how)
        return False  # so that the next time is not put off

    around(machine.node.demander.settling, "_say_settled", say)


@TRANSFERS.fault("10")
def what_is_lost_is_said_again_late(machine: Machine) -> None:
    """A batch that was lost is sent again later and later, as if its copy had too much to do."""
    assert machine.node is not None
    longest = PATIENCE_MAX * machine.node.core.settings.retransmit_ms * MS

    def later(batch: Batch, *_: object) -> int:
        return min(2 * batch.patience, longest)

    during(machine, machine.node.replication, "tick", batches, "patience_of", later)


@TRANSFERS.fault("4, 7")
def checkpoint_without_suspects(machine: Machine) -> None:
    """A checkpoint does not store which rows may be wrong since an undo."""
    assert machine.node is not None

    def without(fragment: FragmentState) -> TakenFragment:
        return take_down(fragment)._replace(suspects=[])

    during(machine, machine.node.core.replica.changes, "_take_down", freezing, "take_down", without)


@TRANSFERS.fault("1, 9")
def ordered_copy_is_emptied_at_once(machine: Machine) -> None:
    """A copy that an operator orders anew is emptied when the order comes, while the map still relies on it."""
    assert machine.node is not None
    node = machine.node

    def order(original: Callable[..., str], names: list[Fragment]) -> str:
        problem = original(names)
        for name in names if not problem else ():
            node.core.log(r.FragmentClear(*name, "at once"))
        return problem

    around(node.anew, "order", order)


@TRANSFERS.fault("10")
def asked_again_taken_for_credit(machine: Machine) -> None:
    """A supplier that is asked once more for what was lost sends the next batch, as if it had been given leave to."""
    assert machine.node is not None

    def on_credit(original: Callable[..., None], sender: NodeId, message: Credit) -> None:
        original(sender, msgspec.structs.replace(message, again=False))

    around(machine.node.supply, "on_credit", on_credit)


@TRANSFERS.fault("1, 4")
def survivor_tells_what_counters_lack(machine: Machine) -> None:
    """A survivor that took part in a newer epoch tells the next primary only of the counters which that one lacks."""
    assert machine.node is not None
    node = machine.node

    def on_ask_tail(original: Callable[..., None], sender: NodeId, message: AskTail) -> None:
        partition = node.core.replica.partition
        copies = [msgspec.structs.replace(c, epoch=max(c.epoch, partition(c.partition).epoch)) for c in message.copies]
        original(sender, msgspec.structs.replace(message, copies=copies))

    around(node.promotion, "on_ask_tail", on_ask_tail)


@TRANSFERS.fault(
    "4, 8",
    harmless="""The updates that come of it do not reach what was asked for: the supplier says that history was missed, and
    the fragment goes in another way.""",
)
def index_of_a_sealed_segment_leaves_out_blocks(machine: Machine) -> None:
    """The index that a full segment gets knows half of the blocks that hold a fragment, and history is read by it."""
    log = getattr(machine, "log", None)
    if log is None:
        return  # a small world that is walked whole has no files

    def write_index(original: Callable[[], None]) -> None:
        if (unsealed := log._segments._unsealed) is not None:
            for entry in unsealed[0].index.fragments.values():
                del entry.blocks[1::2]
        original()

    around(log, "_write_index", write_index)


@TRANSFERS.fault("10")
def what_is_on_its_way_is_supplied_again(machine: Machine) -> None:
    """A copy that says over a slow link that nothing came is sent once more all that is on its way."""
    assert machine.node is not None
    during(machine, machine.node, "turn", supplying, "travels_ns", lambda *_: 0)
