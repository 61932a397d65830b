"""Where a node listens, and how long whoever dials one waits."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

Address = str

HELLO_SECONDS = 5.0
"""Whoever has not greeted by then is hung up on."""


_HOST = re.compile(r"\w[\w.-]*")
_PORT = re.compile(r"[0-9]{1,5}")


def split_address(address: Address) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as (host, port). Raises ValueError with what was expected."""
    host, _, port = address.rpartition(":")
    if not (_is_name(host) or _is_v6(host)) or not _PORT.fullmatch(port) or not int(port) < 65536:
        raise ValueError(f"{address!r} is not an address: expected host:port, such as 127.0.0.1:7400")
    return host.strip("[]"), int(port)


def given_address(address: Address) -> tuple[str, int]:
    """The same of one that somebody types: where the port of a bare v6 address begins is not guessed."""
    host, _, _ = address.rpartition(":")
    if "[" not in address and (_is_v6(host) or _is_v6(address)):
        raise ValueError(f"{address!r} may be meant in several ways: expected brackets around the host, such as [::1]:7400")
    return split_address(address)


def _is_name(host: str) -> bool:
    """Whether a name service may be asked about it: of its labels, which dots divide, none is empty, or longer than 63."""
    try:
        return _HOST.fullmatch(host) is not None and bool(host.encode("idna"))
    except UnicodeError:
        return False


def _is_v6(host: str) -> bool:
    """Whether it has colons and may: what is left of another separator, or of a scheme, has some, too."""
    try:
        bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
        return ipaddress.ip_address(bare).version == 6
    except ValueError:
        return False


def host_of(found: tuple[object, ...]) -> str:
    """The host of what a name was resolved to; of an IPv6 address that means something on one link only, with that."""
    host, _, *flow_and_scope = found
    return f"{host}%{flow_and_scope[1]}" if flow_and_scope and flow_and_scope[1] else str(host)


def addresses_of(given: str | Iterable[str]) -> list[Address]:
    """The addresses in one text with commas, or in several. Raises ValueError with what was expected."""
    found_kind: type[object] = type(given)
    if issubclass(found_kind, bytes | bytearray):  # they can be iterated over, too
        raise ValueError(f"expected addresses as str, or a list of them, found {found_kind.__name__}")
    texts = [given] if isinstance(given, str) else list(given)
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise ValueError(f"an address is {wrong[0]!r}: expected texts of the form host:port")
    found = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError("no address was given: expected host:port,host:port,...")
    for address in found:
        given_address(address)
    return found
