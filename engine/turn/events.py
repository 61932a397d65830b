"""What happens to a node, and the slow things that it may have done.

Nothing else comes to a node: peers and clients that speak, connections, and the end of what it had asked for.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from engine.messages import Message
from engine.protocol.habits import Habits
from engine.protocol.requests import Request
from engine.protocol.roles import PEERS, Role
from engine.state.store import CheckpointImage
from rebalance.ports import CloseHistory, HistoryRead, OpenHistory, ReadHistory
from wal.ids import NodeId
from wal.records import Trimmed

SessionId: TypeAlias = int
"""One client connection, numbered by the driver."""

# Events: facts, in the past.


class Received(msgspec.Struct, frozen=True, gc=False):
    """A peer said something, over a connection that one life of it made."""

    sender: NodeId
    allocation: str
    incarnation: int
    message: Message


class PeerSeen(msgspec.Struct, frozen=True, gc=False):
    """A connection to a peer, or from it, was made: `over` says which, or that all were; `address` is where it listens.

    What is for one that is not there goes by another one: it is named, too, when that is made; or alone, when it is lost.
    """

    node: NodeId
    allocation: str
    incarnation: int
    address: str
    domain: str
    cluster: str
    habits: Habits = Habits()
    over: tuple[Role, ...] = PEERS


class NameTaken(msgspec.Struct, frozen=True, gc=False):
    """A peer refused this node, because another one has its name."""

    reason: str


class PeerLost(msgspec.Struct, frozen=True, gc=False):
    """The connection to a peer broke. It may be back; only silence makes it suspected."""

    node: NodeId


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A client asked something. `since`: when it came, if it had to wait for its turn (ns; 0: it did not)."""

    session: SessionId
    request: Request
    since: int = 0


class ClientSeen(msgspec.Struct, frozen=True, gc=False):
    """A client connected from `address`, and says what it is called; no address: it went."""

    session: SessionId
    name: str = ""
    address: str = ""


class CheckpointWritten(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint is durable in the store."""

    lsn: int


class LogMayShrink(msgspec.Struct, frozen=True, gc=False):
    """Segments could go, if this is logged first."""

    trimmed: Trimmed


Event: TypeAlias = (
    Received | PeerSeen | NameTaken | PeerLost | Asked | ClientSeen | CheckpointWritten | HistoryRead | LogMayShrink
)

# Tasks: slow things that end in an event.


class WriteCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Write this to the store; then `CheckpointWritten`."""

    image: CheckpointImage


class TrimLog(msgspec.Struct, frozen=True, gc=False):
    """What `Trimmed` announced is on record: remove the segments."""

    first_lsn: int


class Connect(msgspec.Struct, frozen=True, gc=False):
    """Keep a connection to this node at this address."""

    node: NodeId
    address: str


class Stop(msgspec.Struct, frozen=True, gc=False):
    """End the process: the node has left, or was refused for good, which is an error."""

    reason: str
    refused: bool = False


Task: TypeAlias = WriteCheckpoint | OpenHistory | ReadHistory | CloseHistory | TrimLog | Connect | Stop
