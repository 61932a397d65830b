"""Asking nodes, for the commands that operate a cluster: one question, a wait for an answer, and what a refusal means."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from engine.client import admin
from engine.client.admin import ask
from engine.errors import Error, Unavailable, UsageError
from engine.protocol.addresses import given_address, split_address
from wal.ids import NodeId, check_name

LOOK_SECONDS = 0.1
STATUS_SECONDS = 5.0

T = TypeVar("T")


class Refused(Error):
    """The node understood the command, and says why it will not do it."""


def run(question: Coroutine[Any, Any, T]) -> T:
    """Run what asks nodes, until it has its answer."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(question)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that ends although a name service has not answered yet: its own threads would be waited for, some ten
    seconds where that one hears nothing."""

    async def getaddrinfo(self, *asked: Any, **how: Any) -> Any:
        told = self.create_future()

        def tell(found: list[Any] | None, error: OSError | None) -> None:
            if not told.done():
                told.set_result(found) if error is None else told.set_exception(error)

        def ask() -> None:
            found, error = None, None
            try:
                found = socket.getaddrinfo(*asked, **how)
            except OSError as failed:
                error = failed
            with suppress(RuntimeError):  # it has ended
                self.call_soon_threadsafe(tell, found, error)

        Thread(target=ask, daemon=True).start()
        return await told


def check_address(address: str) -> str:
    """The address, if it is one. Raises UsageError."""
    try:
        _, port = given_address(address)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not port:
        raise UsageError(f"{address!r} is not the address of a node: expected a port from 1 to 65535")
    return address


def node_names(text: str, option: str) -> list[NodeId]:
    """The names in `n1,n2,n3`, each once. Raises UsageError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} is {text!r}: expected names of nodes, such as n1,n2,n3")
    try:
        for name in names:
            check_name("node", name)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{option} names {twice[0]} twice: expected each node once")
    return names


async def form(address: str, nodes: Sequence[NodeId], seconds: float) -> str:
    """Form a cluster; its id. Raises Unavailable if not all consent in time, Refused if a node says no."""
    try:
        return await admin.form(check_address(address), nodes, seconds=seconds)
    except UsageError as error:
        raise Refused(f"{address}: {error}") from None


async def question(
    address: str, command: str, *, timeout: float = STATUS_SECONDS, **arguments: Sequence[str]
) -> dict[str, Any]:
    """A node's answer. Raises Unavailable if it does not come, Refused if the node says no."""
    check_address(address)
    try:
        return await ask(address, command, timeout=timeout, **{name: list(words) for name, words in arguments.items()})
    except UsageError as error:
        raise Refused(f"{address}: {error}") from None


async def wait_for(found: Callable[[], Awaitable[T | None]], seconds: float) -> T | None:
    """The first thing that is found by looking again and again, or None after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        thing = await found()
        if thing is not None or time.monotonic() > until:
            return thing
        await asyncio.sleep(LOOK_SECONDS)


async def status_or_none(address: str) -> dict[str, Any] | None:
    """A node's status, or None if it does not answer."""
    try:
        return await question(address, "status")
    except Unavailable:
        return None


MOVED = (
    "the node goes on in it, wherever it is now; stop the node before you start another one where it was, and start it "
    "again from where it is"
)
"""What comes of a data directory that is not where it was opened."""


def too_full(disk: dict[str, Any]) -> str:
    """What comes of a disk that has less left than the log takes next, and what to do."""
    left = f"{disk['free_bytes'] >> 10} KiB are left"
    if disk.get("free_files") == 0:
        left = f"no file can be made there any more (inodes), though {left}"
    if disk.get("full"):
        return (
            f"{left}, and the log's next segment, which takes "
            f"{disk['next_bytes'] >> 10}, could not be made, or a checkpoint found no room; the node goes on for as long "
            "as its segment and its memory last, and writes are refused where others could not go on without it: free "
            "some, or raise what limits it (a quota, `ulimit -f`)"
        )
    return (
        f"{left}, and the next segment of the log takes {disk['next_bytes'] >> 10}; the "
        "node ends where it finds no room for it: free some"
    )


async def listens(address: str) -> bool:
    """Whether anybody accepts connections there."""
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            _, writer = await asyncio.open_connection(*split_address(address))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
