"""What a log tells of a transaction that is prepared in pieces: it is one."""

from __future__ import annotations

from tools.reconcile.logs import Reading as Log
from tools.wal.copy_at_rest import AtRest
from tools.wal.origins import Origins
from tools.wal.story import Story
from tools.wal.tx_story import End, TxReading, TxStory, txs_of
from wal import Block
from wal import records as r
from wal.ids import piece_of, tx_of

TX = tx_of(b"a session.", 7)
PIECES = [piece_of(TX, number) for number in range(3)]


def prepare(number: int) -> r.Prepare:
    """A piece that writes one key."""
    write = r.Write("acc", 4, 1, number, [b"k%d" % number], values=[b"v"], tx=PIECES[number])
    return r.Prepare(PIECES[number], 4, 1, [write], [], [4, 4, 4, 5], 5)


def outcome(number: int, *, commit: bool = True) -> r.Outcome:
    """Its end."""
    return r.Outcome(PIECES[number], 4, 1, commit, [("acc", number, 1)])


def told(*records: r.Record) -> TxStory:
    """What some records say of the transaction."""
    story = TxStory(TX)
    reading = TxReading({TX: story}, "n1", Origins())
    reading.take(Block(1, 0, list(records), "", 0, 0))
    return story


def test_pieces_are_one_transaction_that_is_in_doubt_until_all_have_ended() -> None:
    prepares = [prepare(number) for number in range(3)]
    assert [*txs_of(prepares[2]), *txs_of(outcome(2))] == [TX, TX]
    story = told(*prepares, outcome(0), outcome(2))
    assert story.participants == [4, 5]
    assert story.end() == (End.IN_DOUBT, "n1:p4")
    assert [step.what for step in story.steps] == ["prepare"] * 3 + ["commit"] * 2
    assert told(*prepares, *(outcome(number) for number in range(3))).end()[0] is End.COMMITTED
    assert told(*prepares, *(outcome(number, commit=number != 1) for number in range(3))).end()[0] is End.TORN


def test_an_epoch_ends_what_it_does_not_issue_again() -> None:
    again = r.Prepare(PIECES[1], 4, 2, prepare(1).writes, [], [4, 4, 4, 5], 5, origin=1)
    story = told(prepare(0), prepare(1), again, r.EpochStart(4, 2, []))
    assert list(story.prepared) == [("n1", 4, 1)]


def test_beside_other_logs_a_partition_has_committed_what_all_of_its_pieces_have() -> None:
    for last, ended in ((True, True), (False, False)):
        log = Log()
        records: list[r.Record] = [prepare(0), prepare(1), outcome(0), outcome(1, commit=last)]
        log.take(Block(1, 0, records, "", 0, 0))
        assert (log.participants, log.outcomes) == ({TX: [4, 5]}, {TX: {4: ended}})


def test_the_story_of_a_key_names_the_transaction() -> None:
    story = Story(("acc", 4), b"k1", keep=True)
    story.reading("n1", AtRest()).take(Block(1, 0, [prepare(0), prepare(1), outcome(1)], "", 0, 0))
    (change,) = story.changes
    assert (change.tx, change.prepared) == (TX, True)
