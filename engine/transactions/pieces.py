"""What one transaction writes in one partition, in pieces.

A record of the log holds so much and no more, and so does a turn. What is larger is prepared in several pieces, each with a
vote, a record and an outcome of its own, as if they lay in partitions of their own: a transaction is all of its pieces, in
whichever partitions, or nothing. So nobody but who cuts it and who counts the votes has to know of pieces. The first one
has the transaction's id, the others an id that is made of it (`wal.ids.piece_of`); a record that names the participants
names a partition once for each piece. A place is a partition and a piece, as one number.

How large a piece is follows from how much the transaction writes, and from nothing that a coordinator is set to. If one is
lost before its own partition has the first piece, nobody knows there that others have theirs, and the next coordinator, to
which the client says the same writes in the same order, begins anew. It must ask for just the pieces that may be prepared.
If it asked for other ones, a key would be in two of them: anybody's when the first has ended, and written once more with
the second, under a newer epoch perhaps than what came in between. And recovery, which asks for a vote by the number of a
piece, would take what was voted for in a smaller one for a larger one, and commit what nobody has. What is prepared under
the same number with other keys, as by a node of an older version, is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from engine.data.holdings import Key
from engine.messages import Part, PrepareParts
from engine.protocol.operations import CONDITIONS
from engine.protocol.sizes import written_bytes
from engine.state.store import Entry
from engine.transactions.commits import SPLIT_AT_ONCE
from wal import records as r
from wal.ids import EXPIRIES, TABLE_MAX, Namespace, TxId, piece_number

PLACE_BITS = TABLE_MAX.bit_length()
"""Of a place, those that say in which partition it is; the others say which piece."""


def cut(parts: dict[int, Part], piece_bytes: int) -> Iterator[int]:
    """Put those of some parts that have more than so many bytes into pieces which have not, or one key: each in a place.

    What a transaction rests on is looked at with what it writes to that key, else with the first piece. Piece by piece
    yields how many keys that were.
    """
    for number, part in list(parts.items()):
        if written_bytes(part.writes) <= piece_bytes:
            continue
        pieces = [Part(number, [], [], [], conditions=[], ttls=[])]
        of: dict[tuple[Namespace, bytes], Part] = {}
        size = 0
        for namespace, keys, values in part.writes:
            began: Part | None = None
            for key, value in zip(keys, values, strict=True):
                one = len(key) + len(value or b"")
                if size and size + one > piece_bytes:
                    pieces.append(Part(number, [], [], [], conditions=[], ttls=[]))
                    size = 0
                piece = of[namespace, key] = pieces[-1]
                if piece is not began:
                    piece.writes.append((namespace, [], []))
                    began = piece
                piece.writes[-1][1].append(key)
                piece.writes[-1][2].append(value)
                size += one
                if not len(of) % SPLIT_AT_ONCE:
                    yield SPLIT_AT_ONCE
        first = pieces[0]
        for lock in part.locks:
            of.get(lock, first).locks.append(lock)
        for read in part.reads:
            of.get(read[:2], first).reads.append(read)
        for condition in part.conditions:
            of.get(condition[:2], first).conditions.append(condition)
        for ttl in part.ttls:
            of[ttl[:2]].ttls.append(ttl)
        yield len(part.locks) + len(part.reads) + len(part.conditions) + len(part.ttls)
        parts.update((number | piece << PLACE_BITS, one) for piece, one in enumerate(pieces))


def place_of(tx: TxId, number: int) -> int:
    """Where a piece of a transaction is, in which partition, that is prepared as `tx`."""
    return number | piece_number(tx) << PLACE_BITS


def partition_at(place: int) -> int:
    """The partition of a place."""
    return place & ((1 << PLACE_BITS) - 1)


def places_of(participants: Iterable[int]) -> list[int]:
    """The places of all pieces, of partitions that ascend and are named once for each."""
    places: list[int] = []
    last, piece = -1, 0
    for number in participants:
        piece = piece + 1 if number == last else 0
        last = number
        places.append(number | piece << PLACE_BITS)
    return places


def keys_written(prepare: r.Prepare) -> list[Key]:
    """The keys that a transaction, or a piece of one, is prepared to write."""
    return [(write.namespace, key) for write in prepare.writes if write.namespace != EXPIRIES for key in write.keys]


def is_piece(prepare: r.Prepare) -> bool:
    """Whether it is one of several that a transaction has in a partition."""
    return is_named(prepare.partition, prepare.participants, 1)


def is_named(number: int, participants: list[int], piece: int = 0) -> bool:
    """Whether a partition is among these, which ascend, so often that it has this piece; there may be thousands, named by
    each of many messages."""
    at = bisect_left(participants, number) + piece
    return at < len(participants) and participants[at] == number


def means_something(message: PrepareParts, places: int) -> bool:
    """Whether what is asked for can be done, and ended: each part in one of the partitions that are named, which there
    are, and each key with its value."""
    participants = message.participants
    if max(participants, default=places) >= places or not is_named(message.decision, participants):
        return False
    piece = piece_number(message.tx)
    for part in message.parts:
        if not is_named(part.partition, participants, piece):
            return False
        for _, keys, values in part.writes:
            if not keys or len(keys) != len(values):
                return False
        for _, _, when, *_ in part.conditions:
            if when not in CONDITIONS:
                return False
    return True


def written_by(prepare: r.Prepare, key: Key) -> Entry | None:
    """What a transaction that is prepared writes to a key, if it does."""
    for write in prepare.writes:
        if write.namespace == key[0] and key[1] in write.keys:
            at = write.keys.index(key[1])
            return Entry(write.epoch, write.start + 1 + at, write.values[at])
    return None
