"""How an application's keys and values become bytes: `bytes` as they are, `str`, `json`, `msgpack`, or a type.

With any codec but `bytes`, keys are text (UTF-8), and ordered as their bytes are. What cannot be a key or a value is
refused here, before anything is sent; and so is what would come back as something else: JSON has no sets, tuples, times
or keys that are numbers. A type (a dataclass, a TypedDict, a `msgspec.Struct`, `list[int]`, ...) is JSON that is checked
against it both ways.

To a type checker what comes out of `json` and `msgpack` is `Any`, as what comes out of `json.loads` is: no type that says
more lets `flights["UA15"]["to"]` pass. A type as the codec says, and checks, what it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import msgspec

from engine.client.tuples import pack, unpack
from engine.errors import UsageError
from wal.ids import KEY_BYTES_MAX, VALUE_BYTES_MAX

K = TypeVar("K")
V = TypeVar("V")
CodecName = Literal["bytes", "str", "json", "msgpack"]


class Codec(Generic[K, V]):
    """A pair of conversions for keys, and one for values. `form` is what is on record with a namespace.

    `adds` is the operation that adds to a whole number as this codec writes it; empty: it writes none. `joins`: two values
    one after the other, as bytes, are a value. `in_parts`: no part of a key begins with 255, so that what begins with some
    whole parts is before these and 255; else any bytes may follow. `reads_all`: it can read whatever is kept in its form.
    """

    def __init__(
        self,
        name: str,
        encode_key: Callable[[K], bytes],
        decode_key: Callable[[bytes], K],
        encode: Callable[[V], bytes],
        decode: Callable[[bytes], V],
        *,
        form: str = "",
        adds: Literal["", "add", "add-packed"] = "",
        joins: bool = False,
        in_parts: bool = False,
        reads_all: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"a codec's name is {name!r}: expected text")
        if not isinstance(form, str):
            raise UsageError(f"codec {name!r}: form is {form!r}: expected text, or nothing for its name")
        made = {"encode_key": encode_key, "decode_key": decode_key, "encode": encode, "decode": decode}
        for what, function in made.items():
            if not callable(function):
                raise UsageError(f"codec {name!r}: {what} is a {type(function).__name__}: expected a function")
        self.name = name
        self.form = form or name
        self.in_parts = in_parts
        self.reads_all = reads_all
        self.adds = adds
        self.joins = joins
        self.encode_key = encode_key
        self.decode_key = decode_key
        self.encode = encode
        self.decode = decode

    def __repr__(self) -> str:
        return f"<Codec {self.name}>"


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, bytearray | memoryview):
        raise UsageError(f"expected bytes, found {type(value).__name__}: name a codec, such as codec='str'")
    return bytes(value)


def _text(value: object) -> bytes:
    if not isinstance(value, str):
        raise UsageError(f"expected str, found {type(value).__name__}")
    return value.encode()


def _encoding(encode: Callable[[V], bytes]) -> Callable[[V], bytes]:
    def encoded(value: V) -> bytes:
        try:
            return encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"cannot encode a {type(value).__name__}: {error}") from error

    return encoded


def _decoding(name: str, decode: Callable[[bytes], V]) -> Callable[[bytes], V]:
    def decoded(data: bytes) -> V:
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"what is stored is not what codec {name!r} wrote: {error}; name the codec that it was written with"
            ) from error

    return decoded


_JSON = (type(None), bool, int, str)
_MSGPACK = (*_JSON, bytes)


def _kept(value: object, scalars: tuple[type, ...], keys: tuple[type, ...]) -> None:
    """Raise TypeError for what a decoder would not give back as it was."""
    kind = type(value)
    if kind is dict:
        assert isinstance(value, dict)
        for key, inner in value.items():
            if type(key) not in keys:
                raise TypeError(f"a key of a dict is a {type(key).__name__}, expected {_either(keys)}")
            _kept(inner, scalars, keys)
    elif kind is list:
        assert isinstance(value, list)
        for inner in value:
            _kept(inner, scalars, keys)
    elif isinstance(value, float) and kind is float:
        if not isfinite(value):
            raise ValueError(f"{value} is no number that it can carry")
    elif kind not in scalars:
        raise TypeError(
            f"a {kind.__name__} would come back as something else: expected {_either((*scalars[1:], float))}, None, "
            "a list or a dict; for anything else name its type as the codec"
        )


def _either(kinds: tuple[type, ...]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def _encode_json(value: object) -> bytes:
    _kept(value, _JSON, (str,))
    return msgspec.json.encode(value)


def _encode_msgpack(value: object) -> bytes:
    _kept(value, _MSGPACK, (str, int, bytes))
    return msgspec.msgpack.encode(value)


def _codec(
    name: str,
    encode: Callable[[V], bytes],
    decode: Callable[[bytes], V],
    form: str = "",
    *,
    adds: Literal["", "add", "add-packed"] = "",
    joins: bool = False,
) -> Codec[str, V]:
    keys, both = (_encoding(_text), _decoding(name, bytes.decode)), (_encoding(encode), _decoding(name, decode))
    return Codec(
        name, *keys, *both, form=form, adds=adds, joins=joins, reads_all=not form
    )  # of a form, each type reads its own


CODECS: dict[str, Codec[Any, Any]] = {
    "bytes": Codec("bytes", _bytes, bytes, _bytes, bytes, adds="add", joins=True, reads_all=True),
    "str": _codec("str", _text, bytes.decode, adds="add", joins=True),
    "json": _codec("json", _encode_json, msgspec.json.decode, adds="add"),
    "msgpack": _codec("msgpack", _encode_msgpack, msgspec.msgpack.decode, adds="add-packed"),
}


def _alike(given: object, back: object) -> bool:
    """Whether two values are alike although they are not equal: some classes do not say when theirs are."""
    kind = type(given)
    if given == back or type(back) is not kind:
        return given == back
    if isinstance(given, dict) and isinstance(back, dict):
        return given.keys() == back.keys() and all(_alike(value, back[key]) for key, value in given.items())
    if isinstance(given, list | tuple) and isinstance(back, list | tuple):
        return len(given) == len(back) and all(map(_alike, given, back))
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else getattr(kind, "__struct_fields__", ())
    return bool(names) and all(_alike(getattr(given, name), getattr(back, name)) for name in names)


def of_type(kind: type[V]) -> Codec[str, V]:
    """JSON of one type, checked against it when it is written and when it is read. Raises UsageError for no such type."""
    name = getattr(kind, "__name__", str(kind))
    try:
        decoder = msgspec.json.Decoder(kind)
    except (TypeError, RuntimeError) as error:
        raise UsageError(f"{name} cannot be a codec: {error}") from None

    def encode(value: V) -> bytes:
        encoded = msgspec.json.encode(value)
        back = decoder.decode(encoded)
        if back != value and not _alike(value, back):
            raise ValueError(
                f"it would come back as {back!r:.200}: expected what JSON carries as {name}, and of no subclass"
            )
        return encoded

    adds: Literal["", "add"] = "add" if kind is int else ""
    return _codec(name, encode, decoder.decode, form="json", adds=adds)  # whatever the type is called tomorrow


@overload
def by_tuple(codec: Literal["bytes"]) -> Codec[tuple[Any, ...], bytes]: ...


@overload
def by_tuple(codec: Literal["str"]) -> Codec[tuple[Any, ...], str]: ...


@overload
def by_tuple(codec: Literal["json", "msgpack"]) -> Codec[tuple[Any, ...], Any]: ...


@overload
def by_tuple(codec: Codec[Any, V]) -> Codec[tuple[Any, ...], V]: ...


@overload
def by_tuple(codec: type[V]) -> Codec[tuple[Any, ...], V]: ...


def by_tuple(codec: CodecName | Codec[Any, Any] | type[Any]) -> Codec[tuple[Any, ...], Any]:
    """The codec with keys that are tuples, and sort as tuples do: `by_tuple("json")`, `by_tuple(Account)`.

    A scan with `prefix=("ann",)` finds all keys that begin so. Parts are text, bytes, whole numbers of up to 64 bits,
    floats, True, False and None; in one position they are of one kind, as tuples that can be compared are. A type checker
    is told no more of them: which kind stands where is yours to know.
    """
    values = codec_of(codec)
    form = f"{values.form} by tuple"
    keys, both = (pack, _decoding(form, unpack)), (values.encode, values.decode)
    name = f"{values.name} by tuple"
    return Codec(
        name, *keys, *both, form=form, adds=values.adds, joins=values.joins, in_parts=True, reads_all=values.reads_all
    )


def codec_of(codec: str | Codec[Any, Any] | type[Any] | None) -> Codec[Any, Any]:
    """The codec of a name or a type, or the one that is given. Raises UsageError."""
    if isinstance(codec, Codec):
        return codec
    if codec is not None and not isinstance(codec, str):
        return of_type(codec)
    found = CODECS.get(codec or "bytes")
    if found is None:
        near = difflib.get_close_matches(codec or "", CODECS, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(CODECS)}, a type, or a Codec"
        raise UsageError(f"codec {codec!r} is not known: {meant}")
    return found


class Named(Protocol[K, V]):
    """A namespace, as far as its keys and values become bytes: what is wrong with one of them is told with its name."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def codec(self) -> Codec[K, V]:
        """What it is kept in."""
        ...


