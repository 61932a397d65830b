"""A cluster of real nodes for an application's own tests: start it, kill its nodes, and see what your code does.

```python
from engine.testing import cluster


def test_transfers_survive_the_loss_of_a_node():
    with cluster(3) as nodes, nodes.connect() as db:
        my_application.transfer(db, "ann", "bob", 10)
        nodes.kill("n1")
        my_application.transfer(db, "ann", "bob", 10)
```

Each node is a process of its own with a directory, a log and a port, as in production; only its patience is shorter, so
that a failover takes a fraction of a second. With pytest there is a fixture, `foreshore_cluster`, which makes clusters
that end with the test (`engine.testing.plugin`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from engine.aio import Setting
from engine.api import Database, connect
from engine.client.admin import ask, form
from engine.client.loop import Loop
from engine.client.timing import check_seconds
from engine.errors import Error, Unavailable, UsageError
from engine.state.identity import directory_of
from engine.turn.settings import settings_of

QUICK: MappingProxyType[str, Setting] = MappingProxyType(
    {
        "partitions": 16,
        "heartbeat_ms": 100,
        "suspicion_ms": 1_000,
        "connection_lost_ms": 200,
        "exchange_delay_ms": 50,
        "exchange_retry_ms": 300,
        "wal_segment_bytes": 4 << 20,
        "wal_total_bytes": 64 << 20,
    }
)
"""Settings of nodes that are tested with: small, and quick to notice that one is gone."""
NODES_MAX = 9
LOOK_SECONDS = 0.01


class Cluster:
    """Nodes n1, n2, ... on this machine. Made by `cluster`; none of them outlives it."""

    def __init__(self, directory: Path, names: list[str], settings: dict[str, Setting], *, timeout: float) -> None:
        self.directory = directory
        self.timeout = timeout
        self._settings = settings
        self._loop = Loop()
        self._nodes: dict[str, _Process | None] = dict.fromkeys(names)
        self._addresses: dict[str, str] = {}
        self._sides: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Cluster {', '.join(f'{name} {self.state(name)}' for name in self._nodes)}>"

    @property
    def names(self) -> list[str]:
        """The names of all nodes, whether they run or not."""
        return list(self._nodes)

    @property
    def addresses(self) -> str:
        """Where the nodes are, as `engine.connect` takes it; those that do not run as well, for they may be back."""
        return ",".join(self._addresses.values())

    def state(self, name: str) -> str:
        """`running`, `paused` or `dead`."""
        process = self._process(name)
        return "dead" if process is None or not process.lives else "paused" if process.paused else "running"

    def connect(self, *, timeout: float = 10.0) -> Database:
        """A client of the cluster, as `engine.connect` makes it."""
        return connect(self.addresses, timeout=timeout)

    # What may happen to a node.

    def kill(self, name: str) -> None:
        """`kill -9`: the process is gone, its directory stays as the log left it."""
        process = self._running(name)
        process.kill()

    def stop(self, name: str) -> None:
        """Stop in good order: the node hands over what others can take, and ends."""
        process = self._running(name)
        process.terminate()
        self._wait(lambda: not process.lives, f"{name} did not end")
        process.kill()  # closes what led to it

    def pause(self, name: str) -> None:
        """Stop the process where it stands (SIGSTOP): to the others it is silent, and it does not know."""
        self._running(name).pause()

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        process = self._running(name)
        if not process.paused:
            raise UsageError(f"{name} is not paused")
        process.resume()

    def restart(self, name: str) -> None:
        """Start a node again on its directory and at its address; `wait_until_whole` says when it has caught up."""
        process = self._process(name)
        if process is not None and process.lives:
            raise UsageError(f"{name} is {self.state(name)}: expected a node that was killed or stopped")
        self._start(name)

    def wipe(self, name: str) -> None:
        """Remove the directory of a node that does not run: a lost disk."""
        process = self._process(name)
        if process is not None and process.lives:
            raise UsageError(f"{name} is {self.state(name)}: kill it first")
        shutil.rmtree(self.directory / name)

    def partition(self, *sides: Iterable[str]) -> None:
        """Cut the network between these sides, such as `partition(["n1"], ["n2", "n3"])`: nothing that one says reaches
        another, and connections stay. Nodes that are not named are a side by themselves. Clients reach all of them."""
        chosen: dict[str, int] = {}
        for number, side in enumerate(sides, 1):
            if isinstance(side, str) or not isinstance(side, Iterable):
                raise UsageError(f"a side is {side!r}: expected names of nodes in a list")
            for name in side:
                self._process(name)
                if name in chosen:
                    raise UsageError(f"{name} is on two sides: expected each node on one")
                chosen[name] = number
        self._sides = {name: chosen.get(name, 0) for name in self._nodes}
        for name, process in self._nodes.items():
            if process is not None and process.lives:
                process.order(self._behind(name))

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self.partition()

    def _behind(self, name: str) -> list[str]:
        """The nodes on other sides."""
        return [other for other in self._sides if self._sides[other] != self._sides.get(name, 0)]

    # What the cluster is.

    def wait_until_whole(self) -> None:
        """Wait until every node that runs serves and every copy it should have is in sync."""
        self._wait(self._whole, "the copies did not come in sync")

    def _whole(self) -> bool:
        alive = [name for name in self._nodes if self.state(name) == "running"]
        statuses = [self._status(name) for name in alive]
        found = [status for status in statuses if status is not None]
        return (
            bool(alive)
            and len(found) == len(alive)
            and len({str(status["version"]) for status in found}) == 1
            and all(
                status["serving"]
                and not status["frozen"]
                and not status["behind"]
                and not status["partitions"].get("PROMOTING")
                and {member["node"] for member in status.get("members", [])} >= set(alive)
                and all(m["owning"] == status["partition_count"] or m["moving"] == 0 for m in status["members"])
                for status in found
            )
            and (len(alive) < len(self._nodes) or not found[0]["under_replicated"])
        )

    def _status(self, name: str) -> dict[str, Any] | None:
        try:
            return self._loop.run(ask(self._addresses[name], "status", timeout=2.0))
        except Error:
            return None

    # Processes.

    def _process(self, name: str) -> _Process | None:
        if not isinstance(name, str) or name not in self._nodes:
            raise UsageError(f"there is no node {name!r}: expected one of {', '.join(self._nodes)}")
        return self._nodes[name]

    def _running(self, name: str) -> _Process:
        process = self._process(name)
        if process is None or not process.lives:
            raise UsageError(f"{name} does not run")
        return process

    def _start(self, name: str) -> None:
        process = self._begin(name)
        self._addresses[name] = process.address()

    def _begin(self, name: str) -> _Process:
        config = {
            "data": str(self.directory / name),
            "node": name,
            "listen": self._addresses.get(name, "127.0.0.1:0"),
            "seeds": [address for other, address in self._addresses.items() if other != name],
            "settings": self._settings,
        }
        arguments = [msgspec.json.encode(config).decode(), *self._behind(name)]
        process = self._nodes[name] = _Process(name, self.directory / f"{name}.log", arguments)
        return process

    def form(self) -> None:
        """Start all nodes and make them one cluster."""
        first, *others = self._nodes
        self._start(first)
        for process in [self._begin(name) for name in others]:
            self._addresses[process.name] = process.address()
        self._wait(lambda: set(others) <= set(_seen(self._status(first))), "the nodes did not see each other")
        self._loop.run(form(self._addresses[first], self.names, seconds=self.timeout))
        self.wait_until_whole()

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        until = time.monotonic() + self.timeout
        while not holds():
            if time.monotonic() > until:
                raise Unavailable(f"{otherwise} within {self.timeout:g} s: {self!r}; their logs are in {self.directory}")
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """End every node, whatever it does."""
        for process in self._nodes.values():
            if process is not None:
                process.kill()
        self._loop.stop()


def _seen(status: dict[str, Any] | None) -> list[str]:
    return list(status["seen"]) if status is not None else []


class _Process:
    """One process of a node. It ends when its standard input does, so it does not outlive who started it."""

    def __init__(self, name: str, log: Path, arguments: list[str]) -> None:
        self.name = name
        self.log = log
        self.paused = False
        self._unheard = 0  # orders that it has not obeyed yet: it is paused
        # the paths of this interpreter, so that a node is found wherever this package was
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
                [sys.executable, "-m", "engine.testing.node", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors.fileno(),
                start_new_session=True,
                env=environment,
            )

    @property
    def lives(self) -> bool:
        """Whether it runs, or is paused."""
        return self._popen.poll() is None

    def address(self) -> str:
        """Where it listens, once it does. Raises Error with its last words if it ends instead."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline().decode().strip()
        if not line:
            self.kill()
            said = self.log.read_text(errors="replace").splitlines()[-10:]
            raise Error("\n".join([f"node {self.name} ended at its start; it said:", *said]))
        return line

    def order(self, behind: list[str]) -> None:
        """These nodes are not reached from now on; a paused node obeys when it goes on, before it hears anything."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(" ".join(behind).encode() + b"\n")
        self._popen.stdin.flush()
        self._unheard += 1
        if not self.paused:
            self._hear()

    def _hear(self) -> None:
        assert self._popen.stdout is not None
        while self._unheard:
            self._unheard -= 1
            self._popen.stdout.readline()

    def pause(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)
        self.paused = False
        self._hear()

    def terminate(self) -> None:
        self._popen.terminate()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def cluster(
    nodes: int = 3, *, directory: Path | str | None = None, timeout: float = 60.0, **settings: Setting
) -> Iterator[Cluster]:
    """A cluster of so many nodes, formed and whole; it ends with the block, in the process that made it.

    `directory` must be empty or not there yet, and stays; without it there is a temporary one, which goes. `timeout`
    (seconds) bounds every wait. `settings` are those of `engine.turn.settings.Settings`, over the quick ones (`QUICK`).
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= NODES_MAX:
        raise UsageError(f"nodes is {nodes!r}: expected 1 to {NODES_MAX}")
    check_seconds("timeout", timeout)
    chosen: dict[str, Setting] = {"backups": min(2, nodes - 1), **settings}
    settings_of(chosen, QUICK)
    place = Path(tempfile.mkdtemp(prefix="foreshore-testing-")) if directory is None else directory_of(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{place} cannot be made: {error.strerror}; expected a directory for new nodes") from error
    if any(place.iterdir()):
        raise UsageError(f"{place} is not empty: expected a directory for new nodes")
    made = Cluster(place, [f"n{number}" for number in range(1, nodes + 1)], {**QUICK, **chosen}, timeout=timeout)
    process = os.getpid()
    try:
        made.form()
        yield made
    finally:
        if os.getpid() == process:  # a child of `os.fork()` leaves the block, too
            made.close()
            if directory is None:
                shutil.rmtree(place, ignore_errors=True)
