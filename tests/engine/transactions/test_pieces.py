"""What one transaction writes in one partition, prepared in pieces: told with one node that is its own cluster."""

from __future__ import annotations

import pytest

from engine.messages import Part, PrepareParts
from engine.protocol.requests import Code, CommitTx, Done, GetStatus, Put, StageWrites, Status
from engine.transactions.asking import FLYING_OF_STAGED
from engine.transactions.pieces import PLACE_BITS, cut, partition_at, place_of, places_of
from tests.engine.transactions.test_staging import Story, code
from wal import records as r
from wal.ids import TxId, partition_of, piece_number, piece_of, sequence_of, tx_name, tx_of, whole_of

PIECE = 200
"""So many bytes of a partition are prepared in one piece: of a thousand a quarter, and whole keys."""
KEYS = [b"{a}%02d" % number for number in range(10)]
WHERE = partition_of(KEYS[0], 2)
VALUE = bytes(95)
KEYS_BYTES = 1_000
"""Of all of them."""


def story_of_pieces() -> tuple[Story, TxId]:
    """Of ten keys of a hundred bytes in one partition two are in a piece; and an id."""
    story = Story(FLYING_OF_STAGED * PIECE)
    return story, story.tx()


def begin(story: Story, tx: TxId, *, prepare_only: bool = False, answered: bool = True) -> object:
    """Stage all keys but the first, and commit."""
    writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("acc", KEYS[1:], [VALUE] * 9)]
    assert isinstance(story.ask(StageWrites(1, tx, tx, WHERE, 1, 900, writes)), Done)
    commit = CommitTx(9, tx, tx, True, [("acc", KEYS[:1], [VALUE])], [], [], staged=1, prepare_only=prepare_only)
    return story.ask(commit) if answered else None


def prepared(story: Story) -> list[r.Prepare]:
    """What is prepared in the partition."""
    return list(story.node.core.replica.partition(WHERE).prepared.values())


def rows(story: Story) -> list[bytes | None]:
    """What the keys have, whoever has them."""
    store = story.node.core.replica.store
    found = [store.get(("acc", WHERE), key) for key in KEYS]
    return [entry.value if entry is not None else None for entry in found]


def test_what_is_too_large_for_a_record_is_prepared_in_several() -> None:
    story, tx = story_of_pieces()
    assert begin(story, tx, prepare_only=True) == Done(9)
    pieces = prepared(story)
    assert [piece.tx for piece in pieces] == [piece_of(tx, number) for number in range(5)]
    assert [len(write.keys) for piece in pieces for write in piece.writes] == [2] * 5
    assert [key for piece in pieces for write in piece.writes for key in write.keys] == KEYS
    assert {tuple(piece.participants) for piece in pieces} == {(WHERE,) * 5}, "each names its partition once for each"
    assert rows(story) == [None] * 10, "and none of them counts"
    assert begin_again(story, tx) == Done(9)
    assert rows(story) == [VALUE] * 10
    assert not prepared(story)
    assert not story.node.locks
    assert not story.node.participant.owner_of
    assert not story.node.coordinator.active
    story.node.core.replica.check()


def begin_again(story: Story, tx: TxId) -> object:
    """Commit what was only prepared."""
    return story.ask(CommitTx(9, tx, tx, True, [("acc", KEYS[:1], [VALUE])], [], [], staged=1))


def test_all_of_it_or_nothing_is_written() -> None:
    """One key of the fourth piece has been taken: none of the others is written, and nothing stays prepared."""
    (story, tx), other = story_of_pieces(), tx_of(b"another se", 1)
    story.node.locks.try_all(other, [("acc", KEYS[7])])
    assert code(begin(story, tx)) == Code.CONFLICT  # type: ignore[arg-type]  # a Failed
    assert rows(story) == [None] * 10
    assert not prepared(story)
    assert list(story.node.locks.owners(0, 9)) == [other]
    story.node.locks.release(other)
    counter = story.node.core.replica.fragment(("acc", WHERE)).counter
    assert (counter.lwm, counter.ranges) == (counter.hwm, ()), "the counters of what was prepared are closed"
    tx = story.tx()
    assert begin(story, tx) == Done(9)
    assert rows(story) == [VALUE] * 10


def test_who_asks_again_is_told_the_same_and_so_is_who_asks_how_it_ended() -> None:
    story, tx = story_of_pieces()
    assert begin(story, tx) == Done(9)
    story.ask(Put(7, tx_of(b"another se", 1), "acc", [KEYS[9]], [b"later"]))
    assert begin(story, tx) == Done(9)
    assert rows(story)[9] == b"later"
    assert story.ask(GetStatus(8, tx, WHERE)) == Status(8, "committed")


