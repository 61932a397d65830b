"""Who a client is to the nodes: its sessions, and which of their answers it has.

A session is ten bytes, when it was opened and what the client drew (`docs/ids.md`), and numbers that rise. Up to which
number it has every answer goes with each request, and then the nodes need not keep those any more
(`engine.data.sessions`). An answer that never came would hold back all later ones: so when a call ends as unknown, the
client goes on in another session, and the one that it leaves is kept by the nodes for as long as the client lives, to be
asked about.

What has a label is asked in a session of the label's own, as soon as the label comes again: so the log says it once for
all of that session (`engine.data.origins`), and no transaction pays for its name.
"""

from __future__ import annotations

from wal.ids import SESSION_BYTES, SESSION_DRAWN_BITS, TX_ID_BYTES, TxId, sequence_of, session_of, tx_of

AHEAD_MAX = 1 << 14
"""A session that runs so far ahead of its oldest open call is left; nodes refuse what is four times as far."""
SESSIONS_MAX = 256
"""So many sessions that were left with something unknown are remembered."""
ENDED_MAX = 4096
"""So many sessions that were left with everything answered are told from those of other clients."""
GIVEN_UP_MAX = 1024
"""So many ids that were named, and under which nothing was asked, are remembered."""

MS = 1_000_000
LABELS_MAX = 64
"""So many labels of a client have a session of their own, the first that came again; others are said each time."""
LABELS_SEEN_MAX = 256
"""So many labels that came once are remembered: a program that numbers its labels spends no sessions on them."""


class ClientSession:
    """One session. Invariant: every number below `low` is answered for good, or was never used to ask anything."""

    __slots__ = ("label", "low", "name", "next", "open")

    def __init__(self, name: bytes, label: str = "") -> None:
        self.name = name
        self.label = label  # of all that is asked in it
        self.next = 1
        self.low = 1
        self.open: dict[int, int] = {}  # number -> when it was made, ns: those without an answer

    @property
    def acked(self) -> int:
        """Up to this number it has all answers."""
        return self.low - 1

    def close(self, number: int) -> None:
        """There is an answer, or nobody will ask again."""
        still_open, low = self.open, number + 1
        if still_open.pop(number, None) is not None and number == self.low:
            while low not in still_open and low < self.next:
                low += 1
            self.low = low


class Identity:
    """The sessions of one client."""

    def __init__(self, draw: int, *, now: int, wall_ms: int) -> None:
        """`draw`: 128 random bits; `wall_ms`: what the wall clock reads where `now` is the time."""
        self._draw = draw
        self._wall_ms = wall_ms - now // MS  # where time began
        self.current = ClientSession(self._name(now))
        self.owners = ClientSession(self._name(now))  # only ever holds locks: nothing is executed under these ids
        self._labelled: dict[str, ClientSession] = {}
        self._labels_seen: dict[str, None] = {}
        self._others: dict[bytes, ClientSession] = {}  # those of labels, by name
        self._left: dict[bytes, ClientSession] = {}
        self._ended: dict[bytes, None] = {}
        self._given_up: dict[TxId, None] = {}

    def _name(self, now: int) -> bytes:
        """Ten bytes that nobody else has: the time, and what the client drew, multiplied on."""
        self._draw = (self._draw * 0xDA942042E4DD58B5 + 0x9E3779B97F4A7C15F39CC0605CEDC835) & ((1 << 128) - 1)
        return session_of((self._wall_ms + now // MS) // 1000, self._draw >> 128 - SESSION_DRAWN_BITS)

    def new_tx(self, now: int, label: str = "") -> TxId:
        """An id for something that will be asked, and that its client calls so."""
        session = self._of_label(label, now) if label else self.current
        if session.next - session.low >= AHEAD_MAX:
            session = self._leave(session, now)
        number = session.next
        session.next = number + 1
        session.open[number] = now
        return session.name + number.to_bytes(TX_ID_BYTES - SESSION_BYTES, "big")

    def _of_label(self, label: str, now: int) -> ClientSession:
        """The session in which a label is asked."""
        session = self._labelled.get(label)
        if session is not None:
            return session
        if label not in self._labels_seen:
            self._labels_seen[label] = None
            if len(self._labels_seen) > LABELS_SEEN_MAX:
                del self._labels_seen[next(iter(self._labels_seen))]
        elif len(self._labelled) < LABELS_MAX:
            return self._begin(label, now)
        return self.current

    def _begin(self, label: str, now: int) -> ClientSession:
        session = self._labelled[label] = ClientSession(self._name(now), label)
        self._others[session.name] = session
        return session

    def new_owner(self) -> TxId:
        """An id to hold locks under."""
        owners = self.owners
        owners.next += 1
        return tx_of(owners.name, owners.next)

    def session_of(self, tx: TxId) -> ClientSession | None:
        """The session that an id belongs to; None if it is none of this client's, or long left."""
        name = tx[:SESSION_BYTES]
        if name == self.current.name:
            return self.current
        return self._others.get(name) or self._left.get(name)

    def labels_all(self, tx: TxId) -> bool:
        """Whether the label of an id is that of all its session."""
        session = self.session_of(tx)
        return session is not None and bool(session.label)

    def acked(self, tx: TxId) -> int:
        """Up to where the session of an id has all answers; -1 if it is none of this client's.

        A session of its own that has ended has nothing left to ask: whoever asks again in it is to be answered from what
        is known, or refused, also by a node that never heard of the session. Of another client's session nothing is known
        here, so an id that was handed on is executed if it never was.
        """
        current = self.current
        if tx.startswith(current.name):
            return current.low - 1
        session = self.session_of(tx)
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
        session = self.session_of(tx)
        if session is not None:
            session.close(sequence_of(tx))
            if not session.open and self._left.pop(session.name, None) is not None:
                self._end(session)

    def leave(self, tx: TxId, now: int) -> bool:
        """Go on in another session than that of an id, whose answer is missing. Whether it was gone on in until now."""
        session = self.session_of(tx)
        if session is None or session.name in self._left:
            return False
        self._leave(session, now)
        return True

    def _leave(self, session: ClientSession, now: int) -> ClientSession:
        if session.open:
            self._left[session.name] = session
            if len(self._left) > SESSIONS_MAX:
                del self._left[next(iter(self._left))]
        else:
            self._end(session)
        if not session.label:
            self.current = ClientSession(self._name(now))
            return self.current
        del self._others[session.name]
        return self._begin(session.label, now)

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
        return [(session.name, session.acked) for session in (*self._left.values(), *self._others.values(), self.current)]
