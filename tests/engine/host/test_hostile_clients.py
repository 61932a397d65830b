"""Clients without manners at a live server: each is refused, cut off or outlived, and everybody else is served."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import aio, errors
from engine.client.admin import ask
from engine.client.calls import PutCall
from engine.host.server import Server, ServerConfig
from engine.host.transport import CLIENT_BACKLOG_BYTES_MAX
from engine.protocol.addresses import HELLO_SECONDS
from engine.protocol.requests import Code, Done, Failed, Get, GetTable, Lock, Put, Request, Values
from engine.protocol.wire import MAGIC, PROTOCOL, FrameReader, Hello, decode_replies, decode_requests, frame, frames
from engine.turn.settings import Settings
from tests.support.any_request import ANY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.raw_client import RawClient
from wal.checksum import crc32c

LEASE_MS = 300
SETTINGS = Settings(partitions=4, backups=0, lock_lease_ms=LEASE_MS, lock_timeout_ms=10_000)
TX = bytes(range(16))

Story = Callable[[Server, aio.Database, list[str]], Awaitable[None]]


def serve(directory: Path, story: Story, knobs: Settings = SETTINGS) -> None:
    """Tell a story at a server that is a cluster by itself; in the end it must still serve."""

    async def run() -> None:
        notes: list[str] = []
        config = ServerConfig(data=directory / "n1", listen="127.0.0.1:0", node="n1", settings=knobs)
        server = await Server.start(config, note=notes.append)
        try:
            await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
            async with await aio.connect(server.address, timeout=PATIENCE_SECONDS) as database:
                await story(server, database, notes)
                await database.namespace("acc").put(b"last", b"served")
                assert await database.namespace("acc").get(b"last") == b"served"
            assert not server.driver.stopped.done(), "the node has stopped"
        finally:
            await server.close()

    asyncio.run(run())


# What is no conversation.


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 1000], ids=["http", "zeros", "ones"])
def test_garbage_instead_of_a_greeting_is_refused_with_a_reason(tmp_path: Path, garbage: bytes) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        client = await RawClient.dial(server.address)
        client.writer.write(garbage)
        assert (await client.hello()).refused
        assert await client.hung_up()
        assert any("a connection was refused: " in note for note in notes)

    serve(tmp_path, story)


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (Hello(MAGIC, PROTOCOL, "peer", "foreshore", "", "x" * 5_000), "is not a legal name: expected 1 to 64 letters"),
        (Hello(MAGIC, PROTOCOL, "peer", "foreshore", "", ""), "node id '' is not a legal name"),
        (Hello(MAGIC, PROTOCOL, "peer", "y" * 5_000, "", "n9"), "check --cluster"),
        (Hello(MAGIC, PROTOCOL, "peer", "foreshore", "another", "n9"), "belongs to cluster id another, this is c1"),
        (Hello(MAGIC, PROTOCOL, "peer", "foreshore", "c1", "n1", "another disk"), "node id 'n1' is taken by"),
        (Hello(MAGIC, PROTOCOL, "king"), "role 'king' is not known"),
        (Hello(MAGIC, PROTOCOL + 1, "client"), "upgrade the older one"),
    ],
    ids=["long", "nameless", "other-name", "other-cluster", "namesake", "role", "protocol"],
)
def test_who_greets_as_somebody_he_cannot_be_is_told_why_not(tmp_path: Path, hello: Hello, says: str) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        client = await RawClient.dial(server.address)
        client.writer.write(frame(hello))
        refused = (await client.hello()).refused
        assert says in refused
        assert len(refused) < 400
        assert await client.hung_up()
        assert not server.node.membership.joining.seen

    serve(tmp_path, story)


def test_a_crowd_leaves_a_node_files_for_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come: of the descriptors that a process may have some are for its files, and some for peers."""

    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        silent = [await RawClient.dial(server.address) for _ in range(100)]
        for client in silent[16:]:
            assert "more than 16 connections are open" in (await client.hello()).refused
            assert await client.hung_up()
        assert len(server.transport.incoming) - len(server.transport.sessions) <= 16
        assert len([note for note in notes if "a connection was refused" in note]) == 1, "once for all of them"
        for client in silent:
            client.writer.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(server.transport.incoming) > len(server.transport.sessions):
                await asyncio.sleep(0)
        clients = [await RawClient.connect(server.address) for _ in range(31)]
        late = await RawClient.dial(server.address)
        late.writer.write(frame(Hello(MAGIC, PROTOCOL, "client")))
        assert "32 clients are connected already; ask again later" in (await late.hello()).refused
        for client in [*clients, late]:
            client.writer.close()

    monkeypatch.setattr("engine.host.transport.files_max", lambda: 64)
    serve(tmp_path, story)


