"""A thousand damages of every kind that there is, at once: each is found, and none beside them.

What stopped directories can be mended of is mended; what is left is for nodes that run (`test_wholes`, `test_torn`), or
nobody can tell what is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.damages import DAMAGES
from tests.support.directories import NODES, append, copies
from tests.support.reconciled import (
    NOW_MS,
    Told,
    beside,
    counter_of,
    fragment_of,
    told,
    told_of_fragment,
    told_of_partition,
    write,
)
from tests.tools.reconcile.test_repair import a_thousand, planned, rows_of, run
from tools.reconcile.findings import KINDS, Finding, Proof
from wal import records as r

NAMED = (
    "a copy one counter behind",
    "committed here and rolled back there, on all copies",
    "a row that one store lost, and does not know",
    "a row in a partition of another",
)
DIGEST, FORK, DOUBT = b"k360", b"k361", b"k320"
UNDECIDED = b"undecided so far"


def _plant(root: Path) -> list[Told]:
    """What is wrong with more than a row: transactions, histories, counters, a store that does not add up."""
    write(root, ("n1", "n3"), DIGEST, b"one")
    write(root, ("n2",), DIGEST, b"another")
    name = fragment_of(FORK)
    lwm, epoch = counter_of(root / "n2", name)
    write(root, ("n1", "n3"), FORK, b"one")
    write(root, ("n1", "n3"), beside(FORK), b"one", stable=lwm + 1)
    writes = [r.Write(*name, epoch + 1, lwm + at, [key], [b"one"]) for at, key in enumerate((FORK, beside(FORK)))]
    append(root / "n2", [r.EpochStart(name[1], epoch + 1, [(name[0], lwm + 1)]), r.Update(writes)], now_ms=NOW_MS)
    name = fragment_of(DOUBT)
    for node in NODES:
        lwm, epoch = counter_of(root / node, name)
        held = r.Write(*name, epoch, lwm, [DOUBT], [b"held"], stable=0, tx=UNDECIDED)
        above = r.Update([r.Write(*name, epoch, lwm + 1, [beside(DOUBT)], [b"above"])])
        append(root / node, [r.Prepare(UNDECIDED, name[1], epoch, [held], [], [name[1], 1], 1), above], now_ms=NOW_MS)
    for damage in NAMED:
        DAMAGES[damage].do(root)
    return [
        told_of_partition("TX_UNRESOLVED", DOUBT, *NODES),
        told_of_fragment("COUNTER_GAP", DOUBT, *NODES),
        told_of_fragment("DIGEST_MISMATCH", DIGEST, "n2"),
        told("VALUE_MISMATCH", DIGEST, "n2"),
        told_of_fragment("EPOCH_FORK", FORK, "n2"),
        told("VERSION_MISMATCH", FORK, "n2"),
        *(one for damage in NAMED for one in DAMAGES[damage].found),
    ]


def _found(directories: Sequence[Path], at: Path) -> list[Finding]:
    run("check", *directories, "--out", at)
    return [msgspec.json.decode(line, type=Finding) for line in (at / "findings.jsonl").read_bytes().splitlines()]


def _as_told(findings: Iterable[Finding]) -> list[Told]:
    return sorted(((str(f.kind), f.where, f.key, f.on) for f in findings), key=str)


@pytest.mark.slow
def test_a_thousand_damages_of_every_kind_at_once(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    planted = _plant(tmp_path)
    touched = {int(where.removeprefix("partition ").rpartition("/")[2]) for _, where, _, _ in planted}
    touched |= {fragment_of(b"k342")[1]}  # where the torn transaction was committed
    before = rows_of(directories[0])
    rows = a_thousand(directories, seed=13, count=1000 - len(planted), without=touched)
    findings = _found(directories, tmp_path / "report")
    mine = [f for f in findings if int(f.partition) in touched]
    others = [f for f in findings if f not in mine]
    assert _as_told(mine) == sorted(planted, key=str)
    assert sorted((node, f.namespace, f.key or "") for f in others for node in f.on) == rows
    assert len(planted) + len(rows) == 1000
    assert {f.kind for f in findings} == set(KINDS)
    assert {f.proof for f in others} == {Proof.LOG, Proof.CHECKSUM}
    assert all(set(f.evidence) == set(NODES) for f in others), "each is attributed by every log"

    planned(directories, tmp_path)
    applied = run("apply", tmp_path / "plan", *directories)
    mended = len(rows) + 1  # the row that one store lost, and what that does to its digest
    assert (applied.exit_code, applied.stdout.splitlines()[0]) == (4, f"changes={mended + 1} applied={mended} failed=1")
    assert "--at" in applied.stderr, "the torn transaction is for nodes that run"
    for directory in directories:
        assert {name: of for name, of in rows_of(directory).items() if name[1] not in touched} == {
            name: of for name, of in before.items() if name[1] not in touched
        }
    gone = {("CONTENTS_MISMATCH", None), ("MISSING_ON", "k313")}
    left = [one for one in planted if (one[0], one[2]) not in gone]
    assert _as_told(_found(directories, tmp_path / "after")) == sorted(left, key=str), "and nothing came to it"
