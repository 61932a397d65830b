"""Groups of partitions: each has as many copies as it asks for, and all that is said of a partition is said of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalance.adding import Added
from rebalance.affinity import SLACK_PERCENT, assign
from rebalance.ideal import ideal_for, ideal_of
from rebalance.lives import Life
from rebalance.messages import SingleMap
from rebalance.moves import Kind, better_of, is_short, moves, order_of_work
from rebalance.namespaces import NamespaceSettings, Stands
from rebalance.plan import Change, first_topology, next_topology
from rebalance.steps import Step, decode_step, encode_step, fits, light_step, noting, stepped
from rebalance.table import Candidate, Group, Placement, Topology, decode, encode
from tests.support.maps import a_map, grouped
from wal.ids import Ballot, Version, partition_of

NODES = [Candidate(f"n{n}", f"disk-{n}", 1, f"h:{n}", "") for n in range(1, 6)]
GROUPS = (Group(1), Group(0), Group(3))


def with_groups(partitions: int = 16, groups: tuple[Group, ...] = GROUPS) -> Topology:
    """A map of these groups, every copy where it should be and in sync."""
    first = first_topology("c1", "test", partitions, groups[0].backups, NODES)
    ideal = ideal_for(assign, first.baseline, first.domains, partitions, groups)
    placements = tuple(Placement(1, 1, tuple(owners), tuple(owners)) for owners in ideal)
    topology = msgspec.structs.replace(first, placements=placements, groups=groups)
    topology.check()
    return topology


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), st.sampled_from([1, 4, 64, 256]))
def test_who_asks_for_fewer_copies_is_told_the_same_owners_without_the_last(
    fewer: int, more: int, nodes: int, partitions: int
) -> None:
    names = [f"n{n}" for n in range(nodes)]
    few, many = sorted([fewer, more])
    long = assign(names, {}, partitions, many)
    assert assign(names, {}, partitions, few) == tuple(owners[:few] for owners in long)


@pytest.mark.parametrize("nodes", [3, 5, 10])
def test_the_load_is_bounded_for_every_number_of_copies(nodes: int) -> None:
    names, partitions = [f"n{n}" for n in range(nodes)], 1024
    table = assign(names, {}, partitions, 7)
    for copies in range(1, min(7, nodes)):
        held = Counter(node for owners in table for node in owners[:copies])
        mean = -(-partitions * copies // nodes)
        # At the end of the table there may be nobody left who is below the bound and no owner already.
        assert max(held.values()) <= mean + mean * (SLACK_PERCENT + 2) // 100, copies


def test_a_group_has_partitions_of_its_own_with_the_primaries_of_the_first_one() -> None:
    topology = with_groups()
    assert len(topology.placements) == 3 * topology.partitions
    for number in range(topology.partitions):
        of_groups = [topology.placements[g * topology.partitions + number] for g in range(3)]
        assert [len(p.owners) for p in of_groups] == [2, 1, 4]
        assert len({p.primary for p in of_groups}) == 1
    assert [topology.group_of(n) for n in (0, 15, 16, 47)] == [Group(1), Group(1), Group(0), Group(3)]


def test_a_map_without_groups_has_the_one_that_its_backups_say() -> None:
    topology = first_topology("c1", "test", 16, 2, NODES)
    assert topology.all_groups == (Group(2),)
    assert {topology.copies_of(n) for n in range(16)} == {3}


def test_a_map_that_was_written_before_there_were_groups_is_read() -> None:
    topology = first_topology("c1", "test", 4, 2, NODES)
    fields = msgspec.msgpack.decode(encode(topology))
    older = msgspec.msgpack.encode(fields[: Topology.__struct_fields__.index("groups")])
    assert decode(older) == topology
    assert decode(encode(with_groups(4))) == with_groups(4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": (Group(2), Group(0), Group(3))},  # the first one is not the cluster's
        {"groups": (Group(1), Group(0), Group(0))},  # one of them twice
        {"groups": (Group(1), Group(0))},  # placements of a group that is not there
    ],
)
def test_a_map_whose_groups_do_not_fit_is_nobodys(wrong: dict[str, tuple[Group, ...]]) -> None:
    with pytest.raises(AssertionError):
        msgspec.structs.replace(with_groups(), **wrong).check()


def test_a_group_moves_as_each_of_its_partitions_would_alone() -> None:
    topology = with_groups()
    assert moves(topology, topology.baseline) == []
    assert better_of(topology, topology.baseline).leaders == {}
    fewer = [m.node for m in topology.members if m.node != "n5"]
    copies = Counter(move.partition // topology.partitions for move in moves(topology, fewer) if move.kind is Kind.COPY)
    ideal = ideal_of(topology, assign, fewer)
    expected = Counter(
        number // topology.partitions
        for number, owners in enumerate(ideal)
        for node in owners
        if node not in topology.placements[number].in_sync
    )
    assert copies == expected
    assert set(copies) == {0, 1, 2}


def test_a_member_that_goes_leaves_every_group_short_by_its_own_measure() -> None:
    topology = with_groups()
    stays = [c for c in NODES if c.node != "n5"]
    life = {c.node: Life(c.allocation, 1, 0, []) for c in stays}
    singles = {n: SingleMap(Version(1, 0), Ballot(1, "n1"), life[n], [], [], []) for n in life}
    change = Change(candidates=stays, singles=singles, handover=[], baseline=topology.baseline, map_hash=7)
    after = next_topology(topology, change).topology
    after.check()
    short = [n for n in range(len(after.placements)) if not after.placements[n].lost and is_short(after, n)]
    lost = [n for n, p in enumerate(after.placements) if p.lost]
    held = [n for n, p in enumerate(topology.placements) if "n5" in p.owners]
    assert sorted([*short, *lost]) == held
    assert lost
    assert {n // 16 for n in lost} == {1}  # the group with one copy
    assert order_of_work(after, short) == sorted(short, key=lambda n: (len(after.placements[n].in_sync), n))


def test_a_step_that_says_where_the_keys_of_a_namespace_are_begins_a_fence_and_brings_no_group() -> None:
    old = with_groups()
    settings = NamespaceSettings(ttl_ms=7)
    step = Step(old.version, 7, [], [], namespaces={"acc": settings})
    assert fits(old, 7, step)
    assert stepped(old, step).fence == old.version

    def elsewhere(group: int) -> Iterator[Step]:
        for said in (
            msgspec.structs.replace(settings, group=group),
            msgspec.structs.replace(settings, stands=Stands.MAKING, to=msgspec.structs.replace(settings, group=group)),
        ):
            yield msgspec.structs.replace(step, namespaces={"acc": said})

    there = len(old.all_groups)
    for anew in elsewhere(there - 1):
        assert fits(old, 7, anew)
        assert stepped(old, anew).fence == anew.version
    assert not any(fits(old, 7, anew) for anew in (*elsewhere(there), *elsewhere(-1))), "there is no such group"


def _of_epoch(epoch: int) -> Topology:
    old = first_topology("c1", "test", 16, 1, NODES)
    return msgspec.structs.replace(old, placements=tuple(Placement(3, epoch, p.owners, p.in_sync) for p in old.placements))


MADE = {"acc": NamespaceSettings(stands=Stands.MAKING, to=NamespaceSettings(group=2))}


@pytest.mark.parametrize("away", ["", "n2"])
def test_a_step_places_a_group_as_a_full_exchange_would(away: str) -> None:
    old, groups = _of_epoch(9), [Group(0), Group(2, 1)]
    if away:
        owned = [tuple(n for n in p.owners if n != away) for p in old.placements]
        placed = [Placement(4, 10, owners, owners) for owners in owned]
        members = tuple(m for m in old.members if m.node != away)
        old = msgspec.structs.replace(old, members=members, placements=tuple(placed))
    here = [c for c in NODES if c.node != away]
    life = {c.node: Life(c.allocation, 1, 0, []) for c in here}
    singles = {n: SingleMap(old.version, Ballot(1, "n1"), life[n], [], [], []) for n in life}
    change = Change(
        candidates=here, singles=singles, handover=[], baseline=old.baseline, groups=groups, namespaces=MADE, map_hash=7
    )
    step = light_step(old, 7, {}, [], namespaces=MADE, groups=groups)
    assert step is not None
    assert fits(old, 7, decode_step(encode_step(step)))
    after = stepped(old, step)
    after.check()
    assert after.fence == after.version, "keys are to be elsewhere"
    assert after.groups == (Group(1), Group(0), Group(2, 1))
    assert after.placements[:16] == old.placements
    assert after.placements[16:] == next_topology(old, change).topology.placements[16:]
    assert after.placements[16].epoch == max(p.epoch for p in old.placements)


def test_who_is_about_to_go_or_is_on_a_disk_that_counts_for_nothing_has_no_copy_of_a_group_that_comes() -> None:
    old = _of_epoch(2)
    for now in (
        stepped(old, noting(old, 7, ["n3"], [])),
        msgspec.structs.replace(old, allocations=old.allocations | {"n3": "another"}),
    ):
        step = light_step(now, 7, {}, [], namespaces=MADE, groups=[Group(0), Group(4)])
        assert step is not None
        assert fits(now, 7, step)
        assert not [p for p in stepped(now, step).placements[16:] if "n3" in p.copies]


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": Group(1)},  # it is there
        {"group": Group(6, 1)},
        {"group": Group(-1, 1)},
        {"which": b""},
        {"which": bytes([0, 1]) * 16},  # there is no such way
        {"ways": []},
        {"ways": [Placement(1, 2, ("n1",), ("n1",))]},  # somebody may have heard of that epoch
        {"ways": [Placement(1, 9, ("n1", "n2"), ("n1",))]},
        {"ways": [Placement(1, 9, ("n1", "n1"), ("n1", "n1"))]},
        {"ways": [Placement(1, 9, ("n1",), ("n1",), asynchronous=("n1",))]},
        {"ways": [Placement(1, 9, ("n9",), ("n9",))]},
        {"ways": [Placement(1, 9, (), ())]},
        {"ways": [Placement(1, 9, ("n1",), ("n1",), lost=True)]},
    ],
)
def test_a_peer_may_say_of_a_group_what_cannot_be(wrong: dict[str, Any]) -> None:
    old, new = _of_epoch(9), Added(Group(0), [Placement(1, 9, ("n1",), ("n1",))], bytes(32))
    assert fits(old, 7, Step(old.version, 7, [], [], groups=[new]))
    assert not fits(old, 7, Step(old.version, 7, [], [], groups=[msgspec.structs.replace(new, **wrong)]))
    assert not fits(old, 7, Step(old.version, 7, [], [], groups=[new, new]))


def test_no_more_groups_come_by_a_step_than_a_store_can_name_partitions_of() -> None:
    old = first_topology("c1", "test", 40_000, 0, NODES[:1])
    new = Added(Group(1), [Placement(1, 1, ("n1",), ("n1",))], bytes(80_000))
    assert not fits(old, 7, Step(old.version, 7, [], [], groups=[new]))


def test_a_group_comes_empty_in_the_epoch_of_nobody_and_moves_nothing_of_another() -> None:
    old = first_topology("c1", "test", 16, 1, NODES)
    old = msgspec.structs.replace(old, placements=tuple(Placement(3, 9, p.owners, p.in_sync) for p in old.placements))
    life = {c.node: Life(c.allocation, 1, 0, []) for c in NODES}
    singles = {n: SingleMap(old.version, Ballot(1, "n1"), life[n], [], [], []) for n in life}
    stays = [c for c in NODES if c.node != "n2"]
    change = Change(
        candidates=NODES,
        singles=singles,
        handover=[],
        baseline=old.baseline,
        groups=[Group(0), Group(3)],
        namespaces={"acc": NamespaceSettings(stands=Stands.MAKING, to=NamespaceSettings(group=2))},
        map_hash=7,
    )
    after = next_topology(old, change).topology
    assert after.all_groups == (Group(1), Group(0), Group(3))
    assert after.placements[:16] == old.placements
    ideal = ideal_of(after, assign)
    for number in range(16, 48):
        assert after.placements[number] == Placement(1, 9, tuple(ideal[number]), tuple(ideal[number]))
    assert after.partitions_of("acc") == range(16), "it is made yet"
    here = {c.node: singles[c.node] for c in stays}
    without = next_topology(old, msgspec.structs.replace(change, candidates=stays, singles=here)).topology
    without.check()
    assert all("n2" not in p.owners and p.in_sync for p in without.placements[16:])


def test_keys_of_one_slot_are_in_as_many_partitions_as_there_are_groups() -> None:
    topology = grouped(a_map(64, "n1", "n2", "n3", backups=1), Group(0), Group(2), acc=1, bank=2)
    keys = [b"k%d" % n for n in range(500)]
    for name, first in (("acc", 64), ("bank", 128), ("other", 0)):
        assert topology.partitions_of(name) == range(first, first + 64)
        assert topology.places(name, keys) == [topology.place(name, key) for key in keys]
        assert topology.places(name, keys) == [partition_of(key, 64) + first for key in keys]
    assert topology.place("acc", b"{a}1") - topology.place("bank", b"{a}2") == -64


def test_a_step_costs_what_it_changes_however_many_groups_there_are() -> None:
    alone = a_map(1_024, "n1", "n2", "n3", backups=1)
    many = grouped(alone, *(Group(backups) for backups in (0, 2, 3, 4, 5, 6)))
    assert len(many.placements) == 7 * 1_024
    sizes: list[int] = []
    for topology in (alone, many):
        loading = list(topology.placements)
        lagging = {number: loading[number].owners[1] for number in range(0, 50, 5)}
        for number in lagging:
            placed = loading[number]
            loading[number] = msgspec.structs.replace(placed, in_sync=placed.owners[:1])
        old = msgspec.structs.replace(topology, placements=tuple(loading))
        vouched = {number: {node: loading[number].owners[0]} for number, node in lagging.items()}
        step = light_step(old, 7, vouched, [])
        assert step is not None
        assert [number for number, _ in step.placements] == list(lagging)
        sizes.append(len(msgspec.msgpack.encode(step)))
    assert sizes[0] == sizes[1]
