"""How an application's keys and values become bytes: `bytes` as they are, `str`, `json` or `msgpack`.

With any codec but `bytes`, keys are text (UTF-8), and ordered as their bytes are. What cannot be a key or a value is
refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from engine.errors import UsageError
from wal.ids import KEY_BYTES_MAX, VALUE_BYTES_MAX


class Codec:
    """A pair of conversions for keys, and one for values."""

    def __init__(
        self,
        name: str,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self.name = name
        self.encode_key = encode_key
        self.decode_key = decode_key
        self.encode = encode
        self.decode = decode


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


def _encoding(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def encoded(value: object) -> bytes:
        try:
            return encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"cannot encode a {type(value).__name__}: {error}") from error

    return encoded


def _decoding(name: str, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"what is stored is not what codec {name!r} wrote: {error}; name the codec that it was written with"
            ) from error

    return decoded


def _codec(name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Codec:
    text = _encoding(_text), _decoding(name, bytes.decode)
    return Codec(name, *text, _encoding(encode), _decoding(name, decode))


CODECS = {
    "bytes": Codec("bytes", _bytes, bytes, _bytes, bytes),
    "str": _codec("str", _text, bytes.decode),
    "json": _codec("json", msgspec.json.encode, msgspec.json.decode),
    "msgpack": _codec("msgpack", msgspec.msgpack.encode, msgspec.msgpack.decode),
}


def codec_of(codec: str | Codec | None) -> Codec:
    """The codec of a name, or the one that is given. Raises UsageError."""
    if isinstance(codec, Codec):
        return codec
    found = CODECS.get(codec or "bytes")
    if found is None:
        raise UsageError(f"codec {codec!r} is not known: expected one of {', '.join(CODECS)}, or a Codec")
    return found


def key_of(codec: Codec, key: Any) -> bytes:
    """A key as bytes. Raises UsageError for what cannot be one."""
    encoded = codec.encode_key(key)
    if not 0 < len(encoded) <= KEY_BYTES_MAX:
        raise UsageError(f"a key has {len(encoded)} bytes: expected 1 to {KEY_BYTES_MAX}")
    return encoded


def keys_of(codec: Codec, keys: Iterable[Any]) -> dict[bytes, Any]:
    """Several keys as bytes, each with what it was given as; every key once. Raises UsageError."""
    if isinstance(keys, str | bytes | bytearray):
        raise UsageError(f"expected several keys, found one {type(keys).__name__}: put it into a list")
    return {key_of(codec, key): key for key in keys}


def value_of(codec: Codec, value: Any) -> bytes:
    """A value as bytes. Raises UsageError for what cannot be one."""
    encoded = codec.encode(value)
    if len(encoded) > VALUE_BYTES_MAX:
        raise UsageError(f"a value has {len(encoded)} bytes: expected at most {VALUE_BYTES_MAX}")
    return encoded


def pairs_of(codec: Codec, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[bytes, bytes | None]:
    """Keys and values as bytes; of a key that is given twice, the last value. Raises UsageError."""
    pairs = items.items() if isinstance(items, Mapping) else items
    return {key_of(codec, key): value_of(codec, value) for key, value in pairs}


def limit_of(limit: int | None) -> int | None:
    """How many rows a scan may give. Raises UsageError."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise UsageError(f"limit is {limit!r}: expected a whole number from 0, or None for all")
    return limit


def range_of(codec: Codec, prefix: Any, start: Any, end: Any) -> tuple[bytes, bytes | None]:
    """The key range of a scan, as bytes: start <= key < end."""
    low = codec.encode_key(start) if start is not None else b""
    high = codec.encode_key(end) if end is not None else None
    if prefix is not None:
        head = codec.encode_key(prefix)
        low = max(low, head)
        stem = head.rstrip(b"\xff")
        after = stem[:-1] + bytes([stem[-1] + 1]) if stem else None
        if after is not None and (high is None or after < high):
            high = after
    return _cut(low), _cut(high) if high is not None else None


def _cut(bound: bytes) -> bytes:
    """The shortest bound that divides the keys as this one does: none of them is longer than a key may be.

    >>> _cut(b"a"), _cut(b"a" * 1000) == b"a" * 400 + bytes(1)
    (b'a', True)
    """
    return bound if len(bound) <= KEY_BYTES_MAX else bound[:KEY_BYTES_MAX] + b"\0"
