"""Asynchronous copies that were filled with a row that had rotted: they have what was written to them, and it is wrong."""

from __future__ import annotations

import msgspec
import pytest

from rebalance.choice import Kind
from rebalance.entropy import FRAGMENTS_A_TICK, TICKS
from rebalance.following import READ_AT_ONCE, UNASKED
from rebalance.messages import AskProofs, Contents, CopyProof, Demand, Proofs
from rebalance.ports import WORK_MAX
from rebalance.table import Placement
from tests.rebalance.copies import Batch, Copies, Said, Settings, name_of
from wal.ids import NodeId, Version

NAME = name_of(0)
ROWS = 40


def four(in_sync: tuple[NodeId, ...] = ("n1", "n2"), *, partitions: int = 1, rows: int = ROWS) -> Copies:
    """n1 leads, n4 is asynchronous; all rows are in a checkpoint on each of them."""
    copies = Copies(*in_sync, "n4", partitions=partitions, settings=Settings(supply_batch_bytes=1_000))
    copies.placements = [Placement(2, 2, in_sync, in_sync, asynchronous=("n4",)) for _ in range(partitions)]
    copies.backups = len(in_sync) - 1
    copies.commit()
    copies.run()
    copies.wait(3)
    for number in range(partitions):
        for at in range(rows):
            copies["n1"].put(number, **{f"k{at}": "v" * 100})
    copies.run()
    for copy in copies.copies.values():
        copy.checkpoint()
    return copies


def handed_on(copies: Copies, value: str | None = None) -> None:
    """A row of n1 rots, and n4 takes everything anew from there."""
    copies["n1"].rot(0, "k7", value)
    assert not copies["n4"].anew.order([NAME])
    copies.wait(3)
    assert not copies["n4"].replica.fragment(NAME).loading
    assert copies["n4"].rows(0) == copies["n1"].rows(0)
    copies["n4"].checkpoint()


def n1_is_healed(copies: Copies) -> None:
    """By n2, which leads meanwhile; and leads again."""
    for _ in range(3):
        copies.round()
        if copies["n1"].anew.wanted:
            break
    copies["n1"].anew.told()
    for in_sync, epoch in ((("n2",), 3), (("n1", "n2"), 4)):
        owners = ("n2", "n1") if epoch == 3 else in_sync
        copies.placements = [Placement(epoch, epoch, owners, in_sync, asynchronous=("n4",))]
        copies.commit()
        copies.run()
        copies.wait(10)
    assert b"k7" in copies["n1"].rows(0)


def is_right(copies: Copies) -> bool:
    return copies["n4"].rows(0) == copies["n1"].rows(0)


def quiet(copies: Copies) -> None:
    """Nobody waits for anything, nor keeps anything for anybody."""
    for copy in copies.copies.values():
        entropy = copy.entropy
        assert (entropy.suspected, entropy._trials, len(entropy.proving)) == ({}, {}, 0)
        assert (entropy.proving.proven, entropy.proving.disproved) == ({}, {})
        assert copy.anew.as_object() == {"wanted": [], "loading": [], "kept": []}


@pytest.mark.parametrize("value", [None, "forged"])
def test_the_rows_that_differ_come_once_its_primary_has_proven_its_own(value: str | None) -> None:
    copies = four()
    handed_on(copies, value)
    n1_is_healed(copies)
    assert not is_right(copies)
    copies.round(3)
    copies.wait(3)
    assert is_right(copies)
    progress = copies["n4"].demander.progress
    assert progress.kinds[NAME] == Kind.DIFFERENTIAL
    assert 1 <= progress.rows["differential"] <= ROWS // 4
    assert any("n1 has other rows of acc/0, and proves them" in note for note in copies["n4"].notes)
    copies.said.clear()
    copies.round(2)
    assert "Demand" not in copies.said
    quiet(copies)


def test_a_primary_whose_rows_are_wrong_is_not_followed_again_and_again() -> None:
    """It is alone, so that nobody heals it."""
    copies = four(("n1",))
    handed_on(copies)
    copies.said.clear()
    copies.round(6)
    assert "Demand" not in copies.said
    assert not any("proves them" in note for note in copies["n4"].notes)
    assert len(copies["n1"].entropy.proving) == 0


def test_nothing_is_touched_while_nobody_can_say_who_of_those_in_sync_is_right() -> None:
    copies = four(("n1", "n2", "n3"))
    for node in ("n2", "n3", "n4"):
        copies[node].spoil(0, "k7", "theirs")
    copies.said.clear()
    copies.round(6)
    assert copies["n1"].entropy.undecided
    assert "Demand" not in copies.said
    assert copies["n4"].rows(0)[b"k7"][2] == b"theirs"
    for node in ("n2", "n3"):
        copies[node].spoil(0, "k7", "v" * 100)
    copies.round(4)
    copies.wait(3)
    assert is_right(copies)
    quiet(copies)


