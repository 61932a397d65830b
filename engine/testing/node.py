"""One node of `engine.testing`: a process that takes its configuration as JSON, and prints where it listens.

It ends in good order at SIGTERM, and at once when its standard input is closed: when whoever started it has gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading

import msgspec

from engine.errors import Error, UsageError
from engine.server import Server, ServerConfig


def main() -> None:
    """Run the node that the first argument describes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = msgspec.json.decode(sys.argv[1], type=ServerConfig, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting is wrong: {error}") from None
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    asyncio.run(_serve(config))


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


async def _serve(config: ServerConfig) -> None:
    server = await Server.start(config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.leave)
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
