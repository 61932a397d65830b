"""Things well said that mean nothing: every field of the right type, and drawn from what was heard, or near it.

Whoever listens to a conversation knows what lives in it: ids of transactions that run or are over, cuts, versions, keys,
partitions. What is made here is put together of that: said again as it was, or with some of it exchanged for what
somebody else said under the same name; once more in one list; in another order; one more or less; or as large as its type
allows. It is made by type, so a kind of request or message that is new is said from its first day, with all its fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec import inspect as types

KEPT = 40
"""So many values are known under a name, the newest; and so many things of a kind as they were said."""
ENTRIES_MAX = 5
LONG = 4_096
"""What is longer is said again only as it was, within what it belongs to."""
EDGES = (0, 1, -1, 2, (1 << 31) - 1, 1 << 31, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63))
"""The least and the greatest that an integer on the wire can be, and what is odd in between."""
ODD_BYTES = (b"", b"\0", b"\xff" * 16, bytes(16), bytes(12), b"k" * 401, b"\xc1" * 40)
ODD_TEXT = ("", "~tx", "~", "x" * 65, "n1", "nobody", "ä")


ALIKE = (
    ("tx", "owner", "owners", "victim", "circle", "prepared", "waits.0", "waits.1", "holder", "holders", "others.1"),
    ("cut", "era", "others.0"),
    ("cut.0", "era.0", "others.0.0"),
    ("cut.1", "era.1", "others.0.1"),
    ("namespace", "writes.0", "locks.0", "reads.0", "absent.0", "conditions.0", "ttls.0", "about.0", "name"),
    ("key", "keys", "writes.1", "locks.1", "reads.1", "absent.1", "conditions.1", "ttls.1", "start", "end", "known"),
    ("partition", "partitions", "decision", "participants", "handover", "marks.0", "copies.0", "claims.0"),
    ("epoch", "reads.2", "absent.2", "conditions.4", "marks.1", "values.0"),
    ("counter", "reads.3", "absent.3", "conditions.5", "marks.2", "values.1", "lwm", "highest", "stable"),
    ("version.0", "after.0", "placed.0", "seen.0", "baselined.0"),
    ("version.1", "after.1", "placed.1", "seen.1", "baselined.1"),
)
"""Names of fields that mean the same."""
_ALIKE = {name: names for names in ALIKE for name in names}


class Nonsense:
    """Made of what was heard."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._heard: dict[tuple[type, str], deque[Any]] = {}  # by type, and the name of the field
        self._alike: dict[type, deque[Any]] = {}  # by type
        self._said: dict[type, deque[msgspec.Struct]] = {}
        self._types: dict[type, types.StructType] = {}

    # What is heard.

    def hear(self, said: msgspec.Struct) -> None:
        """Remember what somebody said, and of what it is made."""
        self._keep(self._said, type(said), said)
        self._hear(said, "")

    def know(self, name: str, value: bytes) -> None:
        """Something that may be said in a field of this name."""
        self._keep(self._heard, (bytes, name), value)

    def _hear(self, value: Any, name: str) -> None:
        if isinstance(value, msgspec.Struct):
            self._keep(self._said, type(value), value)
            for field in value.__struct_fields__:
                self._hear(getattr(value, field), field)
        elif isinstance(value, list):
            for entry in value[:ENTRIES_MAX]:
                self._hear(entry, name)
        elif isinstance(value, tuple):
            for at, entry in enumerate(value):
                self._hear(entry, f"{name}.{at}")
        elif not isinstance(value, bool):
            kind = next((kind for kind in (int, bytes, str) if isinstance(value, kind)), None)
            if kind is int or (kind is not None and len(value) <= LONG):
                self._keep(self._heard, (kind, name), value)
                self._keep(self._alike, kind, value)

    @staticmethod
    def _keep(kept: dict[Any, deque[Any]], name: object, value: Any) -> None:
        known = kept.get(name)
        if known is None:
            known = kept[name] = deque(maxlen=KEPT)
        known.append(value)

    # What is said.

    def say(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        """Something of this kind: as it was heard, with some of it exchanged, or of nothing but parts."""
        heard, draw = self._said.get(kind), self._draw
        if heard and draw.random() < 0.7:
            return self.garble(draw.choice(heard), draw.choice((0, 1, 1, 1, 2, 3)))
        return self._struct(self._info(kind))

    def garble(self, said: msgspec.Struct, times: int) -> msgspec.Struct:
        """What was said, with some of it exchanged."""
        for _ in range(times):
            said = self._exchange(self._info(type(said)), said)
        return said

    def _info(self, kind: type) -> types.StructType:
        info = self._types.get(kind)
        if info is None:
            found = types.type_info(kind)
            assert isinstance(found, types.StructType), f"{kind} is no struct"
            info = self._types[kind] = found
        return info

    def _struct(self, info: types.StructType) -> msgspec.Struct:
        given = {field.name: self._value(field.type, field.name) for field in info.fields if self._wanted(field)}
        made: msgspec.Struct = info.cls(**given)
        return made

    def _wanted(self, field: types.Field) -> bool:
        """What may be left out is, now and then."""
        return field.required or self._draw.random() < 0.6

    def _exchange(self, info: types.StructType, said: Any) -> Any:
        if not info.fields:
            return said
        field = self._draw.choice(info.fields)
        return msgspec.structs.replace(said, **{field.name: self._near(field.type, field.name, getattr(said, field.name))})

    def _near(self, wanted: types.Type, name: str, value: Any) -> Any:
        """Another value, mostly one that has to do with this one."""
        draw = self._draw
        match wanted:
            case types.ListType() | types.VarTupleType():
                return type(value)(self._another_list(wanted.item_type, name, list(value)))
            case types.StructType() if draw.random() < 0.8:
                return self._exchange(wanted, value)
            case types.TupleType() if draw.random() < 0.8:
                at = draw.randrange(len(value))
                return (*value[:at], self._near(wanted.item_types[at], f"{name}.{at}", value[at]), *value[at + 1 :])
            case types.NamedTupleType() if draw.random() < 0.8:
                field = draw.randrange(len(value))
                exchanged = self._near(wanted.fields[field].type, f"{name}.{field}", value[field])
                return wanted.cls(*value[:field], exchanged, *value[field + 1 :])
            case types.UnionType() if isinstance(value, msgspec.Struct) and draw.random() < 0.8:
                return self._exchange(self._info(type(value)), value)
            case types.IntType(ge=least, le=most) if draw.random() < 0.4:
                return within(value + draw.choice((-1, 1, 1, 2)), least, most)
            case _:
                return self._value(wanted, name)

    def _another_list(self, item: types.Type, name: str, value: list[Any]) -> list[Any]:
        draw = self._draw
        more = self._value(item, name)
        if not value:
            return [more] * draw.choice((1, 1, 2))
        at = draw.randrange(len(value))
        ways: list[Callable[[], list[Any]]] = [
            list,
            lambda: [*value, value[at]],
            lambda: value[::-1],
            lambda: value[:at] + value[at + 1 :],
            lambda: [*value, more],
            lambda: [more, *value],
            lambda: [*value[:at], self._near(item, name, value[at]), *value[at + 1 :]],
            lambda: [*value[:at], self._near(item, name, value[at]), *value[at:]],
        ]
        return draw.choice(ways)()

    def _value(self, wanted: types.Type, name: str) -> Any:
        """A value of a type for a field of this name."""
        draw = self._draw
        match wanted:
            case types.IntType(ge=least, le=most):
                number = self._known(int, name, EDGES, lambda known: known + draw.choice((0, 0, 0, 0, 1, -1)))
                return within(number, least, most)
            case types.BytesType():
                return self._known(bytes, name, ODD_BYTES)
            case types.StrType():
                return self._known(str, name, ODD_TEXT)
            case types.BoolType():
                return draw.random() < 0.5
            case types.NoneType():
                return None
            case types.EnumType():
                return draw.choice(list(wanted.cls))
            case types.StructType():
                return self.say(wanted.cls)
            case types.ListType() | types.VarTupleType():
                some = [self._value(wanted.item_type, name) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
                doubled = some + some[:1] if draw.random() < 0.2 else some
                return tuple(doubled) if isinstance(wanted, types.VarTupleType) else doubled
            case types.TupleType():
                return tuple(self._value(entry, f"{name}.{at}") for at, entry in enumerate(wanted.item_types))
            case types.NamedTupleType():
                return wanted.cls(*(self._value(field.type, f"{name}.{at}") for at, field in enumerate(wanted.fields)))
            case types.UnionType():
                return self._value(draw.choice(wanted.types), name)
            case types.DictType():
                keys = [self._value(wanted.key_type, f"{name} key") for _ in range(draw.choice((0, 1, 2)))]
                return {key: self._value(wanted.value_type, f"{name} value") for key in keys}
            case _:
                raise AssertionError(f"{name}: nobody knows how to draw {wanted}")

    def _known(self, kind: type, name: str, odd: tuple[Any, ...], near: Callable[[Any], Any] = lambda known: known) -> Any:
        """Mostly what was heard under this name; or what is of this type and means something else; or what is odd."""
        draw = self._draw
        choice = draw.random()
        if choice > 0.55 and (names := _ALIKE.get(name)):
            name = draw.choice(names)
        heard = self._heard.get((kind, name))
        if heard and choice < 0.85:
            return near(draw.choice(heard))
        alike = self._alike.get(kind)
        return draw.choice(alike) if alike and choice < 0.93 else draw.choice(odd)


def within(number: int, least: int | None, most: int | None) -> int:
    """What an integer on the wire can be."""
    return max(-(1 << 63) if least is None else least, min(number, (1 << 64) - 1 if most is None else most))
