"""What the kernel is told, and asked, of a socket whose other end is somewhere else; and how many of them there may be.

A process has a limit of open files, and its connections count, too. A node that met that limit could not open the next
segment of its log either, and would end because many clients came. So some are kept for its files, and some for whoever
has not said yet what it is, which may be a peer.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import NamedTuple

from engine.protocol.addresses import Address, host_of

CLIENTS_MAX = 4_000
FILES_KEPT = 2_048
"""So many descriptors are not for clients, or half of all if there are few."""

_FILES_WANTED = 1 << 16  # with more some programs that a node begins would take their time to close them all
_MORE = "ask again later, or another node; with more open files (`ulimit -n`) it would take more"
_COMPLAINT_SECONDS = 60.0


class Complaints:
    """What an operator is to know, and of what comes again and again, once in a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, note: Callable[[str], None]) -> None:
        self._loop = loop
        self._note = note
        self._said = ""
        self._at = 0.0

    def __call__(self, reason: str) -> None:
        """Tell of it, unless that was the last thing that was told, a moment ago."""
        if reason != self._said or self._loop.time() - self._at > _COMPLAINT_SECONDS:
            self._said, self._at = reason, self._loop.time()
            self._note(reason)


class Crowd(NamedTuple):
    """How many connections a node takes."""

    clients: int
    others: int  # peers, and who has not said yet what it is

    @property
    def too_many_clients(self) -> str:
        """Why one more is refused."""
        return f"{self.clients} clients are connected already; {_MORE}"

    @property
    def too_many_others(self) -> str:
        """Why whoever comes now is not listened to."""
        return f"more than {self.others} connections are open that are no clients'; {_MORE}"


def crowd_of(files: int) -> Crowd:
    """What leaves a process that may have so many files open enough of them for its own."""
    kept = min(files // 2, FILES_KEPT)
    return Crowd(min(CLIENTS_MAX, files - kept), kept // 2)


def files_max() -> int:
    """How many files and connections this process may have open."""
    return _known(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def files_obtainable() -> int:
    """How many a node lets itself have: the usual 1,024 are meant for who asks for no more."""
    soft, hard = map(_known, resource.getrlimit(resource.RLIMIT_NOFILE))
    return max(soft, min(hard, _FILES_WANTED))


def take_all_files() -> None:
    """Let this process have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _known(soft) < (wanted := files_obtainable()):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _known(limit: int) -> int:
    return limit if limit != resource.RLIM_INFINITY else 1 << 30


def keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel find out when the other machine is gone without a word, where nothing is said that would."""
    found = transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def give_up_soon(transport: asyncio.Transport, after_ms: int) -> None:
    """The same where something is said: what no kernel has acknowledged for a while is said over another connection.

    By itself a kernel tries for a quarter of an hour, with pauses of two minutes, and a node that is heard over none of the
    connections to it but this one would be away for as long, although the network is whole again.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, after_ms)


def address_of(transport: asyncio.Transport) -> Address:
    """Where the other end of a connection is, as `host:port`: no name, so that nobody has to be asked for one."""
    found = transport.get_extra_info("peername")
    host, port = (host_of(found), found[1]) if isinstance(found, tuple) and len(found) >= 2 else ("unknown", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
