"""`foreshore wal diff` and `wal history` over real directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import aio
from engine.turn.settings import Settings
from tests.support.commands import objects, wal
from tests.support.directories import build, copies, zero_last_blocks
from tests.support.reconciled import fragment_of
from wal import PartitionCounter, Want, indexes
from wal.codec import BLOCK_HEADER_BYTES
from wal.ids import Fragment


def test_logs_of_healthy_nodes_do_not_differ(left: list[Path]) -> None:
    for other in left[1:]:
        result = wal("diff", left[0], other)
        assert (result.exit_code, result.stdout) == (0, "")
        assert " differing=0" in result.stderr
    rows = objects("diff", left[0], left[1], "--all")
    assert {"acc", "bank", "~codec", "~tx"} == {str(row["fragment"]).partition("/")[0] for row in rows}
    assert all(row["compared_from"] == 1 for row in rows)


@pytest.mark.parametrize("stop", [False, True], ids=["a map in the log", "a map in the store"])
def test_what_one_of_the_nodes_has_no_copy_of_is_no_difference(tmp_path: Path, stop: bool) -> None:
    """Two copies of each partition on three nodes: any two have some of them in common, and each has some of its own."""

    async def story(database: aio.Database) -> None:
        await database.namespace("acc").put_many({b"k%d" % at: b"v" for at in range(60)})

    directories = build(tmp_path, story, settings=Settings(cluster="test", partitions=8, backups=1), stop=stop)
    result = wal("diff", *directories[:2])
    assert (result.exit_code, result.stdout) == (0, ""), result.stdout
    assert " differing=0 elsewhere=" in result.stderr
    zero_last_blocks(directories[1], 3)
    assert " only_a=" in wal("diff", *directories[:2]).stdout, "what it is to have, and lacks, is one"


def test_what_only_one_log_has_is_said_by_counter(left: list[Path], tmp_path: Path) -> None:
    directories = copies(left[:2], tmp_path)
    zero_last_blocks(directories[1], 2)
    result = wal("diff", *directories)
    assert result.exit_code >= 1
    assert " only_a=" in result.stdout
    assert " only_b=" not in result.stdout


def test_history_is_what_a_copy_that_lacks_it_would_be_supplied_with(left: list[Path]) -> None:
    name: Fragment = fragment_of(b"k1")
    (row,) = objects("history", left[0], "--namespace", name[0], "--partition", name[1])
    assert row["from"] == 1
    assert row["updates"] == row["to"]
    sizes = [
        size
        for indexed in indexes(left[0] / "wal")
        for size in _sizes([*indexed.index.starts, indexed.end], indexed.index.holding({name: (0, int(str(row["to"])))}))
    ]
    assert (row["blocks"], row["bytes"]) == (len(sizes), sum(sizes))
    assert min(sizes) > BLOCK_HEADER_BYTES
    want = Want(name, PartitionCounter(), int(str(row["to"])), [(1, 1)])
    assert want.have.missing(want.up_to) == [(0, row["updates"])]
    assert wal("history", *left, "--limit", 1).stdout.count("node=") == 3


def _sizes(edges: list[int], ordinals: list[int]) -> list[int]:
    return [edges[ordinal + 1] - edges[ordinal] for ordinal in ordinals]


def test_one_node_has_no_sides(left: list[Path]) -> None:
    result = wal("diff", left[0], left[0] / "wal")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name each node once" in result.stderr
