"""Copies that are made under the operator's orders: held back, let go, and so many bytes a second."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rebalance.messages import Demand, Settled, Supply
from rebalance.migrations import NOT_ORDERED, Migrations, Paused
from rebalance.ports import MS
from rebalance.table import Placement
from tests.rebalance.copies import Copies, Said, name_of
from tests.rebalance.test_transfers import WAYS, move, three
from wal.ids import NodeId, Version
from wal.probe import listen

PARTITIONS = 3


def order(copies: Copies, paused: Paused = Paused.NOTHING, limit: int = 0) -> None:
    """The next map says so, and changes nothing else."""
    copies.migrations = Migrations(Version(1, 1), paused, limit)
    copies.commit()


def supplied(copies: Copies) -> list[Supply]:
    """What is supplied from here on, batches that say nothing aside."""
    found: list[Supply] = []

    def look(_sender: NodeId, _to: NodeId, said: Said) -> int:
        if isinstance(said, Supply) and said.batch:
            found.append(said)
        return 1

    copies.trouble = look
    return found


def end(copies: Copies) -> None:
    """Everything comes to rest as if nothing had been ordered."""
    copies.migrations = NOT_ORDERED
    copies.commit()
    copies.whole()
    copies.judge()


def test_a_copy_that_has_said_what_it_contains_passes_over_nothing_when_it_is_paused() -> None:
    """Its primary may vouch for it by that word, which comes late, and not know that it asks for something again."""
    copies = three()
    WAYS["historical"](copies)
    late: list[Settled] = []

    def trouble(sender: str, to: str, said: Said) -> int:
        if sender == "n3" and isinstance(said, Settled):
            late.append(said)
        return 0 if (sender, to) == ("n3", "n1") and isinstance(said, Settled | Demand) and late else 1

    copies.trouble = trouble
    move(copies)
    copies.run()
    copies["n3"].demander.lack([0])
    copies["n3"].demander.settling.forget(0)
    copies.run()
    order(copies, Paused.ALL)
    copies.run()
    assert 0 in copies["n3"].demander.held
    copies["n1"].supply.on("n3", replace(late[0], version=copies["n1"].fence))  # as if a light step had brought the order
    assert (0, "n3") in copies["n1"].supply.vouching.vouched
    assert not copies["n3"].demander.passes_over(0), "it is waited for"
    end(copies)


def test_a_copy_that_has_said_so_to_who_leads_no_more_passes_over_what_comes_when_it_is_paused() -> None:
    """Nobody may believe its word any more: what it took would lie in memory, beyond a gap, for as long as that."""
    copies = three()
    WAYS["historical"](copies)
    copies.trouble = lambda _sender, _to, said: 0 if isinstance(said, Settled) else 1
    move(copies)
    copies.run()
    order(copies, Paused.ALL)
    copies.map(("n2", "n1", "n3"), ("n1", "n2"), promote=True)
    copies.run()
    assert 0 in copies["n3"].demander.held
    assert copies["n3"].demander.passes_over(0)
    copies.trouble = None
    end(copies)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", range(0, 60, 6))
def test_a_transfer_is_paused_anywhere_and_goes_on(way: str, steps: int) -> None:
    copies = three(partitions=PARTITIONS)
    WAYS[way](copies)
    move(copies)
    for _ in range(steps):
        copies.step()
    order(copies, Paused.ALL)
    copies.run()
    moving = supplied(copies)
    copies["n1"].put(0, written="meanwhile")
    copies.wait(20)
    assert not any(batch.rows or batch.writes for batch in moving), "nothing is supplied while it is paused"
    assert not any(copy.cursors for copy in copies.copies.values()), "a pause holds nobody's log"
    demander = copies["n3"].demander
    assert demander.behind >= len(demander.held)
    end(copies)


def test_balancing_waits_and_a_missing_copy_does_not() -> None:
    copies = Copies("n1", "n2", "n3", partitions=2)
    copies.backups = 1
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    copies.run()
    for number in range(2):
        copies["n1"].put(number, a="1", b="2")
    copies.run()
    copies.migrations = Migrations(Version(1, 1), Paused.BALANCE)
    better, short = Placement(3, 2, ("n1", "n2", "n3"), ("n1", "n2")), Placement(3, 2, ("n1", "n3"), ("n1",))
    copies.placements = [better, short]
    copies.commit()
    copies.wait(20)
    vouched = copies["n1"].supply.vouching.vouched
    assert list(vouched) == [(1, "n3")], "the copy that is missing was made, and no other"
    assert len(copies["n3"].demander.held) == 1
    assert not copies["n3"].rows(0)
    copies.leaves("n2")
    copies.placements = [Placement(4, 2, ("n1", "n3"), ("n1",)), Placement(4, 2, ("n1", "n3"), ("n1", "n3"))]
    copies.commit()
    copies.wait(20)
    assert (0, "n3") in copies["n1"].supply.vouching.vouched, "what was balance is a repair by now"
    assert len(copies["n3"].demander.held) == 0


def test_a_copy_that_is_whole_comes_to_count_while_everything_is_paused() -> None:
    copies = three()
    WAYS["historical"](copies)
    move(copies)
    copies.run()
    order(copies, Paused.ALL)
    copies.whole()
    copies.judge()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "nothing"])
def test_a_limit_is_kept_and_every_way_ends_all_the_same(way: str) -> None:
    copies = three(partitions=PARTITIONS)
    WAYS[way](copies)
    order(copies, limit=(limit := 400))
    sent, begun = supplied(copies), copies.now
    heard: list[str] = []
    deaf = listen(heard.append)
    try:
        move(copies)
        for _ in range(200):
            copies.wait(1)
            if len(copies["n1"].supply.vouching.vouched) == PARTITIONS:
                break
    finally:
        deaf()
    took = (copies.now - begun) / (1_000 * MS)
    weighed = sum(batch.size for batch in sent)
    assert weighed > 2 * limit, "there is something to limit"
    assert weighed <= limit * (took + 0.2) + max(batch.size for batch in sent)
    assert "demand.session_timed_out" not in heard, "who waits for a limit says so"
    copies.whole()
    copies.judge()


def test_a_value_that_is_larger_than_a_second_of_the_limit_passes_and_others_have_their_turn() -> None:
    """n2 and n3 are filled at once; n2's only value is owed for ten seconds, and n3 has ten small ones."""
    copies = Copies("n1", "n2", "n3", partitions=2)
    copies.map(("n1",), ("n1",), promote=True)
    copies.run()
    copies["n1"].put(0, large="x" * 2_000)
    for at in range(10):
        copies["n1"].put(1, **{f"k{at}": "v"})
    copies.run()
    copies.migrations = Migrations(Version(1, 1), Paused.NOTHING, 200)
    owners = ("n1", "n2"), ("n1", "n3")
    copies.placements = [
        Placement(p.version + 1, p.epoch, nodes, ("n1",)) for p, nodes in zip(copies.placements, owners, strict=True)
    ]
    found = supplied(copies)
    copies.commit()
    copies.wait(400)
    assert {name for batch in found for name in batch.done} == {name_of(0), name_of(1)}
    assert set(copies["n1"].supply.vouching.vouched) == {(0, "n2"), (1, "n3")}
    copies.whole()
    copies.judge()


@pytest.mark.parametrize("way", WAYS)
def test_beside_clients_time_passes_between_batches_and_every_way_ends_all_the_same(way: str) -> None:
    calm, busy = (_batches_at(way, requests) for requests in (0, 1))
    assert len(set(calm)) == 1, "nobody asks for anything: nobody is waited for"
    assert len(set(busy)) == len(busy), "each at a time of its own"
    assert len(busy) >= {"full": 10, "historical": 3}.get(way, 1)


def _batches_at(way: str, requests: int) -> list[int]:
    """When the batches of a transfer that are any work leave, if so many requests come between two of them."""
    copies = three(partitions=PARTITIONS)
    WAYS[way](copies)
    at, source = dict[tuple[int, int], int](), copies["n1"]
    source.asked += requests

    def look(_sender: NodeId, _to: NodeId, said: Said) -> int:
        if isinstance(said, Supply) and said.batch:
            source.asked += requests
            if said.work:
                at.setdefault((said.session, said.batch), copies.now)  # else it is said again
        return 1

    copies.trouble = look
    move(copies)
    for _ in range(200):
        if len(source.supply.vouching.vouched) == PARTITIONS:
            break
        copies.wait(1)
    copies.whole()
    copies.judge()
    return list(at.values())
