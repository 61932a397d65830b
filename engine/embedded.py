"""A node in the application's own process: no port, no peers; the client's calls are its events."""

from __future__ import annotations

import asyncio
import difflib
import logging
import secrets
from pathlib import Path
from typing import Any

import msgspec

from engine import errors
from engine.aio import Database
from engine.client.session import Session
from engine.driver import Driver
from engine.effects import Asked, SessionId
from engine.home import MakeDisk, as_engine_error, open_home
from engine.limits import weight_of
from engine.node import Node
from engine.requests import Admin, Reply
from engine.settings import Settings, check_settings
from rebalance.lives import INCARNATION_BITS
from wal import DirectoryDisk

ADDRESS = "embedded:0"
ALONE: dict[str, Any] = {"partitions": 16, "backups": 0, "connection_lost_ms": 0}
"""What a new node by itself has, unless it is told otherwise. Partitions spread work over nodes, and here is only one:
with fewer of them more of a batch lies in each, and a batch costs what its partitions cost."""
_log = logging.getLogger("foreshore")


class _Inside:
    """The way between a session and the node in the same process: both the client's links and the node's carrier."""

    def __init__(self, session: Session, driver: Driver) -> None:
        self.session = session
        self.driver = driver

    # As the client's links.

    def connect(self, address: str) -> None:
        """It is always there (as the node's carrier, too: there is nobody else)."""
        if address == ADDRESS:
            self.session.loop.call_soon(self.session.on_connected, address)

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
        """Answer the session."""
        self.session.on_replies(ADDRESS, [reply for _, reply in replies])


async def open_embedded(path: Path, options: dict[str, Any], *, disk: MakeDisk = DirectoryDisk) -> Database:
    """Open a directory as a cluster of one. `disk` holds the log."""
    known = Settings.__struct_fields__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            expected = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
            raise errors.UsageError(f"unknown setting {name!r}: {expected}")
    try:
        settings = msgspec.convert(ALONE | options, Settings)
    except msgspec.ValidationError as error:
        raise errors.UsageError(f"a setting is wrong: {error}") from None
    check_settings(settings)
    home = await asyncio.get_running_loop().run_in_executor(
        None, lambda: open_home(path, cluster=settings.cluster, node=None, settings=settings, disk=disk)
    )
    node = Node(
        settings,
        home.replica,
        node=home.identity.node,
        allocation=home.identity.allocation,
        address=ADDRESS,
        durable_lsn=home.log.durable_lsn,
        draw=secrets.randbits(INCARNATION_BITS),
    )
    loop = asyncio.get_running_loop()
    driver = Driver(loop, home, node, note=_log.debug)
    session = Session([ADDRESS], timeout=60.0)
    inside = _Inside(session, driver)
    session.links = inside
    driver.carrier = inside

    def died(stopped: asyncio.Future[str]) -> None:
        error = stopped.exception()
        if error is not None:
            _log.critical("the embedded node stopped: %s", error)
            session.fail(as_engine_error(error) or errors.Error(f"the node stopped: {error}"))

    driver.stopped.add_done_callback(died)
    driver.start()
    if home.replica.committed[1] == b"":
        driver.inbox(Asked(0, Admin(0, "init", {"cluster": [secrets.token_hex(8)]})))

    async def close() -> None:
        try:
            await driver.finish()
        finally:
            driver.close()
            if driver.failed:
                home.abandon()
            else:
                home.close()

    session.begin()
    if not await session.wait_for_table(30.0):
        await close()
        raise errors.Unavailable(f"the node in {path} did not start")
    return Database(session, f"embedded {path}", close)