def test_a_node_takes_as_many_files_as_it_may() -> None:
    program = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, min(hard, 5000)))
from engine.host.sockets import crowd_of, files_max, take_all_files
take_all_files()
print(files_max(), *crowd_of(files_max()), *crowd_of(1024))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    files, clients, others, *usual = map(int, done.stdout.split())
    assert 100 < files <= 5000
    assert clients + others < files
    assert usual == [512, 256]


def test_garbage_after_the_greeting_is_told_and_hung_up_on(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        for garbage, says in (
            (b"\xff" * 100, "expected at most"),
            (struct.pack(">II", 5, 1) + b"hello", "does not match its checksum"),
            (_framed(b"\xc1"), "a frame holds no requests"),
            (frame([["put", 1, "no bytes", 7, [], []]]), "a frame holds no requests"),
            (frame([["no-such-request", 1]]), "a frame holds no requests"),
            (frame({"not": "a list"}), "a frame holds no requests"),
        ):
            client = await RawClient.connect(server.address)
            client.writer.write(garbage)
            (told,) = await client.replies(1)
            assert isinstance(told, Failed)
            assert (told.code, says in told.message) == (Code.USAGE, True), told
            assert await client.hung_up()

    serve(tmp_path, story)


def test_a_frame_that_claims_too_much_is_refused_before_it_is_there(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        client = await RawClient.connect(server.address)
        client.writer.write(struct.pack(">II", (64 << 20) + 1, 0))  # and not a byte of it
        (told,) = await client.replies(1)
        assert isinstance(told, Failed)
        assert "a frame claims 67108865 bytes: expected at most 67108864" in told.message
        assert await client.hung_up()
        before_greeting = await RawClient.dial(server.address)
        before_greeting.writer.write(struct.pack(">II", 20_000, 0))
        assert "a frame claims 20000 bytes: expected at most 16384" in (await before_greeting.hello()).refused
        assert await before_greeting.hung_up()

    serve(tmp_path, story)


def test_frames_that_were_damaged_on_the_way_do_no_harm(tmp_path: Path) -> None:
    draw = Random(4)
    whole = frame([Put(1, TX, "acc", [b"k"], [b"v"]), Get(2, "acc", [b"k"]), GetTable(3)])

    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(8, len(damaged))] = draw.randrange(256)
            client = await RawClient.connect(server.address)
            client.writer.write(_framed(bytes(damaged[8:])))  # with a checksum that is right: it is meant so
            assert await client.replies(1)
            await client.close()

    serve(tmp_path, story)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3), st.lists))
def test_bytes_become_requests_or_a_protocol_error(said: object) -> None:
    payload = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
    for decode in (decode_requests, decode_replies):
        with suppress(errors.ProtocolError):
            assert isinstance(decode(payload), list)


def _framed(payload: bytes) -> bytes:
    return struct.pack(">II", len(payload), crc32c(payload)) + payload


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(ANY, min_size=20, max_size=60))
def test_no_requests_end_a_server(asked: list[Request]) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        client = await RawClient.connect(server.address)
        for request in asked:
            await client.send([request])
        await client.send([GetTable(-7)])  # it is answered at once, and in its turn
        told = await client.replies(1)
        while not any(reply.id == -7 for reply in told):
            told += await client.replies(1)
        await client.close()

    with TemporaryDirectory() as directory:
        serve(Path(directory), story)


# Who says nothing, or does not listen.


