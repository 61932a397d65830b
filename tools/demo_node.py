"""One node as a process, until the command has `node start`: `python -m tools.demo_node --data DIR --node NAME ...`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from engine.server import Server, ServerConfig
from engine.settings import Settings


async def _run(config: ServerConfig, ready: Path) -> None:
    server = await Server.start(config)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: server.driver.stop("terminated"))
    new = ready.with_suffix(".new")
    new.write_text(server.address)
    new.rename(ready)
    try:
        print(await server.run(), file=sys.stderr)
    finally:
        await server.close()


def main() -> None:
    """Run until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--seeds", default="")
    parser.add_argument("--partitions", type=int, default=1024)
    parser.add_argument("--backups", type=int, default=2)
    parser.add_argument("--prefer-history", action="store_true")
    parser.add_argument("--ready-file", type=Path, required=True)
    a = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    config = ServerConfig(
        data=a.data,
        node=a.node,
        listen=a.listen,
        seeds=[s for s in a.seeds.split(",") if s],
        settings=Settings(partitions=a.partitions, backups=a.backups, prefer_history=a.prefer_history),
    )
    uvloop.run(_run(config, a.ready_file))


if __name__ == "__main__":
    main()
