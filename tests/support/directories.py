"""Data directories of a real cluster: three servers in this process, on loopback, and copies of what they leave.

Starting nodes costs a second or two, so a test run builds one set and every test copies it; damage is done to copies.
"""

from __future__ import annotations

import asyncio
import faulthandler
import shutil
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
from msgspec import structs

from engine import aio
from engine.client.admin import ask, form
from engine.host.server import Server, ServerConfig
from engine.state.identity import read_identity
from engine.state.store import CheckpointImage, Entry
from engine.state.store_envelope import ROWS, fragment_key
from engine.state.store_lmdb import LmdbStore
from engine.turn.settings import Settings
from rebalance.partition import Role
from tests.support.patience import PATIENCE_SECONDS
from wal import DirectoryDisk, Log, LogSettings, list_segments, read
from wal.ids import Fragment
from wal.records import Record

NODES = ("n1", "n2", "n3")
SEGMENT_BYTES = 1 << 20
HOUR_MS = 3_600_000
PATIENT = {"suspicion_ms": HOUR_MS, "connection_lost_ms": HOUR_MS, "slow_ms": HOUR_MS, "lock_lease_ms": HOUR_MS}
"""What is in the logs must not depend on whether the machine stood still meanwhile: nobody is missed or set aside."""

Story = Callable[[aio.Database], Awaitable[None]]


class Nodes:
    """Servers of one cluster, in one loop."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self.root = root
        self.settings = settings
        self.servers: dict[str, Server] = {}

    async def start(self, names: Sequence[str] = NODES) -> None:
        """Start nodes, and form the cluster if it is not."""
        for name in names:
            seeds = [server.address for server in self.servers.values()]
            config = ServerConfig(
                data=self.root / name, listen="127.0.0.1:0", node=name, seeds=seeds, settings=self.settings
            )
            self.servers[name] = await Server.start(config, note=lambda _: None)
        first = next(iter(self.servers.values()))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len((await ask(first.address, "status"))["seen"]) < len(self.servers) - 1:
                await asyncio.sleep(0.02)
        if first.node.core.topology is None:
            await form(first.address, list(self.servers), seconds=PATIENCE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(self._serves(server) for server in self.servers.values()):
                await asyncio.sleep(0.02)

    def _serves(self, server: Server) -> bool:
        core = server.node.core
        return (
            core.serving
            and core.topology is not None
            and len(core.topology.members) == len(self.servers)
            and all(local.role is not Role.PROMOTING for local in core.local)
        )

    async def settle(self) -> None:
        """Wait until every copy has what the others have, and no transaction is under way."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._settled():
                await asyncio.sleep(0.02)

    def _settled(self) -> bool:
        topology = next(iter(self.servers.values())).node.core.topology
        assert topology is not None
        replicas = {name: server.directory.replica for name, server in self.servers.items()}
        counters = {
            name: {n: str(f.counter) for n, f in r.fragments.items() if f.counter.hwm} for name, r in replicas.items()
        }
        written = dict.fromkeys(fragment for of in counters.values() for fragment in of)
        return all(
            len({counters[node].get(fragment) for node in topology.placements[fragment[1]].copies}) == 1
            for fragment in written
        ) and not any(p.prepared for r in replicas.values() for p in r.partitions.values())

    async def close(self) -> None:
        """Stop all of them at once, each with a last checkpoint."""
        await asyncio.gather(*(server.close() for server in self.servers.values()))


def build(root: Path, story: Story, *, settings: Settings | None = None, stop: bool = False) -> list[Path]:
    """The directories of three nodes after `story`: copied while they run, idle, or `stop`ped before."""
    settings = structs.replace(settings or Settings(partitions=16, wal_segment_bytes=SEGMENT_BYTES), **PATIENT)

    async def run() -> None:
        nodes = Nodes(root / "live", settings)
        try:
            await nodes.start()
            where = ",".join(server.address for server in nodes.servers.values())
            async with await aio.connect(where, timeout=PATIENCE_SECONDS) as database:
                await story(database)
            await nodes.settle()
            if not stop:
                shutil.copytree(root / "live", root / "left", ignore=shutil.ignore_patterns("*.tmp"))
        finally:
            await nodes.close()

    asyncio.run(run())
    if stop:
        shutil.copytree(root / "live", root / "left")
    return [root / "left" / name for name in NODES]


