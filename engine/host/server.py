"""A node as a process: a data directory, a driver, sockets. Only this module and `engine.host.embedded` build real
things."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from engine.errors import Error, UsageError
from engine.host.data_directory import DataDirectory, MakeDisk, as_engine_error, held, open_data_directory
from engine.host.driver import Driver
from engine.host.pulse import Pulse
from engine.host.transport import Transport
from engine.node.node import Node
from engine.protocol.addresses import given_address, split_address
from engine.protocol.roles import BEAT
from engine.protocol.wire import Hello
from engine.state.identity import Identity
from engine.turn.events import Event, PeerSeen
from engine.turn.settings import Settings, check_settings, habits_of
from rebalance.lives import INCARNATION_BITS, next_incarnation
from wal import DirectoryDisk
from wal.ids import check_name

_log = logging.getLogger("foreshore")


def _is(meaning: str) -> Meta:
    """What a field means."""
    return Meta(description=meaning)


class ServerConfig(Struct, frozen=True, kw_only=True):
    """Where a node lives."""

    data: Annotated[Path, _is("the data directory; it is made where there is none")]
    listen: Annotated[str, _is("host:port to accept connections at; port 0 takes a free one")] = "127.0.0.1:7400"
    advertise: Annotated[str, _is("host:port that others are told to dial, where it is not `listen`")] = ""
    seeds: Annotated[list[str], _is("host:port of nodes to begin with; one that answers is enough")] = []
    node: Annotated[str, _is("the node's name; it belongs to the directory, and a new one draws it")] = ""
    insecure: Annotated[bool, _is("listen on more than loopback, with no TLS and no authentication")] = False
    accept_loss: Annotated[bool, _is("set a damaged end of the log aside and go on without it")] = False
    settings: Settings = Settings()
    chosen: frozenset[str] = frozenset()  # of what a map fixes, what was given


def check_config(config: ServerConfig) -> None:
    """Raise UsageError for what cannot work."""
    settings = config.settings
    try:
        for what, name in (("node", config.node), ("cluster", settings.cluster)):
            if name:  # else it is drawn, or the directory's
                check_name(what, name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    host, _ = _split("listen", config.listen)
    for name, address in (
        *([("advertise", config.advertise)] if config.advertise else []),
        *(("seeds", seed) for seed in config.seeds),
    ):
        if _split(name, address)[1] == 0:
            raise UsageError(f"{name} is {address}: expected a port from 1 to 65535, for others to dial")
    if not _is_loopback(host) and not config.insecure:
        raise UsageError(
            f"{config.listen} is not loopback, and TLS and authentication are not there yet: anyone who reaches the port "
            "could read and write everything; listen on 127.0.0.1, or say --insecure"
        )
    if host in {"0.0.0.0", "::"} and not config.advertise:  # noqa: S104  # it is refused here
        raise UsageError(f"listen is {config.listen}, which nobody can dial: say with --advertise where this node is found")
    check_settings(settings)


def _split(name: str, address: str) -> tuple[str, int]:
    try:
        return given_address(address)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine alone. A name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server:
    """One running node."""

    def __init__(
        self, config: ServerConfig, directory: DataDirectory, *, node: Node, driver: Driver, transport: Transport
    ) -> None:
        self.config = config
        self.directory = directory
        self.node = node
        self.driver = driver
        self.transport = transport
        self.pulse = Pulse(
            config.settings.heartbeat_ms / 1000,
            told=driver.duties.pulse,
            hello=partial(transport.hello, BEAT),
            address_of=transport.address_of,
        )

    @classmethod
    async def start(
        cls, config: ServerConfig, *, note: Callable[[str], None] = _log.info, disk: MakeDisk = DirectoryDisk
    ) -> Server:
        """Recover the directory, listen, and take part. `disk` holds the log.

        Raises UsageError, CorruptionError and DiskFull.
        """
        check_config(config)
        settings = config.settings
        _see_whether_it_may_listen(config)
        directory = _recovered(config, note, disk)
        loop = asyncio.get_running_loop()
        try:
            identity = directory.identity
            draw = secrets.randbits(INCARNATION_BITS)
            incarnation = next_incarnation(directory.replica.incarnation, draw)
            cluster_id = _ClusterId()
            inbox = _Inbox()
            transport = Transport(
                loop,
                identity=_seen_as(identity, incarnation, settings),
                settings=settings,
                cluster_id=cluster_id,
                taken=cluster_id.taken,
                inbox=inbox,
                note=note,
            )
            try:
                taken = await transport.listen(config.listen)
            except OSError as error:
                raise _cannot_listen(config, error) from error
            address = config.advertise or taken
            transport.identity = structs.replace(transport.identity, address=address)
            node = Node(
                settings,
                directory.replica,
                node=identity.node,
                allocation=identity.allocation,
                address=address,
                durable_lsn=directory.log.durable_lsn,
                draw=draw,
            )
            node.core.chosen, node.core.not_sent = config.chosen, transport.not_sent
        except BaseException:
            directory.close()
            raise
        cluster_id.node = node
        driver = Driver(loop, directory, node, note=note)
        inbox.driver = driver
        driver.carrier = transport
        _look_for_others(config, node, transport, note)
        driver.start()
        note(f"node {identity.node} listens on {address}")
        return cls(config, directory, node=node, driver=driver, transport=transport)

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

    def leave(self) -> None:
        """Stop in good order: hand over what others can take, and end. `run` returns when it has."""
        self.node.membership.leaving.begin()

    async def close(self) -> None:
        """Stop, with a last checkpoint if all is well.

        It hangs up first: whoever is not answered any more asks another, and need not wait for the checkpoint. It listens
        to the last: where nobody does, the directory may be used.
        """
        try:
            self.pulse.close()
            await self.transport.hang_up()
            await self.driver.finish()
        finally:
            self.driver.close()
            if self.driver.failed:
                self.directory.abandon()
            else:
                self.directory.close()
            await self.transport.close()


def _seen_as(identity: Identity, incarnation: int, settings: Settings) -> PeerSeen:
    """How others see this node, but for where it listens."""
    return PeerSeen(
        identity.node,
        identity.allocation,
        incarnation,
        address="",
        domain=settings.domain,
        cluster="",
        habits=habits_of(settings),
    )


def _see_whether_it_may_listen(config: ServerConfig) -> None:
    """Find out before the directory is recovered, which may take minutes. Raises UsageError."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            *split_address(config.listen), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(place)
    except OSError as error:
        if (config.data / "lock").exists():
            with held(config.data):  # or it says who has it, and that one may well listen there
                pass
        raise _cannot_listen(config, error) from error


