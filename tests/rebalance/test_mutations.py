"""While a copy is away the others remember which keys change; it gets these, whatever became of the log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from rebalance.choice import Amount, Choice, Kind, choose
from rebalance.messages import Have
from rebalance.mutations import (
    FREED_WORK,
    KEY_WEIGHS,
    KEYS_AT_ONCE,
    KEYS_OF_WORK,
    LOOKED_AT_ONCE,
    LOOKED_OF_WORK,
    Mutations,
)
from rebalance.partition import LocalPartition
from rebalance.ports import Above, Node
from rebalance.rule import NewMap
from rebalance.table import Placement
from tests.rebalance.copies import Copies, Settings, name_of
from tests.rebalance.test_differential import away, back
from tests.rebalance.test_transfers import end, move
from tests.support.called import called
from tests.support.placed import placed_at_once
from wal.ids import Fragment

NAME = name_of(0)
REMEMBERS = Settings(supply_batch_bytes=1_000, mutations_bytes=1 << 20)


def kind_of(copies: Copies, node: str = "n3") -> str:
    return copies[node].demander.progress.kinds[NAME]


def test_what_was_changed_comes_and_nothing_else() -> None:
    copies = away(rows=300, settings=REMEMBERS)
    for at in range(0, 300, 10):
        copies["n1"].put(0, **{f"k{at}": None if at % 20 else "changed"})
    copies["n1"].put(0, new="one")
    copies["n1"].put(0, new="two")
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.MUTATIONS
    assert copies["n3"].demander.progress.rows == {"mutations": 31}


@pytest.mark.parametrize("before", [0, 3])
def test_what_a_copy_had_when_it_went_does_not_come_though_it_lies_in_no_checkpoint(before: int) -> None:
    """Of what began to change since it went nothing is looked at, and all of it comes."""
    copies = Copies("n1", "n2", "n3", settings=REMEMBERS)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    copies["n1"].put(0, **{f"k{at}": "old" for at in range(20)})
    copies.run()
    copies["n1"].checkpoint()
    for at in range(before):
        copies["n1"].put(0, **{f"k{at}": "newer"})
    copies.run()
    counter = copies["n1"].replica.fragment(NAME).counter.lwm
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies["n1"].put(0, k10="newer", k11=None)
    copies.run()

    def since(name: Fragment, counter: int) -> list[bytes] | None:
        found = copies["n1"].mutations.since(name, counter)
        return None if found is None else found.keys

    assert since(NAME, counter) == [b"k10", b"k11"]
    copies["n1"].checkpoint()
    copies["n1"].put(0, k12="newer")
    copies.run()
    assert since(NAME, counter) == [b"k10", b"k11", b"k12"]
    if before:
        assert since(NAME, counter - 1) == [b"k2", b"k10", b"k11", b"k12"]


def test_of_very_many_keys_it_is_found_as_they_are_sent_which_were_changed() -> None:
    """They lie in two checkpoints and in none, some in several; and some were written before the copy went."""
    copies = Copies("n1", "n2", "n3", settings=Settings(mutations_bytes=64 << 20))
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    led = copies["n1"]

    def put(value: str | None, first: int, last: int) -> None:
        for at in range(first, last, 1_000):
            led.put(0, **{f"k{key}": value for key in range(at, at + 1_000)})
            copies.run()

    put("old", 0, 12_000)
    counter = led.replica.fragment(NAME).counter.lwm
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    put("new", 8_000, 14_000)
    led.checkpoint()
    put("newer", 13_000, 20_000)
    wanted = {b"k%d" % key for key in range(8_000, 20_000)}

    with called() as calls:
        found = led.mutations.since(NAME, counter)
    assert found is not None
    assert calls.total() < 500, "nobody looks at each of them"
    assert len(wanted) <= len(found) == 13_000 == led.replica.fragment(NAME).counter.lwm - counter
    put("later", 0, 2_000)  # which is no part of that
    keys: list[bytes] = []
    while found.left:
        assert found.sift() <= KEYS_AT_ONCE // KEYS_OF_WORK
        assert len(found.keys) <= KEYS_AT_ONCE
        keys += found.keys
        found.keys.clear()
    assert len(keys) == len(wanted)
    assert set(keys) == wanted
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.MUTATIONS
    assert copies["n3"].demander.progress.rows == {"mutations": len(wanted) + 2_000}


def test_checkpoints_and_tombstones_that_went_make_no_difference() -> None:
    copies = away(settings=REMEMBERS)
    copies["n1"].put(0, k7=None, k8="new")
    copies["n1"].checkpoint()
    copies["n1"].put(0, k9="new", k8=None)
    copies.wait()
    copies["n1"].put(0, k10=None)
    copies.wait()
    copies["n1"].put(0, last="one")
    copies.wait()
    copies["n1"].checkpoint()
    assert copies["n1"].replica.store.get(NAME, b"k10") is None, "its tombstone is gone, and went before a checkpoint"
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.MUTATIONS
    assert copies["n3"].demander.progress.rows == {"mutations": 5}
    assert not {b"k7", b"k8", b"k10"} & copies["n3"].rows(0).keys()


def test_a_backup_that_leads_by_then_remembers_as_well() -> None:
    copies = away(settings=REMEMBERS)
    copies["n1"].put(0, k1="before", k2=None)
    copies.run()
    copies["n2"].checkpoint()
    copies.leaves("n1")
    copies.map(("n2",), ("n2",), promote=True)
    copies.run()
    copies["n2"].put(0, k3="after")
    copies.run()
    copies["n2"].trim()
    copies.returns("n3")
    copies.map(("n2", "n3"), ("n2",))
    copies.whole()
    copies.judge()
    assert kind_of(copies) == Kind.MUTATIONS
    assert copies["n3"].demander.progress.rows == {"mutations": 3}


def test_a_node_that_started_again_remembers_nothing() -> None:
    copies = away(settings=REMEMBERS)
    copies["n1"].put(0, k1="changed")
    copies.run()
    copies.leaves("n1")
    copies.map(("n2",), ("n2",), promote=True)
    copies.run()
    copies.returns("n1")
    copies.map(("n2", "n1"), ("n2",))
    copies.whole()
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.DIFFERENTIAL


def test_a_copy_that_stands_where_the_others_no_longer_know_is_compared() -> None:
    """A disk that was set back: it was away for longer than they remember."""
    copies = Copies("n1", "n2", "n3", settings=REMEMBERS)
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"), promote=True)
    copies.run()
    for at in range(60):
        copies["n1"].put(0, **{f"k{at}": "v" * 100})
    copies.run()
    old = list(copies["n3"].records)
    copies["n1"].put(0, k1="not on the old disk")
    copies.wait()
    copies["n1"].checkpoint()
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies["n1"].put(0, k2="changed")
    copies["n3"].records[:] = old
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.DIFFERENTIAL


def test_too_many_are_forgotten_and_the_rows_compared() -> None:
    few = Settings(supply_batch_bytes=1_000, mutations_bytes=10 * KEY_WEIGHS)
    copies = away(rows=300, settings=few)
    for at in range(20):
        copies["n1"].put(0, **{f"k{at}": "changed"})
    copies.run()
    copies["n1"].checkpoint()
    assert copies["n1"].mutations.bytes == 0
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.DIFFERENTIAL


def test_what_is_remembered_goes_when_the_copy_is_whole() -> None:
    copies = away(settings=REMEMBERS)
    copies["n1"].put(0, k1="changed")
    copies.run()
    copies["n1"].checkpoint()
    remembers = copies["n1"].mutations
    assert len(remembers) == 1
    assert remembers.bytes >= KEY_WEIGHS
    back(copies)
    end(copies)
    assert len(remembers) == 0
    assert remembers.bytes == 0


class Bare:
    """As much of a node as is asked where partitions are many: of who is away from which."""

    def __init__(self, partitions: int) -> None:
        self.settings = REMEMBERS
        self.local = [LocalPartition(number, Placement(0, 0, (), ())) for number in range(partitions)]
        self.work = 0
        self.later: list[Callable[[], None]] = []
        self.put_off = self.later.append
        self.topology = SimpleNamespace(members=[], baseline=("n1", "n2", "n3"))

    def map(self, mutations: Mutations, *nodes: str) -> None:
        """These are the members, and in sync in all partitions."""
        self.topology = SimpleNamespace(members=[SimpleNamespace(node=node) for node in nodes], baseline=("n1", "n2", "n3"))
        out = [tuple(n for n in local.placement.in_sync if n not in nodes) for local in self.local]
        for local in self.local:
            placed_at_once(local, Placement(1, 1, nodes, nodes), "n2")
        self.work = 0
        mutations.switch(NewMap(self.local, self.local, [], out))


def test_who_is_away_from_very_many_partitions_is_looked_up_in_pieces() -> None:
    """A map by which a member is lost changes all there are, and its turn has enough to do."""
    node = Bare(2_000)
    mutations = Mutations(cast("Node", node))
    node.map(mutations, "n1", "n2", "n3")
    list(mutations.remember(cast("Above", SimpleNamespace(since={}))))
    for members, remembered in (("n1", "n2"), 2_000), (("n1", "n2", "n3"), 0):
        node.map(mutations, *members)
        assert (node.work, len(mutations)) == (0, 2_000), "what is changed from now on is remembered at once"
        pieces = 0
        while node.later:
            before, pieces = node.work, pieces + 1
            node.later.pop()()
            assert node.work - before <= LOOKED_AT_ONCE // LOOKED_OF_WORK
        assert (pieces, len(mutations)) == (2_000 // LOOKED_AT_ONCE, remembered)


def test_what_was_remembered_of_very_many_fragments_is_forgotten_in_pieces() -> None:
    """The node that remembers is itself no copy any more, of anything: its turn has enough to do."""
    node = Bare(300)
    mutations = Mutations(cast("Node", node))
    node.map(mutations, "n1", "n2", "n3")
    list(mutations.remember(cast("Above", SimpleNamespace(since={}))))
    node.map(mutations, "n1", "n2")
    names = [(f"ns{at}", number) for number in range(300) for at in range(16)]
    rows = {name: {b"k": SimpleNamespace(counter=1)} for name in names}
    list(mutations.remember(cast("Above", SimpleNamespace(since=dict.fromkeys(names, 0), rows=rows, cleared=()))))
    assert mutations.bytes > len(names) * KEY_WEIGHS
    node.later.clear()
    node.map(mutations, "n1")
    weighed, pieces = mutations.bytes, 0
    assert weighed, "nothing is freed yet"
    while node.later:
        before, pieces = node.work, pieces + 1
        node.later.pop()()
        assert node.work - before <= FREED_WORK + 16
    assert (mutations.bytes, len(mutations)) == (0, 0)
    assert pieces > len(names) // (FREED_WORK + 16)


def test_a_history_that_parts_is_undone_first() -> None:
    copies = away(settings=REMEMBERS)
    copies.returns("n3")
    copies.map(("n3", "n1", "n2"), ("n1", "n2", "n3"), promote=True)
    copies.wait()
    copies.trouble = lambda sender, *_: 0 if sender == "n3" else 1
    copies["n3"].put(0, k1="alone", k2=None, only="here")
    copies.run()
    copies["n3"].log(copies["n3"].records[-1])  # it counted there, as it would have if the others had been given up
    copies.trouble = None
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    copies["n1"].put(0, k9="went on")
    back(copies)
    end(copies)
    assert kind_of(copies) == Kind.MUTATIONS
    assert copies["n3"].demander.progress.rows == {"fetched": 3, "mutations": 1}
    assert b"only" not in copies["n3"].rows(0)


def test_a_transfer_that_breaks_off_is_gone_on_with_by_what_differs() -> None:
    copies = away(rows=300, settings=REMEMBERS)
    for at in range(100):
        copies["n1"].put(0, **{f"k{at}": "changed" * 20})
    copies.run()
    copies["n1"].trim()
    copies.returns("n3")
    copies.map(("n1", "n2", "n3"), ("n1", "n2"))
    for _ in range(30):
        copies.step()
    assert copies["n3"].replica.fragment(NAME).loading, "some came"
    copies.leaves("n3")
    copies.map(("n1", "n2"), ("n1", "n2"))
    copies.returns("n3")
    move(copies)
    end(copies)
    assert kind_of(copies) == Kind.DIFFERENTIAL


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_and_whoever_leads_it_ends_the_same(seed: int) -> None:
    """Puts and deletes, checkpoints of either, promotions and trims, while a copy is away and while it catches up."""
    draw = Random(seed)
    copies = away(settings=REMEMBERS)
    leader = "n1"
    for _ in range(draw.randrange(4, 30)):
        match draw.randrange(6):
            case 0:
                copies[draw.choice(["n1", "n2"])].checkpoint()
            case 1:
                copies.wait()
            case 2:
                leader = "n2" if leader == "n1" else "n1"
                copies.map((leader, "n1" if leader == "n2" else "n2"), ("n1", "n2"), promote=True)
                copies.run()
            case _:
                key = f"k{draw.randrange(80)}"
                copies[leader].put(0, **{key: None if draw.random() < 0.4 else f"v{draw.random()}"})
    copies.run()
    copies[leader].trim()
    copies.returns("n3")
    copies.map((leader, "n1" if leader == "n2" else "n2", "n3"), ("n1", "n2"))
    for _ in range(draw.randrange(30)):
        copies.step()
        if draw.random() < 0.3:
            copies[leader].put(0, **{f"k{draw.randrange(80)}": None if draw.random() < 0.4 else "late"})
        if draw.random() < 0.1:
            copies[leader].checkpoint()
    end(copies)
    assert kind_of(copies) in {Kind.MUTATIONS, Kind.FULL, Kind.NOTHING}
    assert not copies[leader].supply.vouching.differed, "what came was found to be the same at once"


# The chooser.

UPDATES = 1_000


def _chosen(*, missing: int, rows: int, row_bytes: int, reach: int, changed: int | None) -> Choice:
    joiner = Have("ns", 0, UPDATES, UPDATES, [], [(1, 1)], [])
    total = UPDATES + missing
    supplier = Have("ns", 0, total, total, [], [(1, 1)], [])
    return choose(
        joiner, supplier, reach, lambda _: rows, amount=lambda: Amount(rows, row_bytes), changed=lambda _: changed
    )


@pytest.mark.parametrize("row_bytes", [40, 140, 10_000])
@pytest.mark.parametrize("reach", [0, UPDATES, UPDATES + 1])
@pytest.mark.parametrize("rows", [1, 10, 300, 5_000, 100_000])
def test_no_other_sound_way_would_have_moved_less(rows: int, reach: int, row_bytes: int) -> None:
    for missing in (1, 9, 10, 11, 299, 3_000, 70_000, 400_000):
        for changed in (None, 1, min(8, missing), -(-missing // 3), missing):
            amount = Amount(rows, row_bytes)
            costs = {Kind.FULL: amount.in_full, Kind.DIFFERENTIAL: amount.by_leaves(missing)}
            if reach <= UPDATES:
                costs[Kind.HISTORICAL] = missing * row_bytes
            if changed is not None:
                costs[Kind.MUTATIONS] = changed * row_bytes
            chosen = _chosen(missing=missing, rows=rows, row_bytes=row_bytes, reach=reach, changed=changed).kind
            assert costs[chosen] == min(costs.values()), (missing, changed, chosen, costs)
