"""Who a client is to the nodes: its sessions, and which of their answers it has.

A session is ten bytes that the client drew, and numbers that rise. Up to which number it has every answer goes with each
request, and then the nodes need not keep those any more (`engine.data.sessions`). An answer that never came would hold back
all later ones: so when a call ends as unknown, the client goes on in another session, and the one that it leaves is kept
by the nodes for as long as the client lives, to be asked about.
"""

from __future__ import annotations

from wal.ids import SESSION_BYTES, TX_ID_BYTES, TxId, sequence_of, tx_of

AHEAD_MAX = 1 << 14
"""A session that runs so far ahead of its oldest open call is left; nodes refuse what is four times as far."""
SESSIONS_MAX = 256
"""So many sessions that were left with something unknown are remembered."""
ENDED_MAX = 4096
"""So many sessions that were left with everything answered are told from those of other clients."""
GIVEN_UP_MAX = 1024
"""So many ids that were named, and under which nothing was asked, are remembered."""


class ClientSession:
    """One session. Invariant: every number below `low` is answered for good, or was never used to ask anything."""

    __slots__ = ("low", "name", "next", "open")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.next = 1
        self.low = 1
        self.open: dict[int, int] = {}  # number -> when it was made, ns: those without an answer

    @property
    def acked(self) -> int:
        """Up to this number it has all answers."""
        return self.low - 1

    def close(self, number: int) -> None:
        """There is an answer, or nobody will ask again."""
        still_open = self.open
        if still_open.pop(number, None) is not None and number == self.low:
            low = number + 1
            while low < self.next and low not in still_open:
                low += 1
            self.low = low


class Identity:
    """The sessions of one client."""

    def __init__(self, draw: int) -> None:
        """`draw`: 64 random bits or more."""
        self._draw = draw
        self.current = ClientSession(self._name())
        self.owners = ClientSession(self._name())  # only ever holds locks: nothing is executed under these ids
        self._left: dict[bytes, ClientSession] = {}
        self._ended: dict[bytes, None] = {}
        self._given_up: dict[TxId, None] = {}

    def _name(self) -> bytes:
        """Ten bytes that nobody else has: what the client drew, multiplied on."""
        self._draw = (self._draw * 0xDA942042E4DD58B5 + 0x9E3779B97F4A7C15F39CC0605CEDC835) & ((1 << 128) - 1)
        return (self._draw >> 48).to_bytes(SESSION_BYTES, "big")

    def new_tx(self, now: int) -> TxId:
        """An id for something that will be asked."""
        session = self.current
        if session.next - session.low >= AHEAD_MAX:
            self.leave()
            session = self.current
        number = session.next
        session.next = number + 1
        session.open[number] = now
        return session.name + number.to_bytes(TX_ID_BYTES - SESSION_BYTES, "big")

    def new_owner(self) -> TxId:
        """An id to hold locks under."""
        owners = self.owners
        owners.next += 1
        return tx_of(owners.name, owners.next)

    def session_of(self, tx: TxId) -> ClientSession | None:
        """The session that an id belongs to; None if it is none of this client's, or long left."""
        name = tx[:SESSION_BYTES]
        return self.current if name == self.current.name else self._left.get(name)

    def acked(self, tx: TxId) -> int:
        """Up to where the session of an id has all answers; -1 if it is none of this client's.

        A session of its own that has ended has nothing left to ask: whoever asks again in it is to be answered from what
        is known, or refused, also by a node that never heard of the session. Of another client's session nothing is known
        here, so an id that was handed on is executed if it never was.
        """
        current = self.current
        if tx.startswith(current.name):
            return current.low - 1
        session = self._left.get(tx[:SESSION_BYTES])
        if session is not None:
            return session.low - 1
        return sequence_of(tx) if tx[:SESSION_BYTES] in self._ended else -1

    def awaits(self, tx: TxId) -> bool:
        """Whether an id has no answer yet."""
        session = self.session_of(tx)
        return session is not None and sequence_of(tx) in session.open

    def give_up(self, tx: TxId) -> None:
        """Nothing was ever asked under this id, and nothing will be."""
        self.close(tx)
        self._given_up[tx] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def gave_up(self, tx: TxId) -> bool:
        """Whether `tx` is known to have come to nothing, whatever nodes may have kept or forgotten."""
        return tx in self._given_up

    def close(self, tx: TxId) -> None:
        """An id has its answer."""
        current = self.current
        if tx.startswith(current.name):
            current.close(int.from_bytes(tx[SESSION_BYTES:], "big"))
            return
        session = self._left.get(tx[:SESSION_BYTES])
        if session is not None:
            session.close(sequence_of(tx))
            if not session.open:
                del self._left[session.name]
                self._end(session)

    def leave(self) -> None:
        """Go on in another session: in this one an answer is missing."""
        if self.current.open:
            self._left[self.current.name] = self.current
            if len(self._left) > SESSIONS_MAX:
                del self._left[next(iter(self._left))]
        else:
            self._end(self.current)
        self.current = ClientSession(self._name())

    def _end(self, session: ClientSession) -> None:
        """A session that was left has all its answers."""
        self._ended[session.name] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def age_ns(self, tx: TxId, now: int) -> int:
        """How long ago an id was made that has no answer yet; 0 for an owner, of which nothing came; -1 if nobody knows."""
        if tx[:SESSION_BYTES] == self.owners.name:
            return 0
        session = self.session_of(tx)
        made = session.open.get(sequence_of(tx)) if session is not None else None
        return now - made if made is not None else -1

    @property
    def acknowledged(self) -> list[tuple[bytes, int]]:
        """Each session that something may yet be asked about, and up to where it has its answers."""
        return [(session.name, session.acked) for session in (*self._left.values(), self.current)]
