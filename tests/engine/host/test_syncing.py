"""What a node waits for the disk with: all that promises anything, and of a transfer nothing until it is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.data.sizes import size_of
from engine.host import syncing
from engine.host.duties import Duties, log_settings
from engine.host.syncing import UNSYNCED_BYTES
from engine.node.node import Node
from engine.protocol.requests import Done
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.effects import Effects
from engine.turn.events import TrimLog
from engine.turn.settings import Durability, Settings
from rebalance.messages import Credit, Settle
from tests.support.memory_disk import MemoryDisk
from wal import Log
from wal import records as r
from wal.ids import NO_VERSION

ROWS = r.Preload("acc", 0, epochs=[1], counters=[1], keys=[b"k"], values=[b"v"])
CREDIT = Credit(NO_VERSION, 1, 1, 1)
SETTLE = Settle(NO_VERSION, 0, [], [], [], [], 1)
WRITE = r.Update([r.Write("acc", 0, 1, 0, [b"k"], [b"v"])])


class Told:
    """A world that counts what was durable when a node said something."""

    def __init__(self, durability: Durability = Durability.FSYNC) -> None:
        settings = Settings(cluster="test", partitions=2, backups=0, durability=durability)
        replica = Replica(LayeredStore(MemoryStore()))
        self.node = Node(settings, replica, node="n1", allocation="d1", address="n1:1", durable_lsn=0)
        self.log = Log.open(MemoryDisk(), cluster="test", node="n1", settings=log_settings(settings))
        self.duties = Duties(self, self.node, self.log, lambda _: None)
        self.said: list[tuple[str, int]] = []
        self.now = 0

    def turn(self, *records: r.Record, **owed: list[Any]) -> int:
        """Pay a turn; how many of the records that were ever logged are not synced after it."""
        effects = Effects()
        effects.log += records
        effects.send += [(("n2",), message) for message in owed.get("send", [])]
        effects.reply += [(1, reply) for reply in owed.get("reply", [])]
        effects.tasks += owed.get("tasks", [])
        self.now += 1
        self.duties.early(effects, self.now)
        self.duties.write(effects.log, now=self.now, wall_ms=self.now)
        self.duties.rest(effects, self.now)
        return self.log.next_lsn - 1 - self.log.durable_lsn

    def send(self, sends: list[Any]) -> None:
        """It says something."""
        self.said += [(type(message).__name__, self.log.durable_lsn) for _, message in sends]

    def reply(self, replies: list[Any]) -> None:
        """It answers."""
        self.said += [(type(reply).__name__, self.log.durable_lsn) for _, reply in replies]

    def connect(self, address: str) -> None:
        """Nobody is there."""

    def note(self, text: str) -> None:
        """Nobody reads it."""

    def inbox(self, event: object) -> None:
        """No turn follows."""

    def background(self, name: str, run: Callable[[], Any], back: Callable[[Any, Exception | None], None]) -> None:
        """It never comes back."""

    def stop(self, reason: str | Exception) -> None:
        """It may not."""
        raise AssertionError(reason)


def test_what_is_taken_of_a_transfer_is_synced_with_what_promises_something() -> None:
    world = Told()
    assert [world.turn(ROWS, send=[CREDIT]) for _ in range(3)] == [1, 2, 3]
    assert world.turn(send=[CREDIT]) == 3, "who asks for more promises nothing"
    assert world.turn(send=[SETTLE]) == 0, "though it logs nothing itself"
    assert world.said[-1] == ("Settle", 3)


@pytest.mark.parametrize(
    ("records", "owed"),
    [
        ([WRITE], {}),
        ([ROWS, WRITE], {"send": [CREDIT]}),
        ([r.EpochStart(0, 1, [])], {"send": [CREDIT]}),
        ([ROWS], {"send": [CREDIT, SETTLE]}),
        ([ROWS], {"reply": [Done(1)]}),
        ([ROWS], {"tasks": [TrimLog(1)]}),
    ],
    ids=["a write", "a write beside it", "an epoch", "a message", "an answer", "a task"],
)
def test_whatever_rests_on_the_disk_waits_for_all_that_was_logged(
    records: list[r.Record], owed: dict[str, list[Any]]
) -> None:
    world = Told()
    assert world.turn(ROWS, send=[CREDIT]) == 1
    assert world.turn(*records, **owed) == 0
    assert all(lsn == world.log.next_lsn - 1 for name, lsn in world.said[1:] if name != "Credit")


def test_no_more_is_left_to_be_synced_than_a_bound() -> None:
    world, left = Told(), list[int]()
    large = r.Preload("acc", 0, epochs=[1], counters=[1], keys=[b"k"], values=[bytes(UNSYNCED_BYTES // 4)])
    for _ in range(20):
        world.turn(large, send=[CREDIT])
        left.append(world.log.unsynced_bytes)
    assert UNSYNCED_BYTES <= max(left) < 1.3 * UNSYNCED_BYTES


@pytest.mark.parametrize("durability", [Durability.BACKGROUND, Durability.NONE])
@pytest.mark.parametrize("record", [WRITE, ROWS], ids=["a write", "rows"])
def test_what_is_kept_in_memory_is_handed_over_before_it_is_more_than_one_block_holds(
    monkeypatch: pytest.MonkeyPatch, durability: Durability, record: r.Record
) -> None:
    """Whole turns of it, and of one that is more than that alone as much as it is. Else a node with large checkpoints ended
    at the next one."""
    monkeypatch.setattr(syncing, "KEPT_BYTES", 3 * size_of([record]))
    world = Told(durability)
    assert [world.turn(record, record), world.turn(record)] == [0, 0]
    assert world.log.next_lsn == 1, "all of it is in memory"
    world.turn(record, record)
    assert [world.log.next_lsn, world.log.durable_lsn] == [4, 3]
    world.turn(*[record] * 5)
    world.turn()
    world.duties.write_all()
    assert [len(block.records) for block in world.log.replay(1) if block.records] == [3, 2, 5]
