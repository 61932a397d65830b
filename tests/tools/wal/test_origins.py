"""The log knows who: labels, clients and coordinating nodes, once each and not per entry, on every copy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine
from engine import aio
from tests.support.commands import objects, wal
from tests.support.directories import build

PUTS = 400


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three nodes after a web server and a batch job wrote."""

    async def story(database: aio.Database) -> None:
        async with await aio.connect(database.where, client_name="web-3") as web:
            acc = web.namespace("acc")
            for at in range(PUTS):
                await acc.put(b"k%d" % (at % 50), b"v" * 100)
        async with await aio.connect(database.where, client_name="batch") as batch:
            async with batch.transaction(label="end of month") as tx:
                for at in range(8):
                    await tx.namespace("acc").put(b"k%d" % at, b"settled")
            async with batch.transaction(label="one key", concurrency="OPTIMISTIC") as tx:
                await tx.namespace("acc").put(b"k20", b"alone")

    return build(tmp_path_factory.mktemp("known"), story)


def told(*arguments: object) -> list[dict[str, Any]]:
    """What a command says in JSON, whatever its exit code."""
    return [msgspec.json.decode(line) for line in wal(*arguments, "--json").stdout.splitlines()]


def test_a_client_is_named_once_to_each_group_of_copies(known: list[Path]) -> None:
    for directory in known:
        origins = told("dump", directory, "--type", "origin")
        assert all(item["by"] in {"n1", "n2", "n3"} for item in origins)
        named = Counter((item["tx"][:20], item["by"], item["client"]) for item in origins if item.get("address"))
        assert {client for _, _, client in named} == {"web-3", "batch"}
        assert set(named.values()) == {1}, "each node says it once, to all the others"
        assert all(item["address"].startswith("127.0.0.1:") for item in origins if item.get("address"))
        labels = Counter(item["label"] for item in origins if item.get("label"))
        assert labels == {"end of month": 1, "one key": 1}, "once per transaction, not per partition"


def test_it_costs_at_most_a_fiftieth_of_the_bytes(known: list[Path]) -> None:
    rows = {row["type"]: row["bytes"] for row in objects("stat", known[0]) if "type" in row}
    assert 0 < int(str(rows["origin"])) <= sum(int(str(size)) for size in rows.values()) / 50


def test_the_story_of_a_key_ends_with_who_wrote_it(known: list[Path]) -> None:
    lines = wal("key", "acc", "k30", *known).stdout.splitlines()
    assert " client=web-3 address=127.0.0.1:" in lines[-2]
    alone = told("key", "acc", "k20", *known)[-1]["verdict"]["last"]
    assert (alone["label"], alone["client"]) == ("one key", "batch")
    for at in range(8):
        last = told("key", "acc", f"k{at}", *known)[-1]["verdict"]["last"]
        assert (last["label"], last["client"]) == ("end of month", "batch"), "whichever partition decided it"
        assert last["by"] in {"n1", "n2", "n3"}


def test_a_label_finds_its_transactions(known: list[Path]) -> None:
    (whole,) = told("tx", "--label", "end of month", *known)
    assert (whole["label"], whole["client"], whole["end"]) == ("end of month", "batch", "committed")
    assert len(whole["participants"]) > 1
    (alone,) = told("tx", "--label", "one key", known[1])
    assert [step["what"] for step in alone["steps"]] == ["update"]


def test_a_name_that_no_log_should_have_is_refused(tmp_path: Path) -> None:
    with (
        engine.open(tmp_path) as database,
        pytest.raises(engine.UsageError, match="label has 10000 characters: expected at most"),
    ):
        database.transaction(label="x" * 10_000)
    with pytest.raises(engine.UsageError, match="a label has 10000 characters"):
        engine.connect("127.0.0.1:1", client_name="x" * 10_000)


def test_an_embedded_node_says_that_it_is_one(tmp_path: Path) -> None:
    with engine.open(tmp_path) as database:
        database.namespace("acc", codec="str")["k"] = "v"
    (origin,) = told("dump", tmp_path, "--type", "origin")
    assert origin["address"].startswith("embedded")
