"""What a copy tells the next primary of what is prepared: whatever that one lacks, or would forget with the epoch."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from engine.turn.settings import Settings
from rebalance import tails
from rebalance.fragment import FragmentState
from rebalance.messages import AskTail, CopyTail, Tail
from rebalance.partition import PartitionState
from rebalance.tails import TAIL_BYTES_MAX, Told, answer_to, lagged, prepared_for
from rebalance.telling import tail_of
from tests.rebalance.test_promotions import promote, reaches, served
from tests.rebalance.test_transfers import READER, TROUBLES, once, three
from tests.support.probes import heard
from wal import records as r
from wal.ids import TxId, tx_of

SESSION = b"s" * 8


def votes(state: PartitionState, sizes: list[int]) -> list[TxId]:
    """So many transactions have voted in the epoch of a copy, and write so many bytes each."""
    for number, size in enumerate(sizes):
        write = r.Write("acc", 0, state.epoch, 10 * number, [b"k"], values=[bytes(size - 1)])
        tx = tx_of(SESSION, number + 1)
        state.prepared[tx] = r.Prepare(tx, 0, state.epoch, [write], [], [0], 0)
    return list(state.prepared)


def asker(epoch: int, prepared: list[TxId]) -> CopyTail:
    """A copy that asks."""
    return CopyTail(0, epoch, [], prepared, writes=[], prepares=[])


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> PartitionState:
    """A copy in epoch 2, of which an answer carries 100 bytes."""
    monkeypatch.setattr(tails, "TAIL_BYTES_MAX", 100)
    state = PartitionState(0)
    state.epoch = 2
    return state


def test_who_lacks_the_epoch_is_told_all_that_may_have_come_with_its_beginning(copy: PartitionState) -> None:
    txs = votes(copy, [60, 40])
    assert [p.tx for p in prepared_for(asker(1, txs), copy)] == txs, "it has them, and forgets them when the epoch begins"
    assert prepared_for(asker(2, txs), copy) == []
    assert [p.tx for p in prepared_for(asker(2, txs[:1]), copy)] == txs[1:]


def test_of_more_than_that_it_is_told_what_it_lacks_for_the_others_were_issued_again_before(copy: PartitionState) -> None:
    txs = votes(copy, [60, 41, 30])
    assert [p.tx for p in prepared_for(asker(1, txs[:1]), copy)] == txs[1:]


class Compared(bytes):
    """An id that is held against others, each time a step."""

    steps = 0
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.steps += 1
        return bytes.__eq__(self, other)


def test_what_very_many_transactions_have_prepared_is_not_held_against_each_of_very_many() -> None:
    state = PartitionState(0)
    state.epoch = 2
    txs = votes(state, [1] * 500)
    Compared.steps = 0
    known: list[TxId] = [Compared(tx) for tx in txs[:-1]]
    assert [p.tx for p in prepared_for(asker(2, known), state)] == txs[-1:]
    assert Compared.steps <= 1_000


def test_what_finds_no_room_is_left_out(copy: PartitionState) -> None:
    txs = votes(copy, [60, 41])
    assert [p.tx for p in prepared_for(asker(1, []), copy)] == txs[:1], "it was not voted for: who asks lacks it"


def test_no_epoch_may_begin_with_more_than_an_answer_carries() -> None:
    hint = get_type_hints(Settings, include_extras=True)["supply_batch_bytes"]
    most = next(m.le for m in hint.__metadata__ if isinstance(m, msgspec.Meta) and m.le is not None)
    assert most <= TAIL_BYTES_MAX, "whatever its setting on the node that began it"


def asked_on(copy: PartitionState, theirs: CopyTail, told: Told, repeat: int) -> tuple[CopyTail, list[CopyTail]]:
    """All that a copy has to tell who asks on, as that one hears it, each part so often; and the parts."""
    parts = list[CopyTail]()
    while True:
        question = told.question("n2", theirs)
        parts.append(answer_to(question, CopyTail(0, copy.epoch, [], [], [], []), copy, in_parts=True))
        for _ in range(repeat):
            whole, ask_on = told.hear("n2", parts[-1])
            if whole is not None:
                assert not ask_on
                return whole, parts
        assert ask_on is (repeat == 1)


@pytest.fixture
def much(monkeypatch: pytest.MonkeyPatch) -> PartitionState:
    """A copy in epoch 2 with writes and votes of which each is a part."""
    monkeypatch.setattr(tails, "PART_WORK", 1)
    state = PartitionState(0)
    state.epoch = 2
    fragment = state.fragments["acc"] = FragmentState(("acc", 0))
    for start in (0, 1, 5):
        fragment.apply(r.Write("acc", 0, 2, start, [b"k"], values=[b"v"]))
    votes(state, [60, 40, 30])
    return state


@pytest.mark.parametrize("repeat", [1, 2], ids=["each once", "each twice"])
def test_what_is_told_in_parts_is_what_is_told_at_once(much: PartitionState, repeat: int) -> None:
    theirs = asker(2, [])
    mine = CopyTail(0, much.epoch, [], [], [], [])
    told = Told()
    whole, parts = asked_on(much, theirs, told, repeat)
    assert whole == answer_to(theirs, mine, much, in_parts=False)
    assert len(parts) == 6
    assert all(len(part.writes) + len(part.prepares) == 1 for part in parts)
    assert told.question("n2", theirs) == theirs, "nothing is kept of it"


def test_who_does_not_ask_on_is_told_all_at_once(much: PartitionState) -> None:
    """One of an older version, which takes whatever it is told for all that there is."""
    answer = answer_to(asker(2, []), CopyTail(0, 2, [], [], [], []), much, in_parts=False)
    assert (len(answer.writes), len(answer.prepares), answer.left) == (3, 3, 0)
    assert Told().hear("n2", answer) == (answer, False), "and what an older one tells is all, too"


def test_where_there_is_something_else_to_tell_it_is_told_from_the_beginning(much: PartitionState) -> None:
    theirs, told, mine = asker(2, []), Told(), CopyTail(0, 2, [], [], [], [])
    assert told.hear("n2", answer_to(theirs, mine, much, in_parts=True)) == (None, True)
    del much.prepared[tx_of(SESSION, 2)]
    with heard() as reached:
        assert told.hear("n2", answer_to(told.question("n2", theirs), mine, much, in_parts=True)) == (None, True)
    assert "promotion.is_told_from_the_beginning" in reached
    whole, parts = asked_on(much, theirs, told, 1)
    assert whole == answer_to(theirs, mine, much, in_parts=False)
    assert parts[0].told == 0


def test_parts_of_who_is_let_go_meanwhile_are_forgotten(much: PartitionState) -> None:
    theirs, told = asker(2, []), Told()
    told.hear("n2", answer_to(theirs, CopyTail(0, 2, [], [], [], []), much, in_parts=True))
    told.keep({0: {"n2": None}, 1: {}})
    assert told.question("n2", theirs).told == 1
    told.keep({0: {"n3": None}})
    assert told.question("n2", theirs).told == 0


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("kind", ["AskTail", "Tail"])
@pytest.mark.parametrize("what", TROUBLES)
def test_a_new_primary_hears_in_parts_what_it_lacks(
    what: str, kind: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message may be lost, or come twice, or after the next."""
    monkeypatch.setattr(tails, "PART_WORK", 1)
    copies = three()
    for number in range(5):
        reaches(copies, ["n3"], **{f"k{number}": "heard by n3"})
    copies.trouble = once(kind, TROUBLES[what], nth)
    with heard() as reached:
        promote(copies, "n2", "n3")
        copies.wait(2)
        served(copies)
    assert "promotion.answers_in_parts" in reached
    assert [copies["n2"].rows(0)[f"k{number}".encode()][2] for number in range(5)] == [b"heard by n3"] * 5


