"""What every command shows of keys and values, which are users' data: keys escaped, values hashed, or what is asked for."""

from __future__ import annotations

from enum import StrEnum

HASH_BYTES = 16


class Values(StrEnum):
    """What a report says about values."""

    NONE = "none"  # their size
    HASH = "hash"  # and a hash
    FULL = "full"  # and themselves


def printable(data: bytes) -> str:
    r"""Bytes as printable ASCII, reversibly: everything else, and the backslash, is escaped.

    >>> print(printable(b"k1"), printable(b"a\x00\\"))
    k1 a\x00\\
    """
    return data.decode("latin-1").translate(_ESCAPED) if data.translate(None, _PLAIN) else data.decode()


_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("\\"))

_ESCAPED = {byte: f"\\x{byte:02x}" for byte in range(256) if not 0x20 <= byte < 0x7F} | {ord("\\"): "\\\\"}


def value_hash(value: bytes) -> str:
    """How a value is told from another without being shown."""
    from hashlib import blake2b  # noqa: PLC0415  # it brings OpenSSL along, and few commands show hashes

    return blake2b(value, digest_size=HASH_BYTES).hexdigest()
