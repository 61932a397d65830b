"""Everything that happened in a world, in order: for a person to read, and for two runs to be compared byte by byte.

Entries are kept as they come and printed only when somebody asks. What is kept must not change afterwards: messages are
kept as the bytes that travelled. Of a seed that finds nothing none is ever read, so whoever runs many has none kept: it is
the same again when the seed is run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TypeAlias

from engine.messages import Heartbeat, Join, Message
from engine.protocol.requests import Reply, Request, request_kind
from engine.protocol.wire import decode_messages
from tests.conversations.names import Names
from tests.conversations.speech import Speech
from tests.sim.violation import About
from wal.ids import DECISIONS, TxId, fragment_name
from wal.records import Record

FRAME_HEADER_BYTES = 8
STORY_LINES_MAX = 400

Entry: TypeAlias = tuple[int, str, str, str, object]
"""(time in ns, what happened, who, to or with whom, about what)"""

CHATTER = (Heartbeat, Join)


class TxNames(Names):
    """Short names of transactions, given by whoever began them."""

    def give(self, tx: TxId, name: str) -> None:
        """`tx` is called `name` from now on."""
        self._short[tx] = name

    def find(self, name: str) -> TxId | None:
        """The transaction of that name."""
        return next((tx for tx, short in self._short.items() if short == name), None)


class Trace:
    """The record of one world. Times print in seconds of simulated time."""

    def __init__(self, *, kept: bool = True) -> None:
        self.kept = kept
        self.names = TxNames()
        self.speech = Speech(self.names)
        self.entries: list[Entry] = []

    def add(self, now: int, what: str, who: str, other: str = "", about: object = "") -> None:
        """Something happened."""
        if self.kept:
            self.entries.append((now, what, who, other, about))

    # Printing.

    def line(self, entry: Entry) -> str:
        """One entry as a line."""
        now, what, who, other, about = entry
        arrow = {"deliver": " -> ", "lose": " -x ", "hold": " -| ", "ask": " -> ", "answer": " -> "}.get(what, " ")
        place = f"{who}{arrow}{other}" if other else who
        return f"{now / 1e9:12.6f} {what:7} {place} {self._about(about)}".rstrip()

    def _about(self, about: object) -> str:
        if isinstance(about, str):
            return about
        if isinstance(about, bytes):
            return "; ".join(map(self.speech.message, messages_in(about)))
        if isinstance(about, list):
            records: list[Record] = about
            return self.speech.records(records)
        return self._client_side(about)

    def _client_side(self, about: object) -> str:
        if type(about) in _REQUESTS:
            return self._request(about)  # type: ignore[arg-type]  # just looked
        reply: Reply = about  # type: ignore[assignment]  # nothing else is left
        return f"#{reply.id} {self.speech.reply(reply)}"

    def _request(self, request: Request) -> str:
        said = [f"#{request.id} {request_kind(request)}"]
        for field in ("tx", "owner"):
            tx = getattr(request, field, None)
            if tx:
                said.append(f"{field}={self.names.tx_name(tx) or tx.hex()}")
        namespace = getattr(request, "namespace", "")
        keys = getattr(request, "keys", None) or ([request.key] if hasattr(request, "key") else [])
        if keys:
            said.append(f"{namespace} {' '.join(key.decode(errors='replace') for key in keys[:8])}")
        for ns, written, _ in getattr(request, "writes", []):
            said.append(f"writes {ns} {' '.join(key.decode(errors='replace') for key in written[:8])}")
        command = getattr(request, "command", None)
        if command:
            said.append(f"{command} {request.arguments}")  # type: ignore[union-attr]  # only Admin has a command
        return " ".join(said)

    def lines(self, *, chatter: bool = True) -> Iterator[str]:
        """All of it; without `chatter`, heartbeats and requests to join are left out."""
        for entry in self.entries:
            if chatter or not is_chatter(entry):
                yield self.line(entry)

    def digest(self) -> str:
        """One value over every line."""
        digest = blake2b(digest_size=16)
        for line in self.lines():
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.hexdigest()

    # Stories.

    def story(self, about: About) -> list[str]:
        """Everything that ever happened to some transactions, fragments, partitions, nodes or keys."""
        wanted = re.compile("|".join(self._patterns(about)) or ".")
        found = [line for line in self.lines(chatter=False) if wanted.search(line) or " world " in line[12:21]]
        if len(found) > STORY_LINES_MAX:
            half = STORY_LINES_MAX // 2
            found = [*found[:half], f"... {len(found) - 2 * half} lines ...", *found[-half:]]
        return found

    def _patterns(self, about: About) -> Iterable[str]:
        for tx in about.txs:
            yield re.escape(tx.hex())
            name = self.names.tx_name(tx)
            if name:
                yield rf"\b{re.escape(name)}\b"
        for fragment in about.fragments:
            yield rf"(?<![\w~]){re.escape(fragment_name(fragment))}\b"
            if fragment[0] != DECISIONS:
                yield rf"\bp{fragment[1]}\b"
        for partition in about.partitions:
            yield rf"\bp{partition}\b|/{partition}\b"
        for node in about.nodes:
            yield rf"\b{re.escape(node)}\b"
        for key in about.keys:
            yield re.escape(key.decode(errors="replace"))


def messages_in(data: bytes) -> list[Message]:
    """The messages of a frame."""
    return decode_messages(data[FRAME_HEADER_BYTES:])


def is_chatter(entry: Entry) -> bool:
    """Whether an entry only says that somebody lives, or wants in."""
    about = entry[4]
    return isinstance(about, bytes) and all(isinstance(message, CHATTER) for message in messages_in(about))


_REQUESTS = frozenset(Request.__args__)  # the members of the union
