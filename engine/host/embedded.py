"""A node in the application's own process: no port, no peers; the client's calls are its events.

An event loop may end without the application closing what it opened there, as at the end of `asyncio.run`. Nobody can call
that node any more, or close it; its directory is given back when this process opens the next one (`_given_back`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from engine import errors
from engine.host.data_directory import DataDirectory, MakeDisk, as_engine_error, open_data_directory
from engine.host.driver import Driver
from engine.node.node import Node
from engine.protocol.addresses import addresses_of
from engine.protocol.requests import Admin, Reply
from engine.protocol.sizes import weight_of
from engine.state.identity import directory_of
from engine.turn.events import Asked, ClientSeen, SessionId
from engine.turn.settings import settings_of
from rebalance.lives import INCARNATION_BITS
from wal import DirectoryDisk

ADDRESS = "embedded:0"
ALONE: dict[str, Any] = {"partitions": 16, "backups": 0, "connection_lost_ms": 0}
"""What a new node by itself has, unless it is told otherwise. Partitions spread work over nodes, and here is only one:
with fewer of them more of a batch lies in each, and a batch costs what its partitions cost."""
LOOK_SECONDS = 0.05
"""So often whoever waits for the end of another node looks whether its loop still runs."""
STILL_SECONDS = 10.0
"""A loop that does nothing for so long is kept from it by whoever waits, as by a blocking call in the loop itself."""
_log = logging.getLogger("foreshore")


class Asker(Protocol):
    """Who asks this node, in the same process: a client's session."""

    loop: asyncio.AbstractEventLoop

    def on_connected(self, address: str, lock_lease_ms: int, result_retention_ms: int) -> None:
        """The node is there."""
        ...

    def on_replies(self, address: str, replies: list[Reply]) -> None:
        """The node answered."""
        ...

    def fail(self, error: errors.Error) -> None:
        """The node is gone for good."""
        ...


class Embedded:
    """A running node, and the way between it and who asks it: both the client's links and the node's carrier."""

    def __init__(self, directory: DataDirectory, driver: Driver) -> None:
        self.driver = driver
        self._directory = directory
        self._asker: Asker | None = None
        self._process = os.getpid()
        self.place = os.path.realpath(directory.path)
        self.ending = False  # it is being stopped, or is about to be
        self.ended = threading.Event()

    @property
    def left(self) -> bool:
        """Whether its loop is closed, and it was not; what a fork has of its parent's is the parent's."""
        return self.driver.loop.is_closed() and self._process == os.getpid()

    @property
    def rests(self) -> bool:
        """Whether its loop does not run, and may again."""
        return not self.driver.loop.is_running() and self._process == os.getpid()

    @property
    def ends(self) -> bool:
        """Whether it is being stopped, by a loop of this process that runs."""
        return self.ending and self.driver.loop.is_running() and self._process == os.getpid()

    def begin(self, asker: Asker) -> None:
        """Start the node; from now on this is who asks it."""
        self._asker = asker
        _begun[self] = None
        self.driver.stopped.add_done_callback(self._died)
        self.driver.start()
        self.driver.inbox(ClientSeen(1, "", ADDRESS))
        if self._directory.replica.committed[1] == b"":
            self.driver.inbox(Asked(0, Admin(0, "init", {"cluster": [secrets.token_hex(8)]})))

    def _died(self, stopped: asyncio.Future[str]) -> None:
        error = stopped.exception()
        if error is not None and self._asker is not None:
            _log.critical("the embedded node stopped: %s", error)
            self._asker.fail(as_engine_error(error) or errors.Error(f"the node stopped: {error}"))

    async def stop(self) -> None:
        """End the node in good order."""
        self.ending = True
        try:
            await self.driver.finish()
        finally:
            try:
                self.driver.close()
                if self.driver.failed:
                    self._directory.abandon()
                else:
                    self._directory.close()
            finally:
                _begun.pop(self, None)
                self.ended.set()

    def wait_for_end(self) -> None:
        """It is being stopped, and is gone then. Raises UsageError if its loop stands still. In any other thread."""
        goes_on = threading.Event()
        with suppress(RuntimeError):  # it has just been closed
            self.driver.loop.call_soon_threadsafe(goes_on.set)
        waited = 0.0
        while self.ends and not self.ended.wait(LOOK_SECONDS):
            waited += LOOK_SECONDS
            if waited >= STILL_SECONDS and not goes_on.is_set():
                raise errors.UsageError(
                    f"{self.place} is being closed in this process, by an event loop that stands still: close it first, "
                    "or open it by engine.aio, where no call is in the way of others"
                )

    def let_go(self) -> None:
        """Nobody has it any more, and it is stopped next. In any thread."""
        self.ending = True

    def give_back(self) -> None:
        """Its loop is closed: no turn is taken any more, and there is no last checkpoint. In any thread."""
        self.driver.close()
        try:
            if not self.driver.failed:
                self.driver.duties.write_all()
                self._directory.log.close()
        except Exception as error:  # the disk's, or an assertion
            _log.error("the embedded node in %s, whose event loop ended without close: %s", self.place, error)
        finally:
            self._directory.abandon()

    # As the client's links.

    def connect(self, address: str) -> None:
        """It is always there (as the node's carrier, too: there is nobody else)."""
        if address == ADDRESS and self._asker is not None:
            granted = self.driver.node.core.settings
            leases = granted.lock_lease_ms, granted.result_retention_ms
            self._asker.loop.call_soon(self._asker.on_connected, address, *leases)

    def send(self, address: Any, requests: Any = None) -> None:
        """Ask the node; as its carrier, there is nobody to speak to."""
        if requests is not None:
            inbox = self.driver.inbox
            for request in requests:
                inbox(Asked(1, request), weight_of(request))

    async def close(self) -> None:
        """Nothing to hang up."""

    # As the node's carrier.

    def reply(self, replies: list[tuple[SessionId, Reply]]) -> None:
        """Answer who asked."""
        if self._asker is not None:
            self._asker.on_replies(ADDRESS, [reply for _, reply in replies])