def _cannot_listen(config: ServerConfig, error: OSError) -> UsageError:
    return UsageError(f"cannot listen on {config.listen}: {_why(error)}")


def _why(error: OSError) -> str:
    """Why a port was not given to us."""
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is in use; is another node running? Choose another port, or 0 for a free one"
        case errno.EADDRNOTAVAIL:
            return "the address is not one of this machine; expected 127.0.0.1, or the address of an interface"
        case errno.EACCES:
            return "this user may not take the port; expected one above 1023"
        case _:
            return error.strerror or str(error)


class _ClusterId:
    """The id of the cluster that the node belongs to, once it does."""

    node: Node | None = None

    def __call__(self) -> str:
        topology = self.node.core.topology if self.node is not None else None
        return topology.cluster if topology is not None else ""

    def taken(self, hello: Hello) -> str:
        """Why a node may not speak under its name, or nothing."""
        return self.node.names.taken(hello.node, hello.allocation, hello.incarnation) if self.node is not None else ""


class _Inbox:
    """Where the transport brings events; they go to the driver, which is made after it."""

    driver: Driver | None = None

    def __call__(self, event: Event, weight: int) -> None:
        if self.driver is not None:
            self.driver.inbox(event, weight)


def _recovered(config: ServerConfig, note: Callable[[str], None], disk: MakeDisk) -> DataDirectory:
    """The directory, as its log says that it is."""
    began = time.monotonic()
    directory = open_data_directory(
        config.data,
        cluster=config.settings.cluster,
        node=config.node or None,
        settings=config.settings,
        accept_loss=config.accept_loss,
        disk=disk,
    )
    if directory.log.torn is not None:
        note(f"set aside a torn tail of the log: {directory.log.torn}")
    if directory.log.set_aside:
        note(f"set aside what was damaged, and all behind it: {', '.join(directory.log.set_aside)}")
    note(f"recovered {config.data} up to LSN {directory.log.durable_lsn} in {time.monotonic() - began:.2f} s")
    return directory


def _look_for_others(config: ServerConfig, node: Node, transport: Transport, note: Callable[[str], None]) -> None:
    """Connect to whoever was named, and to the members of the last map."""
    if config.seeds:
        note(f"looks for other nodes at {', '.join(config.seeds)}, and keeps trying where none answers")
    for seed in config.seeds:
        transport.connect(seed)
    if node.core.topology is not None:
        for member in node.core.topology.members:
            transport.connect(member.address)
