"""What the logs tell of a finding: who wrote the key last, which copies are proven wrong, and where histories part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.offline.directory import read_directory
from engine.state.store import CheckpointImage, Entry
from engine.state.store_lmdb import LmdbStore
from tests.support.directories import append, copies, replace
from tests.support.reconciled import IN_DOUBT, NOW_MS, PARTITIONS, fragment_of
from tools.reconcile import Finding, Kind, check
from tools.reconcile.findings import raw_key
from tools.reconcile.sketch import sketch_of
from tools.shown import printable
from wal import Block, inspect, list_segments
from wal import records as r


def found(directories: list[Path]) -> list[Finding]:
    return list(check([str(path) for path in directories]).decoded())


def test_a_majority_that_lost_a_row_is_proven_wrong_and_who_wrote_it_is_named(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    for directory in directories[1:]:
        replace(directory, fragment_of(b"k3"), {b"k3": None})
    (finding,) = found(directories)
    assert (finding.kind, finding.on, finding.proof) == (Kind.MISSING_ON, ["n2", "n3"], "log")
    assert (finding.history, list(finding.evidence)) == ("agreed", ["n1", "n2", "n3"])
    for directory in directories:
        trace = finding.evidence[directory.name]
        lsn = trace["lsn"]
        assert isinstance(lsn, int)
        (record,) = [x for b in inspect(directory / "wal", lsn, lsn) if isinstance(b, Block) for x in b.records]
        assert isinstance(record, r.Prepare | r.Update | r.History)
        write = next(w for w in record.writes if b"k3" in w.keys)
        assert trace["counter"] == write.start + 1 + write.keys.index(b"k3") == finding.copies["n1"]["counter"]
        assert (trace["tx"], trace["client"], trace["op"]) == (write.tx.hex(), write.tx[:10].hex(), "put")


def test_what_a_client_calls_its_transactions_is_told(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    replace(directories[1], fragment_of(b"k3"), {b"k3": None})
    (finding,) = found(directories)
    tx = bytes.fromhex(str(finding.evidence["n1"]["tx"]))
    assert "label" not in finding.evidence["n1"]
    for directory in directories:
        said = r.Origin(finding.partition, 1, tx, "n1", label="nightly", client="loader", address="a:1", labels_all=True)
        append(directory, [said], now_ms=NOW_MS)
    (labelled,) = found(directories)
    assert [facts.pop("label") for facts in labelled.evidence.values()] == ["nightly"] * 3
    assert labelled.evidence == finding.evidence


def test_a_removed_key_that_most_copies_have_again_was_resurrected(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    name = fragment_of(b"k95")
    for directory in directories:
        replace(directory, name, {b"k95": None if directory.name == "n1" else Entry(1, 1, b"again")})
    (finding,) = found(directories)
    assert (finding.kind, finding.on, finding.proof) == (Kind.RESURRECTED, ["n2", "n3"], "log")
    assert finding.right["tombstone"] is True
    assert {facts["op"] for facts in finding.evidence.values()} == {"delete"}


@pytest.mark.parametrize("odd", [0, 3, 6])
def test_histories_part_at_one_record(odd: int, stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    namespace, number = name = fragment_of(b"k350")
    began = 0
    for directory in directories:
        with read_directory(directory) as state:
            began, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
            version = str(state.version)
        values = [b"v%d" % at if directory.name != "n2" or at != odd else b"another" for at in range(7)]
        writes = [r.Write(namespace, number, epoch, began + at, [b"k350"], [v], 0, IN_DOUBT) for at, v in enumerate(values)]
        settled = r.Write(namespace, number, epoch, began + 7, [b"k351"], [b"after"], began + 7, IN_DOUBT)
        append(directory, [r.Update([write]) for write in (*writes, settled)], now_ms=NOW_MS)
    finding = next(f for f in found(directories) if f.kind is Kind.DIGEST_MISMATCH)
    assert (finding.on, finding.counters) == (["n2"], [began + odd + 1, began + 7])
    assert f"the records of counter {began + odd + 1} are the first that differ" in finding.detail
    assert {(t["tx"], t["counter"], t["map"], t["key"]) for t in finding.evidence.values()} == {
        (IN_DOUBT.hex(), began + odd + 1, version, "k350")
    }


def test_a_log_of_which_a_write_cannot_be_opened_is_told_and_proves_nothing(stopped: list[Path], tmp_path: Path) -> None:
    """Its checksum is right, so another version wrote it so; who reads the log for its transactions passes it by."""
    directories = copies(stopped, tmp_path)
    namespace, number = fragment_of(b"k352")
    with read_directory(directories[0]) as state:
        lwm, epoch = state.fragments[namespace, number].counter.lwm, state.partitions[number].epoch
    keys: list[Any] = ["7"]
    append(directories[0], [r.Update([r.Write(namespace, number, epoch, lwm, keys, [b""])])], now_ms=NOW_MS)
    store = LmdbStore(directories[0] / "store")
    store.write(CheckpointImage(list_segments(directories[0] / "wal")[-1].last_lsn, {}, {}, {}, cleared=[], rows={}))
    store.close()
    report = check([str(path) for path in directories])
    assert [(f.kind, f.on) for f in report.decoded()] == [(Kind.UNREADABLE, ["n1"])]
    assert "cannot be decoded" in next(report.decoded()).detail
    assert (report.exit_code, report.summary.verdict) == (3, "incomplete")
    assert all("cannot be decoded" in why for why in sketch_of(str(directories[0])).unread.values()), "and to a sketch"
    assert (len(sketch_of(str(directories[0])).unread), sketch_of(str(directories[1])).unread) == (PARTITIONS, {})


def test_a_key_is_shown_and_read_back() -> None:
    for key in (b"", b"k1", b"a\\x00", bytes(range(256))):
        assert raw_key(printable(key)) == key
    for text in ("\\", "\\x4", "\\x41", "caf\u00e9"):
        with pytest.raises(ValueError, match="is not how a key is shown"):
            raw_key(text)
