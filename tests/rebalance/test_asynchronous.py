"""Asynchronous copies: the map says where they are, they get every write, and they find what they lack by themselves."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from rebalance.affinity import assign
from rebalance.choice import Kind
from rebalance.ideal import ideal_of, places_of
from rebalance.lives import Life
from rebalance.messages import Demand, SingleMap, Stands
from rebalance.partition import Role
from rebalance.plan import Change, first_topology, next_topology
from rebalance.steps import light_step, stepped
from rebalance.supplier import OVER_AFTER_MS
from rebalance.table import Candidate, Group, Placement, Standing, Topology, decode, encode
from tests.rebalance.copies import Batch, Copies, Said, Settings, name_of
from wal.ids import Ballot, NodeId, Version

NODES = [Candidate(f"n{n}", f"disk-{n}", 1, f"h:{n}", "") for n in range(1, 6)]
NAME = name_of(0)


# Where they are.


def formed(*, backups: int = 1, asynchronous: int = 1, partitions: int = 32) -> Topology:
    """A map of five nodes."""
    topology = first_topology("c1", "test", partitions, backups, NODES, async_backups=asynchronous)
    topology.check()
    return topology


def followed(old: Topology, here: list[NodeId], *vouched: tuple[int, NodeId]) -> Topology:
    """The map of a full exchange between these nodes, some copies of which their primaries vouch for."""
    singles = {
        node: SingleMap(
            old.version,
            Ballot(1, "n1"),
            Life(f"disk-{node[1:]}", 1, 0),
            [],
            [],
            [(number, copy) for number, copy in vouched if old.placements[number].primary == node],
        )
        for node in here
    }
    change = Change(
        candidates=[c for c in NODES if c.node in here],
        singles=singles,
        handover=[],
        baseline=old.baseline,
        voted=dict.fromkeys(here, 1),
    )
    topology = next_topology(old, change).topology
    topology.check()
    assert decode(encode(topology)) == topology
    return topology


@pytest.mark.parametrize("backups", [0, 1, 2])
@pytest.mark.parametrize("asynchronous", [0, 1, 2])
def test_they_come_behind_the_owners_who_are_the_same_without_them(backups: int, asynchronous: int) -> None:
    topology = formed(backups=backups, asynchronous=asynchronous)
    without = formed(backups=backups, asynchronous=0)
    for placement, other in zip(topology.placements, without.placements, strict=True):
        assert (placement.owners, placement.in_sync) == (other.owners, other.in_sync)
        assert len(placement.asynchronous) == asynchronous
        assert {placement.standing_of(node) for node in placement.asynchronous} <= {Standing.ASYNC}
    places = places_of(topology, assign)
    assert [tuple(p.owners) + p.asynchronous for p in topology.placements] == [tuple(nodes) for nodes in places]
    assert ideal_of(topology, assign) == tuple(p.owners for p in topology.placements)


def test_one_steps_in_for_an_owner_that_is_away_is_made_whole_and_steps_back() -> None:
    first = formed()
    everybody = [c.node for c in NODES]
    gone = first.placements[0].owners[1]
    here = [n for n in everybody if n != gone]
    without = followed(first, here)
    for before, after in zip(first.placements, without.placements, strict=True):
        if gone not in before.owners:
            continue
        stays = next(n for n in before.owners if n != gone)
        assert after.in_sync == (stays,), "who had all of it goes on alone"
        assert after.owners == (stays, *before.asynchronous), "and who was asynchronous is to have all"
        assert after.standing_of(before.asynchronous[0]) is Standing.MOVING
        assert not after.asynchronous
    vouched = {n: {p.owners[1]: p.owners[0]} for n, p in enumerate(without.placements) if len(p.owners) > len(p.in_sync)}
    step = light_step(without, 7, {n: {k: v for k, v in some.items() if v is not None} for n, some in vouched.items()}, [])
    assert step is not None
    whole = stepped(without, step)
    assert all(len(p.in_sync) == 2 for p in whole.placements)
    back = followed(whole, everybody)
    for before, after in zip(first.placements, back.placements, strict=True):
        assert set(after.copies) == set(before.copies)
        if gone == before.owners[1]:
            assert after.in_sync == (before.owners[0], before.asynchronous[0]), "it stays until the other one is whole"
            assert after.standing_of(gone) is Standing.MOVING
    again = [(n, gone) for n, p in enumerate(back.placements) if p.standing_of(gone) is Standing.MOVING]
    last = followed(back, everybody, *again)
    for before, after in zip(first.placements, last.placements, strict=True):
        assert sorted(after.in_sync) == sorted(before.in_sync)
        assert after.asynchronous == before.asynchronous


def test_a_group_that_comes_has_asynchronous_copies_of_its_own() -> None:
    first = formed(backups=1, asynchronous=0)
    change = Change(
        candidates=[c for c in NODES if c.node != "n5"],
        singles={},
        handover=[],
        baseline=first.baseline,
        groups=(Group(0, 2),),
    )
    topology = next_topology(first, change).topology
    for number in range(first.partitions):
        placed, ideal = (
            topology.placements[first.partitions + number],
            places_of(topology, assign)[first.partitions + number],
        )
        here = [node for node in ideal if node != "n5"]
        assert placed.owners == placed.in_sync == tuple(here[:1])
        assert placed.asynchronous == tuple(here[1:])


def test_nobody_but_who_was_in_sync_is_ever_primary() -> None:
    """Whoever dies, in whatever order: an asynchronous copy leads only after a map in which it was in sync."""
    for seed in range(30):
        draw = Random(seed)
        topology, here = formed(asynchronous=2), [c.node for c in NODES]
        for _ in range(6):
            if len(here) > 3 and draw.random() < 0.6:
                here.remove(draw.choice(here))
            elif missing := [c.node for c in NODES if c.node not in here]:
                here.append(draw.choice(missing))
            moving = [
                (number, node)
                for number, p in enumerate(topology.placements)
                for node in p.owners
                if node not in p.in_sync and not p.lost and draw.random() < 0.5
            ]
            after = followed(topology, sorted(here), *moving)
            for number, (old, new) in enumerate(zip(topology.placements, after.placements, strict=True)):
                whole = {*old.in_sync, *(node for n, node in moving if n == number)}
                assert set(new.in_sync) <= whole, f"seed {seed}"
            topology = after


# What they get.


def three(*, settings: Settings | None = None) -> Copies:
    """n1 leads, n2 is in sync, n3 is asynchronous."""
    copies = Copies("n1", "n2", "n3", settings=settings or Settings(supply_batch_bytes=1_000))
    copies.placements = [Placement(2, 2, ("n1", "n2"), ("n1", "n2"), asynchronous=("n3",))]
    copies.commit()
    copies.run()
    copies.wait(3)
    return copies


def put(copies: Copies, count: int, *, begin: int = 0) -> None:
    for at in range(begin, begin + count):
        copies["n1"].put(0, **{f"k{at}": f"v{at}"})
    copies.run()


def equal(copies: Copies) -> bool:
    mine, theirs = (copies[node].replica.fragment(NAME) for node in ("n1", "n3"))
    same = (mine.counter.lwm, mine.digest) == (theirs.counter.lwm, theirs.digest)
    return same and copies["n1"].rows(0) == copies["n3"].rows(0)


def free(copies: Copies) -> bool:
    """Nobody holds anything for anybody."""
    return not any(
        copy.supply._sessions or copy.demander._sessions or copy.demander.behind for copy in copies.copies.values()
    )


def no_batches_to_n3(_sender: NodeId, to: NodeId, said: Said) -> int:
    return 0 if isinstance(said, Batch) and to == "n3" else 1


def test_it_gets_every_write_and_nobody_waits_for_it() -> None:
    copies = three()
    assert copies["n3"].local[0].role is Role.ASYNC
    put(copies, 5)
    assert equal(copies)
    copies.trouble = no_batches_to_n3
    put(copies, 5, begin=5)
    assert copies["n1"].replica.fragment(NAME).counter.lwm == 10, "they count without it"
    assert copies["n3"].replica.fragment(NAME).counter.lwm == 5
    copies.trouble = None
    copies.wait(2)
    assert equal(copies)
    assert not copies["n1"].supply.vouching.vouched, "nobody vouches for it"


def forgets(copies: Copies) -> None:
    """What was said and not answered is said no more: there was no room for it."""
    copies["n1"].shipping._sent = {}


def test_what_was_lost_is_found_in_the_second_round_and_asked_for_together() -> None:
    copies = three()
    put(copies, 5)
    copies.trouble = no_batches_to_n3
    put(copies, 5, begin=5)
    forgets(copies)
    copies.trouble = None
    put(copies, 3, begin=10)  # these come, beyond a gap
    assert copies["n3"].replica.fragment(NAME).counter.ranges
    copies.said.clear()
    copies.round()
    assert "Demand" not in copies.said, "what it lacks may be under way"
    copies.round()
    assert equal(copies)
    assert copies.said.count("Demand") == 1
    assert copies["n3"].demander.progress.kinds[NAME] == Kind.HISTORICAL
    assert copies["n3"].demander.progress.updates == {"historical": 5}
    copies.round(2)
    assert copies.said.count("Demand") == 1
    copies.wait(OVER_AFTER_MS // copies.settings.retransmit_ms + 2)
    assert free(copies)


def test_a_digest_that_differs_is_found_at_once() -> None:
    copies = three()
    put(copies, 5)
    fragment = copies["n3"].replica.fragment(NAME)
    fragment.digest ^= 1
    *before, (end, _, write) = list(fragment.unstable)
    fragment.unstable = [*before, (end, fragment.digest, write)]
    copies.round()
    assert copies["n3"].demander.progress.kinds[NAME] == Kind.FULL
    assert equal(copies)


def test_the_last_answer_of_a_session_is_lost_and_nothing_is_kept_for_it() -> None:
    copies = three()
    put(copies, 5)
    copies.trouble = no_batches_to_n3
    put(copies, 5, begin=5)
    forgets(copies)
    copies.trouble = lambda sender, *_: 0 if sender == "n3" and "Supply" in copies.said else 1
    copies.said.clear()
    copies.round(2)
    copies.trouble = None
    assert not free(copies)
    copies.wait(OVER_AFTER_MS // copies.settings.retransmit_ms + 2)
    assert free(copies)


def test_it_is_made_whole_by_nothing_when_it_is_to_be_in_sync() -> None:
    copies = three()
    put(copies, 5)
    copies.leaves("n2")
    copies.map(("n1", "n3"), ("n1",))
    assert copies["n3"].local[0].role is Role.MOVING
    copies.whole()
    copies.judge()
    assert copies["n3"].demander.progress.kinds[NAME] == Kind.NOTHING
    assert "n3" in copies.placements[0].in_sync


def test_another_primary_supplies_it_in_its_own_epoch() -> None:
    copies = three()
    put(copies, 5)
    copies.trouble = no_batches_to_n3
    put(copies, 5, begin=5)
    copies.trouble = None
    copies.leaves("n1")
    copies.placements = [Placement(3, 3, ("n2",), ("n2",), asynchronous=("n3",))]
    copies.commit()
    copies.run()
    copies["n2"].put(0, k1="after")
    copies.run()
    copies.wait(5)
    mine, theirs = (copies[node].replica.fragment(NAME) for node in ("n2", "n3"))
    assert (mine.counter.lwm, mine.digest, mine.history) == (theirs.counter.lwm, theirs.digest, theirs.history)
    assert copies["n2"].rows(0) == copies["n3"].rows(0)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_lost_it_ends_equal(seed: int) -> None:
    draw = Random(seed)
    copies = three(settings=Settings(supply_batch_bytes=300))
    lost = draw.choice([0.3, 0.65, 0.95])
    for at in range(40):
        copies.trouble = lambda _sender, to, said: (
            0 if to == "n3" and isinstance(said, Batch) and draw.random() < lost else 1
        )
        copies["n1"].put(0, **{f"k{draw.randrange(30)}": None if draw.random() < 0.3 else f"v{at}"})
        copies.run()
        if draw.random() < 0.2:
            forgets(copies)
        if draw.random() < 0.1:
            copies.round()
        if draw.random() < 0.1:
            copies["n1"].checkpoint()
    copies.trouble = None
    copies.round(3)
    copies.wait(OVER_AFTER_MS // copies.settings.retransmit_ms + 2)
    assert equal(copies)
    assert free(copies)


def test_what_others_say_of_copies_that_are_not_here_means_nothing() -> None:
    copies = three()
    put(copies, 2)
    stands = Stands(copies["n3"].fence, [("acc", 7, 9, 9), ("acc", -1, 9, 9), ("other", 0, 0, 0), ("acc", 0, 99, 0)])
    copies["n3"].entropy.on("n2", stands)
    copies["n3"].entropy.on("n1", msgspec.structs.replace(stands, version=Version(9, 9)))
    copies["n2"].entropy.on("n1", stands)
    copies.run()
    assert not any(isinstance(said, Demand) for _, _, said in copies.wire)
    assert not copies["n3"].entropy.following.lags
