"""Stories of rows that are not what was written: nobody notices at first, and they are healed by whoever is right."""

from __future__ import annotations

import msgspec

from engine.messages import AllSettled, Settled
from engine.state.store import Entry
from engine.state.store_memory import MemoryStore
from engine.turn.settings import Settings
from tests.sim.network import MS, Rule
from tests.sim.planted.stage import NAMESPACE, SETTINGS, Stage, Stories, key
from tests.sim.world import SECOND, Plant
from tests.support.rot import rot
from wal.ids import NodeId

ROT = Stories()
story = ROT.story

QUICK = msgspec.structs.replace(SETTINGS, anti_entropy_ms=900, checkpoint_ms=200)
ALL = ("n1", "n2", "n3")


def _value(stage: Stage, name: NodeId, partition: int = 0) -> bytes | None:
    """What a copy has, whatever it is to the map."""
    node = stage[name].node
    assert node is not None
    held = node.core.replica.store.get((NAMESPACE, partition), key(partition))
    return held.value if held is not None else None


def _rots(stage: Stage, name: NodeId, partition: int = 0) -> None:
    """The row is gone from the last checkpoint of a node."""
    node = stage[name].node
    assert node is not None
    base = node.core.replica.store.base
    assert isinstance(base, MemoryStore)
    rot(base, (NAMESPACE, partition), key(partition), None)
    stage.world.rotten.add(stage[name], (NAMESPACE, partition), key(partition), b"kept")


def _healed(stage: Stage, name: NodeId, partition: int = 0) -> None:
    stage.until(lambda: _value(stage, name, partition) == b"kept", f"the row of partition {partition} on {name} is back")
    stage.world.rotten.forget()


@story
def a_row_of_a_backup_rots(plant: Plant | None) -> None:
    """Its counters are right, and so is the digest that it tells."""
    with Stage(plant, settings=QUICK) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        _rots(stage, "n2")
        _healed(stage, "n2")
        stage.curtain()


@story
def a_row_of_an_asynchronous_copy_rots(plant: Plant | None) -> None:
    """Nobody asks n2 what it contains: it is in no in-sync set. It reads its rows, and takes them anew by itself."""
    with Stage(plant, settings=msgspec.structs.replace(QUICK, backups=0, async_backups=1)) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        _rots(stage, "n2")
        _healed(stage, "n2")
        stage.curtain()


@story
def an_asynchronous_copy_is_filled_with_what_rotted(plant: Plant | None) -> None:
    """n3 takes everything anew from n1 before anybody has read the row that rotted there: both are to have it again."""
    with Stage(plant, settings=msgspec.structs.replace(QUICK, backups=1, async_backups=1)) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        _rots(stage, "n1")
        node = stage["n3"].node
        assert node is not None
        stage.must(not node.anew.order([(NAMESPACE, 0)]), "it may be ordered")
        stage.until(lambda: not node.core.replica.fragment((NAMESPACE, 0)).loading, "n3 is whole", look_every=MS)
        stage.must(_value(stage, "n3") is None, "and without the row")
        for name in ("n1", "n3"):
            stage.until(lambda name=name: _value(stage, name) == b"kept", f"the row is back on {name}")  # type: ignore[misc]
        stage.world.rotten.forget()
        stage.curtain()


@story
def a_row_of_a_primary_rots(plant: Plant | None) -> None:
    """Another node leads, and the row comes from there."""
    with Stage(plant, settings=QUICK) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        _rots(stage, "n1")
        _healed(stage, "n1")
        stage.curtain()


@story
def rows_rot_one_after_the_other(plant: Plant | None) -> None:
    """In two partitions of two primaries, so that one node is asked about both."""
    with Stage(plant, settings=QUICK) as stage:
        for partition in (0, 1, 3):
            stage.put(key(partition), b"kept")
        stage.wait(1_000)
        for partition in (0, 1, 3):
            _rots(stage, "n2", partition)
            _healed(stage, "n2", partition)
            stage.wait(1_000)
        stage.curtain()


@story
def a_write_is_on_its_way_while_copies_are_compared(plant: Plant | None) -> None:
    """n2 has it, n3 does not get it, and so n1 has it not either; all of them are right."""
    with Stage(plant, settings=QUICK) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        lost = stage.lose("replicate", "n1", "n3")
        writing = stage.begin_put(key(0, 1), b"on its way")
        stage.wait(1_200)
        stage.end(lost)
        stage.until(lambda: writing.done, "it counts")
        stage.wait(1_000)
        stage.curtain()


