"""`expect consistent`: every oracle that makes sense of a story at rest, over all copies that count.

It asks five things, whoever is down: does each node know itself, are the in-sync copies equal, does a replay of each log
give what the node has, does what clients were told still hold, and is every transaction there whole or not at all. If
everybody is there and nothing is left to do, the oracles of the seeds say their last word, too.
"""

from __future__ import annotations

from engine.state.recover import recover
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.turn.settings import Durability
from tests.sim.machine import CLUSTER, Machine
from tests.sim.oracles import look_inside, unsettled
from tests.sim.oracles.equality import compare, contents_of
from tests.sim.scenario.stage import Stage
from tests.sim.transactions import Key
from tests.sim.violation import About, Violation
from wal import Log, LogSettings


def judge(stage: Stage) -> None:
    """Raise the first Violation that is found."""
    stage.oracles.look(stage.world)
    look_inside(stage.world)
    _equal_copies(stage)
    for machine in stage.world.running:
        _replay(machine)
    _promises(stage)
    _whole_transactions(stage)
    if not unsettled(stage.world):
        stage.oracles.finish(stage.world)


def _replicas(stage: Stage, partition: int) -> list[tuple[str, Replica]]:
    """The in-sync copies of running nodes that are at the newest map, the primary first."""
    newest = stage.world.newest()
    if newest is None:
        return []
    placement = newest.placements[partition]
    found: list[tuple[str, Replica]] = []
    for name in placement.owners if not placement.lost else ():
        machine = stage.world.machines[name]
        if name in placement.in_sync and machine.up and machine.node is not None and machine.node.core.serving:
            found.append((name, machine.node.core.replica))
    return found


def _equal_copies(stage: Stage) -> None:
    names = sorted({n for m in stage.world.running if m.node is not None for n in m.node.core.replica.fragments})
    for name in names:
        compare(name, _replicas(stage, name[1]))


def _replay(machine: Machine) -> None:
    """The checkpoint and the log together say what the node has. Writes that do not count yet are only in the log.

    A node that may keep records in memory (BACKGROUND, NONE) has more than that.
    """
    assert machine.node is not None
    if machine.busy or machine.settings.durability not in (Durability.FSYNC, Durability.LOG_ONLY):
        return
    base = machine.vault.copy()
    store = base.open()
    try:
        settings = LogSettings(
            segment_bytes=machine.settings.wal_segment_bytes, total_bytes=machine.settings.wal_total_bytes
        )
        log = Log.open(
            machine.disk.copy(), cluster=CLUSTER, node=machine.name, settings=settings, from_lsn=store.load().lsn + 1
        )
        again = recover(LayeredStore(store), log)
        for name, copy in machine.node.core.replica.fragments.items():
            other = contents_of(again, name)
            mine = contents_of(machine.node.core.replica, name)
            if copy.counter.lwm == again.fragment(name).counter.lwm and other != mine:
                wrong = next(k for k in mine if mine[k] != other[k])
                raise Violation(
                    "replay",
                    f"{wrong} on {machine.name}: {mine[wrong]}; its log replays to {other[wrong]}",
                    About(fragments=(name,)),
                )
            if copy.counter.lwm > again.fragment(name).counter.lwm:
                raise Violation(
                    "replay",
                    f"{machine.name} has {copy.counter}; its log replays to {again.fragment(name).counter}",
                    About(fragments=(name,)),
                )
        log.close()
    finally:
        base.close()


def _value(replica: Replica, stage: Stage, key: Key) -> bytes | None:
    held = replica.store.get((key[0], stage.place_of(*key)), key[1])
    return held.value if held is not None else None


def _promises(stage: Stage) -> None:
    """Every in-sync copy holds what clients were told, key by key."""
    for key in stage.ledger.keys:
        if key in stage.ledger.computed:
            continue
        number = stage.place_of(*key)
        allowed = stage.ledger.possible(key)
        for node, replica in _replicas(stage, number):
            found = _value(replica, stage, key)
            if found not in allowed:
                raise Violation(
                    "promises",
                    f"{key[0]}:{key[1]!r} on {node} is {found!r}; clients were told {allowed}",
                    About(fragments=((key[0], number),)),
                )


def _whole_transactions(stage: Stage) -> None:
    """A transaction's values are all there, or none is, but for what others wrote later."""
    for op in stage.operations.values():
        if op.transaction is None or len(op.written) < 2:
            continue
        seen: list[Key] = []
        missing: list[Key] = []
        for key, value in op.transaction.written.items():
            copies = _replicas(stage, stage.place_of(*key))
            writes = stage.ledger.keys[key]
            later = [w for w in writes if w.by != op.name and w.asked >= op.written[0].asked and not w.refused]
            if not copies or later:
                continue
            if _value(copies[0][1], stage, key) == value:
                seen.append(key)
            else:
                missing.append(key)
        if seen and missing:
            raise Violation(
                "all-or-nothing",
                f"{op.name} is there in {seen[0]} and not in {missing[0]}",
                About(txs=(op.tx,)),
            )
