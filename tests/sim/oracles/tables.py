"""How many things are in each table of a node: of all its machines, whatever they are called and wherever they hang.

A table is a dict, a list, a deque or a set; it is named by the class and the attribute that it is found at, and what lies
in one is `[]`: `Locks._waiting[]` are all that wait for any key. A deque that has a bound of its own is none. Nor is what
a node is there for: its rows, the map, messages and records. `tests.sim.oracles.memory` looks into each fragment's state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from engine.node.node import Node
from rebalance.by_fragment import ByFragment
from rebalance.fragment import FragmentState
from rebalance.partition import LocalPartition

ROOMS = ("engine.", "rebalance.", "wal.")
NO_MACHINES = ("engine.messages", "engine.protocol", "engine.state.store", "engine.state.layer", "engine.state.held")
VALUES = ("engine.turn.settings", "rebalance.table", "rebalance.messages", "rebalance.steps", "wal.records", "wal.counters")


def tables(node: Node) -> Counter[str]:
    """How many things are in each, added over all that have that name."""
    found: Counter[str] = Counter()
    met: dict[int, object] = {id(node): node}
    left: deque[tuple[str, Any]] = deque([("", node)])
    sorts = _SORTS
    while left:
        name, thing = left.popleft()
        if not name:
            of = type(thing).__name__
            for attribute, value in _attributes(thing):
                sort = sorts[kind] if (kind := type(value)) in sorts else _sort_of(kind)
                if sort and id(value) not in met and not (kind is deque and value.maxlen is not None):
                    met[id(value)] = value
                    left.append((f"{of}.{attribute}" if sort == TABLE else "", value))
            continue
        found[name] += len(thing)
        parts: Iterable[Any] = thing
        if isinstance(thing, dict):
            parts = thing.values()
        elif isinstance(thing, ByFragment):
            parts = [value for part in thing.parts.values() for value in part.values()]
        where = f"{name}[]"
        for value in parts:
            sort = sorts[kind] if (kind := type(value)) in sorts else _sort_of(kind)
            if sort and id(value) not in met and not (kind is deque and value.maxlen is not None):
                met[id(value)] = value
                left.append((where if sort == TABLE else "", value))
    return found


OTHER, TABLE, MACHINE = range(3)
_SORTS: dict[type, int] = {}


def _sort_of(kind: type) -> int:
    """Whether what is of this kind is a table, or a machine that may have some."""
    if kind is not Counter and issubclass(kind, dict | list | set | deque | ByFragment):
        sort = TABLE
    else:
        sort = MACHINE if _is_a_machine(kind) else OTHER
    _SORTS[kind] = sort
    return sort


def _is_a_machine(kind: type) -> bool:
    room = kind.__module__
    return (
        room.startswith(ROOMS)
        and kind not in (FragmentState, LocalPartition)
        and not (room.startswith(NO_MACHINES) or room in VALUES)
        and not issubclass(kind, type)
    )


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for slot in _slots_of(type(thing)):
        yield slot, getattr(thing, slot, None)


_SLOTS: dict[type, list[str]] = {}


def _slots_of(kind: type) -> list[str]:
    if (slots := _SLOTS.get(kind)) is None:
        slots = _SLOTS[kind] = [slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())]
    return slots