def key_of(place: Named[K, Any], key: K) -> bytes:
    """A key as bytes. Raises UsageError for what cannot be one."""
    encoded = _encoded_key(place, key)
    if not 0 < len(encoded) <= KEY_BYTES_MAX:
        raise UsageError(f"{place.name}: a key has {len(encoded)} bytes: expected 1 to {KEY_BYTES_MAX}")
    return encoded


def _encoded_key(place: Named[K, Any], key: K) -> bytes:
    """The same, however long it is: an end of a range may be longer."""
    try:
        encoded = place.codec.encode_key(key)
    except UsageError as error:
        raise UsageError(f"{place.name}, a key: {error}") from error
    return encoded if type(encoded) is bytes else _as_bytes(place, "key", encoded)


def keys_of(place: Named[K, Any], keys: Iterable[K]) -> dict[bytes, K]:
    """Several keys as bytes, each with what it was given as; every key once. Raises UsageError."""
    if isinstance(keys, str | bytes | bytearray):
        raise UsageError(f"{place.name}: expected several keys, found one {type(keys).__name__}: put it into a list")
    if not isinstance(keys, Iterable):
        raise UsageError(f"{place.name}: expected several keys, found {type(keys).__name__}")
    return {key_of(place, key): key for key in keys}


def value_of(place: Named[Any, V], value: V) -> bytes:
    """A value as bytes. Raises UsageError for what cannot be one."""
    try:
        encoded = place.codec.encode(value)
    except UsageError as error:
        raise UsageError(f"{place.name}, a value: {error}") from error
    if type(encoded) is not bytes:
        encoded = _as_bytes(place, "value", encoded)
    if len(encoded) > VALUE_BYTES_MAX:
        raise UsageError(f"{place.name}: a value has {len(encoded)} bytes: expected at most {VALUE_BYTES_MAX}")
    return encoded


