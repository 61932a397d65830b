"""A node as a process: a data directory, a driver, sockets. Only this module and `engine.embedded` build real things."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.core import INCARNATION_BITS, next_incarnation
from engine.driver import Driver
from engine.effects import Event, PeerSeen
from engine.errors import Error, UsageError
from engine.home import Home, as_engine_error, open_home
from engine.node import Node
from engine.settings import Settings
from engine.transport import Transport, split_address

_log = logging.getLogger("foreshore")
LOOPBACK = ("127.", "localhost", "::1")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node lives. `listen` with port 0 takes a free one; `advertise` is what others are told to dial."""

    data: Path
    listen: str = "127.0.0.1:7400"
    advertise: str = ""
    seeds: list[str] = []
    node: str = ""
    insecure: bool = False
    accept_loss: bool = False
    settings: Settings = Settings()


def check_config(config: ServerConfig) -> None:
    """Raise UsageError for what cannot work."""
    for address in (config.listen, *([config.advertise] if config.advertise else []), *config.seeds):
        try:
            split_address(address)
        except ValueError as error:
            raise UsageError(str(error)) from None
    host, _ = split_address(config.listen)
    if not host.startswith(LOOPBACK) and not config.insecure:
        raise UsageError(
            f"{config.listen} is not loopback, and TLS and authentication are not there yet: anyone who reaches the port "
            "could read and write everything; listen on 127.0.0.1, or say --insecure"
        )
    partitions = config.settings.partitions
    if partitions & (partitions - 1) or not 1 <= partitions <= 16384:
        raise UsageError(f"partitions is {partitions}: expected a power of two up to 16384")
    if not 0 <= config.settings.backups <= 6:
        raise UsageError(f"backups is {config.settings.backups}: expected 0 to 6")


class Server:
    """One running node."""

    def __init__(self, config: ServerConfig, home: Home, node: Node, driver: Driver, transport: Transport) -> None:
        self.config = config
        self.home = home
        self.node = node
        self.driver = driver
        self.transport = transport

    @classmethod
    async def start(cls, config: ServerConfig, *, note: Callable[[str], None] = _log.info) -> Server:
        """Recover the directory, listen, and take part. Raises UsageError, CorruptionError, DiskFull."""
        check_config(config)
        settings = config.settings
        began = time.monotonic()
        home = open_home(
            config.data,
            cluster=settings.cluster,
            node=config.node or None,
            settings=settings,
            accept_loss=config.accept_loss,
        )
        if home.log.torn is not None:
            note(f"set aside a torn tail of the log: {home.log.torn}")
        note(f"recovered {config.data} up to LSN {home.log.durable_lsn} in {time.monotonic() - began:.2f} s")
        loop = asyncio.get_running_loop()
        try:
            identity = home.identity
            draw = secrets.randbits(INCARNATION_BITS)
            incarnation = next_incarnation(home.replica.incarnation, draw)
            cluster_id = _ClusterId()
            inbox = _Inbox()
            transport = Transport(
                loop,
                identity=PeerSeen(identity.node, identity.allocation, incarnation, "", "", ""),
                cluster_name=settings.cluster,
                cluster_id=cluster_id,
                inbox=inbox,
                note=note,
            )
            try:
                taken = await transport.listen(config.listen)
            except OSError as error:
                raise UsageError(f"cannot listen on {config.listen}: {error.strerror}; is another node running?") from error
            address = config.advertise or taken
            transport.identity = PeerSeen(
                identity.node,
                identity.allocation,
                incarnation,
                address,
                settings.domain,
                "",
            )
            node = Node(
                settings,
                home.replica,
                node=identity.node,
                allocation=identity.allocation,
                address=address,
                durable_lsn=home.log.durable_lsn,
                draw=draw,
            )
        except BaseException:
            home.close()
            raise
        cluster_id.node = node
        driver = Driver(loop, home, node, note=note)
        inbox.driver = driver
        driver.carrier = transport
        for seed in config.seeds:
            transport.connect(seed)
        if node.core.topology is not None:
            for member in node.core.topology.members:
                transport.connect(member.address)
        driver.start()
        note(f"node {identity.node} listens on {address}")
        return cls(config, home, node, driver, transport)

    @property
    def address(self) -> str:
        """Where this node can be reached."""
        return self.node.core.address

    async def run(self) -> str:
        """Run until the node stops; return why. Raises what stopped it."""
        try:
            return await asyncio.shield(self.driver.stopped)
        except Error:
            raise
        except Exception as error:
            raise as_engine_error(error) or error from error

    async def leave(self, seconds: float) -> bool:
        """Ask to leave the cluster; True if it was let go in time."""
        self.node.membership.leaving_self = True
        try:
            await asyncio.wait_for(asyncio.shield(self.driver.stopped), seconds)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop, with a last checkpoint if all is well."""
        failed = self.driver.stopped.done() and self.driver.stopped.exception() is not None
        try:
            if not failed:
                await self.driver.checkpoint()
                self.driver.stop("closed")
        finally:
            await self.transport.close()
            self.driver.close()
            if failed:
                self.home.abandon()
            else:
                self.home.close()


class _ClusterId:
    """The id of the cluster that the node belongs to, once it does."""

    node: Node | None = None

    def __call__(self) -> str:
        topology = self.node.core.topology if self.node is not None else None
        return topology.cluster if topology is not None else ""


class _Inbox:
    """Where the transport brings events; they go to the driver, which is made after it."""

    driver: Driver | None = None

    def __call__(self, event: Event, weight: int) -> None:
        if self.driver is not None:
            self.driver.inbox(event, weight)
