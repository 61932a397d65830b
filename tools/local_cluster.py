"""Real nodes on this machine, as processes of their own: for the demo, the benchmark and their tests.

Nothing is left behind, however the program ends: leaving the `with` kills what still runs, and so does the kernel if the
program itself is killed (PR_SET_PDEATHSIG). Each process is in a session of its own, so a Ctrl-C at the terminal reaches
the program alone, and it ends the others in the order it likes. Ports are the kernel's choice; a node says in a file
where it listens, once it does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.client.admin import ask, form
from engine.errors import Error, Unavailable

READY_SECONDS = 60.0
LOOK_SECONDS = 0.02
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def spawn(command: Sequence[str], *, output: int, errors: int) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one. Call it in the main thread: it is killed when its thread ends."""
    parent = os.getpid()

    def follow() -> None:  # in the child, between fork and exec: nothing but system calls
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(  # noqa: S603  # our own interpreter, our own modules
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        preexec_fn=follow,  # noqa: PLW1509  # there is no other way to be killed with one's parent
    )


class NodeProcess:
    """One node: its directory, its process while it has one, and where it listens."""

    program: Sequence[str] = ("-m", "tools.cli", "node", "start")

    def __init__(self, name: str, directory: Path, options: Sequence[str]) -> None:
        self.name = name
        self.data = directory / name
        self.log = directory / f"{name}.log"
        self.address = ""
        self._options = list(options)
        self._ready = directory / f"{name}.ready"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process, 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None if it runs, or never did."""
        return self._process.poll() if self._process is not None else None

    def start(self, seeds: Sequence[str]) -> None:
        """Start the process; `ready` says when it listens."""
        assert not self.running, f"{self.name} runs already"
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, *self.program, "--data", str(self.data), "--node", self.name]
        command += ["--listen", "127.0.0.1:0", "--ready-file", str(self._ready), *self._options]
        if seeds:
            command += ["--seeds", ",".join(seeds)]
        with self.log.open("ab") as log:
            self._process = spawn(command, output=log.fileno(), errors=log.fileno())

    async def ready(self, seconds: float = READY_SECONDS) -> str:
        """Wait until the node listens; return its address. Raises Error with the end of its log if it ended instead."""
        until = time.monotonic() + seconds
        while not self._ready.exists():
            if not self.running:
                raise Error(f"node {self.name} ended at its start; its log {self.log} says:\n{self.last_words()}")
            if time.monotonic() > until:
                raise Unavailable(f"node {self.name} does not listen after {seconds} s; its log is {self.log}")
            await asyncio.sleep(LOOK_SECONDS)
        self.address = self._ready.read_text(encoding="utf-8").strip()
        return self.address

    async def ended(self, seconds: float) -> bool:
        """Whether the process ended by itself within `seconds`."""
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until:
            await asyncio.sleep(LOOK_SECONDS)
        return not self.running

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self.running:
            assert self._process is not None
            self._process.kill()
            self._process.wait()

    def rss_bytes(self) -> int:
        """The memory that the process holds now, 0 if it does not run."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """The processor time that the process has used, 0 if it does not run."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class LocalCluster:
    """The nodes under one directory. Use it in a `with`: none survives it."""

    def __init__(self, directory: Path, options: Sequence[str]) -> None:
        self.directory = directory
        self.nodes: dict[str, NodeProcess] = {}
        self._options = list(options)

    def start(self, name: str) -> NodeProcess:
        """Start a node, for the first time or again, that knows the ones that run; it is not waited for."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = NodeProcess(name, self.directory, self._options)
        node.start([n.address for n in self.running if n.address and n is not node])
        return node

    async def form(self, names: Sequence[str]) -> str:
        """Start nodes (the first one is the others' seed) and form a cluster of them; return its id."""
        first = self.start(names[0])
        await first.ready()
        for name in names[1:]:
            self.start(name)
        for name in names[1:]:
            await self.nodes[name].ready()
        others = set(names[1:])
        await until(lambda: self._seen(first, others), READY_SECONDS, "the nodes did not see each other")
        cluster = await form(first.address, names, seconds=READY_SECONDS)
        await until(lambda: self.healthy(len(names)), READY_SECONDS, "the cluster did not begin to serve")
        return cluster

    @staticmethod
    async def _seen(node: NodeProcess, others: set[str]) -> bool:
        return others <= set((await ask(node.address, "status"))["seen"])

    async def status(self, node: NodeProcess | None = None) -> dict[str, Any]:
        """What a node says of itself and the cluster; the first one that runs unless another is named."""
        return await ask((node or self.running[0]).address, "status")

    async def healthy(self, members: int) -> bool:
        """Whether so many members serve, in one version, with every copy in sync and nothing under way."""
        try:
            found = [await self.status(node) for node in self.running]
        except Unavailable:
            return False
        return (
            len(found) == members
            and len({status["version"] for status in found}) == 1
            and all(_settled(status, members) for status in found)
        )

    @property
    def running(self) -> list[NodeProcess]:
        """The nodes that live."""
        return [node for node in self.nodes.values() if node.running]

    @property
    def addresses(self) -> str:
        """Where the nodes that live listen, as `engine.connect` takes it."""
        return ",".join(node.address for node in self.running)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()


def _settled(status: dict[str, Any], members: int) -> bool:
    return (
        status["serving"]
        and not status["frozen"]
        and len(status.get("members", [])) == members
        and not status["under_replicated"]
        and not status["behind"]
        and not status["partitions"].get("PROMOTING", 0)
    )


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, otherwise: str) -> float:
    """Wait until something holds; return how long that took. Raises Unavailable, saying what did not come."""
    began = time.monotonic()
    while not await holds():
        if time.monotonic() - began > seconds:
            raise Unavailable(f"{otherwise} within {seconds:.0f} s")
        await asyncio.sleep(LOOK_SECONDS)
    return time.monotonic() - began
