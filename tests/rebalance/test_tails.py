"""What a copy tells the next primary of what is prepared: whatever that one lacks, or would forget with the epoch."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from engine.turn.settings import Settings
from rebalance import tails
from rebalance.messages import AskTail, CopyTail, Tail
from rebalance.partition import PartitionState
from rebalance.tails import TAIL_BYTES_MAX, prepared_for
from tests.rebalance.test_promotions import promote, served
from tests.rebalance.test_transfers import READER, three
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


def test_what_finds_no_room_is_left_out(copy: PartitionState) -> None:
    txs = votes(copy, [60, 41])
    assert [p.tx for p in prepared_for(asker(1, []), copy)] == txs[:1], "it was not voted for: who asks lacks it"


def test_no_epoch_may_begin_with_more_than_an_answer_carries() -> None:
    hint = get_type_hints(Settings, include_extras=True)["supply_batch_bytes"]
    most = next(m.le for m in hint.__metadata__ if isinstance(m, msgspec.Meta) and m.le is not None)
    assert most <= TAIL_BYTES_MAX, "whatever its setting on the node that began it"


def test_what_is_much_is_answered_in_several_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = three(partitions=4)
    for number in range(4):
        copies["n1"].prepare_reader(number, READER)
    copies.run()
    monkeypatch.setattr("rebalance.promotion.TAIL_BYTES_MAX", 0)
    copies.said.clear()
    promote(copies, "n2", "n3")
    served(copies)
    assert copies.said.count(Tail.__name__) == 4 * copies.said.count(AskTail.__name__), "one for each partition"
    assert all(READER in copies[node].replica.partition(number).prepared for node in ("n2", "n3") for number in range(4))
