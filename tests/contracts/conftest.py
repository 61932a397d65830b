"""The four doors: an embedded node and a cluster of three, each by blocking calls and by asynchronous ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

import engine
from engine import aio
from engine.client.loop import Loop
from engine.turn.settings import Settings
from tests.contracts.driven import Driven
from tests.support.directories import Nodes

PARTITIONS = 8
SETTINGS = Settings(partitions=PARTITIONS, namespaces_max=10_000, backups=2)
DOORS = ("embedded", "embedded aio", "cluster", "cluster aio")

_numbers = itertools.count()


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three servers in this process, on a loop of their own."""
    loop = Loop()
    nodes = Nodes(tmp_path_factory.mktemp("cluster"), SETTINGS)
    try:
        loop.run(nodes.start())
        yield ",".join(server.address for server in nodes.servers.values())
    finally:
        loop.run(nodes.close())
        loop.stop()


@pytest.fixture(scope="session", params=DOORS)
def db(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Database]:
    """A database behind one of the doors; it is what the type says, or driven as if it were."""
    where, _, form = request.param.partition(" ")
    settings = {"partitions": PARTITIONS, "namespaces_max": SETTINGS.namespaces_max}
    directory = tmp_path_factory.mktemp("embedded")
    addresses = request.getfixturevalue("addresses") if where == "cluster" else ""
    if form != "aio":
        with engine.connect(addresses) if addresses else engine.open(directory, **settings) as database:
            yield database
        return
    loop = Loop()
    native = loop.run(aio.connect(addresses) if addresses else aio.open(directory, **settings))
    try:
        yield Driven(native, loop)  # type: ignore[misc]  # it answers to the same calls: that is what is tested
    finally:
        loop.run(native.close())
        loop.stop()


@pytest.fixture
def fresh() -> Callable[[], str]:
    """Names of namespaces that were never used."""
    return lambda: f"ns{next(_numbers)}"


@pytest.fixture
def ns(db: engine.Database, fresh: Callable[[], str]) -> engine.Namespace[bytes, bytes]:
    """An empty namespace of bytes."""
    return db.namespace(fresh())
