"""What a thread says for a node whose loop is busy, heard by the real transport of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from engine.host.pulse import Pulse
from engine.host.transport import Transport
from engine.messages import Heartbeat, Life
from engine.protocol.roles import BEAT
from engine.turn.events import Event, PeerSeen, Received
from engine.turn.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from wal.ids import NO_VERSION, NodeId

SAID = Heartbeat(NO_VERSION, Life("n1-disk", 1, 0), 7, False, [], busy_ms=300, sync_ms=200)


def transport_of(node: NodeId, events: list[Event]) -> Transport:
    """A node's connections."""
    return Transport(
        asyncio.get_running_loop(),
        identity=PeerSeen(node, f"{node}-disk", 1, "", "", ""),
        settings=Settings(cluster="c"),
        cluster_id=lambda: "",
        taken=lambda _: "",
        inbox=lambda event, _: events.append(event),
        note=lambda _: None,
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


def test_a_busy_node_is_heard_and_one_that_is_not_says_nothing() -> None:
    async def story() -> None:
        heard: list[Event] = []
        other = transport_of("n2", heard)
        address = await other.listen("127.0.0.1:0")
        busy = False
        addresses = {"n2": address, "n3": "127.0.0.1:1", "n4": ""}  # nobody listens at n3's, and n4's is not known
        pulse = Pulse(
            0.01,
            told=lambda _: (("n2", "n3", "n4"), SAID) if busy else None,
            hello=partial(transport_of("n1", []).hello, BEAT),
            address_of=addresses.__getitem__,
        )
        try:
            await asyncio.sleep(0.05)
            assert heard == []
            busy = True
            await until(lambda: len(heard) >= 3)
            assert set(map(type, heard)) == {Received}, "no peer is seen to come and go"
            assert all(event == Received("n1", "n1-disk", 1, SAID) for event in heard)
            busy = False
            await until(lambda: not other.incoming)
            count = len(heard)
            busy = True
            await until(lambda: len(heard) > count)
        finally:
            pulse.close()
            await other.close()

    asyncio.run(story())
