"""What a turn costs of the processor: a node has one core, and while it computes it neither hears nor is heard.

Three ways to tell. **Modelled**: a price for each thing that a turn takes in, writes down, reads and sends, the same in
every run: what the turn ought to cost. **Counted**: what turns call is held against that, the same in every run, too, in a
share of the turns or in all (`tests.sim.calls`). **Measured**: the processor time that it really took, which is not the
same twice, and finds what the model cannot see, a walk over everything that nobody needed. `python -m tests.sim cost` holds
the two against each other, and names every turn that took much longer than it ought to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from msgspec.inspect import is_struct_type
from msgspec.structs import fields

from engine.messages import Message
from engine.node.node import Node
from engine.state.layers import Moment
from engine.state.store import Entry, LayeredStore, Page
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event, Received
from engine.turn.turns import TURN_MS_MAX, what
from rebalance.messages import AskTail, Tail
from rebalance.ports import MS
from tests.sim.calls import Calls
from tests.sim.violation import About, Violation
from wal.ids import Fragment, NodeId, Version
from wal.records import Committed

TURN_NS = 40_000
ITEM_NS, WAITING_NS = 700, 70
"""Each part of a message or a record: a field that holds a list, an entry of it, a key, a value; and of what has to wait
until another map is read: it was read from the network, and what else it costs is for the turn that takes it."""
BYTES = frozenset((bytes, type(None)))
MANY, TOGETHER = 64, 8
"""Of what one field holds more of than so many, so many more are as dear as one: they are handled together."""
BYTE_NS = 1
ROW_NS = 2_000
"""A row that is read from the store."""
LOOKED_NS, CHANGED_NS = 1_000, 4_000
"""A partition that is looked at to find out what a map changes, and one of which it says something else."""
TAKEN_NS = 1_000
"""And one of a map that takes effect: each has heard of it then, and every rule."""
STATE_NS = 5_000
"""A state of a fragment or a partition that is encoded for a checkpoint."""
KEPT_NS = 1_000
"""Of what such a state has to list: an update that may not be everywhere, or is prepared, a delete, an answer."""
LINKED_NS = 1_500
"""A key of what came live to a copy that was filled, as it comes to follow the transfer: hashed, and noted."""
SAID_NS = 8_000
"""A message for one receiver, or a reply."""


Look = Callable[[Any], Sequence[object]]


class Costs(Protocol):
    """How long a turn takes on a machine of the usual speed, in ns."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it, and say what it cost."""
        ...


class Free:
    """No time at all: for stories, in which only the order of things counts."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """For nothing."""
        return node.turn(now, events), 0


class Modelled:
    """What it ought to cost. A turn above the bound is a finding; of those that are `counted`, who does more than that."""

    def __init__(self, counted: Calls | None = None) -> None:
        self.counted = counted

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """At the prices above."""
        store = node.core.replica.store
        counting = store if isinstance(store, CountingStore) else None
        before = counting.read if counting is not None else 0
        changes, base = node.core.replica.changes, store.base
        encoded, kept, weighed = changes.encoded, changes.encoded_entries, _bytes_read(base) + changes.encoded_bytes
        foresight, links = node.exchange.foresight, node.core.replica.links
        looked, changed, linked = foresight.looked, foresight.changed, links.made
        untaken = node.untaken
        handed = [*untaken, *events] if untaken else events
        waited, released = foresight.waiting, foresight.released
        fence = node.core.fence
        counted = self.counted if self.counted is not None and self.counted.wanted() else None
        effects = node.turn(now, events) if counted is None else counted.turn(node, now, events)
        events, waits, found = taken(handed, node.untaken), foresight.waiting, 0
        if waited or waits:
            events, found = in_order(node.core.node, events, waited, waits, foresight.released - released)
        rows = counting.read - before if counting is not None else 0
        encoded, kept = changes.encoded - encoded, changes.encoded_entries - kept
        weighed = _bytes_read(base) + changes.encoded_bytes - weighed
        looked, changed, linked = foresight.looked - looked, foresight.changed - changed, links.made - linked
        found += looked * LOOKED_NS + changed * CHANGED_NS + linked * LINKED_NS
        found += encoded * STATE_NS + kept * KEPT_NS + weighed * BYTE_NS
        partitions = len(node.core.local)
        cost = price(events, effects, rows, partitions) + found
        if cost > TURN_MS_MAX * MS:
            some, passed = of_this_map(once(events), fence)
            turn = price(some, effects, rows, partitions) + passed + found
        if cost > TURN_MS_MAX * MS and turn > TURN_MS_MAX * MS:
            raise Violation(
                "turn",
                f"{node.core.node} has a turn of {turn / MS:.0f} ms, and not {TURN_MS_MAX} at most: {what(events)}; "
                f"{rows} rows and {weighed} bytes read or encoded, {encoded} states with {kept} entries, "
                f"{looked} partitions looked at and {changed} changed, {linked} keys linked, "
                f"{len(effects.log)} records, {len(effects.send) + len(effects.early)} messages",
                About(nodes=(node.core.node,)),
            )
        if counted is not None:
            counted.judge(node, events, cost)
        return effects, cost


class Counted(Modelled):
    """The same world; what turns call is counted in all of them."""

    def __init__(self) -> None:
        super().__init__(Calls())


class Measured:
    """What it did cost here and now: another figure each time."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """By the processor's clock."""
        began = time.thread_time_ns()
        effects = node.turn(now, events)
        return effects, time.thread_time_ns() - began


