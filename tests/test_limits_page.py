"""`docs/limits.md`: each row of its table is reached here, and says what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import engine
from engine.cluster.namespaces import GROUPS_MAX
from engine.data.sessions import SESSIONS_MAX
from engine.host.sockets import CLIENTS_MAX
from engine.protocol.sizes import KEYS_MAX, PART_BYTES_MAX, TRANSACTION_BYTES_MAX
from engine.turn.core import BACKLOGGED_AT
from engine.turn.desk import PARKED_BYTES_MAX
from engine.turn.settings import Settings
from rebalance.table import BACKUPS_MAX
from wal.ids import KEY_BYTES_MAX, TABLE_MAX, VALUE_BYTES_MAX

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"
ROWS = re.findall(r"^\| (?!what \||---)(.*?) \| (.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
MIB = 1 << 20
Database = engine.Database


def _many(db: Database, count: int, size: int = 0) -> None:
    db.namespace("a").put_many({b"{t}%d" % number: bytes(size) for number in range(count)})


def _transaction(db: Database) -> None:
    with db.transaction() as tx:
        tx.namespace("a").put_many(dict.fromkeys((b"%d" % number for number in range(257)), bytes(MIB)))


def _waits(db: Database) -> None:
    holder = db.transaction()
    holder.namespace("a").put(b"k", b"")
    try:
        with db.transaction(lock_timeout=0.05) as tx:
            tx.namespace("a").get(b"k")
    finally:
        holder.rollback()


def _lasts(db: Database) -> None:
    with db.transaction(timeout=0.001) as tx:
        for number in range(10_000):
            tx.namespace("a").get(b"%d" % number)


def _crowds(db: Database) -> None:
    for number in range(300):
        db.namespace(f"crowd{number}").put(b"k", b"")


REACHED: dict[str, Callable[[Database], object]] = {
    "a key": lambda db: db.namespace("a").put(bytes(KEY_BYTES_MAX + 1), b""),
    "a value": lambda db: db.namespace("a").put(b"k", bytes(VALUE_BYTES_MAX + 1)),
    "a number that is incremented": lambda db: db.namespace("a").increment(b"n", by=1, initial=(1 << 63) - 1),
    "a batch (`put_many`, `delete_many`)": lambda db: _many(db, KEYS_MAX + 1),
    "what one transaction writes, in however few partitions": _transaction,
    "the name of a namespace": lambda db: db.namespace("a/b"),
    "namespaces in a cluster": _crowds,
    "the label of a transaction": lambda db: db.transaction(label="x" * 201),
    "a `timeout`": lambda db: db.namespace("a").get(b"k", timeout=0),
    "a `max_age`": lambda db: db.namespace("a").get(b"k", max_age=3601),
    "a `ttl`": lambda db: db.namespace("a").put(b"k", b"v", ttl=11 * 365 * 86_400.0),
    "waiting for a lock": _waits,
    "a transaction": _lasts,
    "partitions": lambda db: engine.open("never-made", partitions=32_768),
    "backups of a namespace": lambda db: db.create_namespace("b", backups=BACKUPS_MAX, async_backups=1),
}
TOLD_ELSEWHERE = {
    "numbers of backups in one cluster": (TABLE_MAX, GROUPS_MAX),
    "requests that wait for an exchange, in one node": (Settings().parked_max, PARKED_BYTES_MAX // MIB),
    "what clients have said ahead of large transactions, in one node": (Settings().staged_bytes_max // MIB,),
    "what was written where one node's copy is in sync, since its last checkpoint began": (
        BACKLOGGED_AT * Settings().checkpoint_bytes // MIB,
    ),
    "what was overwritten and is kept for snapshots, in one node": (Settings().cut_bytes_max // MIB,),
    "clients of one node": (CLIENTS_MAX,),
    "sessions of clients that one node remembers": (SESSIONS_MAX,),
    "how long an answer is kept for a client that is silent": (Settings().result_retention_ms // 60_000,),
}
"""What takes many clients, or minutes, to reach: tests of the node do; here the page is looked at for the number."""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A node that is as every new one."""
    with engine.open(tmp_path_factory.mktemp("limits") / "node", durability="NONE") as made:
        made.namespace("a").put(b"k", b"")
        yield made


@pytest.mark.parametrize(("what", "limit", "error"), ROWS, ids=[row[0] for row in ROWS])
def test_a_limit_is_what_the_page_says(db: Database, what: str, limit: str, error: str) -> None:
    if what in TOLD_ELSEWHERE:
        assert [f"{number:,}" for number in TOLD_ELSEWHERE[what] if f"{number:,}" not in limit] == []
        return
    with pytest.raises(getattr(engine, error.strip("`"))):
        REACHED[what](db)


def test_the_page_has_them_all() -> None:
    assert [row[0] for row in ROWS] == [*REACHED, *TOLD_ELSEWHERE]
    text = PAGE.read_text(encoding="utf-8")
    assert f"| {TRANSACTION_BYTES_MAX // MIB} MiB; {KEYS_MAX:,} keys |" in text
    assert f" and {PART_BYTES_MAX // MIB} MiB in one partition" in text
    assert VALUE_BYTES_MAX == 16 * MIB
    assert f"`namespaces_max`: {Settings().namespaces_max} " in text
    assert f"1 to {KEY_BYTES_MAX} bytes" in text
