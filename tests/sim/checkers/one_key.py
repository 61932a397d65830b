"""What many write to one key at the same time, as lists that are appended to: then `list_append` judges it, exactly.

A key is a list or a number. Each write of a list appends a value of its own, of `WIDTH` bytes, so that its length says how
many came before. Each write of a number adds another power of `BASE`, so that the digits of a sum say which writes are in
it, and how often: a sum is the list of them. In which order they came, sums that are told say among themselves. Each is
what one write left, so that of two the larger has all that the smaller has; where it has not, the two make lists of which
none begins with the other.

So an answer is a read of the list with which it ends. That all acknowledged ones count, once, and others at most once;
that all who add are told other sums; that who asks later is told of whatever was acknowledged before: all of it follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from tests.sim.checkers.history import Append, Operation, Read, Transaction, Value

WIDTH = 8
BASE = 8
NUMBER_MAX = 20
"""So many powers of `BASE` are a number of 64 bits, also when one of them counts seven times."""
NOBODYS = -1
"""In a list: what nobody wrote."""


def element(value: Value) -> bytes:
    """As it stands in a list."""
    text = b"%d" % value
    assert len(text) < WIDTH, f"{value} is too long for a list"
    return text.ljust(WIDTH)


@dataclass
class OneKey:
    """A key, who writes it, and what was told of it."""

    name: str
    is_number: bool
    values: list[Value] = field(default_factory=list)  # of all who ever asked to write it, in that order

    def power(self, value: Value) -> int:
        """What a write adds to a number."""
        return int(BASE ** self.values.index(value))


class Told(msgspec.Struct, frozen=True):
    """What somebody was told of a key: how it stood before its own write, or stands behind it, or where it only read.

    `state` is the number, or the list as it stands (None: there is none); `length` alone is known of a list whose writer
    was told no more.
    """

    key: str
    state: bytes | None = None
    length: int | None = None

    @property
    def sum(self) -> int:
        """Of a number."""
        return int(self.state or b"0")


def as_lists(keys: Mapping[str, OneKey], history: Iterable[Operation], told: Mapping[int, Told]) -> list[Operation]:
    """The history of `Transaction`s in which each read has what was told to its process (each does one thing)."""
    operations = list(history)
    longest: dict[str, tuple[Value, ...]] = dict.fromkeys(keys, ())
    for said in told.values():
        if not keys[said.key].is_number:
            longest[said.key] = max(longest[said.key], _values_of(said.state), key=len)
    sums = _sums(keys, operations, told)
    lists = {name: _lists_of(keys[name], sums[name]) for name in sums}

    def read(said: Told) -> tuple[Value, ...] | None:
        if said.key in lists:
            return lists[said.key][said.sum]
        if said.length is None:
            return _values_of(said.state)
        count, odd = divmod(said.length, WIDTH)
        return (NOBODYS,) if odd else longest[said.key][:count] if count <= len(longest[said.key]) else None

    found: list[Operation] = []
    for operation in operations:
        values = read(told[operation.process]) if operation.process in told else None
        ops = (Read(op.key, values) if isinstance(op, Read) else op for op in _ops(operation))
        kept = tuple(op for op in ops if isinstance(op, Append) or op.values is not None)
        found.append(msgspec.structs.replace(operation, action=Transaction(kept)))
    return found


def _ops(operation: Operation) -> tuple[Append | Read, ...]:
    assert isinstance(operation.action, Transaction), f"{operation.name} is no transaction"
    return operation.action.ops


def _sums(
    keys: Mapping[str, OneKey], operations: Iterable[Operation], told: Mapping[int, Told]
) -> dict[str, dict[int, int]]:
    """All sums that numbers were, and what made each: the power that was added last, or 0 where nobody says so."""
    sums: dict[str, dict[int, int]] = {name: {0: 0} for name, key in keys.items() if key.is_number}
    for operation in operations:
        said = told.get(operation.process)
        if said is None or said.key not in sums:
            continue
        of, key = sums[said.key], keys[said.key]
        own = sum(key.power(op.value) for op in _ops(operation) if isinstance(op, Append))
        before = isinstance(_ops(operation)[0], Read)
        of.setdefault(said.sum, 0)
        if own:
            of[said.sum + own if before else said.sum] = own
    return sums


def _values_of(state: bytes | None) -> tuple[Value, ...]:
    """What stands in a list."""
    cut = [(state or b"")[at : at + WIDTH] for at in range(0, len(state or b""), WIDTH)]
    return tuple(int(each) if each.strip().isdigit() and len(each) == WIDTH else NOBODYS for each in cut)


def _lists_of(key: OneKey, sums: Mapping[int, int]) -> dict[int, tuple[Value, ...]]:
    """Each sum as a list: first what the smallest sum has that has it; of one sum, what made it last."""
    place: dict[Value, tuple[int, bool, int]] = {}
    counts: dict[int, dict[Value, int]] = {}
    for found in sorted(sums):
        rest, counts[found] = found, {}
        for at, value in enumerate(key.values):
            rest, digit = divmod(rest, BASE)
            if digit:
                counts[found][value] = digit
                place.setdefault(value, (found, key.power(value) == sums[found], at))
        if rest:
            counts[found][NOBODYS] = 1
            place[NOBODYS] = (found, True, 0)
    return {
        found: tuple(value for value in sorted(held, key=place.__getitem__) for _ in range(held[value]))
        for found, held in counts.items()
    }
