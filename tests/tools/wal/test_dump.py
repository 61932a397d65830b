"""`foreshore wal dump`: what programs are told, and that they are told no less than people; and what can be asked for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.commands import HOSTILE, objects, wal
from tests.support.json_schema import problems
from tests.support.reconciled import fragment_of
from tests.support.told_in_text import line_of
from tests.wal.golden import DIRECTORY, FIRST_DIRECTORY
from tools.terminal import bytes_of, word
from tools.wal.objects import Keys, Told
from tools.wal.schema import schema
from wal import Block
from wal import records as r
from wal.records import KINDS

SCHEMA = Path(__file__).parents[3] / "docs" / "wal-dump.schema.json"
GOLDEN = (DIRECTORY, FIRST_DIRECTORY)


def told(*arguments: object) -> list[dict[str, Any]]:
    """What a dump says of a log that may have no beginning: only the objects count."""
    lines = wal("dump", *arguments, "--json").stdout.splitlines()
    return [msgspec.json.decode(line) for line in lines]


# To programs.


def test_the_documented_schema_is_that_of_the_types() -> None:
    assert SCHEMA.read_bytes() == schema(), "write it anew: python -m tools.wal.schema > docs/wal-dump.schema.json"


@pytest.mark.parametrize("values", ["none", "hash", "full"])
@pytest.mark.parametrize("keys", ["text", "utf8", "hex", "base64"])
def test_every_golden_dump_is_what_the_schema_says(values: str, keys: str, left: list[Path]) -> None:
    documented = msgspec.json.decode(SCHEMA.read_bytes())
    kinds: set[str] = set()
    for log in (*GOLDEN, left[0]):
        for item in told(log, "--values", values, "--keys", keys):
            assert list(problems(item, documented)) == []
            kinds.add(item["type"])
    assert kinds == {kind.__struct_config__.tag for kind in KINDS}


def test_the_schema_would_tell_of_a_field_that_it_does_not_have() -> None:
    documented = msgspec.json.decode(SCHEMA.read_bytes())
    (item, *_) = told(DIRECTORY)
    assert list(problems({**item, "extra": 1}, documented)) == ["$.extra: not in the schema"]
    assert list(problems({**item, "lsn": "1"}, documented)) == ["$.lsn: expected integer, found '1'"]
    assert list(problems({**item, "type": "other"}, documented))


@pytest.mark.parametrize("values", ["none", "hash", "full"])
def test_json_is_never_poorer_than_text(values: str, left: list[Path]) -> None:
    for log in (*GOLDEN, *left):
        lines = wal("dump", log, "--values", values).stdout.splitlines()
        items = told(log, "--values", values)
        assert len(lines) == len(items) > 0
        for line, item in zip(lines, items, strict=True):
            assert line_of(item) == line


def test_a_put_for_which_no_object_is_made_is_the_same_json() -> None:
    fates = itertools.product(
        ("acc", 'a"b', "~tx"),
        (b"k", b'a"b', b"a\\b", "caf\u00e9".encode(), b"\xff\x00", b""),
        (b"v", b"", None),
        (0, 7),
        (b"", bytes(range(16))),
        ("", 'n"1'),
    )
    as_raw = 0
    for namespace, key, value, stable, tx, node in fates:
        record = r.Update([r.Write(namespace, 7, 2, 40, [key], [value], stable, tx)])
        block = Block(9, 1_700_000_000_123, [record], "00000000000000000001.wal", offset=256, bytes=80)
        for keys in Keys:
            shows = Told(keys=keys)
            (shown,) = shows.lines(block, enumerate(block.records, 9), node)
            as_raw += isinstance(shown, msgspec.Raw)
            assert msgspec.json.encode(shown) == msgspec.json.encode(shows.object(9, block, record, node))
    assert as_raw


def test_an_object_says_where_its_record_stands(left: list[Path]) -> None:
    for item in told(left[0]):
        block = (left[0] / "wal" / item["segment"]).read_bytes()[item["offset"] :]
        assert block[44:48] == b"FSbk", "a block begins there"
        assert int.from_bytes(block[8:16], "big") <= item["lsn"]
        assert int.from_bytes(block[24:32], "big") == item["time_ms"]


def test_a_decision_is_told_in_words(left: list[Path]) -> None:
    entries = [e for item in told(left[0], "--namespace", "~tx") for write in item["writes"] for e in write["entries"]]
    assert {"op": "decide", "decision": "commit"}.items() <= entries[0].items()
    assert len(bytes.fromhex(entries[0]["key"])) == 16


@pytest.mark.parametrize(("values", "said"), [("none", "answer=2B"), ("full", "answer=2B:42")])
def test_what_a_client_was_told_is_in_a_dump_as_values_are(values: str, said: str) -> None:
    shown = {"size": 2, "value": "42"} if values == "full" else {"size": 2}
    (update,) = [item for item in told(DIRECTORY, "--key", "n", "--values", values) if item["type"] == "update"]
    assert update["writes"][0]["answer"] == shown
    *_, last = told(DIRECTORY, "--type", "results", "--values", values)
    assert last["results"][0]["answer"] == shown
    for kind in ("update", "results"):
        assert wal("dump", DIRECTORY, "--type", kind, "--values", values).stdout.splitlines()[-1].endswith(said)


@pytest.mark.parametrize(("keys", "said"), [("hex", HOSTILE.hex()), ("utf8", None), ("text", word(HOSTILE))])
def test_keys_are_written_as_asked(keys: str, said: str | None, left: list[Path]) -> None:
    (item,) = told(left[0], "--key", word(HOSTILE), "--keys", keys, "--values", "full")
    (entry,) = item["writes"][0]["entries"]
    assert entry["key"] == entry["value"]
    assert entry["key"] == said if said is not None else bytes_of(entry["key"]) == HOSTILE


# What can be asked for.


def test_a_time_is_a_date_or_how_long_ago(left: list[Path]) -> None:
    every = objects("dump", left[0])
    middle = every[len(every) // 2]
    assert objects("dump", left[0], "--from-time", middle["time"]) == [
        item for item in every if int(str(item["time_ms"])) >= int(str(middle["time_ms"]))
    ]
    assert objects("dump", left[0], "--to-time", "2001-01-01") == []
    assert objects("dump", left[0], "--from-time", "-1000d", "--to-time", "-0s") == every


def test_a_prefix_a_type_an_epoch_and_counters_narrow_a_dump(left: list[Path]) -> None:
    every = objects("dump", left[0])
    kinds = [item["type"] for item in every]
    assert [i["type"] for i in objects("dump", left[0], "--type", "prepare", "--type", "outcome")] == [
        kind for kind in kinds if kind in {"prepare", "outcome"}
    ]
    assert [i["type"] for i in objects("dump", left[0], "--type", "boot")] == ["boot"], "also what has no fragment"
    begins = told(left[0], "--prefix", "k9")
    named = {entry["key"] for item in begins for write in item["writes"] for entry in write["entries"]}
    assert {f"k9{digit}" for digit in range(10)} <= named
    _, partition = fragment_of(b"k7")
    mine = told(left[0], "--namespace", "acc", "--partition", partition, "--type", "update")
    ends = [(item["writes"][0]["first"], item["writes"][-1]["last"]) for item in mine]
    first, last = ends[-1]
    assert told(left[0], "--namespace", "acc", "--partition", partition, "--type", "update", "--counter", last) == mine[-1:]
    assert (
        told(left[0], "--namespace", "acc", "--partition", partition, "--type", "update", "--counter", f"..{first - 1}")
        == mine[:-1]
    )
    assert told(left[0], "--epoch", "99..") == []
    of_epoch = told(left[0], "--epoch", 1, "--type", "update")
    assert of_epoch
    assert all(write["epoch"] == 1 for item in of_epoch for write in item["writes"])


def test_the_newest_come_first_or_are_all_that_comes(left: list[Path]) -> None:
    every = objects("dump", left[0])
    assert objects("dump", left[0], "--reverse") == every[::-1]
    assert objects("dump", left[0], "--last", 3) == every[-3:]
    assert objects("dump", left[0], "--last", 3, "--reverse") == every[::-1][:3]
    assert objects("dump", left[0], "--reverse", "--from-lsn", 4, "--to-lsn", 8) == every[3:8][::-1]
    assert objects("dump", left[0], "--reverse", "--limit", 2) == every[::-1][:2]
    updates = [item for item in every if item["type"] == "update"]
    assert objects("dump", left[0], "--type", "update", "--last", 2) == updates[-2:]


def test_the_newest_come_first_across_segments() -> None:
    every = told(DIRECTORY)
    assert len({item["segment"] for item in every}) > 2
    assert told(DIRECTORY, "--reverse") == every[::-1]


def test_a_filter_that_skips_blocks_finds_what_one_that_does_not_would(left: list[Path]) -> None:
    for log in (DIRECTORY, left[1]):
        every = told(log, "--keys", "hex")
        for item in every:
            assert item in told(log, "--type", item["type"], "--keys", "hex")
            for write in item.get("writes", []):
                for entry in write["entries"]:
                    if write["namespace"] != "~tx" and len(entry["key"]) > 0:
                        key = word(bytes.fromhex(entry["key"]))
                        assert item["lsn"] in {found["lsn"] for found in told(log, "--key", key)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from-time", "yesterday"], "'yesterday' is no time: expected one like 2023-11-14T22:13:20Z"),
        (["--from-time", "2024-01-01", "--to-time", "2023-01-01"], "expected a span that ends after it begins"),
        (["--type", "updates"], "--type is 'updates': expected one of update, prepare"),
        (["--epoch", "two"], "--epoch is 'two': expected a number, or a range"),
        (["--counter", "9..7"], "--counter is '9..7': expected a range that ends where it begins or later"),
        (["--follow", "--last", 3], "expected neither --reverse nor --last"),
        (["--last", 0], "0 is not in the range x>=1"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_usage(arguments: list[object], says: str, left: list[Path]) -> None:
    result = wal("dump", left[0], *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
