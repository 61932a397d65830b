"""Faults of the doing half: what `engine.host.duties` owes, in which order, and what its background work may touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from engine.state.store import CheckpointImage
from engine.state.store_errors import StoreFull
from engine.turn.events import LogMayShrink
from rebalance.table import Placement
from tests.sim.machine import Machine
from tests.sim.planted.elections import whoever_never_answers_is_waited_for
from tests.sim.planted.fault import Faults, around, during, replace
from tests.support.memory_disk import MemoryFile
from wal.ids import NodeId

DEEDS = Faults()


@DEEDS.fault("10")
def history_closed_while_it_is_read(machine: Machine) -> None:
    """A supply that is over has its history closed at once, though a thread of the driver is reading it."""
    duties = machine.duties
    assert duties is not None

    def close(original: Callable[..., None], session: Any) -> None:
        reader = duties._readers.get(session)
        if reader is not None:
            reader.cursor.close()
        original(session)

    around(duties, "_close", close)


@DEEDS.fault("10")
def last_checkpoint_beside_the_nodes_own(machine: Machine) -> None:
    """A node that is told to end begins its last checkpoint at once, whether or not one is being written."""
    duties = machine.duties
    assert duties is not None
    core = duties.node.core

    def finish(done: Callable[[Exception | None], None]) -> None:
        image = core.replica.begin_checkpoint(core.durable_lsn, duties.node.replication.open_records())
        duties.log.sync()
        machine.background("checkpoint", lambda: machine._write_checkpoint(image), lambda _, error: done(error))

    replace(duties, "finish", finish)


@DEEDS.fault("6")
def unsynced_for_as_long_as_nothing_is_written(machine: Machine) -> None:
    """With LOG_ONLY and BACKGROUND, what is due to be synced waits for the next write, which may never come."""
    duties = machine.duties
    assert duties is not None

    def write(original: Callable[..., None], records: list[Any], **times: int) -> None:
        if records:
            original(records, **times)

    around(duties, "write", write)


@DEEDS.fault("7")
def log_trimmed_before_its_checkpoint_is_written(machine: Machine) -> None:
    """The log is trimmed as soon as a checkpoint begins, and not when it is in the store."""
    duties = machine.duties
    assert duties is not None

    def write(original: Callable[..., None], image: Any) -> None:
        original(image)
        trimmed = duties.log.trimmable(image.lsn)
        if trimmed is not None:
            machine.receive(LogMayShrink(trimmed))

    around(duties, "_write_checkpoint", write)


@DEEDS.fault("3")
def segment_removed_before_its_archive_is_durable(machine: Machine) -> None:
    """An archive gets its name, and its segment goes, though nobody synced what is in it."""
    duties = machine.duties
    assert duties is not None
    during(machine, duties.log, "archive", MemoryFile, "sync", lambda _: None)


@DEEDS.fault("1")
def memory_is_not_written_at_the_end(machine: Machine) -> None:
    """With BACKGROUND and NONE, what was acknowledged from memory is forgotten where it should be written to the log."""
    duties = machine.duties
    assert duties is not None

    def write_all(original: Callable[[], None]) -> None:
        duties._kept.take()
        original()

    around(duties, "write_all", write_all)


@DEEDS.fault(
    "1, 4",
    harmless="""The records of the turn itself are counted in what it claims, so whoever lost any of those that were kept
    is known to have lost something.""",
)
def what_is_in_memory_only_is_not_claimed(machine: Machine) -> None:
    """With BACKGROUND and NONE a node claims what its log has, and not what it acknowledged beyond that."""
    duties = machine.duties
    assert duties is not None

    def write(original: Callable[..., None], records: list[Any], **times: int) -> None:
        original(records, **times)
        duties.node.core.durable_lsn = duties.log.next_lsn - 1

    around(duties, "write", write)


@DEEDS.fault("10")
def a_busy_node_is_silent(machine: Machine) -> None:
    """A node whose log is being synced tells nobody that it lives until that is done."""
    assert machine.duties is not None
    replace(machine.duties, "pulse", lambda now: None)


@DEEDS.fault(
    "10",
    harmless="""It answers nobody meanwhile: the copies that wait for it say so, and it is set aside by an exchange, which
    it does not answer either, and so it is left out.""",
    both="a-stuck-node-is-heard-and-waited-for",
)
def a_stuck_node_is_heard_for_ever(machine: Machine) -> None:
    """A node whose log is stuck repeats its last heartbeat for as long as its process lives."""
    duties = machine.duties
    assert duties is not None

    def pulse(original: Callable[[int], Any], now: int) -> Any:
        return original(now) or duties._beat

    around(duties, "pulse", pulse)


@DEEDS.fault("10")
def a_stuck_node_is_heard_and_waited_for(machine: Machine) -> None:
    """A node whose log is stuck repeats its last heartbeat for ever, and whoever does not answer is never set aside."""
    a_stuck_node_is_heard_for_ever(machine)
    whoever_never_answers_is_waited_for(machine)


@DEEDS.fault("4")
def a_store_is_not_waited_for(machine: Machine) -> None:
    """Whatever lies in memory and in no checkpoint, more is begun."""
    assert machine.node is not None
    replace(machine.node.core, "is_backlogged", lambda: False)


@DEEDS.fault("4")
def full_disks_are_written_to(machine: Machine) -> None:
    """Whosever disks have no room for more of their logs, more is begun."""
    assert machine.node is not None
    replace(machine.node.core, "in_the_way", lambda placement: ())


@DEEDS.fault("4")
def a_copy_with_room_is_enough(machine: Machine) -> None:
    """Whoever has room and all of a partition is taken to go on alone, also where it is no majority."""
    assert machine.node is not None
    core = machine.node.core

    def in_the_way(placement: Placement) -> tuple[NodeId, ...]:
        return placement.in_sync if all(node in core.cramped for node in placement.in_sync) else ()

    replace(core, "in_the_way", in_the_way)


@DEEDS.fault("4")
def what_found_no_room_is_taken_as_written(machine: Machine) -> None:
    """A checkpoint for which there was no room counts as one that is in the store."""
    assert machine.node is not None
    store = machine.node.core.replica.store.base

    def write(image: CheckpointImage) -> Iterator[None]:
        yield
        if machine.disk.room is None or image.weight <= machine.disk.room:
            store.write(image)

    replace(machine, "_write_checkpoint", write)


@DEEDS.fault("4")
def what_found_no_room_is_not_written_again(machine: Machine) -> None:
    """A checkpoint for which there was no room is kept for ever."""
    assert machine.duties is not None
    preparing = machine.duties._preparing
    replace(preparing, "_write", lambda image: preparing.checkpoint_full(image, StoreFull("still"), ends=False))


@DEEDS.fault("4")
def what_there_is_no_room_for_is_taken(machine: Machine) -> None:
    """A copy that is being filled takes what its supplier sends, whether or not its disk has room."""
    assert machine.node is not None
    replace(machine.node.core, "crowded", lambda: False)


@DEEDS.fault("4")
def a_full_disk_passes_over_nothing(machine: Machine) -> None:
    """A copy that nobody waits for takes all that is written to it, whether or not its disk has room."""
    assert machine.node is not None
    core, missed = machine.node.core, machine.node.demander.missed
    around(missed, "passes_over", lambda original, number: core.is_backlogged() and original(number))


@DEEDS.fault("4")
def whoever_is_spared_goes_on(machine: Machine) -> None:
    """A node that has no room for its checkpoint, and takes no more, is waited for although others could go on."""
    assert machine.node is not None
    replace(machine.node.core, "is_spared", lambda: False)
