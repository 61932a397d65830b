"""Anti-entropy between copies wired in memory: what is wrong is found, and healed by whoever proves to be right."""

from __future__ import annotations

import msgspec
import pytest

from rebalance import proving
from rebalance.choice import Kind
from rebalance.entropy import FRAGMENTS_A_TICK, TICKS
from rebalance.messages import AskProofs, Heal, Proofs
from rebalance.ports import MS, WORK_MAX
from rebalance.proving import ROWS_A_STEP, ROWS_AT_ONCE
from rebalance.rule import NewMap
from tests.rebalance.copies import NAMESPACE, Batch, Copies, Said, Settings, name_of
from tests.support.placed import placed_at_once
from tests.support.probes import heard

NAME = name_of(0)
ROWS = 40


def written(*nodes: str, rows: int = ROWS, partitions: int = 1) -> Copies:
    """Copies in sync, with rows that are in a checkpoint on each of them."""
    nodes = nodes or ("n1", "n2", "n3")
    copies = Copies(*nodes, partitions=partitions, settings=Settings(supply_batch_bytes=1_000))
    copies.map(nodes, nodes, promote=True)
    copies.run()
    for number in range(partitions):
        for at in range(rows):
            copies[nodes[0]].put(number, **{f"k{at}": "v" * 100})
    copies.run()
    for node in nodes:
        copies[node].checkpoint()
    return copies


def healed(copies: Copies, *, at_most: int = 3) -> list[str]:
    """Rounds pass, and whoever says that he has a wrong copy is left out of a map and taken in by the next one.

    Which nodes that were."""
    found: list[str] = []
    for _ in range(at_most):
        copies.round()
        wrong = [node for node, copy in copies.copies.items() if copy.anew.wanted]
        if wrong:
            found += wrong
            for node in wrong:
                copies[node].anew.told()
            owners = copies.placements[0].owners
            right = [node for node in owners if node not in wrong]
            leads = right[0] != owners[0]
            copies.map((*right, *wrong), right, promote=leads)
            copies.whole()
    copies.judge()
    return found


def quiet(copies: Copies) -> None:
    """Nobody suspects, asks or waits for anything."""
    for copy in copies.copies.values():
        assert copy.entropy.suspected == {}
        assert copy.entropy._trials == {}
        assert len(copy.entropy.proving) == 0
        assert copy.entropy.proving.proven == {}
        assert copy.entropy.proving.disproved == {}
        assert copy.anew.as_object() == {"wanted": [], "loading": [], "kept": []}
        assert copy.demander.behind == 0


def test_copies_that_are_equal_are_left_alone() -> None:
    copies = written()
    assert healed(copies) == []
    assert copies["n1"].entropy.told.compared >= 3
    assert all(copy.entropy.proving.rows >= ROWS for copy in copies.copies.values())
    quiet(copies)


@pytest.mark.parametrize("value", [None, "forged"])
@pytest.mark.parametrize("node", ["n1", "n2", "n3"])
def test_a_row_that_rots_is_found_by_its_copy_and_comes_back(node: str, value: str | None) -> None:
    """Whichever copy it is, the primary's too, and although its counters and its digest are right."""
    copies = written()
    copies[node].rot(0, "k7", value)
    assert healed(copies) == [node]
    assert copies[node].demander.progress.kinds[NAME] == Kind.FULL, "nothing that such a store has is built on"
    assert b"k7" in copies[node].rows(0)
    quiet(copies)
    assert any("are not those that were written here" in note for note in copies[node].notes)


def test_of_two_copies_each_can_be_the_right_one() -> None:
    for node in ("n1", "n2"):
        copies = written("n1", "n2")
        copies[node].rot(0, "k7", None)
        assert healed(copies) == [node]


def test_a_copy_that_differs_and_proves_what_it_has_takes_the_rows_that_differ() -> None:
    """Its rows are what was written to it: something was written to it that nobody else has."""
    copies = written()
    copies["n3"].spoil(0, "k7", "nobody wrote this")
    copies["n3"].checkpoint()
    assert healed(copies) == ["n3"]
    progress = copies["n3"].demander.progress
    assert progress.kinds[NAME] == Kind.DIFFERENTIAL
    assert 1 <= progress.rows["differential"] <= ROWS // 4
    assert copies["n1"].entropy.as_object()["ordered"] == {"n3": 1}
    quiet(copies)


