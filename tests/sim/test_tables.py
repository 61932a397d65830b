"""No table of a node has an entry for each of its fragments: it would grow, and be listed, in one step.

Neither calls nor work see that: it is a loop of the interpreter's own. With 262,144 fragments five tables that grew
together made turns of 50 to 85 ms, and so did a list of all names.
"""

from __future__ import annotations

from engine.state.store_memory import MemoryStore
from engine.turn.effects import Effects
from engine.turn.settings import Settings
from rebalance.by_fragment import ByFragment
from tests.sim.background import Turnstile
from tests.sim.costs import Modelled
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.test_turns import NODES, _cluster, _members, _put, _whole
from tests.sim.world import SECOND, World
from tests.support.memory_disk import MemoryDisk
from tests.support.weight import that_hold_more
from wal.ids import Fragment

PARTITIONS, NAMESPACES = 64, 40
MOST = PARTITIONS * NAMESPACES // 3
BUT = (Machine, World, MemoryDisk, MemoryStore, Turnstile, Effects)


def _look(world: World, when: str) -> None:
    for machine in world.running:
        large = that_hold_more(MOST, [machine.node], but=BUT)
        assert not large, f"{machine.name}, {when}: {large}"


def test_no_table_has_an_entry_for_each_fragment() -> None:
    """When they are made, when tails are looked at, in a checkpoint, and when all of them come to who has lost his disk."""
    settings = Settings(cluster="sim", partitions=PARTITIONS, backups=2)
    with World(Draws(1), settings, costs=Modelled()) as world:
        _cluster(world, PARTITIONS, NAMESPACES)
        _look(world, "they are made")
        world.run_for(SECOND + SECOND // 3)
        _look(world, "tails are looked at")
        for machine in world.running:
            assert machine.node is not None
            machine.node.checkpoint_wanted = True
        world.run_for(SECOND // 50)
        _look(world, "a checkpoint has begun")
        n3 = world.machines["n3"]
        n3.stop("killed", process_only=True)
        assert world.run_while(lambda: len(_members(world)) > 2 or not world.serving(NODES[:2]), at_most=60 * SECOND)
        _put(world, PARTITIONS, NAMESPACES, b"w")
        n3.wipe()
        n3.start()
        looks = 0
        while not _whole(world):
            world.run_for(SECOND // 10)
            _look(world, "it comes back")
            looks += 1
        assert looks > 1


def test_what_is_kept_by_fragment_is_as_a_dict_would_have_it() -> None:
    kept, told = ByFragment[int](), dict[Fragment, int]()
    names = [(namespace, number) for number in range(3) for namespace in ("acc", "pay")]
    for at, name in enumerate(names):
        kept[name] = told[name] = at
        assert (kept == told, len(kept), bool(kept)) == (True, len(told), True)
    assert list(kept) == list(kept.names()) == names
    assert (kept.get(("acc", 1)), kept.get(("acc", 9)), kept.get(("no", 1)), kept.get(("no", 9), 7)) == (2, None, None, 7)
    assert [("acc", 1) in kept, ("no", 1) in kept, ("acc", 9) in kept] == [True, False, False]
    assert kept.of(2) == {"acc": 4, "pay": 5}
    assert not kept.of(9)
    seen = list[Fragment]()
    for name in kept.names():
        seen.append(name)
        if name == ("acc", 0):
            del kept["pay", 0], kept["acc", 1]
            kept["new", 2] = kept["new", 3] = 9
    assert seen == [*names[:2], *names[3:], ("new", 2)], "as each partition is when its turn comes"
    assert (kept.pop(("acc", 0)), kept.pop(("new", 3))) == (0, 9)
    assert list(kept.parts) == [1, 2]
    assert [dict(part) for part in kept.taken()] == [{"acc": 4, "pay": 5, "new": 9}, {"pay": 3}]
    assert not kept
    assert kept == {}