def test_what_is_much_is_answered_in_several_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = three(partitions=4)
    for number in range(4):
        copies["n1"].prepare_reader(number, READER)
    copies.run()
    monkeypatch.setattr("rebalance.promotion.PART_WORK", 0)
    copies.said.clear()
    promote(copies, "n2", "n3")
    served(copies)
    assert copies.said.count(Tail.__name__) == 4 * copies.said.count(AskTail.__name__), "one for each partition"
    assert all(READER in copies[node].replica.partition(number).prepared for node in ("n2", "n3") for number in range(4))


class Name(str):
    """A namespace, and how often it was held against another one."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_of_very_many_namespaces_each_is_held_against_itself_alone() -> None:
    many = 300
    mine, theirs = PartitionState(0), PartitionState(0)
    for at in range(many):
        for state, name in ((mine, f"n{at}"), (theirs, Name(f"n{at}"))):
            fragment = state.fragments[name] = FragmentState((name, 0))
            fragment.apply(r.Write(name, 0, 1, 0, [b"k"], [b"v"]))
    mine.fragments["n7"].apply(r.Write("n7", 0, 1, 1, [b"k"], [b"v"]))
    mine.fragments["new"] = FragmentState(("new", 0))
    mine.fragments["new"].apply(r.Write("new", 0, 1, 0, [b"k"], [b"v"]))
    Name.compared = 0
    assert [f.name[0] for f in lagged([tail_of(theirs), tail_of(mine)], mine, mine.epoch)] == ["n7", "new"]
    assert Name.compared <= 3 * many
    assert lagged([tail_of(theirs)], mine, mine.epoch - 1) == list(mine.fragments.values())
    assert lagged([], mine, mine.epoch) == []
