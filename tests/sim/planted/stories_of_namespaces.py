"""Stories of namespaces: settings of one, and its end, while copies are away, primaries fail and orders come late."""

from __future__ import annotations

from engine.client.calls import PutCall
from engine.client.namespaces import AskNodes
from engine.errors import UsageError
from engine.messages import SetNamespace
from rebalance.namespaces import Stands
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, PARTITIONS, Stage, Stories, key
from tests.sim.world import Plant
from wal.ids import NO_VERSION

NAMESPACES = Stories()
story = NAMESPACES.story

ALL = ("n1", "n2", "n3")
TTL_MS = 500
HOUR_MS = 3_600_000


def _said(stage: Stage, name: str = "n2") -> tuple[str, str]:
    """What the map of a node says of the namespace: how it stands, and since when."""
    node = stage[name].node
    said = node.core.namespaces.get(NAMESPACE) if node is not None else None
    return (said.stands, str(said.since)) if said is not None else ("", "0.0")


def _order(stage: Stage, ttl_ms: int = 0, *, drop: bool = False, **more: str) -> None:
    arguments = {"name": [NAMESPACE], "seen": [_said(stage)[1]], "ttl_ms": [str(ttl_ms)]}
    arguments |= {name: [value] for name, value in more.items()}
    call = AskNodes(arguments | ({"drop": list[str]()} if drop else {}))
    stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))


def _until(stage: Stage, stands: str, *names: str) -> None:
    stage.until(lambda: all(_said(stage, name)[0] == stands for name in names or ALL), f"the namespace is {stands}")


def _rows(stage: Stage, name: str, partition: int = 0) -> list[bytes]:
    """The keys that a copy has."""
    node = stage[name].node
    assert node is not None
    page = node.core.replica.store.page((NAMESPACE, partition), b"", 100)
    return [row for row, held in page.rows if held.value is not None]


@story
def a_copy_is_away_while_its_namespace_is_dropped(plant: Plant | None) -> None:
    """A node with older rows comes back when its namespace is gone, and its name in use again."""
    with Stage(plant) as stage:
        for number in range(4):
            stage.put(key(0, number), b"old")
        stage.power_cut("n3")
        stage.left_out("n3")
        _order(stage, drop=True)
        _until(stage, Stands.DROPPED, "n1", "n2")
        stage.must(all(not _rows(stage, name) for name in ("n1", "n2")), "a dropped namespace has no rows")
        stage.put(key(0, 1), b"new")
        stage.start("n3")
        stage.rest()
        stage.must(all(_rows(stage, name) == [key(0, 1)] for name in ALL), "nothing comes back")
        stage.curtain()


@story
def a_transaction_holds_what_is_being_dropped(plant: Plant | None) -> None:
    """A namespace is not gone before a transaction has let go of a row of it; meanwhile nobody writes there."""
    with Stage(plant) as stage:
        stage.put(key(0), b"held")
        tx = stage.transaction()
        stage.do(tx.get(NAMESPACE, [key(0)]))
        _order(stage, drop=True)
        stage.until(lambda: _said(stage)[0] != "", "the order is carried out")
        stage.wait(500)
        stage.must(_said(stage)[0] == Stands.DROPPING, "what a transaction holds is waited for")
        put = stage.begin_put(key(1), b"between")
        stage.until(lambda: put.done, "a write is answered")
        stage.must(isinstance(put.failure, UsageError), "nobody writes to what is being dropped")
        stage.do(tx.rollback())
        _until(stage, Stands.DROPPED)
        stage.must(stage.get(key(0)) is None and stage.get(key(1)) is None, "a dropped namespace has no rows")
        stage.curtain()


