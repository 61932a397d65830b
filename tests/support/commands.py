"""The `foreshore` command as a person runs it: real processes on ports of their own, which do not outlive a test."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from typer.testing import CliRunner, Result

from tests.support.patience import PATIENCE_SECONDS
from tools.cli import app
from tools.local_cluster import spawn
from wal import list_segments

HOSTILE = b"\x1b]0;owned\x07\x1b[2J\xff\n=\\ "
"""A key that takes over a terminal which prints it."""
FORESHORE = (sys.executable, "-m", "tools.cli")


def environment(**more: str) -> dict[str, str]:
    """The environment without anything that configures a node, but for `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FORESHORE_")} | more


def foreshore(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*FORESHORE, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=environment() if env is None else env,
    )


def wal(*arguments: object) -> Result:
    """Run `foreshore wal` in this process."""
    return CliRunner().invoke(app, ["wal", *map(str, arguments)])


def objects(*arguments: object) -> list[dict[str, object]]:
    """What `foreshore wal ... --json` prints; it must succeed."""
    result = wal(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [msgspec.json.decode(line) for line in result.stdout.splitlines()]


def damage_log(directory: Path) -> str:
    """Flip a bit of the log's first block; the segment's name."""
    name = list_segments(directory / "wal")[0].name
    data = bytearray((directory / "wal" / name).read_bytes())
    data[300] ^= 1
    (directory / "wal" / name).write_bytes(data)
    return name


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Background:
    """A command in the background, and what it says on stderr."""

    def __init__(self, arguments: Sequence[object], log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = spawn([*FORESHORE, *map(str, arguments)], output=subprocess.DEVNULL, errors=file.fileno())

    def said(self) -> str:
        """All that it said so far."""
        return self.log.read_text(encoding="utf-8")

    def wait_until_it_says(self, words: str) -> None:
        """Wait for words on stderr; fail if it ends without them."""
        until = time.monotonic() + PATIENCE_SECONDS
        while words not in self.said():
            assert self.process.poll() is None, f"it ended without saying {words!r}:\n{self.said()}"
            assert time.monotonic() < until, f"it does not say {words!r}:\n{self.said()}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """`kill -9`, whatever it does."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


class Node(Background):
    """`foreshore node start` on a port of its own."""

    def __init__(self, root: Path, name: str, *options: object, seeds: Sequence[str] = ()) -> None:
        self.data = root / name
        self.name = name
        self.ready_file = root / f"{name}.ready"
        arguments = ["node", "start", "--data", self.data, "--node", name, "--listen", "127.0.0.1:0"]
        arguments += ["--ready-file", self.ready_file, "--partitions", 16, *options]
        super().__init__([*arguments, *(["--seeds", ",".join(seeds)] if seeds else [])], root / f"{name}.log")

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        self.wait_until_it_says(" listens on ")
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.ready_file.exists():
            assert time.monotonic() < until, f"{self.name} does not write its ready file"
            time.sleep(0.02)
        return self.ready_file.read_text(encoding="utf-8")


@contextmanager
def nodes(root: Path, *names: str, options: Sequence[object] = ()) -> Iterator[list[Node]]:
    """Nodes that know each other and form a cluster; none outlives the block."""
    started: list[Node] = []
    try:
        for name in names:
            started.append(Node(root, name, *options, seeds=[node.address for node in started]))
        formed = foreshore("cluster", "init", started[0].address, "--nodes", ",".join(names))
        assert formed.returncode == 0, formed.stderr
        yield started
    finally:
        for node in started:
            node.kill()


async def reconcile(*words: object) -> tuple[int | None, str]:
    """`foreshore reconcile` in another process, since nobody has a store open twice in one: its code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *FORESHORE, "reconcile", *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        told, _ = await process.communicate()
    return process.returncode, told.decode()