@story
def a_map_comes_while_a_copy_is_suspected(plant: Plant | None) -> None:
    """Its primary knows that a copy differs, and has yet to hear who is right, when n3 dies. A round takes 30 s."""
    with Stage(plant, settings=msgspec.structs.replace(QUICK, anti_entropy_ms=30_000)) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        _rots(stage, "n2")
        primary = stage["n1"].node
        assert primary is not None
        entropy = primary.entropy
        found = stage.world.run_while(lambda: not entropy.suspected, at_most=61 * SECOND)
        stage.must(found, "n2 has read its rows within a round, and was asked within another")
        unheard = stage.lose("proofs")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.end(unheard)
        _healed(stage, "n2")
        stage.curtain()


@story
def two_copies_differ_from_their_primary(plant: Plant | None) -> None:
    """Something was written to n2 and n3 that n1 does not have. Who is right is for a person to say."""
    _differ_from_n1(plant, ("n2", "n3"), QUICK)


@story
def an_asynchronous_copy_differs_from_its_primary_as_two_others_do(plant: Plant | None) -> None:
    """The same, and n4, which is asynchronous, has what these have: it may be right, and is left alone like them."""
    _differ_from_n1(plant, ("n2", "n3", "n4"), msgspec.structs.replace(QUICK, async_backups=1))


def _differ_from_n1(plant: Plant | None, names: tuple[NodeId, ...], settings: Settings) -> None:
    with Stage(plant, nodes=1 + len(names), settings=settings) as stage:
        stage.put(key(0), b"kept")
        stage.wait(1_000)
        rows: list[tuple[NodeId, Entry]] = []
        for name in names:
            node = stage[name].node
            assert node is not None
            held = node.core.replica.store.get((NAMESPACE, 0), key(0))
            assert held is not None
            rows.append((name, held))
            node.core.replica.store.set((NAMESPACE, 0), key(0), Entry(held.epoch, held.counter, b"theirs"))
            stage.world.rotten.add(stage[name], (NAMESPACE, 0), key(0), b"kept")
        stage.wait(5_000)
        for name in names:
            stage.must(_value(stage, name) == b"theirs", f"what {name} has is not touched")
        primary = stage["n1"].node
        assert primary is not None
        stage.must(bool(primary.entropy.undecided), "it is told")
        for name, held in rows:
            node = stage[name].node
            assert node is not None
            node.core.replica.store.set((NAMESPACE, 0), key(0), held)
        stage.world.rotten.forget()
        stage.curtain()


@story
def what_a_copy_said_comes_when_it_has_begun_anew(plant: Plant | None) -> None:
    """Before it comes a row of n3 spoils: it is found to differ, is emptied, and is yet to be filled."""
    with Stage(plant) as stage:
        stage.put(key(0), b"kept")
        stage.wait(500)
        stage.power_cut("n3")
        stage.left_out("n3")
        network = stage.world.network

        def is_said(src: str, dst: str, said: object) -> bool:
            return (src, dst) == ("n3", "n1") and isinstance(said, Settled | AllSettled)

        late = Rule("late", is_said, drop=False, left=1)
        network.rules.append(late)
        stage.start("n3")
        stage.until(lambda: late.caught > 0, "n3 says what it contains", look_every=MS // 10)
        node = stage["n3"].node
        assert node is not None
        held = node.core.replica.store.get((NAMESPACE, 0), key(0))
        assert held is not None
        node.core.replica.store.set((NAMESPACE, 0), key(0), Entry(held.epoch, held.counter, b"spoiled"))
        stage.world.rotten.add(stage["n3"], (NAMESPACE, 0), key(0), b"kept")
        unfilled = stage.lose("supply", "n1", "n3")
        stage.until(lambda: _value(stage, "n3") is None, "n3 is emptied")
        stage.until(lambda: unfilled.caught > 0, "and about to be filled")
        network.release([late], [each for each in network.held if each.rule is late])
        stage.wait(1_000)
        stage.end(unfilled)
        _healed(stage, "n3")
        stage.curtain()
