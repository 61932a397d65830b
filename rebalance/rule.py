"""What a rule module is: it takes messages of its own, lives through changes of the map, and is woken when it wants to be.

A node is a list of rules, in an order for each of the two things that happen to all of them: a new map (`switch`) and time
(`tick`). What a rule takes is a closed union of its own, and `on` has one case for each kind of it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, ClassVar

import msgspec

from rebalance.partition import LocalPartition
from wal.ids import NodeId


class NewMap(msgspec.Struct, frozen=True):
    """What a new map changes for one node (`rebalance.placing`)."""

    moved: list[LocalPartition]
    """Partitions whose copies are elsewhere now, or are waited for no more."""
    changed: list[LocalPartition]
    """Partitions whose primary, epoch or role here is another now."""
    promoted: list[LocalPartition]
    """Partitions that this node is named primary of, and does not serve yet."""
    out: list[tuple[NodeId, ...]] = []  # msgspec copies it
    """Of each that moved, whose copies were in sync and are so no more."""
    left: list[LocalPartition] = []
    """Those that it led, and leads no more."""
    gone: list[LocalPartition] = []
    """Of those that moved, those that it has nothing to do with now."""
    raised: list[LocalPartition] = []
    """Of those that it is named primary of, those whose copy here was not in sync, as far as this life knows."""


def drop(kept: dict[int, Any], gone: Container[int]) -> None:
    """Take out what is kept of these partitions, at the price of what is kept."""
    for number in [number for number in kept if number in gone]:
        del kept[number]


NEVER = 1 << 63
"""A time (ns) that does not come: nothing happens by itself."""


class Alarm:
    """When a rule wants to be woken next (ns), or `NEVER`.

    All alarms of a node lie in one list of times: each turn asks twice which is the first.
    """

    __slots__ = ("_nth", "_times")

    def __init__(self) -> None:
        self._times, self._nth = [NEVER], 0

    def join(self, times: list[int]) -> None:
        """Be the next of these from now on."""
        times.append(self.at)
        self._times, self._nth = times, len(times) - 1

    @property
    def at(self) -> int:
        """When it rings."""
        return self._times[self._nth]

    def set(self, at: int) -> None:
        """Then, and not before."""
        self._times[self._nth] = at

    def by(self, at: int) -> None:
        """Not later than that."""
        if at < self._times[self._nth]:
            self._times[self._nth] = at

    def off(self) -> None:
        """Not at all."""
        self._times[self._nth] = NEVER

    def is_due(self, at: int, now: int) -> bool:
        """Whether this time has come; if not, it rings then.

        What is to be said until it is answered is said again when what was said last is `retransmit_ms` old: nobody
        relies on one message, and nobody says a thing more often than that.
        """
        if now >= at:
            return True
        self.by(at)
        return False


class Rule:
    """A rule module of one node. `takes` are the kinds of messages that are for it."""

    takes: ClassVar[tuple[type, ...]] = ()

    def __init__(self) -> None:
        self.alarm = Alarm()

    @property
    def wake_at(self) -> int:
        """When `tick` has something to do, or `NEVER`. A rule with whom that follows from what others have looks there."""
        return self.alarm.at

    def on(self, sender: NodeId, message: Any, /) -> None:
        """A message of a kind that it takes."""
        raise AssertionError(f"{type(self).__name__} takes no {type(message).__name__}")

    def switch(self, new: NewMap, /) -> None:
        """A new map takes effect."""

    def tick(self) -> None:
        """The time has come for which it asked, or passed."""
