"""Where a host name leads. It is asked for once at a time, for all who dial it, however long the answer takes.

A resolver that hears nothing takes its time for each question, some ten seconds, and no question is taken back: whoever
asked anew with each attempt would line up more and more of them in the few threads in which they wait, before those whose
answer is at hand.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from engine.errors import Error
from engine.protocol.addresses import host_of

PATIENCE_SECONDS = 5.0
"""So long an attempt waits for the answer; the next one waits for the same."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class HostUnknown(Error):
    """The name service knows no address of a host, or does not answer."""


class Resolver:
    """What is being asked of the name service. Nothing of an answer is kept: a name may lead elsewhere the next time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: dict[str, asyncio.Task[list[str]]] = {}

    async def of(self, host: str, turn: int = 0) -> list[str]:
        """The addresses of a host, which may be one itself; each once, and another one first at each turn: that one takes
        connections, or lets them wait, and says nothing is known only afterwards. Raises HostUnknown."""
        if _is_address(host):
            return [host]
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = self._loop.create_task(self._ask(host))
            asked.add_done_callback(lambda task: self._answered(host, task))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                found = await asyncio.shield(asked)  # who waits no longer does not end it for the others
        except TimeoutError:
            raise HostUnknown(f"no word from the name service of {host} within {PATIENCE_SECONDS:g} s") from None
        first = turn % len(found)
        return [*found[first:], *found[:first]]

    async def _ask(self, host: str) -> list[str]:
        try:
            found = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise HostUnknown(f"the name {host} is not known: {error.strerror or error}") from error
        return [*dict.fromkeys(host_of(place) for *_, place in found)]

    def _answered(self, host: str, asked: asyncio.Task[list[str]]) -> None:
        del self._asked[host]
        if not asked.cancelled():
            asked.exception()  # though nobody waits for it any more

    def close(self) -> None:
        """Nobody wants to know any more."""
        for asked in list(self._asked.values()):
            asked.cancel()


async def connected(loop: asyncio.AbstractEventLoop, make: Callable[[], P], hosts: Sequence[str], port: int) -> P:
    """A connection to the first of these that takes one. Raises OSError, of the last."""
    *others, last = hosts
    for host in others:
        with suppress(OSError):
            return (await loop.create_connection(make, host, port))[1]
    return (await loop.create_connection(make, last, port))[1]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
