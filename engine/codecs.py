"""How an application's keys and values become bytes: `bytes` as they are, `str`, `json` or `msgpack`.

With any codec but `bytes`, keys are text (UTF-8), and ordered as their bytes are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.errors import UsageError


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
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise UsageError(f"cannot encode a {type(value).__name__}: {error}") from error

    return encoded


CODECS = {
    "bytes": Codec("bytes", _bytes, bytes, _bytes, bytes),
    "str": Codec("str", _text, bytes.decode, _text, bytes.decode),
    "json": Codec("json", _text, bytes.decode, _encoding(msgspec.json.encode), msgspec.json.decode),
    "msgpack": Codec("msgpack", _text, bytes.decode, _encoding(msgspec.msgpack.encode), msgspec.msgpack.decode),
}


def codec_of(codec: str | Codec | None) -> Codec:
    """The codec of a name, or the one that is given. Raises UsageError."""
    if isinstance(codec, Codec):
        return codec
    found = CODECS.get(codec or "bytes")
    if found is None:
        raise UsageError(f"codec {codec!r} is not known: expected one of {', '.join(CODECS)}, or a Codec")
    return found