def test_what_differs_in_memory_is_found_too() -> None:
    copies = written()
    copies["n3"].spoil(0, "k7", "nobody wrote this")
    assert healed(copies) == ["n3"]


def test_what_much_was_written_to_is_compared_after_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """To sum it up in each round would cost as much as the writes."""
    monkeypatch.setattr("rebalance.comparing.CHANGED_MAX", 3)
    copies = written()
    copies["n3"].spoil(0, "k7", "nobody wrote this")
    copies["n1"].put(0, a="1", b="2", c="3", d="4")
    copies.run()
    copies.round(2)
    assert not any(copy.anew.wanted for copy in copies.copies.values())
    for copy in copies.copies.values():
        copy.checkpoint()
    assert healed(copies) == ["n3"]


def test_two_copies_that_speak_against_their_primary_are_not_touched() -> None:
    """It is said, once, and as long as it is so."""
    copies = written()
    for node in ("n2", "n3"):
        copies[node].spoil(0, "k7", "nobody but two wrote this")
    copies.round(4)
    assert not any(copy.anew.wanted for copy in copies.copies.values())
    told = [note for note in copies["n1"].notes if "nothing is done about it" in note]
    assert told == [
        "WRONG ROWS in acc/0, and nothing is done about it: n2, n3 have other rows than n1, and all prove their own"
    ]
    assert copies["n1"].entropy.as_object()["undecided"]
    for node in ("n2", "n3"):
        copies[node].spoil(0, "k7", "v" * 100)
    copies.round()
    assert not copies["n1"].entropy.as_object()["undecided"]


def test_rows_that_rot_on_the_primary_and_another_copy_are_not_overwritten_by_a_guess() -> None:
    copies = written()
    copies["n1"].rot(0, "k7", None)
    copies["n2"].rot(0, "k8", None)
    copies.round(3)
    assert not any(copy.anew.wanted for copy in copies.copies.values())
    assert [found["fragment"] for found in copies["n1"].entropy.as_object()["undecided"]] == ["acc/0"]  # type: ignore[attr-defined]
    assert copies["n1"].entropy.as_object()["wrong_here"]


def test_a_copy_alone_says_that_its_rows_are_wrong() -> None:
    copies = written("n1")
    copies["n1"].rot(0, "k7", None)
    copies.round(2)
    assert [found["fragment"] for found in copies["n1"].entropy.as_object()["wrong_here"]] == ["acc/0"]  # type: ignore[attr-defined]
    assert copies["n1"].anew.wanted == {}


def test_nothing_is_compared_where_writes_are_under_way() -> None:
    """A copy that has not got the last write stands at another counter: that is no difference."""
    copies = written()
    copies.trouble = lambda _sender, to, said: 0 if isinstance(said, Batch) and to == "n3" else 1
    copies["n1"].put(0, k7="on its way")
    copies.run()
    with heard() as reached:
        copies.round(2)
    assert "entropy.suspected" not in reached
    copies.trouble = None
    copies.wait(2)
    assert healed(copies) == []
    quiet(copies)


def test_a_checkpoint_that_comes_while_rows_are_read_is_no_rot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "ROWS_A_STEP", 9)
    monkeypatch.setattr(proving, "ROWS_AT_ONCE", 3)
    copies = written()
    with heard() as reached:
        for at in range(2 * TICKS):
            copies["n2"].entropy.tick()
            copies["n1"].put(0, **{f"k{at}": f"changed {at}"})
            copies.run()
            copies["n2"].checkpoint()
    assert "proving.overtaken_by_a_checkpoint" in reached
    assert copies["n2"].entropy.proving.disproved == {}
    assert healed(copies) == []


