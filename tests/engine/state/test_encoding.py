"""States in pieces: joined they are the image that the format says, and no piece is more than a turn has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from engine.state.encoding import (
    AT_ONCE,
    BYTES_OF_WORK,
    FEW,
    MANY_PARTS,
    OF_WORK,
    PIECE_BYTES,
    PIECE_WORK,
    Piece,
    pieces_of_fragment,
    pieces_of_node,
    pieces_of_partition,
)
from engine.state.node_image import NodeImage
from engine.state.replica import Replica
from engine.state.store import CheckpointImage, LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.fragment import FragmentState
from rebalance.image import (
    LARGE_BYTES,
    FragmentImage,
    PartitionImage,
    TakenFragment,
    TakenPartition,
    pairs_of,
    take_down,
    take_down_partition,
)
from rebalance.ports import LITTLE
from rebalance.results import Results
from tests.support.weight import weight
from wal import records as r
from wal.ids import NO_BALLOT, NO_VERSION, tx_of

NAME = ("acc", 0)
LENGTHS = (0, 1, 15, 16, FEW - 1, FEW, AT_ONCE, AT_ONCE + 15, AT_ONCE + 16, 65_535, 65_536)
"""Around each form that the length of a list has in MessagePack; that of its last entries, too."""
MOST = max(PIECE_WORK + PIECE_BYTES // BYTES_OF_WORK + 2, PIECE_WORK + 1)


def no_row(_: bytes) -> None:
    """The rows have nothing."""


def writes(count: int) -> list[r.Write]:
    """Updates of one key each, above a gap."""
    return [r.Write(*NAME, 1, at, [b"k%d" % at], [b"v"], tx=tx_of(b"a client..", at)) for at in range(1, count + 1)]


def taken(tail: int = 0, suspects: int = 0, tombstones: int = 0, *, size: int = 1) -> TakenFragment:
    """A fragment that has so much of everything."""
    deleted = pairs_of({b"k%d" % at: at for at in range(tombstones)})
    doubted = [b"k%d" % at for at in range(suspects)]
    some = [msgspec.structs.replace(write, values=[bytes(size)]) for write in writes(tail)]
    return TakenFragment(b"counter", ((1, 1),), 7, 8, some, ((7, 8),), False, 3, doubted, deleted)


def joined(pieces: Iterable[Piece]) -> bytes:
    """All of it; none of it was too much at once."""
    found = []
    for piece in pieces:
        assert len(piece.data) <= PIECE_BYTES + LARGE_BYTES
        assert piece.work <= MOST < LITTLE, "a turn does a few of them"
        found.append(piece.data)
    return b"".join(found)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("what", ["tail", "suspects", "tombstones"])
def test_a_fragment_in_pieces_is_its_image(what: str, count: int) -> None:
    found = taken(**{what: count})
    image = FragmentImage(*found[:-1], [*found.tombstones], [])  # type: ignore[arg-type]  # as they lie
    assert joined(pieces_of_fragment(found, no_row)) == msgspec.msgpack.encode(image)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("what", ["prepared", "results", "answers"])
def test_a_partition_in_pieces_is_its_image(what: str, count: int) -> None:
    txs = [tx_of(b"a client..", at) for at in range(count)]
    prepared = [r.Prepare(tx, 0, 1, writes(1), [], [0], 0) for tx in txs] if what == "prepared" else []
    results = dict.fromkeys(txs, 1) if what == "results" else {}
    answers = dict.fromkeys(txs, b"an answer") if what == "answers" else {}
    image = PartitionImage(1, prepared, list(results.items()), b"floor", list(answers.items()))
    found = TakenPartition(1, prepared, pairs_of(results), b"floor", pairs_of(answers))
    assert joined(pieces_of_partition(found)) == msgspec.msgpack.encode(image)


@pytest.mark.parametrize("count", LENGTHS)
def test_the_nodes_own_part_in_pieces_is_its_image(count: int) -> None:
    none = NO_VERSION, b""
    records: list[r.Record] = [r.Update([write]) for write in writes(count)]
    image = NodeImage(7, (NO_VERSION, NO_BALLOT), (NO_VERSION, NO_BALLOT, b""), none, records)
    assert joined(pieces_of_node(image)) == msgspec.msgpack.encode(image)


NONE = pairs_of({})
MANY = (MANY_PARTS // 2, MANY_PARTS // 2 + 1, MANY_PARTS // 2 + AT_ONCE, 65_535, 65_536, 100_000)
"""Keys of one record, around those with which it is encoded in pieces itself, and as many as a client may write."""


def very_many(count: int) -> r.Write:
    """One update of so many keys; of some it is a delete."""
    values = [b"v" if at % 3 else None for at in range(count)]
    return r.Write(*NAME, 1, 7, [b"k%d" % at for at in range(count)], values, 5, b"t" * 16, answer=b"told")


@pytest.mark.parametrize("count", MANY)
def test_an_update_of_very_many_keys_is_in_pieces_itself(count: int) -> None:
    """Seed 600062 at 49c5384: a checkpoint encoded a batch of 96,315 keys, that was on its way, in one piece."""
    found = taken()._replace(tail=[*writes(1), very_many(count), *writes(1)])
    image = FragmentImage(*found[:-1], [], [])  # type: ignore[arg-type]  # as they lie
    assert joined(pieces_of_fragment(found, no_row)) == msgspec.msgpack.encode(image)


@pytest.mark.parametrize("count", MANY)
def test_what_is_prepared_of_very_many_keys_is_in_pieces_itself(count: int) -> None:
    locks = [("acc", b"l%d" % at) for at in range(count)]
    prepared = [
        r.Prepare(b"t" * 16, 0, 1, [*writes(20), very_many(count)], locks[:2], [0, 1], 1, held=True),
        r.Prepare(b"u" * 16, 0, 1, writes(1), locks, [0], 0),
    ]
    image = PartitionImage(1, prepared, [], b"floor", [])
    assert joined(pieces_of_partition(TakenPartition(1, prepared, NONE, b"floor", NONE))) == msgspec.msgpack.encode(image)


@pytest.mark.parametrize("count", MANY)
def test_what_is_in_the_log_of_very_many_keys_is_in_pieces_itself(count: int) -> None:
    none = NO_VERSION, b""
    records: list[r.Record] = [r.Update([*writes(1), very_many(count)]), r.History([very_many(count)]), r.NoOp(0, 1, [])]
    image = NodeImage(7, (NO_VERSION, NO_BALLOT), (NO_VERSION, NO_BALLOT, b""), none, records)
    assert joined(pieces_of_node(image)) == msgspec.msgpack.encode(image)


def test_pieces_are_work_by_their_entries_their_keys_and_their_bytes() -> None:
    def work(found: TakenFragment) -> int:
        return sum(piece.work for piece in pieces_of_fragment(found, no_row))

    assert work(taken()) == work(taken(tombstones=FEW - 1)) == 1, "a state is one, whatever little it has"
    assert work(taken(tail=20_000)) >= 20_000 // OF_WORK
    assert work(taken(tail=10, size=1 << 20)) >= (10 << 20) // BYTES_OF_WORK
    many = taken()._replace(tail=[very_many(100_000)])
    assert work(many) >= LITTLE, "one record with very many keys is as much as a turn does of it"


def test_rows_are_asked_for_large_values_a_few_at_a_time() -> None:
    count, asked = 10_000, list[bytes]()
    keys = [b"k%05d" % at for at in range(count)]
    write = r.Write(*NAME, 1, 0, keys, [bytes(LARGE_BYTES + 1)] * count)
    fragment = FragmentState(NAME)
    fragment.begin_epoch(1, 1)
    fragment.apply(write)

    def row(key: bytes) -> tuple[int, int, bytes | None]:
        asked.append(key)
        return 1, 1 + int(key[1:]), b""

    pieces, before = [], 0
    for piece in pieces_of_fragment(take_down(fragment), row):
        pieces.append(piece.data)
        assert len(asked) - before <= min(PIECE_WORK, piece.work), "each is work"
        before = len(asked)
    image = msgspec.msgpack.decode(b"".join(pieces), type=FragmentImage)
    assert (len(asked), len(image.held)) == (count, count)
    looks = [piece.work for piece in pieces_of_fragment(taken(tail=10, size=1 << 20), row) if not piece.data]
    assert sum(looks) >= 10 * (1 << 20) // BYTES_OF_WORK, "to look at what is large is more"


# What happens between the pieces.


def replica_with(records: Iterable[r.Record]) -> Replica:
    """One that has applied them."""
    replica = Replica(LayeredStore(MemoryStore()))
    for record in records:
        replica.apply(record)
    return replica


def come_back(replica: Replica, image: CheckpointImage) -> Replica:
    """What comes of a checkpoint."""
    base = replica.store.base
    base.write(image)
    replica.store.thaw()
    again = Replica(LayeredStore(base))
    again.load(base.loading())
    return again


LARGE = bytes(LARGE_BYTES + 1)
CLEAR = r.FragmentClear(*NAME, "anew")


def again(*numbers: int) -> list[r.Record]:
    """Updates of one key, with large values."""
    return [r.Update([r.Write(*NAME, 1, at, [b"k"], [LARGE + b"%d" % at])]) for at in numbers]


def answered(at: int) -> list[r.Record]:
    """A delete, the answer to which is kept."""
    return [r.Update([r.Write("whole", 0, 1, at, [b"gone-%d" % at], [None], tx=b"s" * 15 + bytes((at,)), answer=b"told")])]


CHANGES: dict[str, list[r.Record]] = {
    "more is deleted and answered": answered(4),
    "more is in doubt": [r.Update([r.Write("loads", 0, 1, 7, [b"in doubt, too"], [b"v"])])],
    "more comes": again(5, 6, 7),
    "the gap closes": again(0),
    "all becomes stable": [*again(0), r.Stable(0, 1, [("acc", 4)])],
    "what has no gap becomes stable": [r.Stable(0, 1, [("whole", 3)])],
    "it is undone": [r.Undo(*NAME, 2, [])],
    "it is emptied, and filled with what is older": [CLEAR, *again(1)],
    "it goes": [r.FragmentClear(*NAME, "gone", gone=True)],
    "it is prepared": [r.Prepare(b"u" * 16, 0, 1, [r.Write(*NAME, 1, 9, [b"z"], [b"z"])], [], [0], 0)],
    "it ends": [r.Outcome(b"t" * 16, 0, 1, True, [("acc", 8, 1)])],
}


@pytest.mark.parametrize("happens", CHANGES)
def test_a_state_is_encoded_as_it_was_whatever_happens_between_its_pieces(happens: str) -> None:
    before = [
        r.EpochStart(0, 1, [("acc", 1)]),
        *again(1, 2, 3, 4),
        r.Prepare(b"t" * 16, 0, 1, [r.Write(*NAME, 1, 8, [b"p"], [b"p"])], [], [0], 0),
        *[r.Update([r.Write("more", 0, 1, at, [b"k%d" % at], [b"v"])]) for at in range(1, 2_500)],
        *[r.Update([r.Write("whole", 0, 1, at, [b"w"], [b"v"])]) for at in range(3)],
        *answered(3),
        r.FragmentClear("loads", 0, "anew"),
        r.Update([r.Write("loads", 0, 1, 5, [b"in doubt"], [b"v"])]),
    ]

    def image(meanwhile: Callable[[Replica, int], None]) -> tuple[Replica, CheckpointImage]:
        replica = replica_with(before)
        found = replica.freeze(len(before), [])
        meanwhile(replica, -1)
        for at, _ in enumerate(replica.changes.pieces()):
            meanwhile(replica, at)
        return replica, found

    def all_of(replica: Replica) -> Any:
        fragments = {name: take_down(fragment) for name, fragment in replica.fragments.items()}
        return fragments, {
            number: (p.epoch, p.prepared, p.results.items(), [*p.results.answers().items()])
            for number, p in replica.partitions.items()
        }

    wanted = all_of(come_back(*image(lambda *_: None)))
    for when in range(-1, 8):

        def meanwhile(replica: Replica, at: int, when: int = when) -> None:
            for record in CHANGES[happens] if at == when else ():
                replica.apply(record)

        assert all_of(come_back(*image(meanwhile))) == wanted, f"it happens after piece {when}"


def test_what_is_taken_down_of_very_many_is_what_they_are_and_nothing_by_which_they_are_found() -> None:
    """A turn takes down whatever there is. What lies in parts is another thing: `test_very_many_keys`."""
    many = 100_000
    results = Results([(b"k%d" % at, 1) for at in range(many)], b"", [(b"k%d" % at, b"") for at in range(many)])
    partition = take_down_partition(1, [], results)
    for of in (partition.results, partition.answers):
        assert len(of) == many
        assert weight([of], but=(bytes, int)) <= 2 * 8 * many + 1_000
