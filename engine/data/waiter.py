"""Someone who waits for a set of keys, and what it is told if it waits in vain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.data.holdings import Key, Who
from engine.protocol.requests import Code, Failed, Link, Put, Swap
from engine.turn.events import SessionId
from wal.ids import NodeId, TxId

Ring = Sequence[Link]
"""A circle of transactions that wait for each other, from the one that gives way."""


class Acked(NamedTuple):
    """All in-sync copies of a partition have answered what was said to them at the end of a turn, or later: until they did
    none of them had left the map, and this node was primary."""

    partition: int
    turn: int


Single = tuple[SessionId, Put | Swap]
"""A single write, and who asks for it."""


class Waiter:
    """Someone who waits for a set of keys, to read (`shared`) or to write; `granted` is called once all are its own.

    `taken` are those that it has got so far: it gives them back if it does not get all, and reads on what it has `raised`
    from reading to writing. `expired` is told what stood in the way, and the circle in which it gives way, if it is in one.
    `who` it is, and since when it waits, is for a person to see. `holding`: it holds other keys already, here or elsewhere.
    `coming`: of very many keys it has not asked for the last ones yet. `early`: what is handed on will do. `single`: the
    write of one key that is all it wants, so that whoever writes that key before it can take it along. `partitions`:
    those of its keys, as far as it has asked for them.
    """

    __slots__ = (
        "coming",
        "deadline",
        "done",
        "early",
        "expired",
        "granted",
        "holding",
        "keys",
        "missing",
        "owner",
        "partitions",
        "raised",
        "shared",
        "single",
        "taken",
        "who",
    )

    def __init__(
        self,
        owner: TxId,
        keys: list[Key],
        deadline: int,
        granted: Callable[[], None],
        expired: Callable[[str, Ring], None],
        *,
        shared: bool,
        who: Who | None = None,
        holding: bool = False,
        early: bool = False,
    ) -> None:
        self.owner = owner
        self.early = early
        self.single: Single | None = None
        self.who = who
        self.holding = holding
        self.keys = keys
        self.shared = shared
        self.missing: dict[Key, None] = {}  # those in whose lines it stands
        self.partitions: dict[int, None] = {}
        self.taken: list[Key] = []
        self.raised: dict[Key, bool] = {}  # what it read before: whether it may write it by now
        self.deadline = deadline
        self.granted = granted
        self.expired = expired
        self.done = False
        self.coming = False

    @property
    def presses(self) -> bool:
        """Whether it is to pass those who hold nothing."""
        return self.holding and not self.shared


def refused_lock(request_id: int, node: NodeId, waited_ms: int, held: str, ring: Ring) -> Failed:
    """What is told to who did not get its locks."""
    if ring:
        links = [
            f"{link.node} for {link.namespace}:{link.key!r} held by {named(link.holder, link.holder_label)}"
            for link in ring
        ]
        said = f"gave way in a deadlock, so that the others go on: it waited on {', which waits on '.join(links)}"
        return Failed(request_id, Code.DEADLOCK, f"{said}; run it again", retryable=True, ring=list(ring))
    said = f"waited {waited_ms} ms for a lock on {node}: {held or 'the primary changed'}"
    return Failed(request_id, Code.LOCK_TIMEOUT, said, retryable=True)


def named(owner: TxId, label: str) -> str:
    """A transaction, as a person is told of it."""
    return f"{label!r} ({owner.hex()})" if label else owner.hex()