@pytest.mark.parametrize("lost", [Proofs, Heal])
def test_what_is_lost_of_the_conversation_is_asked_again(lost: type[Said]) -> None:
    copies = written()
    copies["n3"].spoil(0, "k7", "nobody wrote this")
    copies.trouble = lambda _sender, _to, said: 0 if isinstance(said, lost) else 1
    copies.round(2)
    assert not copies["n3"].anew.wanted
    copies.trouble = None
    assert healed(copies) == ["n3"]
    quiet(copies)


def test_of_a_partition_the_last_question_counts_and_each_has_its_turn() -> None:
    """A copy that is asked faster than its turns can answer sums each partition up once, in the order of the questions."""
    copies = written(partitions=3)
    copy, told = copies["n2"], list[tuple[int, list[int], list[bool]]]()

    def keep(sender: str, _to: str, said: Said) -> int:
        if sender == "n2" and isinstance(said, Proofs):
            told.append((said.round, [c.partition for c in said.copies], [c.contents is not None for c in said.copies]))
        return 1

    copies.trouble = keep
    for round_ in (1, 2, 3):
        copy.work = WORK_MAX  # no turn has room
        copies["n2"].hear("n1", AskProofs(copy.fence, round_, [0, 2], []))
    copies["n2"].hear("n1", AskProofs(copy.fence, 4, [1], []))
    copy.work = 0
    copies.run()
    assert told == [
        (1, [0, 2], [False, False]),
        (2, [0, 2], [False, False]),
        (3, [0, 2], [True, True]),
        (4, [1], [True]),
    ]


def test_no_more_is_asked_before_what_was_is_summed_up() -> None:
    """Else each tick of a busy node would leave more to do than it found."""
    copies = written(partitions=TICKS)
    primary = copies["n1"]
    primary.work = WORK_MAX - 1
    primary.entropy.tick()
    assert len(primary.entropy._trials) == 1
    with heard() as reached:
        for _ in range(5):
            primary.work = 0
            primary.entropy.tick()
    assert len(primary.entropy._trials) == 1
    assert "entropy.sums_up_still" in reached
    copies.run()
    _tick(copies)
    assert primary.entropy.told.compared == 2
    copies.round()
    quiet(copies)


def test_a_map_ends_what_was_asked_under_the_last_one() -> None:
    copies = written()
    copies["n3"].spoil(0, "k7", "nobody wrote this")
    copies.trouble = lambda _sender, _to, said: 0 if isinstance(said, Proofs) else 1
    copies.round()
    late: list[Proofs] = []

    def keep(_sender: str, _to: str, said: Said) -> int:
        if isinstance(said, Proofs):
            late.append(said)
            return 0
        return 1

    copies.trouble = keep
    copies.round()
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"))
    for proofs in late:
        copies["n1"].entropy.on("n3", proofs)
    assert copies["n1"].entropy.suspected == {}


def _tick(copies: Copies) -> None:
    for copy in copies.copies.values():
        copy.work = 0
        copy.entropy.tick()
    copies.run()


def test_what_is_suspected_when_a_map_comes_is_asked_about_again_at_once() -> None:
    copies = written(partitions=TICKS)
    for number in range(TICKS):
        copies["n3"].spoil(number, "k7", "nobody wrote this")
    primary = copies["n1"].entropy
    _tick(copies)
    _tick(copies)
    suspected = list(primary.suspected)
    assert len(suspected) == 2, "a round takes a partition a tick"
    copies.map(("n1", "n2", "n3"), ("n1", "n2", "n3"))
    for _ in range(4):
        _tick(copies)
    assert all(name in copies["n3"].anew.wanted for name in suspected)


