"""The map of a full exchange, told as what it changes: whoever has the map before it comes to the same one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalance.differing import AT_ONCE, differing, is_short, makes_a_map
from rebalance.plan import first_topology
from rebalance.ports import all_of
from rebalance.steps import Step, decode_step, encode_step, fits, rebuilt, stepped
from rebalance.table import Candidate, Group, Placement, Topology, encode, hash_of
from wal.ids import Version

CANDIDATES = [Candidate(n, f"disk of {n}", 1, f"{n}:1", "") for n in ("n1", "n2", "n3", "n4")]


def _first(partitions: int = 16) -> Topology:
    return first_topology("c", "test", partitions, 1, CANDIDATES)


def _without_n4(old: Topology, moved: list[int]) -> Topology:
    """A map without n4, in which other partitions have changed, too."""
    placements = list(old.placements)
    for number, placed in enumerate(placements):
        stay = tuple(n for n in placed.owners if n != "n4")
        if number in moved or stay != placed.owners:
            placements[number] = Placement(placed.version + 1, placed.epoch + 1, stay, stay)
    members = tuple(m for m in old.members if m.node != "n4")
    version = Version(old.version.major + 1, 0)
    return msgspec.structs.replace(old, version=version, members=members, placements=tuple(placements))


def _told(old: Topology, new: Topology) -> Step:
    return decode_step(encode_step(all_of(differing(old, hash_of(encode(old)), new))))


@given(st.lists(st.integers(0, 15), unique=True), st.booleans())
def test_it_makes_the_very_map_of_the_one_before_it(moved: list[int], group: bool) -> None:
    old = _first()
    new = _without_n4(old, moved)
    if group:  # its partitions come behind those that are there
        more = tuple(Placement(1, 1, ("n1",), ("n1",)) for _ in range(16))
        new = msgspec.structs.replace(new, placements=(*new.placements, *more), groups=(Group(1), Group(0)))
    step, old_hash = _told(old, new), hash_of(encode(old))
    assert makes_a_map(old, old_hash, step)
    assert step.version == new.version
    assert encode(stepped(old, step)) == encode(new)
    assert rebuilt(encode(old), [(encode_step(step), hash_of(encode(new)))]) == encode(new)


def test_it_says_of_partitions_only_what_is_different() -> None:
    old = _first(4_096)
    new = _without_n4(old, [])
    step = _told(old, new)
    assert [number for number, _ in step.placements] == [
        number for number, placed in enumerate(old.placements) if "n4" in placed.owners
    ]
    assert len(encode_step(_told(old, msgspec.structs.replace(old, version=new.version)))) < 1_000 < len(encode(new)) / 50


def test_what_changes_most_is_told_as_a_whole() -> None:
    old = _first()
    step = _told(old, _without_n4(old, []))
    assert len(step.placements) == 8
    assert not is_short(step, old)
    assert is_short(msgspec.structs.replace(step, placements=step.placements[:4]), old)


def test_it_is_found_in_pieces() -> None:
    old = _first(4 * AT_ONCE)
    assert len(list(differing(old, 1, _without_n4(old, [])))) == 4


def test_it_is_no_light_step_and_nothing_else_makes_a_map() -> None:
    old = _first()
    old_hash = hash_of(encode(old))
    step = _told(old, _without_n4(old, [1]))
    assert step.rest is not None
    replaced = msgspec.structs.replace
    assert not fits(old, old_hash, step)
    assert not fits(old, old_hash, replaced(step, placements=[]))
    assert makes_a_map(old, old_hash, step)
    for other in (
        replaced(step, map_hash=old_hash + 1),
        replaced(step, after=Version(0, 1)),
        replaced(step, rest=None),
        replaced(step, rest=replaced(step.rest, version=old.version)),
        replaced(step, rest=replaced(step.rest, placements=old.placements)),
        replaced(step, rest=replaced(step.rest, partitions=1 << 60)),
        replaced(step, rest=replaced(step.rest, partitions=8)),
        replaced(step, placements=[*step.placements, (16, old.placements[0])]),
        replaced(step, placements=[*step.placements, (1 << 60, old.placements[0])]),
        replaced(step, placements=step.placements[::-1]),
        replaced(step, placements=[step.placements[0], *step.placements]),
    ):
        assert not makes_a_map(old, old_hash, other), other


def test_partitions_never_go() -> None:
    with pytest.raises(AssertionError, match="partitions come"):
        all_of(differing(_first(32), 1, _first()))