def _bytes_read(base: object) -> int:
    """From a store in memory, which counts them. It is asked twice a turn, so not by its class, whose base is abstract."""
    return getattr(base, "bytes_read", 0)


COSTS: dict[str, type[Costs]] = {"free": Free, "model": Modelled, "count": Counted, "cpu": Measured}


class CountingStore(LayeredStore):
    """A store that knows how many rows were read from it."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self.read = 0
        self._counting = False

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One row."""
        self.read += 1
        return super().get(fragment, key)

    def as_frozen(self, fragment: Fragment, *, stored: bool = True) -> Callable[[bytes], Entry | None]:
        """One row each time, where it is not for a count, which says so itself."""
        found = super().as_frozen(fragment, stored=stored)

        def read(key: bytes) -> Entry | None:
            self.read += 1
            return found(key)

        return found if self._counting else read

    def counted(self, moment: Moment[Entry], most: int) -> tuple[int | None, int]:
        """As many as were looked up, to count them."""
        self._counting = True
        rows, work = super().counted(moment, most)
        self._counting = False
        self.read += min(work, most)
        return rows, work

    def page(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
        """As many as were looked at."""
        found = super().page(fragment, start, limit, down=down)
        self.read += found.work
        return found


def taken(handed: Sequence[Event], untaken: Sequence[Event]) -> Sequence[Event]:
    """Of the events that a node was handed those that it took: what it leaves costs the turn that takes it."""
    if not untaken:
        return handed
    left = 0
    for before, after in zip(reversed(handed), reversed(untaken), strict=False):
        if _said(before) is not _said(after):
            break  # asked again by the node itself
        left += 1
    return handed[: len(handed) - left]


Waiting = Sequence[tuple[NodeId, Message]]
"""Who said what of maps that waits its turn in a node, the oldest first."""


def in_order(
    node: NodeId, events: Sequence[Event], before: Waiting, after: Waiting, released: int
) -> tuple[Sequence[Event], int]:
    """What waits until a map is read costs the turn that takes it, and the one in which it came for having read it alone.

    So: what a turn takes of these events, and so many of what waited `before` it; and what it costs that some wait `after`
    it that did not before.
    """
    waits = [said for _, said in after[max(0, len(before) - released) :]]
    held = {id(said): None for said in waits}
    events = [event for event in events if not isinstance(event, Received) or id(event.message) not in held]
    late = [Received(sender, "", 0, said) for sender, said in before[:released] if sender != node]
    items, size = parts_of(waits) if waits else (0, 0)
    return [*late, *events], items * WAITING_NS + size * BYTE_NS


def once(events: Sequence[Event]) -> Sequence[Event]:
    """The events without what came of them more than once, because a network repeats what it carries.

    A node reads each copy before its turn, as it comes; the turn takes one of them and drops the others.
    """
    found: list[Event] = []
    for event in events:
        if event not in found:
            found.append(event)
    return found


def of_this_map(events: Sequence[Event], fence: Version) -> tuple[Sequence[Event], int]:
    """The events without what a promotion is asked or told under another map than the node goes by; and what it is to
    have read that alone: the turn passes over it, whatever it says of thousands of partitions."""
    passed = [e.message for e in events if isinstance(e, Received) and isinstance(e.message, (AskTail, Tail))]
    passed = [message for message in passed if message.version != fence]
    read = {id(message): None for message in passed}
    items, size = parts_of(passed) if passed else (0, 0)
    kept = [event for event in events if not isinstance(event, Received) or id(event.message) not in read]
    return kept, items * WAITING_NS + size * BYTE_NS


def _said(event: Event) -> object:
    """What makes an event the same one, though the node notes since when it waits."""
    return event.request if isinstance(event, Asked) else event


def price(events: Sequence[Event], effects: Effects, rows: int, partitions: int) -> int:
    """What a turn ought to cost that took these events, read so many rows and owes these effects."""
    log, early, send, reply = effects.log, effects.early, effects.send, effects.reply
    items, size = parts_of((events, log, early, send, reply))
    messages = len(reply)
    if early:
        messages += sum([len(targets) for targets, _ in early])
    if send:
        messages += sum([len(targets) for targets, _ in send])
    cost = TURN_NS + (items - 1) * ITEM_NS + size * BYTE_NS + rows * ROW_NS + messages * SAID_NS
    if log:
        cost += [*map(type, log)].count(Committed) * partitions * TAKEN_NS
    return cost


_LOOKS: dict[type, Look | None] = {}


def _look_into(kind: type) -> Look | None:
    """How the fields of such a thing are looked at, all at once; None: not at all. A number is no part of anything."""
    names = [field.name for field in fields(kind) if field.type not in (int, bool)] if is_struct_type(kind) else []
    look: Look | None = attrgetter(*names) if names else None
    if len(names) == 1:
        only = attrgetter(names[0])
        look = lambda part: (only(part),)  # noqa: E731  # a getter of one name does not make a tuple of it
    _LOOKS[kind] = look
    return look


def parts_of(said: object) -> tuple[int, int]:
    """How many parts something has, all the way down, and how many bytes they are.

    Most of a seed's messages pass through here twice: each container is opened once, and what is in it is told apart
    where it lies.
    """
    items, size, looks = 0, 0, _LOOKS
    within: list[Sequence[object]] = [(said,)]
    for container in within:  # grows on the way
        parts = len(container)
        if parts > MANY and BYTES.issuperset(map(type, container)):  # keys, or values: there may be very many
            said_of = list(filter(None, container))
            parts -= container.count(None)
            size += sum(map(len, said_of))  # type: ignore[arg-type]  # just looked
            items += MANY + (parts - MANY) // TOGETHER if parts > MANY else parts
            continue
        parts = 0
        for part in container:
            kind = type(part)
            if kind is bytes or kind is str:
                parts += 1
                size += len(part)  # type: ignore[arg-type]  # just looked
            elif kind is int or part is None or kind is bool:
                pass
            elif kind is list or kind is tuple:
                parts += 1
                if part:
                    within.append(part)  # type: ignore[arg-type]  # just looked
            elif kind is dict:
                parts += 1
                within.append((*part.keys(), *part.values()))  # type: ignore[attr-defined]  # just looked
            else:
                parts += 1
                look = looks[kind] if kind in looks else _look_into(kind)
                if look is not None:
                    within.append(look(part))
        items += parts if parts <= MANY else MANY + (parts - MANY) // TOGETHER
    return items, size
