"""A thread that tells the peers that this node lives while its loop is busy with one turn, or waits for its disk.

What to say, and for how long, `engine.host.duties` knows. It is said over connections of its own, because those of the loop
are the loop's: they are made when they are needed and closed when the loop goes on. Nothing here waits for anyone: what
cannot be sent now is not sent.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine.messages import Heartbeat
from engine.protocol.addresses import split_address
from engine.protocol.wire import PEER_FRAME_BYTES_MAX, Hello, frame
from wal.ids import NodeId

CONNECT_SECONDS = 0.05


class Pulse:
    """`told` says what to tell and to whom now, if anything; `address_of` where somebody listens."""

    def __init__(
        self,
        every_seconds: float,
        *,
        told: Callable[[int], tuple[tuple[NodeId, ...], Heartbeat] | None],
        hello: Callable[[], Hello],
        address_of: Callable[[NodeId], str],
    ) -> None:
        self._every = every_seconds
        self._told = told
        self._hello = hello
        self.address_of = address_of
        self._ended = threading.Event()
        self._lines: dict[str, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name="foreshore-pulse")
        self._thread.start()

    def close(self) -> None:
        """Fall silent."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every):
                said = self._told(time.monotonic_ns())
                if said is None:
                    self._hang_up()
                else:
                    hearers, beat = said
                    self._tell([address for node in hearers if (address := self.address_of(node))], beat)
        finally:
            self._hang_up()

    def _tell(self, addresses: Sequence[str], beat: Heartbeat) -> None:
        data = frame([beat], PEER_FRAME_BYTES_MAX)
        for address in addresses:
            line = self._lines.get(address)
            if line is not None and not _sent(line, data):
                self._lines.pop(address).close()
        fresh = [address for address in addresses if address not in self._lines]
        for address, line in _connected(fresh):
            if _sent(line, frame(self._hello()) + data):
                self._lines[address] = line
            else:
                line.close()

    def _hang_up(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()


def _connected(addresses: Sequence[str]) -> list[tuple[str, socket.socket]]:
    """New connections to those who answer at once."""
    found: list[tuple[str, socket.socket]] = []
    with selectors.DefaultSelector() as waiting:
        for address in addresses:
            with suppress(OSError):
                family, kind, protocol, _, place = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)[0]
                line = socket.socket(family, kind, protocol)
                line.setblocking(False)
                line.connect_ex(place)
                waiting.register(line, selectors.EVENT_WRITE, address)
        until = time.monotonic() + CONNECT_SECONDS
        while waiting.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                assert isinstance(key.fileobj, socket.socket)
                waiting.unregister(key.fileobj)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    key.fileobj.close()
                else:
                    found.append((key.data, key.fileobj))
        for key in list(waiting.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return found


def _sent(line: socket.socket, data: bytes) -> bool:
    """Whether the kernel took all of it; a part is worth nothing."""
    try:
        with suppress(BlockingIOError):
            while line.recv(1 << 12):
                pass  # its greeting
        return line.send(data) == len(data)
    except OSError:
        return False
