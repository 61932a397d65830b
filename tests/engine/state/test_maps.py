"""Maps as the log says them: whole, or as what steps change; and what a replay makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from engine.state.maps import Maps
from rebalance.plan import first_topology
from rebalance.steps import Step, encode_step, light_step, stepped
from rebalance.table import Candidate, Topology, encode, hash_of
from wal import records as r
from wal.ids import NO_BALLOT, Ballot, Version

NODES = ("n1", "n2", "n3")
BALLOT = Ballot(2, "n1")


def moving(partitions: int = 32) -> Topology:
    """A map in which n3 has yet to become whole everywhere."""
    first = first_topology("c", "test", partitions, 2, [Candidate(n, f"disk-{n}", 1, f"{n}:1", "") for n in NODES])
    placements = tuple(
        msgspec.structs.replace(p, owners=("n1", "n2", "n3"), in_sync=("n1", "n2")) for p in first.placements
    )
    return msgspec.structs.replace(first, placements=placements)


def steps_from(topology: Topology) -> list[tuple[Step, Topology]]:
    """One step for each partition, in which n3 is whole then; and what comes of each."""
    found = list[tuple[Step, Topology]]()
    for number in range(topology.partitions):
        step = light_step(topology, hash_of(encode(topology)), {number: {"n3": "n1"}}, ())
        assert step is not None
        topology = stepped(topology, step)
        found.append((step, topology))
    return found


def committed(step: Step, makes: Topology) -> r.Committed:
    return r.Committed(makes.version, b"", encode_step(step), hash_of(encode(makes)))


def folded(records: Sequence[r.Committed | r.Accepted]) -> Maps:
    maps = Maps()
    for record in records:
        maps.commit(record) if isinstance(record, r.Committed) else maps.accept(record)
    return maps


def test_a_map_that_came_by_steps_is_rebuilt_to_the_byte_and_a_step_is_a_small_record() -> None:
    first = moving(512)
    steps = steps_from(first)[:9]
    log = [r.Committed(first.version, encode(first)), *(committed(*step) for step in steps)]
    for length, (_, topology) in enumerate(steps, 2):
        assert folded(log[:length]).committed == (topology.version, encode(topology))
    sizes = [len(msgspec.msgpack.encode(record)) for record in log]
    assert max(sizes[1:]) < sizes[0] / 50


def test_a_map_that_is_known_is_not_worked_out_and_the_next_step_follows_it() -> None:
    first = moving()
    (one, after_one), (two, after_two), *_ = steps_from(first)
    maps = folded([r.Committed(first.version, encode(first)), committed(one, after_one)])
    maps.know(after_one.version, encode(after_one))
    maps.commit(committed(two, after_two))
    assert maps.committed == (after_two.version, encode(after_two))
    maps.commit(committed(one, after_one))
    assert maps.version == after_two.version, "an older one changes nothing"


def test_a_step_that_was_accepted_is_the_map_that_comes_of_it_until_another_is_committed() -> None:
    first = moving()
    (one, after_one), (two, after_two), *_ = steps_from(first)
    accepted = r.Accepted(first.version, BALLOT, b"", encode_step(one), hash_of(encode(after_one)))
    maps = folded([r.Committed(first.version, encode(first)), accepted])
    assert maps.has_accepted(BALLOT, encode_step(one))
    assert not maps.has_accepted(Ballot(3, "n1"), encode_step(one))
    assert maps.accepted == (first.version, BALLOT, encode(after_one))
    assert maps.step_accepted(accepted.map_hash) == accepted.step
    assert not maps.step_accepted(accepted.map_hash + 1), "another map is committed instead"
    maps = folded(
        [r.Committed(first.version, encode(first)), accepted, committed(one, after_one), committed(two, after_two)]
    )
    assert maps.accepted == (first.version, BALLOT, b""), "what it was accepted after is over"
    assert not maps.step_accepted(accepted.map_hash)
    maps.know_accepted(encode_step(one), encode(after_one))
    assert maps.accepted == (first.version, BALLOT, b""), "whoever knew it says the same as a replay"
    whole = r.Accepted(first.version, BALLOT, encode(after_one))
    maps = folded([r.Committed(first.version, encode(first)), whole, committed(one, after_one), committed(two, after_two)])
    assert maps.accepted == (first.version, BALLOT, b""), "and so does one that had it whole, from a checkpoint"
    assert maps.committed == (after_two.version, encode(after_two))


def test_a_checkpoint_has_the_whole_map_and_steps_go_on_from_it() -> None:
    first = moving()
    (one, after_one), (two, after_two), *_ = steps_from(first)
    before = folded([r.Committed(first.version, encode(first)), committed(one, after_one)])
    after = Maps()
    after.load(before.committed, before.accepted)
    after.commit(committed(two, after_two))
    assert after.committed == (after_two.version, encode(after_two))
    assert after.accepted == (Version(0, 0), NO_BALLOT, b"")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_log_that_lacks_a_step_is_not_taken_for_another_map(lost: int) -> None:
    first = moving()
    (one, after_one), (two, after_two), *_ = steps_from(first)
    log = [r.Committed(first.version, encode(first)), committed(one, after_one), committed(two, after_two)]
    if lost == 0:
        log[0] = r.Committed(first.version, encode(msgspec.structs.replace(first, name="another")))
    elif lost == 1:
        del log[1]
    else:
        log[2] = msgspec.structs.replace(log[2], map_hash=7)
    with pytest.raises(ValueError, match=r"a step after|do not make"):
        _ = folded(log).committed