def test_who_does_not_greet_is_hung_up_on_however_slowly_he_talks(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        client = await RawClient.dial(server.address)
        hello = frame(Hello(MAGIC, PROTOCOL, "client"))
        hung_up = asyncio.ensure_future(client.hung_up())
        began = time.monotonic()
        for byte in hello[:-1]:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(HELLO_SECONDS / 10)
            if hung_up.done():
                break
        assert await hung_up
        assert time.monotonic() - began >= HELLO_SECONDS * 0.9

    serve(tmp_path, story)


def test_who_never_reads_his_answers_is_cut_off(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        await database.namespace("acc").put(b"large", bytes(8 << 20))
        client = await RawClient.connect(server.address)
        with suppress(ConnectionError):  # it may hear of it, or not, before it has said all
            for at in range(100 + CLIENT_BACKLOG_BYTES_MAX // (8 << 20)):
                await client.send([Get(at, "acc", [b"large"])])
                await asyncio.sleep(0.005)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any("a client does not read its answers" in note for note in notes):
                await asyncio.sleep(0.02)
        assert await client.hung_up()

    serve(tmp_path, story)


def test_a_connection_of_which_the_other_end_is_gone_is_found_out_by_the_kernel(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        silent = [await RawClient.connect(server.address) for _ in range(20)]
        await database.namespace("acc").put(b"k", b"v")
        for connection in server.transport.incoming:
            assert connection.socket is not None
            found = connection.socket.get_extra_info("socket")
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for client in silent:
            await client.close()

    serve(tmp_path, story)


@pytest.mark.parametrize("hangs_up", [True, False])
def test_the_locks_of_a_client_that_dies_in_a_transaction_go_with_their_lease(tmp_path: Path, hangs_up: bool) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        dying = await RawClient.connect(server.address)
        await dying.send([Lock(1, TX, "acc", [b"k"], 1_000)])
        (locked,) = await dying.replies(1)
        assert isinstance(locked, Values)
        if hangs_up:
            await dying.close()
        assert server.node.locks.holds(TX, ("acc", b"k"))
        await database.namespace("acc").put(b"k", b"after")
        assert not server.node.locks.holds(TX, ("acc", b"k"))
        assert await database.namespace("acc").get(b"k") == b"after"
        await dying.close()

    serve(tmp_path, story)


# Much at once.


def test_values_too_many_for_one_answer_come_all_the_same(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        blobs = database.namespace("blobs")
        wanted = {b"b%d" % at: bytes([at]) * (14 << 20) for at in range(6)}
        for key, value in wanted.items():
            await blobs.put(key, value)
        assert await blobs.get_many(wanted) == wanted
        async with database.transaction() as tx:
            assert await tx.namespace("blobs").get_many(wanted) == wanted
        assert {key: value async for key, value in blobs.scan()} == wanted

    serve(tmp_path, story, Settings(partitions=4, backups=0))


def test_answers_of_one_moment_that_are_too_large_together_go_one_by_one(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        await database.namespace("acc").put(b"large", bytes(15 << 20))
        client = await RawClient.connect(server.address)
        await client.send([Get(at, "acc", [b"large"]) for at in range(6)])
        told = await client.replies(6)
        assert sorted(reply.id for reply in told) == list(range(6))
        assert all(isinstance(reply, Values) for reply in told)
        await client.close()

    serve(tmp_path, story)


def test_a_request_too_large_for_a_frame_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    async def story(server: Server, database: aio.Database, notes: list[str]) -> None:
        session = database.session
        keys = [b"k%d" % at for at in range(6)]
        too_large = session.call(PutCall(session.new_tx(), "acc", keys, [bytes(15 << 20)] * 6))
        beside = database.namespace("acc").put(b"beside", b"v")
        told = await asyncio.gather(too_large, beside, return_exceptions=True)
        assert isinstance(told[0], errors.UsageError)
        assert "do it in smaller pieces: expected at most 67108864 bytes" in str(told[0])
        assert told[1] is None

    serve(tmp_path, story)


def test_frames_are_cut_until_they_fit() -> None:
    said = [Put(at, TX, "acc", [b"k"], [bytes(100)]) for at in range(10)] + [Put(10, TX, "acc", [b"k"], [bytes(1_000)])]
    ready, too_large = frames(said, 400)
    reader = FrameReader()
    found = [request for data in ready for payload in reader.feed(b"".join(data)) for request in decode_requests(payload)]
    assert found == said[:10]
    assert too_large == said[10:]
    assert all(sum(map(len, data)) <= 408 for data in ready)
    assert frames([Done(1)]) == ([(frame([Done(1)]),)], [])
    assert frames([]) == ([], [])
