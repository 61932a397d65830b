"""A node that was away while others went on: what it lacks is not held against it, and the commands say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine import aio
from engine.turn.settings import Settings
from tests.support.commands import objects, wal
from tests.support.directories import NODES, Nodes
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """n3 was stopped, and then a key was written again."""
    root = tmp_path_factory.mktemp("behind")

    async def story() -> None:
        nodes = Nodes(root, Settings(partitions=16))
        try:
            await nodes.start()
            where = ",".join(server.address for server in nodes.servers.values())
            async with await aio.connect(where, timeout=PATIENCE_SECONDS) as database:
                accounts = database.namespace("accounts")
                await accounts.put(b"ann", b"100")
                await nodes.settle()
                await nodes.servers.pop("n3").close()
                await accounts.put(b"ann", b"70")
        finally:
            await nodes.close()

    asyncio.run(story())
    return [root / name for name in NODES]


def test_verify_does_not_call_whole_what_it_compared_with_nothing(left: list[Path]) -> None:
    *peers, third = left
    result = wal("verify", third, "--against", *peers)
    assert "against n1, n2: nothing could be compared: all " in result.stdout
    assert " copies of fragments are by map 2." in result.stdout
    assert "not in sync here, and nothing of them is owed\n" in result.stdout
    assert "nothing lost" not in result.stdout
    told = next(item for item in objects("verify", third, "--against", *peers) if "against" in item)
    assert told["compared"] == 0
    assert int(str(told["not_in_sync"])) > 0
    assert "against n2, n3: nothing lost, in " in wal("verify", left[0], "--against", *left[1:]).stdout


def test_a_key_says_who_is_behind_and_may_be(left: list[Path]) -> None:
    result = wal("key", "accounts", "ann", *left, "--values", "full")
    assert result.exit_code == 0
    assert "1.1 (put 3B:100) stands on n3, which may be behind: not in sync by map 2." in result.stdout
    assert "DIFFERS" not in result.stdout
    (*_, told) = objects("key", "accounts", "ann", *left)
    assert told["verdict"]["behind"] == ["n3"]  # type: ignore[index]  # an object
