"""How votes are asked for: all at once, or, of a transaction whose writes were staged, as many as may be on their way.

What is asked and has no vote lies in the buffers of a connection, or is being logged on all copies: of a large transaction
that is bounded by bytes, and so is what one turn does of it. The next parts are asked about as votes come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.data.replication import Replication
from engine.data.writes import Writes
from engine.messages import Part, PrepareParts
from engine.protocol.sizes import written_bytes
from engine.transactions.commits import Large, Phase, Transaction, pieces_of
from engine.transactions.participant import NAMED_PER_WORK, Participant
from engine.transactions.pieces import PLACE_BITS, partition_at
from engine.transactions.recovering import Recovering
from engine.transactions.staging import Staging
from engine.turn.core import Core
from rebalance.ports import BYTES_OF_WORK, MS
from rebalance.travelling import travels_ns
from wal.ids import NodeId, Version, piece_of
from wal.probe import probe

ROUND_BYTES = 4 << 20
ROUND_PARTS = 500
"""Of a large transaction the parts of one round have about so many, and are not more."""
PIECE_OF_ALL = 4
"""The fraction of a large transaction that a piece has at most: of what clients stage, 16 MiB and more, that is a round."""
FLYING_OF_STAGED = 8
"""The fraction of `staged_bytes_max` that may be asked for and have no vote."""


class Asking(Recovering):
    """The transactions whose decision partition this node is primary of, while they are voted on."""

    def __init__(self, core: Core, replication: Replication, writes: Writes, participant: Participant) -> None:
        super().__init__(core, replication, writes, participant)
        self.connections = 0  # that were made: what was on its way over one of before may be lost
        self.staging = Staging(core, self.admission, committing=self._committing, wake=self.alarm.by)

    def _committing(self) -> int:
        return sum(t.large.size for t in self.active.values() if t.large is not None)

    def _ask_votes(self, transaction: Transaction) -> None:
        core, large = self.core, transaction.large
        transaction.sent_at, transaction.said_under = core.now, self.maps
        transaction.sent_over = self.connections
        self.alarm.by(core.now + core.settings.retransmit_ms * MS)
        if large is not None:
            large.begin(transaction.awaited)
            core.in_pieces(self._ask_in_rounds(transaction, large, core.fence))
        elif self._ask_about(transaction, list(transaction.awaited)):
            core.work += len(transaction.awaited) // 2

    @staticmethod
    def _piece_bytes(large: Large) -> int:
        """What a large transaction writes in one partition is prepared in pieces, if it has more bytes than this: the same
        ones whoever asks for them, and however he is set (`engine.transactions.pieces` says why)."""
        return min(ROUND_BYTES, max(1, large.size // PIECE_OF_ALL))

    def _ask_on(self, transaction: Transaction, large: Large, voted: int) -> None:
        """A part of a large one has voted, and needs not be kept: there is room for others."""
        transaction.parts.pop(voted, None)
        large.voted(voted)
        if not transaction.awaited:
            transaction.large = None
        elif large.unasked and self._room(large) > 0:
            self.core.in_pieces(self._ask_in_rounds(transaction, large, self.core.fence))

    def _room(self, large: Large) -> int:
        return max(1, self.core.settings.staged_bytes_max // FLYING_OF_STAGED) - large.flying

    def _ask_in_rounds(self, transaction: Transaction, large: Large, version: Version) -> Iterator[int]:
        core, unasked = self.core, large.unasked
        while unasked and (room := self._room(large)) > 0:
            places: list[int] = []
            size = 0
            while unasked and size < min(room, ROUND_BYTES) and len(places) < ROUND_PARTS:
                place = unasked.popleft()
                if place in transaction.awaited:
                    places.append(place)
                    size += large.ask(place, transaction.parts[place])
            if not self._ask_about(transaction, places):
                return
            transaction.sent_at = core.now
            yield len(places) // 2 + size // BYTES_OF_WORK
            preparing = self.active.get(transaction.tx) is transaction and transaction.phase is Phase.PREPARING
            if not preparing or core.fence != version or large.unasked is not unasked:
                probe("tx.asked_no_further")
                return

    def _ask_about(self, transaction: Transaction, places: Sequence[int]) -> bool:
        """Ask for votes on these parts; False if one cannot be asked for, and it was refused."""
        core = self.core
        asked: dict[tuple[NodeId, int], list[Part]] = {}
        for place in places:
            number = partition_at(place)
            primary = core.local[number].placement.primary
            if primary is None:
                self._refused(transaction, f"partition {number} is LOST")
                return False
            asked.setdefault((primary, place >> PLACE_BITS), []).append(transaction.parts[place])
        named = len(transaction.participants) // NAMED_PER_WORK
        pieces = [(to, piece) for to, parts in asked.items() for piece in pieces_of(parts, named)]
        for (primary, number), parts in pieces:
            core.tell(
                primary,
                PrepareParts(
                    core.fence,
                    piece_of(transaction.tx, number),
                    owner=transaction.owner,
                    optimistic=transaction.optimistic,
                    parts=parts,
                    participants=transaction.participants,
                    decision=transaction.decision,
                    held=transaction.held,
                    acked=transaction.acked,
                    origin=transaction.origin,
                ),
            )
        return True

    def _travels_ns(self, transaction: Transaction) -> int:
        """For how long votes may not come because what was asked is on its way, or what is prepared is, to the copies."""
        if transaction.sent_over != self.connections:
            return 0
        if transaction.large is not None:
            return travels_ns(2 * transaction.large.flying, self.core.settings)
        if transaction.size < 0:
            transaction.size = sum(written_bytes(part.writes) for part in transaction.parts.values())
        return travels_ns(2 * transaction.size, self.core.settings)

    def on_peer_seen(self, _node: NodeId) -> None:
        """A connection was made: what was on its way over another one is not any more."""
        self.connections += 1
        if self.active:
            self.alarm.by(self.core.now)

    def _refused(self, transaction: Transaction, reason: str) -> None:
        """It cannot be committed as it was asked for. Where its decision may be lost, this may be the second time, and all
        are asked whether they have heard of a commit."""
        if transaction.anew:
            probe("tx.refused_where_a_decision_may_be_lost")
            transaction.reason = reason
            self._ask(transaction)
        else:
            self._no(transaction, reason)
