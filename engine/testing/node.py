"""One node of `engine.testing`: a process that takes its configuration as JSON, and prints where it listens.

It ends in good order at SIGTERM, and at once when its standard input is closed: when whoever started it has gone. A line
there names the nodes that it does not hear, and that do not hear it, from now on (an empty one: it hears all); it is
repeated on standard output when that is so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from functools import partial

import msgspec

from engine.errors import Error, UsageError
from engine.host.server import Server, ServerConfig
from engine.messages import Message
from engine.turn.events import Event, PeerSeen, Received
from wal.ids import NodeId


def main() -> None:
    """Run the node that the first argument describes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = msgspec.json.decode(sys.argv[1], type=ServerConfig, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting is wrong: {error}") from None
    asyncio.run(_serve(config, sys.argv[2:]))


class _Wall:
    """What stands between this node and some others: connections stay, and nothing that is said passes."""

    def __init__(self, server: Server, behind: list[str]) -> None:
        self.behind = frozenset(behind)
        self._transport = server.transport
        self._taken, self._said, self._found = server.transport.inbox, server.transport.send, server.transport.address_of
        self._seen: dict[tuple[str, tuple[str, ...]], PeerSeen] = {}
        server.transport.inbox = self.take  # of this one node: nothing else in the process has another
        server.transport.send = self.say  # type: ignore[method-assign]
        server.pulse.address_of = self.address_of

    def take(self, event: Event, weight: int) -> None:
        """Something comes from outside."""
        if isinstance(event, Received) and event.sender in self.behind:
            return
        if isinstance(event, PeerSeen) and event.node in self.behind:
            self._seen[event.node, event.over] = event
            return
        self._taken(event, weight)

    def say(self, sends: list[tuple[tuple[NodeId, ...], Message]]) -> None:
        """Something is said to others."""
        if self.behind:
            sends = [(heard, said) for to, said in sends if (heard := tuple(n for n in to if n not in self.behind))]
        self._said(sends)

    def address_of(self, node: NodeId) -> str:
        """Where the thread that speaks for a busy node finds another."""
        return "" if node in self.behind else self._found(node)

    def stand(self, behind: list[str]) -> None:
        """Another wall, or none: who was met behind the old one is met now."""
        self.behind = frozenset(behind)
        seen, self._seen = self._seen, {}
        for event in seen.values():
            self.take(event, 0)


def _obey(loop: asyncio.AbstractEventLoop, wall: _Wall) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(wall.stand, line.split())
        loop.call_soon_threadsafe(partial(print, line, end="", flush=True))
    os._exit(1)


async def _serve(config: ServerConfig, behind: list[str]) -> None:
    server = await Server.start(config)
    loop = asyncio.get_running_loop()
    threading.Thread(target=_obey, args=(loop, _Wall(server, behind)), daemon=True).start()
    loop.add_signal_handler(signal.SIGTERM, server.leave)
    print(server.address, flush=True)
    try:
        await server.run()
    finally:
        await server.close()


if __name__ == "__main__":
    try:
        main()
    except Error as refused:
        sys.exit(f"{type(refused).__name__}: {refused}")
