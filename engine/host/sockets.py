"""What the kernel is told, and asked, of a socket whose other end is somewhere else."""

from __future__ import annotations

import asyncio
import socket

from engine.protocol.addresses import Address


def keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel find out when the other machine is gone without a word: nothing that is said here would."""
    found = transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def address_of(transport: asyncio.Transport) -> Address:
    """Where a connection comes from, as `host:port`."""
    found = transport.get_extra_info("peername")
    host, port = (found[0], found[1]) if isinstance(found, tuple) and len(found) >= 2 else ("unknown", 0)
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