_begun: dict[Embedded, None] = {}
"""The nodes of this process that were not stopped: a directory is held by the process, whichever loop opened it."""


def _given_back(path: Path) -> None:
    """What loops have left is given back before `path` is opened, and what is just being closed there is waited for. Raises
    UsageError where only their owner can."""
    for node in list(_begun):
        here = node.place == os.path.realpath(path)
        if here and node.ends:
            node.wait_for_end()
        if node.left:
            if _begun.pop(node, node) is None:  # of two who open at once one does it
                node.give_back()
        elif node.rests and here and node in _begun:
            raise errors.UsageError(
                f"{path} is open in this process, in a database whose event loop does not run: close it in that loop, or "
                "close the loop"
            )


def _give_back(opening: Future[DataDirectory]) -> None:
    """What was opened for somebody who has given up, and whose loop may be over."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _check_no_address(path: object, place: Path) -> None:
    """Raise UsageError for the address of a node: somebody has called `open` for `connect`."""
    with suppress(ValueError):
        if isinstance(path, str) and addresses_of(path) and not place.exists():
            raise errors.UsageError(
                f"{path!r} is an address, and no directory of that name is here: `connect` reaches a cluster, and `open` "
                f"makes a directory, such as './{path}'"
            )


async def open_node(path: object, options: Mapping[str, Any], *, disk: MakeDisk = DirectoryDisk) -> Embedded:
    """Open a directory as a cluster of one, not begun yet. `disk` holds the log."""
    settings = settings_of(options, ALONE)
    place = directory_of(path)
    _check_no_address(path, place)
    thread = ThreadPoolExecutor(1, thread_name_prefix="foreshore-open")

    def opened() -> DataDirectory:
        _given_back(place)
        return open_data_directory(place, cluster=settings.cluster, node=None, settings=settings, disk=disk)

    opening = thread.submit(opened)
    thread.shutdown(wait=False)
    try:
        directory = await asyncio.wrap_future(opening)
    except asyncio.CancelledError:  # it is opened all the same
        opening.add_done_callback(_give_back)
        await asyncio.wait([asyncio.wrap_future(opening)])
        raise
    node = Node(
        settings,
        directory.replica,
        node=directory.identity.node,
        allocation=directory.identity.allocation,
        address=ADDRESS,
        durable_lsn=directory.log.durable_lsn,
        draw=secrets.randbits(INCARNATION_BITS),
    )
    loop = asyncio.get_running_loop()
    driver = Driver(loop, directory, node, note=_log.debug)
    embedded = Embedded(directory, driver)
    driver.carrier = embedded
    return embedded
