"""The log knows who: labels, clients and coordinating nodes, once each and not per entry, on every copy."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

import engine
from engine import aio
from tests.support.commands import objects, wal
from tests.support.directories import build
from tools.wal.origins import Origins
from tools.wal.times import session_text
from wal import records as r
from wal.ids import session_of

PUTS = 400
PAYMENTS = 40


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
        async with await aio.connect(database.where, client_name="till") as till:
            for at in range(PAYMENTS):
                async with till.transaction(label="payment") as tx:
                    for key in ("from", "to") if at % 2 else ("from",):
                        await tx.namespace("paid").put(b"%s-%d" % (key.encode(), at), b"%d" % at)

    return build(tmp_path_factory.mktemp("known"), story)


def told(*arguments: object) -> list[dict[str, Any]]:
    """What a command says in JSON, whatever its exit code."""
    return [msgspec.json.decode(line) for line in wal(*arguments, "--json").stdout.splitlines()]


def test_a_client_is_named_once_to_each_group_of_copies(known: list[Path]) -> None:
    # On a slow machine one of them may have written a checkpoint meanwhile, and says it again, to the others, too.
    again = [told("dump", directory, "--type", kind) for directory in known for kind in ("committed", "checkpoint")]
    most = sum(map(len, again)) - len(known) + 1  # the first map is one for all
    for directory in known:
        origins = told("dump", directory, "--type", "origin")
        assert all(item["by"] in {"n1", "n2", "n3"} for item in origins)
        named = Counter((item["tx"][:20], item["by"], item["client"]) for item in origins if item.get("address"))
        assert {client for _, _, client in named} == {"web-3", "batch", "till"}
        assert max(named.values()) <= most, "each node says it once, to all the others"
        assert all(item["address"].startswith("127.0.0.1:") for item in origins if item.get("address"))
        once = [item["label"] for item in origins if item.get("label") and not item.get("labels_all")]
        assert sorted(once) == ["end of month", "one key", "payment"], "once per transaction, not per partition"
        whole = [(item["tx"][:20], item["by"]) for item in origins if item.get("labels_all")]
        assert 1 <= len(set(whole)) <= 3
        assert max(Counter(whole).values()) <= most, "what comes again, once of its session by each node"


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


def test_a_label_that_came_again_is_told_of_each_of_its_transactions(known: list[Path]) -> None:
    paid = [node for at in range(0, PAYMENTS, 9) for node in told("key", "paid", f"from-{at}", *known)[-1:]]
    said = {(one["verdict"]["last"]["label"], one["verdict"]["last"]["client"]) for one in paid}
    assert said == {("payment", "till")}
    assert {one["verdict"]["last"]["by"] for one in paid} <= {"n1", "n2", "n3"}
    stories = told("tx", "--label", "payment", "--last", str(2 * PAYMENTS), *known)
    assert len(stories) == PAYMENTS
    assert {(one["label"], one["client"], one["end"]) for one in stories} == {("payment", "till", "committed")}
    assert {one["by"] for one in stories} <= {"n1", "n2", "n3"}


def test_a_dump_of_a_label_has_all_of_its_transactions_and_no_other(known: list[Path]) -> None:
    stories = {one["tx"] for one in told("tx", "--label", "payment", "--last", str(2 * PAYMENTS), *known)}
    for directory in known:
        records = told("dump", directory, "--label", "payment")
        written = [write for item in records if item["type"] == "update" for write in item["writes"]]
        prepared = [item for item in records if item["type"] == "prepare"]
        assert {write["tx"] for write in written if write["namespace"] == "paid"} <= stories
        assert {item["tx"] for item in prepared} <= stories
        found = {entry["key"] for write in written if write["namespace"] == "paid" for entry in write["entries"]}
        found |= {entry["key"] for item in prepared for write in item["writes"] for entry in write["entries"]}
        assert found >= {f"from-{at}" for at in range(PAYMENTS)}
        later = max(item["lsn"] for item in records if item["type"] == "origin") + 1
        assert told("dump", directory, "--label", "payment", "--from-lsn", str(later)), "though who says so lies before"


def test_a_session_that_was_given_two_labels_is_told_with_both() -> None:
    origins = Origins()
    first = r.Origin(1, 1, bytes(16), "n1", "pay", "till", "a:1", labels_all=True)
    origins.note(first)
    assert origins.of(bytes(15) + b"\1", 1, 1) == structs.replace(first, tx=bytes(15) + b"\1", labels_all=False)
    origins.note(structs.replace(first, label="refund", node="n2"))
    found = origins.of(bytes(15) + b"\1", 1, 1)
    assert found is not None
    assert found.label == "pay or refund"


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


def test_all_that_tells_of_a_transaction_says_when_its_session_was_opened(known: list[Path]) -> None:
    """And who knows only that finds it by how its id begins."""
    seen = told("key", "acc", "k20", *known)[-1]["verdict"]["last"]
    opened, (story,) = seen["session_opened"], told("tx", seen["tx"], *known)
    assert opened == story["session_opened"] != ""
    first_ms = min(step["time_ms"] for step in story["steps"])
    assert -1_000 < first_ms - datetime.fromisoformat(opened).timestamp() * 1000 < 600_000, "it was opened for this test"
    assert f" session-opened={opened}" in wal("key", "acc", "k20", *known).stdout.splitlines()[-2]
    assert f" session-opened={opened}" in wal("tx", seen["tx"], *known).stdout.splitlines()[0]
    origins = [item for item in told("dump", known[0], "--type", "origin") if item["tx"][:20] == seen["tx"][:20]]
    assert origins
    assert {item["session_opened"] for item in origins} == {opened}
    shown = [line for line in wal("dump", known[0], "--type", "origin").stdout.splitlines() if seen["tx"][:20] in line]
    assert all(f" session-opened={opened}" in line for line in shown)
    by_time = f"{int(datetime.fromisoformat(opened).timestamp()):08x}"
    found = told("tx", by_time, *known)
    assert {one["tx"][:8] for one in found} == {by_time}
    assert {one["session_opened"] for one in found} == {opened}


def test_a_time_that_no_session_can_have_is_not_shown() -> None:
    """Ids of older versions have bits there that were drawn."""
    logged_ms = 1_700_000_000_000
    for seconds, shown in ((0, True), (-86_400, True), (86_400, True), (86_401, False), (-401 * 86_400, False)):
        tx = session_of(1_700_000_000 + seconds, 5) + bytes(6)
        assert bool(session_text(tx, logged_ms)) is shown