@story
def a_primary_fails_while_its_deletes_are_on_their_way(plant: Plant | None) -> None:
    """The deletes of a drop do not reach the copies, and the primary fails: the next one drops what it has."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        lost = stage.lose("replicate", "n1")
        _order(stage, drop=True)
        stage.wait(600)
        gone = _said(stage)[0] == Stands.DROPPED
        stage.power_cut("n1")
        stage.client.die()
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.must(not (gone and _rows(stage, "n2")), "what was said to be gone is gone")
        _until(stage, Stands.DROPPED, "n2", "n3")
        stage.must(stage.get(key(0), stage.another()) is None, "the next primary drops what it has")
        stage.curtain()


@story
def an_order_to_drop_comes_late(plant: Plant | None) -> None:
    """A node remembers an order that another has carried out, and leads when the name is in use again."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        stage.world.command(stage["n2"], "namespaces", {"name": [NAMESPACE], "seen": ["0.0"], "ttl_ms": ["0"], "drop": []})
        _until(stage, Stands.DROPPED)
        stage.put(key(0), b"new")
        stage.power_cut("n1")
        stage.client.die()
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(2_000)
        stage.must(stage.get(key(0), stage.another()) == b"new", "an order is carried out once")
        stage.curtain()


@story
def a_namespace_has_a_time_to_live(plant: Plant | None) -> None:
    """What is put without one lasts as its namespace says, on every copy, whatever the clocks of the backups."""
    with Stage(plant) as stage:
        stage["n2"].wall_offset_ms = HOUR_MS
        stage.put(key(0, 1), b"before")
        _order(stage, ttl_ms=TTL_MS)
        _until(stage, Stands.THERE)
        stage.put(key(0), b"short")
        call = PutCall(stage.client.new_tx(), NAMESPACE, [key(0, 2)], [b"for good"], -1)
        stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))
        stage.compare()
        stage.wait(4 * TTL_MS)
        kept = sorted([key(0, 1), key(0, 2)])
        stage.must(all(_rows(stage, name) == kept for name in ALL), "it goes everywhere, and nothing else does")
        stage.curtain()


@story
def a_namespace_has_copies_of_its_own(plant: Plant | None) -> None:
    """One backup where the cluster has two: two copies have it, a primary fails, and the other one serves."""
    with Stage(plant) as stage:
        _order(stage, backups="1")
        _until(stage, Stands.THERE)
        stage.put(key(0), b"v")
        topology = stage.world.newest()
        assert topology is not None
        number = topology.place(NAMESPACE, key(0))
        stage.must(number == PARTITIONS, "it is in the first partition of the second group")
        stage.must([name for name in ALL if _rows(stage, name, number)] == ["n1", "n2"], "two copies have it")
        stage.must(not any(_rows(stage, name) for name in ALL), "nobody has it elsewhere")
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.must(stage.get(key(0), stage.another()) == b"v", "its backup serves")
        stage.start("n1")
        stage.rest()
        stage.curtain()


@story
def a_namespace_is_made_that_was_just_written(plant: Plant | None) -> None:
    """Whoever ordered copies of its own had not heard of a write: the namespace goes on where it is, with what is in it."""
    with Stage(plant) as stage:
        stage.put(key(0), b"v")
        node = stage["n1"].node
        assert node is not None
        node.membership.orders.handle(SetNamespace(NAMESPACE, NO_VERSION, backups=1))
        _until(stage, Stands.THERE)
        stage.must(stage.get(key(0)) == b"v", "what was acknowledged is there")
        stage.put(key(0), b"w")
        stage.must(all(_rows(stage, name) == [key(0)] for name in ALL), "all three copies have it, as before")
        stage.curtain()


@story
def a_namespace_is_begun_anew_with_other_copies(plant: Plant | None) -> None:
    """A node with rows of its first life is away while it is dropped, and created with one copy."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        stage.power_cut("n3")
        stage.left_out("n3")
        _order(stage, drop=True)
        _until(stage, Stands.DROPPED, "n1", "n2")
        _order(stage, backups="0")
        _until(stage, Stands.THERE, "n1", "n2")
        stage.put(key(0, 1), b"new")
        stage.start("n3")
        stage.rest()
        stage.must(not any(_rows(stage, name) for name in ALL), "nothing comes back")
        stage.must(stage.get(key(0)) is None, "what was dropped is gone")
        stage.must(stage.get(key(0, 1)) == b"new", "what came after is there")
        stage.curtain()
