"""A node's connections to peers that take a connection and say nothing: they are dialed again, and none stays."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest

from engine.host import links as links_module
from engine.messages import Credit, Heartbeat, Message, Replicate, Replicated, Supply
from engine.protocol import redial as redial_module
from engine.protocol.roles import BEAT, BESIDE, BULK, PEER, PEERS
from engine.protocol.wire import MAGIC, PROTOCOL, Hello, frame
from engine.turn.events import Event, PeerLost, PeerSeen, Received
from tests.engine.host.test_pulse import SAID, transport_of, until
from tests.support.hosts import Host
from wal.ids import NO_VERSION
from wal.records import Preload, Update, Write


def test_a_peer_that_does_not_greet_is_dialed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "HELLO_SECONDS", 0.05)

    async def story() -> None:
        silent, events, told = Host(greets=False), list[Event](), list[str]()
        server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport = transport_of("n1", events)
        transport.note = told.append
        transport.connect(f"127.0.0.1:{port}")
        await until(lambda: silent.came > len(PEERS))
        assert told == [f"127.0.0.1:{port}: cannot connect: no answer within 0.05 s"], "once, and not each time"
        server.close()
        await until(lambda: silent.here == 0)
        peer = transport_of("n2", [])
        await peer.listen(f"127.0.0.1:{port}")
        await until(lambda: bool(events))
        assert isinstance(events[0], PeerSeen)
        assert events[0].node == "n2", "what listens there now is met"
        await transport.close()
        await peer.close()

    asyncio.run(story())


def test_a_peer_that_speaks_is_dialed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redial_module, "REDIAL_SECONDS", (3_600.0,))

    async def story() -> None:
        events, told = list[Event](), list[str]()
        first, second = transport_of("n1", events), transport_of("n2", [])
        first.note = told.append
        address = await second.listen("127.0.0.1:0")
        await second.close()
        first.connect(address)
        await until(lambda: bool(told))
        assert told[0].startswith(f"{address}: cannot connect: ")
        again = transport_of("n2", [])
        again.identity = PeerSeen("n2", "n2-disk", 1, await again.listen(address), "", "")
        again.connect(await first.listen("127.0.0.1:0"))
        await until(lambda: "n2" in first.links_by_node and len(first.beside_by_node) == len(BESIDE))
        assert first.links_by_node["n2"].address == address, "over each of the connections"
        await first.close()
        await again.close()

    asyncio.run(story())


def test_nothing_is_left_of_a_connection_that_was_not_greeted_yet() -> None:
    async def story() -> None:
        silent = Host(greets=False)
        server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
        transport = transport_of("n1", [])
        transport.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await until(lambda: silent.here == len(PEERS))
        await transport.close()
        await until(lambda: silent.here == 0)
        server.close()

    asyncio.run(story())


def test_a_node_that_dials_itself_hangs_up_and_tries_again() -> None:
    """It is a seed by another name, or a name that leads here today and to a peer tomorrow."""

    async def story() -> None:
        events, told = list[Event](), list[str]()
        transport = transport_of("n1", events)
        transport.note = told.append
        address = await transport.listen("127.0.0.1:0")
        transport.connect(address)
        await until(lambda: transport.links[address]._redial.attempts > 1 and not transport.incoming)
        assert told == [f"{address}: this node itself answers there"], "once, and not each time"
        assert not events
        await transport.close()

    asyncio.run(story())


def test_heartbeats_and_answers_pass_what_is_large_and_stands_still() -> None:
    async def story() -> None:
        heard, told = list[Event](), list[Event]()
        first, second = transport_of("n1", told), transport_of("n2", heard)
        address = await second.listen("127.0.0.1:0")
        first.connect(address)
        await until(lambda: "n2" in first.links_by_node and (BEAT, "n2") in first.beside_by_node)
        await until(lambda: sum(c.peer is not None for c in second.incoming) == len(PEERS))
        assert {type(event) for event in (*told, *heard)} == {PeerSeen}
        slow = next(c.socket for c in second.incoming if c.peer is not None and c.peer.role == PEER)
        assert slow is not None
        slow.pause_reading()
        heard.clear()
        large = Replicate(NO_VERSION, 1, [Update([Write("a", 0, 1, 0, [b"k"], [bytes(16 << 20)])])])
        first.send([(("n2",), large)])
        first.send([(("n2",), SAID), (("n2",), Replicated(NO_VERSION, [7], 1))])
        await until(lambda: len(heard) >= 2)
        assert [type(event.message) for event in heard if isinstance(event, Received)] == [Heartbeat, Replicated]
        slow.resume_reading()
        await until(lambda: len(heard) == 3)
        assert isinstance(heard[-1], Received)
        assert isinstance(heard[-1].message, Replicate)
        await first.close()
        await second.close()

    asyncio.run(story())


def test_what_is_supplied_is_heard_as_it_comes_and_no_write_stands_behind_it() -> None:
    async def story() -> None:
        heard, told = list[Event](), list[Event]()
        first, second = transport_of("n1", told), transport_of("n2", heard)
        first.connect(await second.listen("127.0.0.1:0"))
        await until(lambda: sum(c.peer is not None for c in second.incoming) == len(PEERS) and len(told) >= 2)
        bulk = next(c.socket for c in second.incoming if c.peer is not None and c.peer.role == BULK)
        assert bulk is not None
        bulk.pause_reading()
        heard.clear()
        rows = [Preload("a", 0, [1], [1], [b"k"], [bytes(8 << 20)])]
        write = Replicate(NO_VERSION, 1, [Update([Write("a", 0, 1, 0, [b"k"], [b"v"])])])
        first.send([(("n2",), Supply(NO_VERSION, 1, batch, rows=rows)) for batch in (1, 2, 3)])
        first.send([(("n2",), write), (("n2",), Supply(NO_VERSION, 1, 0)), (("n2",), Credit(NO_VERSION, 1, 1, 1))])
        await until(lambda: len(heard) == 3)
        assert [type(event.message) for event in heard if isinstance(event, Received)] == [Replicate, Supply, Credit]
        bulk.resume_reading()
        frames: list[int] = []
        receive = second.inbox

        def hear(event: Event, weight: int) -> None:
            frames.append(weight)
            receive(event, weight)

        second.inbox = hear
        await until(lambda: len(heard) == 6)
        assert len(frames) == 3
        assert min(frames) > 8 << 20, "each in a frame of its own: it is heard when it is there, and not with the last one"
        await first.close()
        await second.close()

    asyncio.run(story())


def test_whoever_answers_as_another_life_is_dialed_anew_over_each_connection() -> None:
    async def story() -> None:
        events = list[Event]()
        first, before = transport_of("n1", events), transport_of("n2", [])
        address = await before.listen("127.0.0.1:0")
        first.connect(address)
        await until(lambda: all(link.connection is not None for link in first.links_to(address)))
        peer = first.links[address].peer
        assert peer is not None
        beside = [link for link in first.links_to(address) if link.role != PEER]
        connections = [link.connection for link in beside]
        for link in beside:  # they were made to the life before, and nobody has said that it is over
            link.peer = msgspec.structs.replace(peer, incarnation=0)
        connection = first.links[address].connection
        assert connection is not None
        connection.link.abort()
        await until(lambda: all(link.connection not in (None, *connections) for link in first.links_to(address)))
        assert [link.peer for link in beside] == [peer, peer]
        await first.close()
        await before.close()

    asyncio.run(story())


def test_what_a_peer_is_not_sent_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "PEER_BACKLOG_BYTES_MAX", 1 << 20)

    async def story() -> None:
        heard, told = list[Event](), list[str]()
        first, second = transport_of("n1", []), transport_of("n2", heard)
        first.note = told.append
        first.connect(await second.listen("127.0.0.1:0"))
        await until(lambda: sum(c.peer is not None for c in second.incoming) == len(PEERS) and "n2" in first.links_by_node)
        slow = next(c.socket for c in second.incoming if c.peer is not None and c.peer.role == PEER)
        assert slow is not None
        slow.pause_reading()
        large = Replicate(NO_VERSION, 1, [Update([Write("a", 0, 1, 0, [b"k"], [bytes(16 << 20)])])])
        for _ in range(3):
            first.send([(("n2",), large)])
        (lost,) = first.not_sent.values()
        assert lost.frames == 2
        assert lost.bytes > 32 << 20
        assert len(told) == 1, "once for each connection"
        slow.resume_reading()
        await until(lambda: Replicate in [type(event.message) for event in heard if isinstance(event, Received)])
        first.send([(("n2",), large)])
        assert lost.frames == 2
        await first.close()
        await second.close()

    asyncio.run(story())


def test_whoever_is_met_is_met_over_a_connection_and_a_dead_one_is_given_up_soon() -> None:
    async def story() -> None:
        heard, told = list[Event](), list[Event]()
        first, second = transport_of("n1", told), transport_of("n2", heard)
        address = await second.listen("127.0.0.1:0")
        first.connect(address)
        await until(lambda: all(link.connection is not None for link in first.links_to(address)) and bool(heard))
        assert {role for event in told if isinstance(event, PeerSeen) for role in event.over} == {BULK, PEER}
        assert [event.over for event in heard if isinstance(event, PeerSeen)] == [(PEER,)], "there it is one that came"
        for link in first.links_to(address):
            assert link.connection is not None
            assert link.connection.socket is not None
            made = link.connection.socket.get_extra_info("socket")
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        told.clear()
        first.beside[BULK, address].abort()
        await until(lambda: len(told) == 2)
        assert [event.over for event in told if isinstance(event, PeerSeen)] == [(BULK,)] * 2, "by another, and back"
        told.clear()
        first.beside[BULK, address].close()
        await until(lambda: bool(told))
        first.links[address].abort()
        await until(lambda: len(told) == 3)
        assert [event.over for event in told if isinstance(event, PeerSeen)] == [(BULK,), (PEER, BULK)], "by that one alone"
        await first.close()
        await second.close()

    asyncio.run(story())


def test_where_several_nodes_answer_at_one_address_no_connection_is_cut_off_for_another() -> None:
    """A name may stand for more than one machine: of a life that is over says only another one of the same node."""

    async def story() -> None:
        host, names = Host(greets=False), ["n2", "n3", "n4"]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            node = names[host.came % len(names)]
            writer.write(frame(Hello(MAGIC, PROTOCOL, "node", node=node, allocation=f"{node}-disk", incarnation=1)))
            await host.serve(reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        transport = transport_of("n1", events := list[Event]())
        transport.connect(address := f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await until(lambda: all(link.connection is not None for link in transport.links_to(address)))
        await asyncio.sleep(0.3)
        assert (host.came, host.here) == (len(PEERS), len(PEERS))
        assert not [event for event in events if isinstance(event, PeerLost)]
        await transport.close()
        server.close()

    asyncio.run(story())


def test_what_is_for_one_node_does_not_go_to_another_that_answers_in_its_place() -> None:
    """A name may stand for several machines, and lead to another one when it is dialed again."""

    async def story() -> None:
        first = transport_of("n1", [])
        heard = {node: list[Event]() for node in ("n2", "n2 by name", "n3")}
        n2, by_name, n3 = (transport_of(node[:2], heard[node]) for node in heard)
        address, name = await n2.listen("127.0.0.1:0"), await by_name.listen("127.0.0.1:0")
        for dialed in (address, name):  # it is spoken to over those that were made last
            first.connect(dialed)
            links = list(first.links_to(dialed))
            await until(lambda: all(link.connection is not None for link in links))  # noqa: B023  # waited for here
        await by_name.close()
        await n3.listen(name)
        await until(lambda: {link.peer.node for link in first.links_to(name) if link.peer is not None} == {"n3"})
        said: list[Message] = [SAID, Replicate(NO_VERSION, 1, []), Supply(NO_VERSION, 1, 1)]
        first.send([(("n2", "n3"), message) for message in said])
        await until(lambda: len(received(heard["n2"])) + len(received(heard["n3"])) == 2 * len(said))
        assert received(heard["n2"]) == received(heard["n3"]) == ["Heartbeat", "Replicate", "Supply"]
        await n2.close()
        await until(lambda: not any(link.connection for link in first.links_to(address)))
        first.send([(("n2", "n3"), message) for message in said])
        await until(lambda: len(received(heard["n3"])) >= 2 * len(said))
        await asyncio.sleep(0.05)
        assert received(heard["n3"]) == sorted(2 * ["Heartbeat", "Replicate", "Supply"])
        await first.close()
        await n3.close()

    asyncio.run(story())


def received(events: list[Event]) -> list[str]:
    """Of which kinds what came is, over whichever connection."""
    return sorted(type(event.message).__name__ for event in events if isinstance(event, Received))
