"""What the data source writes: only what still is as it was seen, and all that it did not do is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

import engine
from engine.errors import UsageError
from engine.offline.directory import read_directory
from engine.state.store import Entry
from engine.turn.settings import Settings
from tests.support.directories import SEGMENT_BYTES, Nodes, copies, replace
from tests.support.reconciled import PARTITIONS, fragment_of
from tests.tools.reconcile.test_repair import rows_of
from tools.reconcile.changes import Change, Outcome, in_runs
from tools.reconcile.findings import Facts, Kind, entry_facts
from tools.reconcile.plans import Act, Action, Header
from tools.reconcile.writer import NotAllWritten, Told, Writer
from tools.shown import Values

TYPES: dict[str, Any] = {"key": BinaryType(), "value": BinaryType(), "epoch": LongType(), "counter": LongType()}
ROWS = ["namespace", "key", "value", "epoch", "counter"]


def schema(names: list[str]) -> StructType:
    made = StructType()
    for name in names:
        made.add(name, TYPES.get(name, StringType()))
    return made


def written(rows: Sequence[Mapping[str, object]], directories: Sequence[str] = (), **options: str) -> dict[Outcome, int]:
    """Write a table in one task, and commit it."""
    names = list(rows[0])
    writer = Writer(schema(names), options, directories)
    told = writer.write(iter([pa.RecordBatch.from_pylist(list(rows))]))
    writer.commit([told, Told()])
    return told.counts


def beside_nodes(root: Path, work: Callable[[str], None]) -> None:
    """Do something while three nodes run; it is given their addresses."""

    async def run() -> None:
        nodes = Nodes(root, Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES))
        try:
            await nodes.start()
            await asyncio.to_thread(work, ",".join(server.address for server in nodes.servers.values()))
        finally:
            await nodes.close()

    asyncio.run(run())


def test_rows_are_loaded_and_changed_only_where_they_are_as_they_were_seen(tmp_path: Path) -> None:
    def work(at: str) -> None:
        loaded = [{"key": f"k{n}", "value": f"v{n}"} for n in range(600)]
        assert written(loaded, at=at, namespace="acc") == {Outcome.APPLIED: 600}, "a dry run"
        with engine.connect(at) as database:
            acc = database.namespace("acc")
            assert len(acc) == 0
            assert written(loaded, at=at, namespace="acc", mode="apply") == {Outcome.APPLIED: 600}
            assert written(loaded, at=at, namespace="acc", mode="apply") == {Outcome.ALREADY: 600}
            with database.transaction() as tx:
                entries = [tx.namespace("acc").get_entry(b"k%d" % n) for n in range(4)]
            acc.put(b"k1", b"newer")
            rows = []
            for n, value in enumerate((b"changed", b"changed", None, None)):
                entry = entries[n]
                assert entry is not None
                rows.append(dict(zip(ROWS, ("acc", b"k%d" % n, value, *entry.version), strict=True)))
            rows.append(dict(zip(ROWS, ("acc", b"new", b"here", None, None), strict=True)))
            rows.append(dict(zip(ROWS, ("acc", b"k5", b"there", None, None), strict=True)))
            audit = tmp_path / "audit"
            with pytest.raises(NotAllWritten, match=r"changed=2: .*audit says which; all else was done"):
                written(rows, at=at, mode="apply", audit=str(audit))
            assert acc.get_many([b"k0", b"k1", b"k2", b"k3", b"k5", b"new"]) == {
                b"k0": b"changed", b"k1": b"newer", b"k5": b"v5", b"new": b"here"
            }  # fmt: skip
            *lines, last = map(msgspec.json.decode, audit.read_bytes().splitlines())
            assert [(line["key"], line["outcome"]) for line in lines] == [("k1", "changed"), ("k5", "changed")]
            assert "expected what was seen, epoch=" in lines[0]["why"]
            assert last == {"mode": "apply", "counts": {"applied": 4, "changed": 2}}
            with pytest.raises(NotAllWritten, match="skipped=1"):
                written([{"key": b"k9", "value": None}], at=at, namespace="acc", mode="apply", no_deletes="true")
            assert acc.get(b"k9") == b"v9"

    beside_nodes(tmp_path / "nodes", work)


def test_a_plan_is_applied_as_the_command_does(stopped: list[Path], tmp_path: Path) -> None:
    """Puts and deletes, of rows that the primary has as it was seen; what nodes have to do by themselves is told."""
    (source,) = copies(stopped[:1], tmp_path / "copies")
    copies(stopped, tmp_path / "live")
    rows = {key: dict(rows_of(source)[fragment_of(key)])[key] for key in (b"k302", b"k303")}
    right = msgspec.structs.replace(rows[b"k302"], value=b"right")
    replace(source, fragment_of(b"k302"), {b"k302": right})

    def action(act: Act, key: bytes, seen: Entry, shall: Facts) -> Action:
        made = Action(n=1, action=act, kind=Kind.VALUE_MISMATCH, partition=fragment_of(key)[1], namespace="acc")
        has = {"n2": entry_facts(seen, Values.HASH)}
        return msgspec.structs.replace(made, key=key.decode(), right=shall, source="n1", primary="n2", seen=has)

    older = Entry(1, 1, b"older")
    actions = [
        action(Act.PUT, b"k302", rows[b"k302"], entry_facts(right, Values.HASH)),
        action(Act.DELETE, b"k303", older, {"absent": True}),
        action(Act.PUT, b"k303", rows[b"k303"], entry_facts(older, Values.HASH)),
        action(Act.REFETCH, b"k304", older, {}),
        action(Act.NONE, b"k305", older, {}),
    ]
    with read_directory(source, partitions=()) as state:
        assert state.topology is not None
        ours = Header(
            cluster=state.identity.cluster, cluster_id=state.topology.cluster, topology="", findings=5, actions={}
        )

    def work(at: str) -> None:
        lines = [{"value": msgspec.json.encode(line).decode()} for line in (ours, *actions)]
        with pytest.raises(NotAllWritten, match="changed=1 failed=1 skipped=1"):
            written(lines, [str(source)], at=at, mode="apply")
        with engine.connect(at) as database:
            assert database.namespace("acc").get_many([b"k302", b"k303"]) == {
                b"k302": b"right",
                b"k303": rows[b"k303"].value,
            }
        lines[0] = {"value": msgspec.json.encode(msgspec.structs.replace(ours, cluster_id="another")).decode()}
        with pytest.raises(UsageError, match="the plan is of another one"):
            written(lines, [str(source)], at=at, mode="apply")
        with pytest.raises(UsageError, match="expected a line of `foreshore reconcile plan`"):
            written([{"value": "{}"}], [str(source)], at=at, mode="apply")

    beside_nodes(tmp_path / "live", work)


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        (["key"], {"namespace": "acc"}, "no column 'value'"),
        (["key", "value"], {}, "no column 'namespace'"),
        (["namespace", "key", "value", "colour"], {}, "column 'colour' says nothing of a row"),
        (["namespace", "key", "value", "epoch"], {}, "expected both columns, or neither"),
        (["namespace", "key", "value"], {"at": ""}, "option at is missing"),
        (["namespace", "key", "value"], {"mode": "really"}, "expected one of dry-run, apply"),
    ],
)
def test_a_table_that_says_nothing_is_refused(names: list[str], options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Writer(schema(names), {"at": "127.0.0.1:1"} | options, [])


def test_a_table_that_was_read_without_values_removes_nothing() -> None:
    rows = [{"namespace": "acc", "key": b"k", "value": None, "size": 7}]
    writer = Writer(schema(list(rows[0])), {"at": "127.0.0.1:1"}, [])
    with pytest.raises(UsageError, match="read it with values=full"):
        list(writer._changes(iter([pa.RecordBatch.from_pylist(rows)]), Told()))


def test_no_key_is_twice_in_a_transaction() -> None:
    changes = [Change("acc", key, b"v") for key in (b"b", b"a", b"a", b"c", b"d", b"e")]
    assert [[c.key for c in run] for run in in_runs(changes, 3)] == [[b"a", b"b"], [b"a", b"c", b"d"], [b"e"]]