@pytest.mark.parametrize("lost", [Proofs, AskProofs])
def test_what_is_lost_of_the_conversation_is_said_again(lost: type[Said]) -> None:
    copies = four()
    copies["n4"].spoil(0, "k7", "nobody wrote this")
    copies.trouble = lambda sender, to, said: 0 if isinstance(said, lost) and "n4" in (sender, to) else 1
    copies.round(4)
    assert not is_right(copies)
    copies.trouble = None
    copies.round(3)
    copies.wait(3)
    assert is_right(copies)
    quiet(copies)


def test_nobody_waits_for_it_to_find_out_about_others() -> None:
    copies = four(("n1", "n2", "n3"))
    copies.trouble = lambda sender, *_: 0 if sender == "n4" else 1
    copies["n3"].spoil(0, "k7", "nobody wrote this")
    copies.round(3)
    assert copies["n3"].anew.wanted == {NAME: False}


def test_where_they_are_equal_nothing_is_asked() -> None:
    copies = four()
    copies.said.clear()
    copies.round()
    assert copies.said.count("Proofs") == 2, "what n2 answers, and what n4 is shown"
    assert copies.said.count("AskProofs") == 1
    quiet(copies)


def test_what_is_on_its_way_is_no_difference() -> None:
    copies = four()
    copies.trouble = lambda _sender, to, said: 0 if isinstance(said, Batch) and to == "n4" else 1
    copies["n1"].put(0, k7="on its way")
    copies.run()
    copies.said.clear()
    copies.round()
    assert copies.said.count("AskProofs") == 1, "that to n2"
    assert "Demand" not in copies.said


def test_of_very_many_that_differ_some_are_read_at_a_time() -> None:
    copies = four(rows=2)
    asker, here = copies["n4"], "n1"
    shown = [Contents(f"ns{at}", 0, [], 1, 0) for at in range(3 * READ_AT_ONCE)]
    for each in shown:
        asker.replica.ensure_fragment((each.namespace, 0))
    asker.entropy.on(here, Proofs(asker.fence, UNASKED, [CopyProof(0, shown, [], [])]))
    while asker.go_on():
        pass
    asked = [said for _, _, said in copies.wire if isinstance(said, AskProofs)]
    assert [(each.partitions, len(each.read)) for each in asked] == [([], READ_AT_ONCE)]


def test_what_others_show_of_copies_that_are_not_here_means_nothing() -> None:
    copies = four()
    copies["n4"].spoil(0, "k7", "nobody wrote this")
    contents = [Contents(NAME[0], copies["n1"].replica.fragment(NAME).counter.lwm, [], 1, 0)]
    shown = Proofs(copies["n4"].fence, UNASKED, [CopyProof(at, contents, [NAME[0]], []) for at in (7, -1, 99)])
    mine = msgspec.structs.replace(shown, copies=[CopyProof(0, contents, [NAME[0]], [])])
    copies["n4"].entropy.on("n1", shown)
    copies["n4"].entropy.on("n2", mine)  # which does not lead
    copies["n2"].entropy.on("n1", mine)  # whose copy is in sync
    copies["n4"].entropy.on("n1", msgspec.structs.replace(mine, version=Version(9, 9)))
    copies.run()
    assert not any(isinstance(said, AskProofs | Demand) for _, _, said in copies.wire)
    assert not copies["n4"].replica.fragment(NAME).loading


@pytest.mark.parametrize("namespaces", [16, 256])
def test_the_work_of_a_tick_does_not_grow_with_what_there_is(namespaces: int) -> None:
    copies = four(partitions=64, rows=1)
    for copy in copies.copies.values():
        for number in range(64):
            for at in range(namespaces):
                copy.replica.ensure_fragment((f"n{at}", number))
    n1, n4 = copies["n1"], copies["n4"]
    for _ in range(TICKS):
        n1.work = n4.work = 0
        n1.entropy.tick()
        assert n1.work < WORK_MAX
        while n1.go_on():
            assert n1.work < WORK_MAX
        shown = [said for _, to, said in copies.wire if to == "n4" and isinstance(said, Proofs)]
        copies.wire.clear()
        told = sum(len(proof.contents or ()) for each in shown for proof in each.copies)
        assert len(shown) == 1
        assert 0 < told <= FRAGMENTS_A_TICK + namespaces
        n4.entropy.on("n1", shown[0])
        assert n4.work < WORK_MAX
        while n4.go_on():
            assert n4.work < WORK_MAX