def copies(directories: Sequence[Path], to: Path) -> list[Path]:
    """Copies of directories, to be damaged."""
    return [Path(shutil.copytree(path, to / path.name)) for path in directories]


def append(directory: Path, records: Sequence[Record], *, now_ms: int, segment_bytes: int = SEGMENT_BYTES) -> None:
    """Log records of a stopped node behind its back, in one block."""
    identity = read_identity(directory)
    assert identity is not None, f"{directory} is not a data directory"
    store = LmdbStore(directory / "store")
    from_lsn = store.load().lsn + 1
    store.close()
    settings = LogSettings(segment_bytes=segment_bytes, total_bytes=64 << 20)
    with DirectoryDisk(directory / "wal") as disk:
        log = Log.open(disk, cluster=identity.cluster, node=identity.node, settings=settings, from_lsn=from_lsn)
        log.append(records, now_ms=now_ms, durable=True)
        log.close()


def archive(directory: Path) -> None:
    """Make archives of all sealed segments of a stopped node."""
    identity = read_identity(directory)
    assert identity is not None, f"{directory} is not a data directory"
    settings = LogSettings(segment_bytes=SEGMENT_BYTES, total_bytes=64 << 20)
    with DirectoryDisk(directory / "wal") as disk:
        log = Log.open(disk, cluster=identity.cluster, node=identity.node, settings=settings)
        while log.archive(log.next_lsn):
            pass
        log.close()


def replace(directory: Path, fragment: Fragment, rows: dict[bytes, Entry | None]) -> None:
    """Change rows of a stopped node's store, with right checksums; None removes one."""
    store = LmdbStore(directory / "store")
    store.write(CheckpointImage(store.load().lsn, {}, {}, {}, cleared=[], rows={fragment: rows}))
    store.close()


def lose(directory: Path, fragment: Fragment, key: bytes) -> None:
    """Take a row out of a stopped node's store behind the store's back: nothing that is left is damaged."""
    with lmdb.open(str(directory / "store"), map_size=1 << 30, max_dbs=4) as env:
        rows = env.open_db(ROWS)
        with env.begin(write=True) as txn:
            assert txn.delete(fragment_key(fragment) + key, db=rows), f"{key!r} is not in the store"


def flip(directory: Path, value: bytes) -> int:
    """Flip a bit of a value wherever the store of a stopped node has it; return in how many places."""
    file = directory / "store" / "data.mdb"
    data = bytearray(file.read_bytes())
    places, at = 0, data.find(value)
    while at >= 0:
        data[at] ^= 1
        places += 1
        at = data.find(value, at + 1)
    file.write_bytes(data)
    return places


def cut_in_half(directory: Path) -> int:
    """Cut the last segment to half of its used bytes, and return how large it is then."""
    segment = directory / "wal" / list_segments(directory / "wal")[-1].name
    end = len(segment.read_bytes().rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.truncate(end // 2)
    return end // 2


def lose_the_log(directory: Path) -> None:
    """All segments are gone; what was prepared to be the next one is there."""
    for file in (directory / "wal").iterdir():
        if file.suffix == ".wal":
            file.rename(directory / "wal" / "next.segment")


def zero_last_blocks(directory: Path, count: int) -> int:
    """The last blocks with records, and what follows them, are zeros; the first LSN that is lost."""
    blocks = list(read(directory / "wal"))[-count:]
    segment = directory / "wal" / blocks[0].segment
    data = segment.read_bytes()
    segment.write_bytes(data[: blocks[0].offset] + bytes(len(data) - blocks[0].offset))
    return blocks[0].first_lsn


def lead_astray(directory: Path) -> None:
    """Branch pages of a stopped node's store point out of their page: LMDB follows, and its process ends by SIGBUS."""
    file = directory / "store" / "data.mdb"
    data, page = bytearray(file.read_bytes()), 4096
    branch, head = 1, 16
    for start in range(2 * page, len(data), page):
        flags, lower = struct.unpack_from("<HH", data, start + 10)
        if flags & branch:
            for at in range(start + head, start + lower, 2):
                struct.pack_into("<H", data, at, 0xFFF0)
    file.write_bytes(data)


@contextmanager
def unmourned() -> Iterator[None]:
    """Children that end by a signal do not tell at length where they were."""
    faulthandler.disable()
    try:
        yield
    finally:
        faulthandler.enable(2)
