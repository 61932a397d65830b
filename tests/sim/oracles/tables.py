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
    while left:
        name, thing = left.popleft()
        if name:
            found[name] += len(thing)
            parts: Iterable[Any] = thing
            if isinstance(thing, dict):
                parts = thing.values()
            elif isinstance(thing, ByFragment):
                parts = [value for part in thing.parts.values() for value in part.values()]
            named: Iterable[tuple[str, Any]] = ((f"{name}[]", part) for part in parts)
        else:
            named = _attributes(thing)
        for where, value in named:
            is_table = _is_a_table(value)
            if (is_table or _is_a_machine(value)) and id(value) not in met:
                met[id(value)] = value
                left.append((where if is_table else "", value))
    return found


def _is_a_table(value: object) -> bool:
    kind = type(value)
    if kind is deque:
        return value.maxlen is None  # type: ignore[attr-defined]  # it is one
    return kind is not Counter and issubclass(kind, dict | list | set | deque | ByFragment)


def _is_a_machine(value: object) -> bool:
    kind = type(value)
    room = kind.__module__
    return (
        room.startswith(ROOMS)
        and kind not in (FragmentState, LocalPartition)
        and not (room.startswith(NO_MACHINES) or room in VALUES)
        and not isinstance(value, type)
    )


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    for name in getattr(thing, "__dict__", ()):
        yield f"{kind.__name__}.{name}", thing.__dict__[name]
    for slot in _slots_of(kind):
        yield f"{kind.__name__}.{slot}", getattr(thing, slot, None)


_SLOTS: dict[type, list[str]] = {}


def _slots_of(kind: type) -> list[str]:
    if (slots := _SLOTS.get(kind)) is None:
        slots = _SLOTS[kind] = [slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())]
    return slots
