"""The judgement: what differs is named exactly, and what is merely on its way is not."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.state.store import Entry
from tests.tools.reconcile.replicas import ACC, Said, closed, copy_of, put, tx
from tools.reconcile.compare import compare
from tools.reconcile.copies import Clock, Compared, Copy, Rules
from tools.reconcile.findings import Finding, Kind
from tools.shown import Values
from tools.wal.rows import LogRows
from tools.wal.rows import Rows as LogSaid
from wal import records as r
from wal.ids import Version, partition_of

STILL = Rules()
NOW_MS = 1_000_000
CLOCKS = dict.fromkeys(("n1", "n2", "n3"), Clock(NOW_MS, NOW_MS))
BUSY = Rules(clocks=CLOCKS, grace_ms=10_000)
STORY: list[Said] = [put(0, a="1", b="2"), put(2, c="3"), put(3, a="4", d="5"), put(5, b=None)]


def story(*more: Said) -> list[Said]:
    return [*STORY, *more]


def told(compared: Compared) -> list[tuple[Kind, str | None, list[str]]]:
    return [(f.kind, f.key, f.on) for f in compared.findings]


def three(**different: Copy) -> list[Copy]:
    return [different.get(node) or copy_of(node, STORY) for node in ("n1", "n2", "n3")]


def judged(copies: list[Copy], rules: Rules = STILL, primary: str = "n1") -> Compared:
    return compare(ACC, copies, primary, rules)


def only(compared: Compared) -> Finding:
    assert len(compared.findings) == 1, compared.findings
    return compared.findings[0]


# Rows.


def test_equal_copies_are_equal() -> None:
    compared = judged(three())
    assert told(compared) == []
    assert (compared.keys, compared.cut, compared.unsettled_keys) == (3, 6, 0)


def test_a_key_that_one_copy_lacks_is_missing_there() -> None:
    assert told(judged(three(n2=copy_of("n2", STORY, changed={b"c": None})))) == [(Kind.MISSING_ON, "c", ["n2"])]


def test_a_key_is_missing_also_where_everything_is_settled() -> None:
    whole = story(r.FragmentReady(*ACC, 6, 7, [(1, 1)], True))  # as after a full transfer: base, cut and LWM are one
    copies = {node: copy_of(node, whole) for node in ("n1", "n2")}
    copies["n3"] = copy_of("n3", whole, changed={b"c": None})
    assert {c.view.stable for c in copies.values()} == {6}
    assert told(judged(three(**copies))) == [(Kind.MISSING_ON, "c", ["n3"])]


def test_a_key_that_one_copy_alone_has_is_extra_there() -> None:
    odd = copy_of("n3", STORY, changed={b"x": Entry(1, 2, b"?")})
    assert told(judged(three(n3=odd))) == [(Kind.EXTRA_ON, "x", ["n3"])]


def test_another_value_of_the_same_version_is_a_value_mismatch() -> None:
    odd = copy_of("n2", STORY, changed={b"c": Entry(1, 3, b"X")})
    finding = only(judged(three(n2=odd)))
    assert (finding.kind, finding.key, finding.on) == (Kind.VALUE_MISMATCH, "c", ["n2"])
    assert finding.copies["n1"]["counter"] == 3
    assert "value" not in finding.copies["n1"], "values are hashed unless they are asked for"


def test_another_version_is_a_version_mismatch_whatever_the_value() -> None:
    odd = copy_of("n2", STORY, changed={b"a": Entry(1, 1, b"4")})
    assert told(judged(three(n2=odd))) == [(Kind.VERSION_MISMATCH, "a", ["n2"])]


def test_a_delete_that_one_copy_did_not_get_is_a_tombstone_mismatch() -> None:
    odd = copy_of("n2", STORY, changed={b"b": Entry(1, 2, b"2")})
    assert told(judged(three(n2=odd))) == [(Kind.TOMBSTONE_MISMATCH, "b", ["n2"])]


def test_a_delete_that_one_copy_alone_has_is_a_tombstone_mismatch() -> None:
    odd = copy_of("n2", STORY, changed={b"c": Entry(1, 3, None)})
    assert told(judged(three(n2=odd))) == [(Kind.TOMBSTONE_MISMATCH, "c", ["n2"])]


def test_a_tombstone_at_or_below_the_cut_equals_absence() -> None:
    settled = story(put(6, stable=6, z="9"))
    copies = [copy_of(n, settled, drop_tombstones=n == "n2") for n in ("n1", "n2", "n3")]
    assert not any(key == b"b" for key, _ in copies[1].rows), "the story lost its point"
    assert told(judged(copies)) == []


def test_a_row_that_cannot_be_believed_is_named_and_nothing_else_is() -> None:
    odd = copy_of("n2", STORY, damaged={b"c": "expected checksum 1, found 2"})
    finding = only(judged(three(n2=odd)))
    assert (finding.kind, finding.key, finding.on) == (Kind.UNREADABLE, "c", ["n2"])
    assert finding.copies["n2"] == {"unreadable": True}
    assert finding.copies["n1"]["counter"] == 3


def test_where_a_part_cannot_be_read_absence_proves_nothing() -> None:
    odd = copy_of("n2", STORY, changed={b"c": None, b"d": Entry(1, 5, b"X")}, damaged={None: "a page is gone"})
    compared = judged(three(n2=odd))
    assert told(compared) == [(Kind.UNREADABLE, None, ["n2"]), (Kind.VALUE_MISMATCH, "d", ["n2"])]
    assert compared.findings[0].incomplete


def test_of_two_copies_the_primary_is_believed() -> None:
    copies = [copy_of("n1", STORY, changed={b"c": None}), copy_of("n2", STORY)]
    assert told(judged(copies, primary="n1")) == [(Kind.EXTRA_ON, "c", ["n2"])]
    assert told(judged(copies, primary="n2")) == [(Kind.MISSING_ON, "c", ["n1"])]


def test_each_odd_copy_is_told_for_what_is_wrong_with_it() -> None:
    copies = [
        copy_of("n1", STORY),
        copy_of("n2", STORY, changed={b"c": None}),
        copy_of("n3", STORY, changed={b"c": Entry(1, 3, b"X")}),
    ]
    assert told(judged(copies)) == [(Kind.MISSING_ON, "c", ["n2"]), (Kind.VALUE_MISMATCH, "c", ["n3"])]


def test_values_are_shown_only_in_full() -> None:
    odd = copy_of("n2", STORY, changed={b"c": Entry(1, 3, b"\x00secret")})
    copies = three(n2=odd)
    assert only(judged(copies, Rules(values=Values.FULL))).copies["n2"]["value"] == r"\x00secret"
    assert set(only(judged(copies, Rules(values=Values.NONE))).copies["n2"]) == {"epoch", "counter", "size"}


# What is on its way.


def test_what_lies_above_the_cut_is_unsettled() -> None:
    ahead = copy_of("n1", story(put(6, a="6", e="7")), touched_ms=NOW_MS)
    compared = judged(three(n1=ahead), BUSY)
    assert told(compared) == []
    assert (compared.cut, compared.unsettled_keys, compared.unsettled_gaps, compared.stale_keys) == (6, 2, 2, 0)


def test_what_nobody_touched_for_a_while_is_not_on_its_way() -> None:
    ahead = copy_of("n1", story(put(6, a="6", e="7")), touched_ms=NOW_MS - 3_600_000)
    behind = {node: copy_of(node, STORY, touched_ms=NOW_MS - 3_600_000) for node in ("n2", "n3")}
    for rules in (STILL, BUSY):
        compared = judged(three(n1=ahead, **behind), rules)
        finding = only(compared)
        assert (finding.kind, finding.on, finding.counters) == (Kind.BEHIND, ["n2", "n3"], [7, 8])
        assert finding.detail == "n1 applied what is missing here"
        assert (compared.unsettled_keys, compared.stale_keys) == (2, 2)


def test_a_version_that_no_copy_has_applied_is_not_on_its_way() -> None:
    forged: dict[bytes, Entry | None] = {b"c": Entry(1, 99, b"newer")}
    odd = copy_of("n2", STORY, changed=forged, touched_ms=NOW_MS - 3_600_000)
    assert told(judged(three(n2=odd))) == [(Kind.VERSION_MISMATCH, "c", ["n2"])]
    assert told(judged([copy_of(n, STORY, changed=forged) for n in ("n1", "n2", "n3")])) == [], "and no log to tell"


def test_a_version_that_was_undone_or_fetched_ahead_of_its_history_is_on_its_way() -> None:
    newer: dict[bytes, Entry | None] = {b"c": Entry(1, 99, b"newer")}
    busy = copy_of("n2", STORY, changed=newer, touched_ms=NOW_MS)
    compared = judged(three(n2=busy), BUSY)
    assert (told(compared), compared.unsettled_keys) == ([], 1)
    still = copy_of("n2", STORY, changed=newer)
    undone = still._replace(view=msgspec.structs.replace(still.view, suspects=[b"c"]))
    compared = judged(three(n2=undone))
    assert (told(compared), compared.unsettled_keys) == ([], 1)


def test_what_a_copy_owes_is_told_at_once_however_many_writes_it_was() -> None:
    ahead = story(put(6, a="6"), put(7, a="7"), put(8, e="8"))
    finding = only(judged([copy_of("n1", ahead), copy_of("n2", STORY), copy_of("n3", ahead)]))
    assert (finding.kind, finding.on, finding.counters) == (Kind.BEHIND, ["n2"], [7, 9])


def test_the_clock_of_a_node_that_is_ahead_makes_nothing_old_on_the_others() -> None:
    clocks = CLOCKS | {"n1": Clock(NOW_MS + 60_000, NOW_MS + 60_000)}
    gap = copy_of("n2", story(put(8, g="9")), touched_ms=NOW_MS - 1000)
    compared = judged([copy_of("n1", STORY, touched_ms=1), gap], Rules(clocks=clocks, grace_ms=10_000))
    assert (told(compared), compared.unsettled_gaps) == ([], 1)


# Copies that are not in sync.


def as_role(copy: Copy, role: str) -> Copy:
    return copy._replace(role=role)


def test_a_copy_that_was_left_over_is_compared_with_the_others() -> None:
    forged = as_role(copy_of("n2", STORY, changed={b"c": Entry(1, 3, b"forged")}), "LEFTOVER")
    compared = judged([copy_of("n1", STORY), forged, as_role(copy_of("n3", STORY), "LEFTOVER")])
    finding = only(compared)
    assert (finding.kind, finding.on, finding.roles) == (Kind.VALUE_MISMATCH, ["n2"], {"n2": "LEFTOVER"})
    assert "on=n2(LEFTOVER) " in str(finding)
    odd = [copy_of("n1", STORY, changed={b"c": Entry(1, 3, b"forged")}), *(as_role(c, "LEFTOVER") for c in three()[1:])]
    assert told(judged(odd)) == [(Kind.VALUE_MISMATCH, "c", ["n1"])], "the in-sync copy may be the one that is wrong"


def test_a_copy_that_lags_and_need_not_is_held_against_the_others_as_far_as_it_reaches() -> None:
    ahead = story(put(6, c="7"), put(7, f="8"))
    whole = [copy_of("n1", ahead), copy_of("n3", ahead)]
    stale = as_role(copy_of("n2", STORY), "MOVING")
    compared = judged([whole[0], stale, whole[1]])
    assert (told(compared), compared.cut, compared.unsettled_keys) == ([], 8, 0), "it lowers nobody's cut, and owes nothing"
    for changed, kind, key in (
        ({b"a": Entry(1, 4, b"forged")}, Kind.VALUE_MISMATCH, "a"),
        ({b"d": None}, Kind.MISSING_ON, "d"),
        ({b"x": Entry(1, 2, b"x")}, Kind.EXTRA_ON, "x"),
        ({b"a": Entry(1, 1, b"1")}, Kind.VERSION_MISMATCH, "a"),
    ):
        wrong = as_role(copy_of("n2", STORY, changed=changed), "MOVING")
        assert told(judged([whole[0], wrong, whole[1]])) == [(kind, key, ["n2"])]
    older = as_role(copy_of("n2", STORY, changed={b"c": Entry(1, 3, b"forged")}), "MOVING")
    assert told(judged([whole[0], older, whole[1]])) == [], "what was there then is gone from the others"


def test_a_history_that_parts_below_the_reach_of_a_leftover_is_found() -> None:
    other = [put(0, a="1", b="2"), put(2, c="x"), put(3, a="4", d="5"), put(5, b=None)]
    ahead = story(put(6, stable=6, f="7"))
    compared = judged([copy_of("n1", ahead), as_role(copy_of("n2", other), "LEFTOVER")])
    assert told(compared) == [(Kind.DIGEST_MISMATCH, None, ["n2"]), (Kind.VALUE_MISMATCH, "c", ["n2"])]


def test_where_no_copy_is_in_sync_the_one_that_is_ahead_stands_for_them() -> None:
    ahead = as_role(copy_of("n3", story(put(6, f="7"))), "LEFTOVER")
    forged = as_role(copy_of("n1", STORY, changed={b"c": Entry(1, 3, b"forged")}), "LEFTOVER")
    compared = judged([forged, as_role(copy_of("n2", STORY), "LEFTOVER"), ahead], primary="")
    assert (told(compared), compared.cut) == ([(Kind.VALUE_MISMATCH, "c", ["n1"])], 7)


# What the log says.


def said_by(history: list[Said]) -> LogSaid:
    log = LogRows(lambda _: True)
    log.take(said if not isinstance(said, r.Write) else r.Update([said]) for said in history)
    return log.fragments[ACC]


def heard(node: str, history: list[Said], changed: dict[bytes, Entry | None] | None = None) -> Copy:
    return copy_of(node, history, changed=changed)._replace(said=said_by(history))


def test_what_a_transfer_told_of_is_not_missed_where_a_delete_during_it_may_have_been_trimmed() -> None:
    """The delete came live, before the transfer told of the row; the log is trimmed between the two."""
    log = LogRows(lambda _: True)
    log.take(
        [
            r.Preload(*ACC, [7, 7], [142, 143], [b"a", b"b"], [b"1", b"2"]),
            r.FragmentReady(*ACC, 143, 0, [(7, 1)], True),
            r.Update([r.Write(*ACC, 7, 145, [b"c"], [b"3"], stable=0, tx=b"")]),
        ]
    )
    said = log.fragments[ACC]
    assert said.judge(b"a", None, 143) == "the log has epoch 7 counter 142, and the row is gone"
    assert said.judge(b"a", None, 145) == "", "counters 144 and 145 are not there, and one may have been its delete"
    assert said.judge(b"c", None, 145) == "the log has epoch 7 counter 146, and the row is gone"


def test_what_all_copies_have_alike_is_held_against_the_log() -> None:
    wrong: list[tuple[dict[bytes, Entry | None], str]] = [
        ({b"c": Entry(1, 3, b"forged")}, "n1: the log has another value at epoch 1 counter 3"),
        ({b"a": Entry(1, 1, b"1")}, "n1: the log has epoch 1 counter 4, which came later"),
        ({b"c": Entry(1, 2, b"3")}, "n1: the log has epoch 1 counter 3, which came later"),
        ({b"c": None}, "n1: the log has epoch 1 counter 3, and the row is gone"),
        ({b"b": Entry(1, 2, b"2")}, "n1: the log has the delete at epoch 1 counter 6, which came later"),
        ({b"x": Entry(1, 2, b"x")}, "n1: no record of the log is about it, and the log has all above counter 0"),
    ]
    for changed, why in wrong:
        finding = only(judged([heard(node, STORY, changed) for node in ("n1", "n2", "n3")]))
        assert (finding.kind, finding.on, finding.detail) == (Kind.STORE_DIFFERS_FROM_LOG, ["n1", "n2", "n3"], why)
    assert told(judged([heard(node, STORY) for node in ("n1", "n2", "n3")])) == []
    some = [heard("n1", STORY, {b"c": Entry(1, 3, b"forged")}), heard("n2", STORY)]
    finding = only(judged(some))
    assert (finding.kind, finding.on, finding.proof) == (Kind.VALUE_MISMATCH, ["n1"], "log"), "not what the primary has"


def test_a_key_whose_delete_is_in_the_log_was_resurrected() -> None:
    back = heard("n2", STORY, {b"b": Entry(1, 2, b"2")})
    told_of = told(judged([heard("n1", STORY, {b"b": None}), back, heard("n3", STORY, {b"b": None})]))
    assert told_of == [(Kind.RESURRECTED, "b", ["n2"])]


def test_a_majority_that_lost_a_row_is_wrong_because_the_log_has_it() -> None:
    lost: dict[bytes, Entry | None] = {b"c": None}
    finding = only(judged([heard("n1", STORY), heard("n2", STORY, lost), heard("n3", STORY, lost)]))
    assert (finding.kind, finding.on, finding.proof) == (Kind.MISSING_ON, ["n2", "n3"], "log")
    assert (finding.history, finding.right) == ("agreed", {"epoch": 1, "counter": 3, "share": finding.right["share"]})
    assert finding.holders == ["n1"]


def test_a_majority_that_has_a_deleted_row_again_is_wrong_because_the_log_has_its_delete() -> None:
    again: dict[bytes, Entry | None] = {b"b": Entry(1, 2, b"2")}
    finding = only(judged([heard("n1", STORY), heard("n2", STORY, again), heard("n3", STORY, again)]))
    assert (finding.kind, finding.on, finding.proof) == (Kind.TOMBSTONE_MISMATCH, ["n2", "n3"], "log")
    assert finding.right == {"tombstone": True, "epoch": 1, "counter": 6}
    gone = heard("n1", STORY, {b"b": None})
    finding = only(judged([gone, heard("n2", STORY, again), heard("n3", STORY, again)]))
    assert (finding.kind, finding.on, finding.proof) == (Kind.RESURRECTED, ["n2", "n3"], "log")


def test_copies_that_are_all_wrong_in_different_ways_are_all_named() -> None:
    wrong: list[dict[bytes, Entry | None]] = [{b"c": None}, {b"c": Entry(1, 3, b"")}, {b"c": Entry(1, 2, b"3")}]
    compared = judged([heard(f"n{at + 1}", STORY, odd) for at, odd in enumerate(wrong)])
    assert told(compared) == [
        (Kind.MISSING_ON, "c", ["n1"]),
        (Kind.VALUE_MISMATCH, "c", ["n2"]),
        (Kind.VERSION_MISMATCH, "c", ["n3"]),
    ]
    assert {f.proof for f in compared.findings} == {"log"}


def test_without_a_log_a_majority_outvotes_and_a_tie_is_not_decided() -> None:
    lost = copy_of("n2", STORY, changed={b"c": None})
    assert only(judged(three(n2=lost))).proof == "majority"
    assert only(judged([copy_of("n1", STORY), lost])).proof == "none"


def test_what_a_log_says_proves_nothing_of_copies_whose_histories_part() -> None:
    other = [put(0, a="1", b="2"), put(2, c="X"), put(3, a="4", d="5"), put(5, b=None)]
    compared = judged([heard("n1", STORY), copy_of("n2", other), copy_of("n3", STORY)])
    mismatch = next(f for f in compared.findings if f.kind is Kind.VALUE_MISMATCH)
    assert (mismatch.on, mismatch.proof, mismatch.history) == (["n2"], "majority", "parted")


def test_a_log_that_does_not_reach_back_to_a_row_proves_nothing_of_it() -> None:
    late = [r.FragmentReady(*ACC, 6, 7, [(1, 1)], True)]
    copies = [heard("n1", [*STORY, *late]), heard("n2", [*STORY, *late], {b"c": None}), heard("n3", [*STORY, *late])]
    deaf = [c._replace(said=LogSaid()) for c in copies]
    assert only(judged(deaf)).proof == "majority"


def test_a_key_that_hashes_elsewhere_is_misplaced() -> None:
    rules = Rules(partitions=16)
    right = next(k for k in (b"k%d" % at for at in range(1000)) if partition_of(k, 16) == ACC[1])
    history: list[Said] = [r.Write(*ACC, 1, 0, [right], [b"v"]), put(1, elsewhere="v")]
    assert partition_of(b"elsewhere", 16) != ACC[1]
    compared = judged([copy_of("n1", history), copy_of("n2", history)], rules)
    assert told(compared) == [(Kind.MISPLACED, "elsewhere", ["n1", "n2"])]


def test_a_copy_that_settled_beyond_the_cut_may_have_dropped_a_newer_tombstone() -> None:
    ahead = copy_of("n1", story(put(6, c=None), put(7, stable=7, e="7")), drop_tombstones=True)
    owed = [(Kind.COUNTER_GAP, None, ["n2", "n3"]), (Kind.BEHIND, None, ["n2", "n3"])]
    assert told(judged(three(n1=ahead))) == owed
    assert told(judged(three(n1=ahead), BUSY)) == [], "it may be under way"
    newer = three(n1=ahead._replace(version=Version(1, 1)))
    assert told(judged(newer)) == owed, "the map of a copy that lost its log is older as well"
    compared = judged(newer, BUSY)
    assert told(compared) == [], "copies read one after another, under different maps, promise each other nothing"
    assert compared.unsettled_keys == 2


def test_nobody_is_named_by_a_tie_while_a_third_copy_was_read_too_late_to_tell() -> None:
    """A row that only the primary has, one copy that lacks it, and one that has settled beyond the cut and lacks it too."""
    extra = copy_of("n2", STORY, changed={b"forged": Entry(1, 1, b"else")})
    ahead = copy_of("n3", story(put(6, stable=7, e="7")), drop_tombstones=True)
    copies = three(n2=extra, n3=ahead)
    looked_at_once = judged(copies, BUSY, primary="n2")
    assert told(looked_at_once) == [(Kind.MISSING_ON, "forged", ["n1"])]
    assert only(looked_at_once).proof == "none"
    again = judged(copies, msgspec.structs.replace(BUSY, again=True), primary="n2")
    assert told(again) == []
    assert again.unsettled == [b"e", b"forged"]
    assert again.unsettled_keys == looked_at_once.unsettled_keys == 2
    settled = judged(three(n2=extra), msgspec.structs.replace(BUSY, again=True), primary="n2")
    assert told(settled) == [(Kind.EXTRA_ON, "forged", ["n2"])]


def test_a_survivor_may_undo_what_the_next_epoch_did_not_continue() -> None:
    old = story(put(6, c="lost"))
    new = story(r.EpochStart(7, 2, [("acc", 7)]), put(6, epoch=2, c="kept"))
    compared = judged([copy_of("n1", new), copy_of("n2", new), copy_of("n3", old)])
    assert told(compared) == []
    assert (compared.cut, compared.unsettled_keys) == (6, 1)


# Histories.


def test_counters_that_two_epochs_issued_are_a_fork() -> None:
    old = story(put(6, c="lost"), put(7, stable=7, d="too"))
    new = story(r.EpochStart(7, 2, [("acc", 7)]), put(6, epoch=2, c="kept"), put(7, epoch=2, d="too"))
    compared = judged([copy_of("n1", new), copy_of("n2", new), copy_of("n3", old)])
    assert told(compared) == [(Kind.EPOCH_FORK, None, ["n3"]), (Kind.VERSION_MISMATCH, "c", ["n3"])]
    fork = compared.findings[0]
    assert fork.counters == [7, 7]
    assert "epoch 1 issued it here, epoch 2 elsewhere" in fork.detail


def test_an_epoch_that_issued_nothing_leaves_no_trace() -> None:
    empty = story(r.EpochStart(7, 2, [("acc", 7)]), r.EpochStart(7, 3, [("acc", 7)]), put(6, epoch=3, c="x"))
    whole = story(r.EpochStart(7, 3, [("acc", 7)]), put(6, epoch=3, c="x"))
    assert told(judged([copy_of("n1", empty), copy_of("n2", whole)])) == []


def test_equal_counters_with_another_history_are_a_digest_mismatch() -> None:
    other = [*STORY[:3], put(5, q=None)]
    compared = judged(three(n3=copy_of("n3", other)))
    assert told(compared) == [(Kind.DIGEST_MISMATCH, None, ["n3"]), (Kind.TOMBSTONE_MISMATCH, "b", ["n3"])]
    assert compared.findings[0].counters == [6, 6]
    assert compared.findings[0].detail == "equal up to counter 5, different at 6"


def test_a_changed_row_leaves_the_digest_alone() -> None:
    odd = copy_of("n2", STORY, changed={b"c": Entry(1, 3, b"X")})
    assert Kind.DIGEST_MISMATCH not in {f.kind for f in judged(three(n2=odd)).findings}


def test_copies_at_different_counters_compare_digests_where_both_are_known() -> None:
    ahead = copy_of("n1", story(put(6, e="7")))
    other = copy_of("n2", [*STORY[:3], put(5, q=None)])
    assert (Kind.DIGEST_MISMATCH, None, ["n2"]) in told(judged([ahead, other]))


# Gaps.


def test_a_gap_that_nobody_is_about_to_close_is_named_with_its_transaction() -> None:
    lost = put(6, tx=tx(1), e="7", f="8")
    whole = copy_of("n1", story(lost, put(8, g="9")))
    gap = copy_of("n2", story(put(8, g="9")))
    finding = only(judged([whole, gap, whole._replace(node="n3")]))
    assert (finding.kind, finding.on, finding.counters) == (Kind.COUNTER_GAP, ["n2"], [7, 8])
    assert finding.tx == tx(1).hex()
    assert finding.detail == "n1,n3 applied what is missing here"
    assert finding.copies["n2"] == {"lwm": 6, "hwm": 9, "ranges": [[8, 1]]}


def test_a_gap_that_a_prepared_transaction_holds_is_named_with_it() -> None:
    prepare = r.Prepare(tx(2), 7, 1, [put(6, tx=tx(2), e="7")], [], [7, 8], 8)
    held = story(prepare, put(7, g="9"))
    finding = only(judged([copy_of(n, held) for n in ("n1", "n2", "n3")]))
    assert (finding.kind, finding.on, finding.counters) == (Kind.COUNTER_GAP, ["n1", "n2", "n3"], [7, 7])
    assert finding.tx == tx(2).hex()
    assert finding.detail == "a prepared transaction without an outcome holds these counters"


def test_a_gap_is_divided_among_its_owners() -> None:
    prepare = r.Prepare(tx(2), 7, 1, [put(7, tx=tx(2), e="7")], [], [7], 7)
    compared = judged([copy_of("n1", story(prepare, put(10, g="9")))])
    assert [(f.counters, f.tx) for f in compared.findings] == [([7, 7], ""), ([8, 8], tx(2).hex()), ([9, 10], "")]


def test_a_gap_that_was_touched_just_now_is_unsettled() -> None:
    gap = copy_of("n2", story(put(8, g="9")), touched_ms=995_000)
    compared = judged([copy_of("n1", STORY, touched_ms=900_000), gap], BUSY)
    assert told(compared) == []
    assert (compared.unsettled_gaps, compared.unsettled_keys) == (1, 1)
    assert told(judged([gap._replace(view=gap.view)], Rules(clocks=CLOCKS))) == [(Kind.COUNTER_GAP, None, ["n2"])]


def test_what_only_an_asynchronous_copy_tells_of_was_written_since_the_others_were_read() -> None:
    newer = as_role(copy_of("n3", story(put(6, stable=7, e="7")), touched_ms=995_000), "ASYNC")
    compared = judged([copy_of(node, STORY, touched_ms=900_000) for node in ("n1", "n2")] + [newer], BUSY)
    assert told(compared) == []
    assert compared.unsettled_gaps == 2


def test_a_copy_that_lacks_what_every_copy_was_said_to_have_is_named() -> None:
    ahead = copy_of("n1", story(put(6, e="7"), put(7, stable=7, f="8")), touched_ms=1)
    behind = copy_of("n2", STORY, touched_ms=1)
    found = judged([ahead, behind], BUSY).findings
    assert [(f.kind, f.on, f.counters) for f in found] == [
        (Kind.COUNTER_GAP, ["n2"], [7, 7]),
        (Kind.BEHIND, ["n2"], [8, 8]),
    ]


def test_a_closed_gap_is_no_gap() -> None:
    whole = story(closed(6, 3), put(9, g="9"))
    assert told(judged([copy_of("n1", whole), copy_of("n2", whole)])) == []


# Properties.

NODES = ("n1", "n2", "n3")
keys = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h"])
batches = st.lists(st.dictionaries(keys, st.one_of(st.none(), st.text("xyz", max_size=3)), min_size=1), max_size=12)


def history_of(entries: list[dict[str, str | None]], *, lag: int) -> list[r.Write]:
    """One write after the other, in three epochs; each says that all but `lag` counters before it are everywhere."""
    writes: list[r.Write] = []
    start = 0
    for at, entry in enumerate(entries):
        epoch, stable = 1 + 3 * at // len(entries), max(0, start - lag)
        encoded = {key.encode(): value.encode() if value is not None else None for key, value in entry.items()}
        writes.append(r.Write(*ACC, epoch, start, list(encoded), list(encoded.values()), stable))
        start += len(entry)
    return writes


@given(batches, st.data())
def test_copies_of_one_history_are_never_told_apart(entries: list[dict[str, str | None]], data: st.DataObject) -> None:
    """Each copy stands somewhere else, has something beyond a gap, and has dropped the tombstones that it may."""
    common = data.draw(st.integers(0, len(entries)), label="what every copy has")
    copies: list[Copy] = []
    writes = history_of(entries, lag=sum(map(len, entries[common:])))
    for node in NODES:
        reached = data.draw(st.integers(common, len(writes)), label=node)
        later = range(reached + 1, len(writes))
        beyond = data.draw(st.sets(st.sampled_from(later)) if later else st.just(set()), label=f"{node}, beyond a gap")
        late = [writes[at] for at in sorted(beyond)]
        reaching: list[Said] = [*writes[:reached], *late]
        dropped = data.draw(st.booleans(), label=f"{node} took a checkpoint")
        copies.append(copy_of(node, reaching, drop_tombstones=dropped, touched_ms=NOW_MS))
    assert told(judged(copies, BUSY)) == []


plants = st.sampled_from(["missing", "extra", "value", "version", "tombstone", "unreadable"])


@given(batches, st.dictionaries(keys, st.tuples(plants, st.sampled_from(NODES)), max_size=5), st.sampled_from(NODES))
def test_what_was_planted_is_found_and_nothing_else(
    entries: list[dict[str, str | None]], planted: dict[str, tuple[str, str]], primary: str
) -> None:
    history = history_of(entries, lag=1 << 30)
    model = copy_of("n0", history)
    held = dict(model.rows)
    changed: dict[str, dict[bytes, Entry | None]] = {node: {} for node in NODES}
    damaged: dict[str, dict[bytes | None, str]] = {node: {} for node in NODES}
    expected: list[tuple[Kind, str | None, list[str]]] = []
    for name, (plant, node) in sorted(planted.items()):
        key = name.encode()
        entry = held.get(key)
        live = entry is not None and entry.value is not None
        odd: Entry | None = None
        match plant, live:
            case "unreadable", _:
                damaged[node][key] = "flipped"
                expected.append((Kind.UNREADABLE, name, [node]))
                continue
            case "missing", True:
                kind = Kind.MISSING_ON
            case "extra", False if model.view.counter.lwm:
                odd = Entry(1, 1, b"extra")
                kind = Kind.EXTRA_ON if entry is None else Kind.TOMBSTONE_MISMATCH
            case "value", True:
                assert entry is not None
                odd = Entry(entry.epoch, entry.counter, b"other")
                kind = Kind.VALUE_MISMATCH
            case "version", True:
                assert entry is not None
                odd = Entry(entry.epoch, entry.counter - 1, entry.value)
                kind = Kind.VERSION_MISMATCH
            case "tombstone", True:
                assert entry is not None
                odd = Entry(entry.epoch, entry.counter, None)
                kind = Kind.TOMBSTONE_MISMATCH
            case _:
                continue
        changed[node][key] = odd
        expected.append((kind, name, [node]))
    copies = [copy_of(node, history, changed=changed[node], damaged=damaged[node]) for node in NODES]
    assert told(judged(copies, primary=primary)) == expected


def test_a_key_is_where_its_namespaces_group_is() -> None:
    key = next(f"k{n}" for n in range(100) if partition_of(f"k{n}".encode(), 4) == ACC[1] % 4)
    copies = [copy_of(node, [r.Write(*ACC, 1, 0, [key.encode()], [b"v"])]) for node in ("n1", "n2")]
    first = ACC[1] - ACC[1] % 4
    assert told(judged(copies, Rules(partitions=4, firsts={ACC[0]: first}))) == []
    compared = judged(copies, Rules(partitions=4, firsts={ACC[0]: first + 4}))
    assert told(compared) == [(Kind.MISPLACED, key, ["n1", "n2"])], "it is in the partitions of another group"
    lived: list[Said] = [r.Write(*ACC, 1, 0, [key.encode()], [b"v"]), r.Write(*ACC, 1, 1, [key.encode()], [None])]
    gone = [copy_of(node, lived) for node in ("n1", "n2")]
    assert told(judged(gone, Rules(partitions=4, firsts={ACC[0]: first + 4}))) == [], "that of an older life is deleted"