@pytest.mark.parametrize("most", [KEYS_BYTES, 64 << 20])
def test_it_is_cut_in_the_same_way_whatever_its_coordinator_has_room_for(most: int) -> None:
    story = Story(most)
    tx = story.tx()
    assert begin(story, tx, prepare_only=True) == Done(9)
    assert [[key for write in piece.writes for key in write.keys] for piece in prepared(story)] == [
        KEYS[at : at + 2] for at in range(0, 10, 2)
    ]


@pytest.mark.parametrize("voted", range(6))
def test_recovery_commits_what_is_prepared_in_all_pieces_and_nothing_else(voted: int) -> None:
    """Its coordinator is gone after so many votes: who is in doubt is told what all pieces together say."""
    story, tx = story_of_pieces()
    parts = {WHERE: Part(WHERE, [("acc", KEYS, [VALUE] * 10)], [], [], conditions=[], ttls=[])}
    assert sum(cut(parts, PIECE)) == 0, "few keys are no work"
    participants = [partition_at(place) for place in parts]
    node = story.node
    for place in list(parts)[:voted]:
        piece = piece_of(tx, place >> PLACE_BITS)
        node.participant.on_prepare(
            "n1", PrepareParts(node.core.fence, piece, tx, True, [parts[place]], participants, WHERE)
        )
        story.wait(0)
    assert len(prepared(story)) == voted
    node.coordinator.active.clear()
    story.wait(node.core.settings.in_doubt_ms + 1)
    story.wait(1)
    assert not prepared(story)
    assert rows(story) == [VALUE if voted == 5 else None] * 10
    assert not node.locks
    assert not node.participant.owner_of
    assert not node.coordinator.active