def test_a_light_step_ends_what_is_asked_and_leaves_what_others_lead_now_to_them() -> None:
    copies = written(partitions=2)
    primary = copies["n1"]
    for number in (0, 1):
        for node in ("n2", "n3"):
            copies[node].spoil(number, "k7", "nobody but two wrote this")
    copies.round(4)
    assert sorted(primary.entropy.undecided) == [name_of(0), name_of(1)]
    late: list[tuple[str, Proofs]] = []

    def keep(sender: str, _to: str, said: Said) -> int:
        if isinstance(said, Proofs):
            late.append((sender, said))
            return 0
        return 1

    copies.trouble = keep
    copies.round()
    assert primary.entropy._trials
    primary.entropy.suspected = {name_of(0): {}, name_of(1): {}}
    moved = primary.local[0]
    placed_at_once(moved, msgspec.structs.replace(moved.placement, owners=("n2", "n1", "n3")), "n1")
    primary.entropy.step(NewMap([moved], [moved], []))
    assert primary.entropy._trials == {}
    assert sorted(primary.entropy.suspected) == [name_of(1)]
    assert sorted(primary.entropy.undecided) == [name_of(1)]
    before = primary.entropy.told.compared
    for sender, proofs in late:
        primary.entropy.on(sender, proofs)
    assert primary.entropy.told.compared == before, "an answer to what was asked before the step is none"


def test_there_is_room_for_so_many_questions_and_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for more is not answered, and asks again."""
    monkeypatch.setattr(proving, "ASKED_MAX", 1)
    copies = written(partitions=4, rows=6)
    for number in range(4):
        copies["n3"].spoil(number, "k3", "nobody wrote this")
    for _ in range(6):
        copies.round()
    assert len(copies["n3"].anew.wanted) == 4
    copies["n3"].anew.told()
    copies.map(("n1", "n2", "n3"), ("n1", "n2"))
    copies.whole()
    copies.judge()
    copies.round()
    quiet(copies)


def test_it_is_off_where_its_interval_is_0() -> None:
    copies = Copies("n1", "n2", settings=Settings(anti_entropy_ms=0))
    copies.map(("n1", "n2"), ("n1", "n2"), promote=True)
    assert copies["n1"].entropy.wake_at == 1 << 63


def test_a_round_passes_all_partitions_and_each_tick_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = written(partitions=64, rows=1)
    asked: list[int] = []
    entropy = copies["n1"].entropy
    monkeypatch.setattr(entropy, "_ask", asked.extend)
    for _ in range(TICKS):
        before = len(asked)
        entropy.tick()
        assert len(asked) - before <= 3
    assert set(asked) == set(range(64))


def test_a_tick_takes_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebalance.entropy.FRAGMENTS_A_TICK", 2)
    copies = written(partitions=64, rows=1)
    entropy = copies["n1"].entropy
    asked: list[int] = []
    monkeypatch.setattr(entropy, "_ask", asked.extend)
    entropy.tick()
    assert len(asked) == 1, "a partition and its fragment"
    assert NAMESPACE in copies["n1"].replica.partition(0).fragments


def test_a_turn_that_is_full_puts_it_off() -> None:
    copies = written(partitions=TICKS, rows=1)
    core, entropy = copies["n1"], copies["n1"].entropy
    before, core.work = entropy.proving.rows, WORK_MAX
    entropy.tick()
    assert (entropy.proving.rows, entropy.alarm.at) == (before, core.now + MS)
    core.work = 0
    entropy.tick()
    assert entropy.proving.rows > before


@pytest.mark.parametrize("namespaces", [16, 256])
def test_the_work_of_a_tick_does_not_grow_with_what_there_is(namespaces: int) -> None:
    """Where there is much, a round has more ticks."""
    copies = written(partitions=64, rows=1)
    copy = copies["n1"]
    for number in range(64):
        for at in range(namespaces):
            copy.replica.ensure_fragment((f"n{at}", number))
    for _ in range(TICKS):
        copy.work = 0
        copy.entropy.tick()
        assert 0 < copy.work <= FRAGMENTS_A_TICK + 256 + ROWS_A_STEP + ROWS_AT_ONCE
        while copy.go_on():
            pass


def test_what_is_asked_and_ordered_of_partitions_that_there_are_not_is_passed_over() -> None:
    copies = written()
    copy = copies["n2"]
    for number in (1, 99, -1):
        name = (NAMESPACE, number)
        copy.entropy.on("n1", AskProofs(copy.fence, 1, [number], [name]))
        copy.entropy.on("n1", Heal(copy.fence, name, kept=True, reason="nobody knows"))
    assert copy.anew.as_object()["wanted"] == []
    assert healed(copies) == []
    quiet(copies)
