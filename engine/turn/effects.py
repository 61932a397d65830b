"""What a node owes the world after one turn.

The deciding half of the engine is a value that takes events and returns effects. The doing half (`engine.host.driver`, or
the simulator) pays them from top to bottom and then brings the next events. Nothing else connects the two. Who decides
names no effects: it says what it owes to the core and to the desk.
"""

from __future__ import annotations

from engine.messages import Heartbeat, Message
from engine.protocol.requests import Reply
from engine.turn.events import SessionId, Task
from wal.ids import NodeId
from wal.records import Record


class Effects:
    """What a node owes the world after one turn, paid from top to bottom.

    `early` are messages that promise nothing about the sender's disk (replication, a map that was chosen) and may leave
    while its log is being written. Every other message and every reply is a promise: nothing below `log` leaves before
    the log is durable. `beat` is a heartbeat for whoever listens now, to be repeated while this node is
    busy with one turn, once this one is paid.
    """

    __slots__ = ("beat", "early", "log", "notes", "reply", "send", "tasks", "wake_at")

    def __init__(self) -> None:
        self.early: list[tuple[tuple[NodeId, ...], Message]] = []
        self.log: list[Record] = []  # appended as one block, which is durable before anything below is paid
        self.send: list[tuple[tuple[NodeId, ...], Message]] = []
        self.reply: list[tuple[SessionId, Reply]] = []
        self.tasks: list[Task] = []
        self.notes: list[str] = []  # for the operator's log
        self.beat: tuple[tuple[NodeId, ...], Heartbeat] | None = None
        self.wake_at: int | None = None  # ns; the next time something can happen by itself