def test_what_another_coordinator_has_cut_otherwise_is_no_vote() -> None:
    """One of an older version, which made smaller pieces: what is prepared is not what is asked."""
    story, tx = story_of_pieces()
    node = story.node
    parts = {WHERE: Part(WHERE, [("acc", KEYS, [VALUE] * 10)], [], [], conditions=[], ttls=[])}
    list(cut(parts, PIECE // 2))
    ask = PrepareParts(
        node.core.fence, piece_of(tx, 1), tx, True, [parts[place_of(piece_of(tx, 1), WHERE)]], [WHERE] * 10, WHERE
    )
    node.participant.on_prepare("n1", ask)
    story.wait(0)
    assert [piece.tx for piece in prepared(story)] == [piece_of(tx, 1)]
    refused = begin(story, tx)
    assert code(refused) == Code.CONFLICT  # type: ignore[arg-type]  # a Failed
    assert not prepared(story)
    assert rows(story) == [None] * 10


def test_nor_is_what_another_coordinator_has_not_cut_at_all() -> None:
    """All of it was prepared at once beside the partition that decides, and is asked for in pieces: the others would be
    prepared, too, and write their keys twice, which nobody holds any more when the first one has ended."""
    (story, tx), elsewhere = story_of_pieces(), [b"{b}%02d" % number for number in range(4)]
    node, there = story.node, partition_of(b"{b}00", 2)
    assert there != WHERE
    part = Part(there, [("acc", elsewhere, [VALUE] * 4)], [], [], conditions=[], ttls=[])
    node.participant.on_prepare("n1", PrepareParts(node.core.fence, tx, tx, True, [part], [0, 1], WHERE))
    story.wait(0)
    counter, state = node.core.replica.fragment(("acc", there)).counter, node.core.replica.partition(there)
    assert (list(state.prepared), counter.hwm) == ([tx], 4)
    assert isinstance(story.ask(StageWrites(1, tx, tx, WHERE, 1, 400, [("acc", elsewhere, [VALUE] * 4)])), Done)
    refused = story.ask(CommitTx(9, tx, tx, True, [("acc", KEYS[:1], [VALUE])], [], [], staged=1))
    assert code(refused) == Code.CONFLICT
    story.wait(0)
    assert not state.prepared
    assert [node.core.replica.store.get(("acc", there), key) for key in elsewhere] == [None] * 4
    assert not node.locks
    assert (counter.lwm, counter.ranges) == (counter.hwm, ()), "the counters of what was prepared are closed"


def test_a_piece_gives_back_only_what_it_has_touched() -> None:
    """Nobody may have a key of a piece that has not ended, though another one of the transaction has."""
    (story, tx), other = story_of_pieces(), tx_of(b"another se", 1)
    assert begin(story, tx, prepare_only=True) == Done(9)
    node = story.node
    local = node.core.local[WHERE]
    node.participant.finish(local, piece_of(tx, 3), True, None, node.core.era)
    story.wait(0)
    assert node.locks.try_all(other, [("acc", KEYS[6]), ("acc", KEYS[7])]) is None, "its keys are free"
    for key in (*KEYS[:6], *KEYS[8:]):
        assert node.locks.try_all(other, [("acc", key)]) == ("acc", key)
        assert node.locks.in_doubt(("acc", key))


def test_a_part_is_cut_where_it_is_too_large_and_each_key_has_what_is_said_of_it() -> None:
    keys = [b"a", b"b", b"c", b"d", b"e"]
    one = Part(
        3,
        [("x", keys[:3], [b"1", b"22", None]), ("y", keys[3:], [b"4" * 9, b"5"])],
        locks=[("x", b"c"), ("x", b"not written")],
        reads=[("y", b"d", 1, 1), ("x", b"d", 1, 1)],
        conditions=[("y", b"e", "absent", None, 0, 0)],
        ttls=[("x", b"b", 7), ("y", b"e", 8)],
    )
    small = Part(1, [("x", [b"k"], [b"v"])], [], [], conditions=[], ttls=[])
    parts = {3: one, 1: small}
    list(cut(parts, 5))
    assert parts.pop(1) is small
    places = [3, *(3 | piece << PLACE_BITS for piece in range(1, 4))]
    assert list(parts) == places == places_of([3, 3, 3, 3])
    assert [parts[place].writes for place in places] == [
        [("x", [b"a", b"b"], [b"1", b"22"])],
        [("x", [b"c"], [None])],
        [("y", [b"d"], [b"4" * 9])],
        [("y", [b"e"], [b"5"])],
    ]
    assert [parts[place].locks for place in places] == [[("x", b"not written")], [("x", b"c")], [], []]
    assert [parts[place].reads for place in places] == [[("x", b"d", 1, 1)], [], [("y", b"d", 1, 1)], []]
    assert [bool(parts[place].conditions) for place in places] == [False, False, False, True]
    assert [parts[place].ttls for place in places] == [[("x", b"b", 7)], [], [], [("y", b"e", 8)]]
    assert {parts[place].partition for place in places} == {3}


def test_places_are_counted_by_how_often_a_partition_is_named() -> None:
    assert places_of([]) == []
    assert places_of([1, 2, 2, 5]) == [1, 2, 2 | 1 << PLACE_BITS, 5]
    assert [partition_at(place) for place in places_of([1, 2, 2, 65_535])] == [1, 2, 2, 65_535]


def test_a_piece_has_an_id_that_no_client_can_say_and_is_known_by_that_of_the_whole() -> None:
    tx = tx_of(b"a session.", 258)
    assert piece_of(tx, 0) == tx
    piece = piece_of(tx, 700)
    assert (piece_number(tx), piece_number(piece), whole_of(piece), whole_of(tx)) == (0, 700, tx, tx)
    assert (sequence_of(piece), tx_name(piece)) == (258, tx.hex())
    assert len(piece) != len(tx)


def test_a_piece_that_nobody_named_is_not_prepared_since_nobody_would_end_it() -> None:
    story, tx = story_of_pieces()
    node = story.node
    part = Part(WHERE, [("acc", KEYS[:1], [VALUE])], [], [], conditions=[], ttls=[])
    for piece, named in ((2, [WHERE] * 2), (1, [WHERE])):
        node.participant.on_prepare(
            "n2", PrepareParts(node.core.fence, piece_of(tx, piece), tx, True, [part], named, WHERE)
        )
    story.wait(0)
    assert not prepared(story)


def test_answers_of_pieces_are_forgotten_with_that_of_the_whole() -> None:
    story, tx = story_of_pieces()
    begin(story, tx)
    results = story.node.core.replica.partition(WHERE).results
    assert len(results) == 5
    results.forget_up_to([(b"a session.", sequence_of(tx) - 1)])
    assert len(results) == 5
    results.forget_up_to([(b"a session.", sequence_of(tx))])
    assert len(results) == 0


def test_pieces_in_several_partitions_are_of_one_owner() -> None:
    """Each second piece of a partition has the id of the second piece of any other: both give back what they have."""
    story, tx = story_of_pieces()
    there = [b"{%s}%d" % (tag, number) for tag in (b"a", b"c") for number in range(4)]
    assert len({partition_of(key, 2) for key in there}) == 2
    owner = tx_of(b"an owner..", 1)
    writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("acc", there, [VALUE] * 8)]
    where = partition_of(KEYS[0], 2)
    assert isinstance(story.ask(StageWrites(1, tx, owner, where, 1, 900, writes)), Done)
    commit = CommitTx(9, tx, owner, True, [("acc", KEYS[:1], [VALUE])], [], [], staged=1)
    assert story.ask(commit) == Done(9)
    assert not story.node.locks
    assert not story.node.participant.owner_of
    assert not list(story.node.locks.keys_in_doubt(0)) + list(story.node.locks.keys_in_doubt(1))