def _as_bytes(place: Named[Any, Any], what: str, encoded: object) -> bytes:
    """What a codec of the application's own made, as it is now: a node in this process would keep the object itself."""
    if isinstance(encoded, bytes | bytearray | memoryview):
        return bytes(encoded)
    raise UsageError(
        f"{place.name}: codec {place.codec.name!r} made a {type(encoded).__name__} of a {what}: expected bytes"
    )


def pairs_of(place: Named[K, V], items: Mapping[K, V] | Iterable[tuple[K, V]]) -> dict[bytes, bytes | None]:
    """Keys and values as bytes; of a key that is given twice, the last value. Raises UsageError."""
    pairs = items.items() if isinstance(items, Mapping) else _pairs(place.name, items)
    return {key_of(place, key): value_of(place, value) for key, value in pairs}


def _pairs(name: str, items: Iterable[tuple[K, V]]) -> Iterator[tuple[K, V]]:
    """The same, each of them seen to be a pair."""
    if not isinstance(items, Iterable):
        raise UsageError(f"{name}: expected a dict, or (key, value) pairs, found {type(items).__name__}")
    for pair in items:
        if isinstance(pair, str | bytes) or not isinstance(pair, Collection) or len(pair) != 2:
            raise UsageError(f"{name}: expected a dict, or (key, value) pairs, found among them a {type(pair).__name__}")
        yield pair


def read_value(place: Named[Any, V], key: bytes, value: bytes) -> V:
    """A value that is kept under a key. Raises UsageError, which names both, for what the codec cannot read; what else it
    raises has them as a note."""
    try:
        return place.codec.decode(value)
    except UsageError as error:
        raise UsageError(f"{_where(place, key)}: {error}") from error
    except Exception as error:
        _note(place, key, error)
        raise


def read_rows(place: Named[K, V], rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[K, V]]:
    """Keys and values, as they are kept one after the other; as `read_value`."""
    decode_key, decode = place.codec.decode_key, place.codec.decode
    for key, value in rows:
        try:
            row = decode_key(key), decode(value)
        except UsageError as error:
            raise UsageError(f"{_where(place, key)}: {error}") from error
        except Exception as error:
            _note(place, key, error)
            raise
        yield row


def _where(place: Named[Any, Any], key: bytes) -> str:
    try:
        return f"{place.name}:{place.codec.decode_key(key)!r}"
    except Exception:  # the codec is the application's own
        return f"{place.name}:{key!r}"


def _note(place: Named[Any, Any], key: bytes, error: Exception) -> None:
    error.add_note(f"codec {place.codec.name!r} was reading {_where(place, key)}")


def limit_of(limit: int | None) -> int | None:
    """How many rows a scan may give. Raises UsageError."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise UsageError(f"limit is {limit!r}: expected a whole number from 0, or None for all")
    return limit


def range_of(place: Named[K, Any], prefix: K | None, start: K | None, end: K | None) -> tuple[bytes, bytes | None]:
    """The key range of a scan, as bytes: start <= key < end."""
    low = _encoded_key(place, start) if start is not None else b""
    high = _encoded_key(place, end) if end is not None else None
    if prefix is not None:
        head = _encoded_key(place, prefix)
        low = max(low, head)
        after = head + b"\xff" if place.codec.in_parts else _after(head)
        if after is not None and (high is None or after < high):
            high = after
    return _cut(low), _cut(high) if high is not None else None


def _after(head: bytes) -> bytes | None:
    """What comes after all that begins so; None: nothing does."""
    stem = head.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _cut(bound: bytes) -> bytes:
    """The shortest bound that divides the keys as this one does: none of them is longer than a key may be.

    >>> _cut(b"a"), _cut(b"a" * 1000) == b"a" * 400 + bytes(1)
    (b'a', True)
    """
    return bound if len(bound) <= KEY_BYTES_MAX else bound[:KEY_BYTES_MAX] + b"\0"
