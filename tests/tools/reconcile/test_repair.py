"""From a report to copies that agree: what is planned, what is carried out, and that nothing else changes."""

from __future__ import annotations

import asyncio
import fcntl
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Container, Sequence
from contextlib import ExitStack
from pathlib import Path

import lmdb
import msgspec
import pytest
from typer.testing import CliRunner, Result

from engine import aio
from engine.offline.directory import read_directory
from engine.state.store import Entry
from engine.state.store_envelope import ROWS, fragment_key
from engine.turn.settings import Settings
from tests.support.commands import FORESHORE, reconcile
from tests.support.damages import DAMAGES
from tests.support.directories import NODES, SEGMENT_BYTES, Nodes, append, copies, replace
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reconciled import NOW_MS, PARTITIONS, fragment_of
from tools.reconcile import apply
from tools.reconcile.apply import Held, Limits, Sources, apply_plan, held_of
from tools.reconcile.aside import Lines
from tools.reconcile.audit import Audit
from tools.reconcile.changes import Outcome
from tools.reconcile.cli import app
from tools.reconcile.findings import Facts, Finding, Kind, Proof, entry_facts
from tools.reconcile.plans import Act, Action, Header, Rules, Strategy, action_for
from tools.reconcile.saved_plan import SavedPlan, read_plan
from tools.shown import Values
from wal import records as r
from wal.ids import Fragment


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def rows_of(directory: Path) -> dict[Fragment, list[tuple[bytes, Entry]]]:
    """All that a copy has, tombstones left out."""
    with read_directory(directory) as state:
        found = {name: list(state.rows(name, lambda _key, _what: None)) for name in sorted(state.fragments)}
    return {name: [(key, entry) for key, entry in rows if entry.value is not None] for name, rows in found.items()}


def planned(directories: Sequence[Path], at: Path, *options: object) -> list[Action]:
    """A report and a plan of these directories."""
    run("check", *directories, "--out", at / "report")
    told = run("plan", at / "report", "-o", at / "plan", *options)
    assert told.exit_code in (0, 1), told.output
    return list(read_plan(at / "plan"))


def plan_of(*actions: Action) -> SavedPlan:
    """A plan of these actions alone."""
    lines = Lines()
    header = Header(cluster="c", cluster_id="", topology="", findings=len(actions), actions={})
    lines.add(map(msgspec.json.encode, (header, *actions)))
    return SavedPlan(lines, "plan", "plan")


# A thousand damages.


def a_thousand(
    directories: Sequence[Path], seed: int, count: int = 1000, without: Container[int] = ()
) -> list[tuple[str, str, str]]:
    """Damage a thousand rows of these copies, or so many, in every way that a row can be damaged; which key, on which node.

    Partitions `without` any stay as they are.
    """
    draw = random.Random(seed)
    rows = rows_of(directories[0])
    live = [(name, key, entry) for name, found in rows.items() if name[0] != "~tx" for key, entry in found]
    extra = [(fragment_of(b"nowhere%d" % at), b"nowhere%d" % at, Entry(1, 1, b"else")) for at in range(40)]
    again = [(fragment_of(b"k%d" % at), b"k%d" % at, Entry(1, 1, b"again")) for at in range(10, 100, 5)]
    rows_here = [row for row in (*live, *extra, *again) if row[0][1] not in without]
    targets = draw.sample([(directory, *row) for directory in directories for row in rows_here], count)
    changes: dict[tuple[Path, Fragment], dict[bytes, Entry | None]] = {}
    flipped: list[tuple[Path, Fragment, bytes]] = []
    old = {key for _, key, _ in live}
    for directory, name, key, entry in targets:
        into = changes.setdefault((directory, name), {})
        if key not in old:
            into[key] = entry
            continue
        forged = msgspec.structs.replace(entry, value=b"forged %d" % draw.randrange(3))
        gone = msgspec.structs.replace(entry, value=None)
        way = draw.choice([None, forged, gone, Entry(1, entry.counter - 1, b"older"), "flip"])
        if isinstance(way, str):
            flipped.append((directory, name, key))
        else:
            into[key] = way
    for (directory, name), into in changes.items():
        replace(directory, name, into)
    for directory, name, key in flipped:
        with lmdb.open(str(directory / "store"), map_size=1 << 30, max_dbs=4) as env:
            db = env.open_db(ROWS)
            with env.begin(write=True) as txn:
                raw = bytearray(txn.get(fragment_key(name) + key, db=db) or b"")
                raw[draw.randrange(2, len(raw))] ^= 1
                txn.put(fragment_key(name) + key, bytes(raw), db=db)
    return sorted((directory.name, name[0], key.decode()) for directory, name, key, _ in targets)


@pytest.mark.slow
def test_a_thousand_damages_are_found_attributed_and_repaired_and_nothing_else(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    damaged = a_thousand(directories, seed=12)
    before = rows_of(stopped[0])
    actions = planned(directories, tmp_path)
    found = [
        msgspec.json.decode(line, type=Finding)
        for line in (tmp_path / "report" / "findings.jsonl").read_bytes().splitlines()
    ]
    rows = [f for f in found if f.key is not None]
    assert [f.detail for f in found if f.key is None] == []
    assert sorted((node, f.namespace, f.key or "") for f in rows for node in f.on) == damaged
    assert {f.proof for f in rows} <= {Proof.LOG, Proof.CHECKSUM}
    assert all(set(f.evidence) == set(NODES) for f in rows), "each is attributed by every log"
    assert {f.kind for f in rows} == {
        *(Kind.UNREADABLE, Kind.MISSING_ON, Kind.EXTRA_ON, Kind.RESURRECTED, Kind.VALUE_MISMATCH),
        *(Kind.VERSION_MISMATCH, Kind.TOMBSTONE_MISMATCH, Kind.STORE_DIFFERS_FROM_LOG),
    }
    assert {a.action for a in actions if a.key is not None} == {Act.REFETCH}
    twin = copies(directories, tmp_path / "twin")

    applied = run("apply", tmp_path / "plan", *directories)
    assert (applied.exit_code, applied.stdout.splitlines()[0]) == (0, "changes=1000 applied=1000"), applied.stderr[:600]
    for directory in directories:
        assert rows_of(directory) == before
    assert run("status", tmp_path / "plan").exit_code == 0
    assert run("apply", tmp_path / "plan", *directories, "--audit", tmp_path / "other").stdout.splitlines()[0] == (
        "changes=1000 already=1000"
    ), "an applied plan finds that nothing is left to do"
    _killed_and_resumed(twin, tmp_path, before)


def _killed_and_resumed(directories: Sequence[Path], at: Path, before: object) -> None:
    """Killed at twenty random moments and begun again, it ends the same."""
    draw = random.Random(20)
    plan = at / "again"
    plan.write_bytes((at / "plan").read_bytes())
    audit = at / "again.audit"
    command = [*FORESHORE, "reconcile", "apply", str(plan), *map(str, directories), "--rate", "400"]
    killed = 0
    for _ in range(20):
        had = audit.stat().st_size if audit.exists() else 0
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if audit.exists() and audit.stat().st_size > had:  # it has begun to write
                time.sleep(draw.random() * 0.1)
                break
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait(PATIENCE_SECONDS)
    assert killed >= 10
    assert run("apply", plan, *directories).exit_code == 0
    for directory in directories:
        assert rows_of(directory) == before


# What may not happen.


def test_nothing_is_changed_that_is_not_as_it_was_seen(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    planned(directories, tmp_path)
    replace(directories[1], fragment_of(b"k311"), {b"k311": Entry(1, 2, b"other")})
    applied = run("apply", tmp_path / "plan", *directories)
    assert (applied.exit_code, applied.stdout.splitlines()[0]) == (4, "changes=4 applied=3 changed=1")
    assert "changed k311 on n2: expected what was seen, found epoch=1 counter=2" in applied.stderr
    assert run("status", tmp_path / "plan").exit_code == 1


def test_limits_are_kept(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    planned(directories, tmp_path)
    refused = run("apply", tmp_path / "plan", *directories, "--max-changes", 3)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "4 changes are left to do: expected 3 at most, by --max-changes" in refused.stderr
    some = run("apply", tmp_path / "plan", *directories, "--no-deletes")
    assert (some.exit_code, some.stdout.splitlines()[0]) == (4, "changes=4 applied=3 skipped=1")
    assert b"nowhere" in dict(rows_of(directories[2])[fragment_of(b"nowhere")])
    assert run("apply", tmp_path / "plan", *directories).exit_code == 0


def test_a_plan_that_does_not_belong_here_is_refused(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    planned(directories, tmp_path)
    plan = tmp_path / "plan"
    lines = plan.read_bytes().splitlines(keepends=True)
    other = msgspec.json.decode(lines[0]) | {"cluster_id": "another"}
    (tmp_path / "foreign").write_bytes(msgspec.json.encode(other) + b"\n")
    (tmp_path / "broken").write_bytes(b"".join(lines[:2]) + b"{}\n")
    run("apply", plan, *directories, "--max-changes", 1)
    run("apply", plan, *directories)
    plan.write_bytes(b"".join(lines[:3]))
    for arguments, says in (
        (("apply", tmp_path / "foreign", *directories), "the plan is of another one"),
        (("apply", tmp_path / "broken", *directories), "broken, line 3: "),
        (("apply", plan, *directories), "is of another plan, or this one was edited since"),
        (("apply", tmp_path / "none", *directories), "cannot read"),
        (("apply", tmp_path / "foreign", tmp_path), "is not a data directory"),
        (("plan", tmp_path, "-o", plan), "is no report"),
        (("plan", tmp_path / "report", "-o", plan, "--rules", tmp_path / "broken"), "expected TOML with [[rule]] tables"),
        (("rerun", tmp_path, *directories), "is no report"),
    ):
        refused = run(*arguments)
        assert (refused.exit_code, refused.stdout) == (2, ""), arguments
        assert says in refused.stderr


def test_a_plan_that_was_edited_stays_as_it_is(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    planned(directories, tmp_path)
    plan, again = tmp_path / "plan", ("plan", tmp_path / "report", "-o", tmp_path / "plan")
    written = plan.read_bytes()
    assert run(*again).stdout == run("plan", tmp_path / "report", "-o", tmp_path / "other").stdout, "it is the same plan"
    edited = written.splitlines(keepends=True)[:-1]
    plan.write_bytes(b"".join(edited))
    refused = run(*again)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"foreshore: {plan} is there already, and has something else in it, which may be somebody's work: "
        "name another --out, or remove it\n"
    )
    assert plan.read_bytes() == b"".join(edited)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_report_without_hashes_is_no_base_for_a_plan(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    run("check", *directories, "--values", "none", "--out", tmp_path / "report")
    refused = run("plan", tmp_path / "report", "-o", tmp_path / "plan")
    assert (refused.exit_code, "check with --values hash" in refused.stderr) == (2, True)


def test_the_rows_side_by_side_and_the_part_that_is_checked_again(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    run("check", *directories, "--out", tmp_path / "report")
    shown = run("diff", tmp_path / "report").stdout.splitlines()
    assert shown[0].startswith("VALUE_MISMATCH acc/")
    assert shown[0].endswith("key=k302 proof=log")
    assert [line[:6] for line in shown[1:4]] == ["  ! n1", "    n2", "    n3"]
    assert all("log(lsn=" in line for line in shown[1:4])
    assert run("diff", tmp_path / "report", "--key", "other").stdout == ""
    again = run("rerun", tmp_path / "report", *directories)
    assert (again.exit_code, f"only partitions=1 of {PARTITIONS}" in again.stdout) == (1, True)
    planned(directories, tmp_path)
    assert run("apply", tmp_path / "plan", *directories).exit_code == 0
    assert run("rerun", tmp_path / "report", *directories).exit_code == 0


def test_a_removed_key_does_not_come_back(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    for directory in directories[:2]:
        replace(directory, fragment_of(b"k15"), {b"k15": Entry(1, 1, b"again")})
    planned(directories, tmp_path)
    assert run("apply", tmp_path / "plan", *directories).exit_code == 0
    for directory in directories:
        assert b"k15" not in dict(rows_of(directory)[fragment_of(b"k15")])


def test_more_damage_than_is_planned_for_is_left_alone(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    planned(directories, tmp_path)
    name = fragment_of(b"k302")
    other = next(key for key, _ in rows_of(directories[0])[name] if key != b"k302")
    with lmdb.open(str(directories[0] / "store"), map_size=1 << 30, max_dbs=4) as env:
        db = env.open_db(ROWS)
        with env.begin(write=True) as txn:
            txn.put(fragment_key(name) + other, b"?" * 30, db=db)
    applied = run("apply", tmp_path / "plan", *directories)
    assert (applied.exit_code, "is damaged than would be repaired" in applied.stderr) == (4, True)


# Through the API.


def test_what_nothing_proves_is_written_through_the_api_if_it_is_as_it_was_seen(tmp_path: Path) -> None:
    gone: Facts = {"absent": True}

    def action(n: int, act: Act, key: str, seen: Facts, right: Facts) -> Action:
        partition = fragment_of(key.encode())[1]
        copies = {"n1": seen}
        made = Action(n=n, action=act, kind=Kind.VALUE_MISMATCH, partition=partition, namespace="acc", key=key, seen=copies)
        return msgspec.structs.replace(made, right=right, source="n1", primary="n1")

    def facts(at: Path, key: bytes) -> Facts:
        with read_directory(at) as state:
            return entry_facts(dict(state.rows(fragment_of(key), lambda _key, _what: None))[key], Values.HASH)

    unfinished = shutil.ignore_patterns("*.tmp")  # which come and go

    async def tell() -> dict[int, Outcome | None]:
        nodes = Nodes(tmp_path / "live", Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES))
        try:
            await nodes.start()
            async with await aio.connect(",".join(s.address for s in nodes.servers.values())) as database:
                acc = database.namespace("acc")
                await acc.put_many({b"k1": b"one", b"k2": b"two", b"k3": b"three"})
                await nodes.settle()
                before = Path(shutil.copytree(tmp_path / "live" / "n1", tmp_path / "before", ignore=unfinished))
                await acc.put(b"k1", b"newer")
                after = Path(shutil.copytree(tmp_path / "live" / "n1", tmp_path / "after", ignore=unfinished))
                one, newer, two = facts(before, b"k1"), facts(after, b"k1"), facts(after, b"k2")
                actions = [
                    action(1, Act.PUT, "k1", one, newer),  # the primary has it already
                    action(2, Act.DELETE, "k2", one, gone),  # it is not what was seen
                    action(3, Act.DELETE, "k2", two, gone),
                    action(4, Act.DELETE, "k4", two, gone),  # it is gone already
                    action(5, Act.PUT, "k1", newer, one),  # no copy has any more what would be written
                ]
                audit = Audit(tmp_path / "audit", "plan")
                at = next(iter(nodes.servers.values())).address
                await asyncio.to_thread(apply_plan, plan_of(*actions), {"n1": after}, audit, Limits(), at=at)
                assert await acc.get_many([b"k1", b"k2", b"k3"]) == {b"k1": b"newer", b"k3": b"three"}
                (failed,) = (note for note in audit.noted() if note.n == 5)
                assert ("does not have the row any more" in failed.why, failed.key) == (True, "k1")
                put = action(6, Act.PUT, "k1", newer, one)
                await asyncio.to_thread(apply_plan, plan_of(put), {"n1": before}, audit, Limits(), at=at)
                assert await acc.get(b"k1") == b"one"
                last = plan_of(action(7, Act.DELETE, "k3", two, gone))
                await asyncio.to_thread(apply_plan, last, {}, audit, Limits())
                return {n: audit.outcome(n, "") for n in range(1, 8)}
        finally:
            await nodes.close()

    outcomes = asyncio.run(tell())
    already, changed, applied, failed = Outcome.ALREADY, Outcome.CHANGED, Outcome.APPLIED, Outcome.FAILED
    assert outcomes == {1: already, 2: changed, 3: applied, 4: already, 5: failed, 6: applied, 7: failed}


def test_a_fragment_is_walked_once_for_many_of_its_rows(stopped: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, rows = max(rows_of(stopped[0]).items(), key=lambda item: len(item[1]))
    facts = {key: entry_facts(entry, Values.HASH) for key, entry in rows}
    puts = [
        Action(
            n=n,
            action=Act.PUT,
            kind=Kind.VALUE_MISMATCH,
            partition=name[1],
            namespace=name[0],
            key=key.decode(),
            right=facts[key],
            source="n1",
        )
        for n, key in enumerate(facts, 1)
    ]
    walks: list[Fragment] = []

    def walked(path: Path, fragment: Fragment, keys: set[bytes]) -> Held:
        walks.append(fragment)
        return held_of(path, fragment, keys)

    monkeypatch.setattr(apply, "held_of", walked)
    sources = Sources({"n1": stopped[0]}, puts)
    assert [sources.right(put) for put in puts] == [entry for _, entry in rows]
    assert (len(puts) > 3, walks) == (True, [name])


def test_no_row_of_a_running_node_is_touched(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    planned(directories, tmp_path)
    with (directories[0] / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        applied = run("apply", tmp_path / "plan", *directories)
    assert (applied.exit_code, "a node runs in" in applied.stderr) == (4, True)
    assert run("apply", tmp_path / "plan", *directories).exit_code == 0


def test_a_node_that_runs_takes_what_is_proven_wrong_from_its_peers(stopped: list[Path], tmp_path: Path) -> None:
    """By order: a forged value on n1, and one on n2 and n3. Nothing is stopped, and no version is new."""
    directories = copies(stopped, tmp_path / "live")
    right = rows_of(directories[0])
    name, (key, entry) = next((name, rows[0]) for name, rows in right.items() if name[0] == "acc")
    other, (lost, _) = next((n, rows[0]) for n, rows in right.items() if n[0] == "acc" and n != name)
    replace(directories[0], name, {key: msgspec.structs.replace(entry, value=b"forged")})
    for directory in directories[1:]:
        replace(directory, other, {lost: None})

    async def tell() -> None:
        settings = Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES, anti_entropy_ms=0)  # it would mend them
        nodes = Nodes(tmp_path / "live", settings)
        try:
            await nodes.start()
            await nodes.settle()
            at = ",".join(server.address for server in nodes.servers.values())
            await reconcile("check", *directories, "--out", tmp_path / "report")
            await reconcile("plan", tmp_path / "report", "-o", tmp_path / "plan")
            actions = list(read_plan(tmp_path / "plan"))
            assert sorted((a.action, *a.on) for a in actions) == [("refetch", "n1"), ("refetch", "n2", "n3")]
            code, told = await reconcile("apply", tmp_path / "plan", *directories, "--at", at)
            assert (code, told.splitlines()[0]) == (0, "changes=3 applied=3"), told
            assert (await reconcile("status", tmp_path / "plan"))[0] == 0
        finally:
            await nodes.close()

    asyncio.run(tell())
    assert all(rows_of(directory) == right for directory in directories)


def test_what_no_peer_has_is_not_taken_from_peers(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["one value changed on all copies"].do(tmp_path)
    (action,) = planned(directories, tmp_path)
    audit = Audit(tmp_path / "audit", "plan")
    apply_plan(plan_of(action), {}, audit, Limits(), at="127.0.0.1:1")
    assert {note.why for note in audit.noted()} == {
        "every copy is wrong, so no peer has the row: stop the nodes, and apply again"
    }


def test_where_each_copy_is_wrong_in_another_row_no_peer_is_asked_for_its_own(stopped: list[Path], tmp_path: Path) -> None:
    """A node that takes a fragment anew gets all rows of its peer. Two may be wrong: the third one stays as it is."""
    directories = copies(stopped, tmp_path)
    name, rows = next((name, rows) for name, rows in rows_of(directories[0]).items() if name[0] == "acc" and len(rows) > 2)
    for directory, (key, entry) in zip(directories, rows, strict=False):
        replace(directory, name, {key: msgspec.structs.replace(entry, value=b"forged")})
    actions = planned(directories, tmp_path)
    assert sorted((a.action, *a.on) for a in actions) == [("refetch", node) for node in NODES]
    whole = (tmp_path / "plan").read_bytes().splitlines(keepends=True)
    (tmp_path / "two").write_bytes(b"".join(line for line in whole if b'"on":["n1"]' not in line))

    def ordered(plan: str, *running: str) -> str:
        """What is said of a plan where these nodes run, and nobody listens."""
        with ExitStack() as locks:
            for node in running:
                fcntl.flock(locks.enter_context((tmp_path / node / "lock").open("w")), fcntl.LOCK_EX)
            audit = tmp_path / f"{plan}.{len(running)}"
            return run("apply", tmp_path / plan, *directories, "--at", "127.0.0.1:1", "--audit", audit).stderr

    each = "each copy is wrong in some row, and a peer would bring its own: stop the nodes, and apply again"
    assert each in ordered("plan", *NODES)
    assert each in ordered("two", "n2", "n3"), "the one that is right does not run"
    other = ordered("two", *NODES)
    assert (each not in other, "127.0.0.1:1" in other) == (True, True), other
    assert run("apply", tmp_path / "plan", *directories).exit_code == 0
    assert all(rows_of(directory) == rows_of(stopped[0]) for directory in directories)


# Strategies.

SEEN: dict[str, Facts] = {
    "n1": {"epoch": 1, "counter": 5, "size": 1, "hash": "a"},
    "n2": {"epoch": 2, "counter": 7, "size": 1, "hash": "b"},
    "n3": {"epoch": 1, "counter": 5, "size": 1, "hash": "a"},
}


def finding(kind: Kind, copies: dict[str, Facts], **more: object) -> Finding:
    return msgspec.structs.replace(
        Finding(kind, 7, "acc", "k", ["n2"], copies=copies, proof=Proof.MAJORITY, primary="n1"), **more
    )


GONE: Facts = {"absent": True}
CASES: dict[str, tuple[dict[str, Facts], dict[Strategy, str]]] = {
    "the primary has an older row": (
        SEEN,
        {Strategy.PRIMARY: "a", Strategy.LATEST: "b", Strategy.MAJORITY: "a", Strategy.REMOVE: "delete"}
        | dict.fromkeys((Strategy.LATEST_TRUST_MISSING_PRIMARY, Strategy.LATEST_SKIP_MISSING_PRIMARY), "b"),
    ),
    "the primary has no row": (
        SEEN | {"n1": GONE},
        {Strategy.PRIMARY: "delete", Strategy.LATEST: "b", Strategy.MAJORITY: "none", Strategy.REMOVE: "delete"}
        | {Strategy.LATEST_TRUST_MISSING_PRIMARY: "delete", Strategy.LATEST_SKIP_MISSING_PRIMARY: "none"},
    ),
    "one version, two values": (
        {"n1": SEEN["n1"], "n2": SEEN["n1"] | {"hash": "c"}},
        {Strategy.PRIMARY: "a", Strategy.LATEST: "none", Strategy.MAJORITY: "none", Strategy.REMOVE: "delete"}
        | dict.fromkeys((Strategy.LATEST_TRUST_MISSING_PRIMARY, Strategy.LATEST_SKIP_MISSING_PRIMARY), "none"),
    ),
    "most have none": (
        {"n1": SEEN["n1"], "n2": GONE, "n3": {"tombstone": True, "epoch": 1, "counter": 4}},
        {Strategy.PRIMARY: "a", Strategy.LATEST: "a", Strategy.MAJORITY: "delete", Strategy.REMOVE: "delete"}
        | dict.fromkeys((Strategy.LATEST_TRUST_MISSING_PRIMARY, Strategy.LATEST_SKIP_MISSING_PRIMARY), "a"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_strategy_says_what_a_row_shall_be_and_a_tie_is_never_decided(case: str) -> None:
    copies, expected = CASES[case]
    for strategy in Strategy:
        action = action_for(1, finding(Kind.VERSION_MISMATCH, copies), strategy)
        outcome = str(action.right["hash"]) if action.action is Act.PUT else str(action.action)
        assert outcome == ({Strategy.PROOF: "none"} | expected)[strategy], strategy
        assert action.reason


def test_the_page_has_every_kind_with_every_strategy() -> None:
    """The table in the documentation is what the code does."""
    page = (Path(__file__).parents[3] / "docs" / "reconcile.md").read_text()
    _, _, table = page.partition("| kind | proven | not proven, by strategy |\n")
    shown = [line.split("|")[1:4] for line in table.partition("\n\n")[0].splitlines()[1:]]
    said = {kind.strip(" `"): (proven.strip(), rest.strip()) for kind, proven, rest in shown}
    assert list(said) == [str(kind) for kind in Kind]
    of_copies = {Kind.EPOCH_FORK, Kind.DIGEST_MISMATCH, Kind.COUNTER_GAP, Kind.BEHIND, Kind.CONTENTS_MISMATCH}
    for kind in Kind:
        right: Facts = {"epoch": 1, "counter": 5}
        more: dict[str, object] = {"key": None if kind in of_copies else "k"}
        told: dict[str, object] = (
            {"evidence": {"n1": {"record": "prepare", "lsn_p7": 57}}} if kind is Kind.TX_PARTIAL else {}
        )
        told |= more | {"right": right, "holders": ["n1"]}
        proven = action_for(1, finding(kind, SEEN, proof=Proof.LOG, **told), Strategy.PROOF)
        unproven = {s: action_for(1, finding(kind, SEEN, **more), s).action for s in Strategy}
        acts = ", ".join(dict.fromkeys(f"`{act}`" for act in unproven.values()))
        assert said[str(kind)] == (f"`{proven.action}`", acts), kind


def test_the_first_rule_that_fits_counts() -> None:
    rules = msgspec.convert(
        {
            "strategy": "primary",
            "rule": [{"strategy": "remove", "kind": "EXTRA_ON"}, {"strategy": "latest", "namespace": "acc"}],
        },
        type=Rules,
    )
    assert rules.of(finding(Kind.EXTRA_ON, SEEN)) is Strategy.REMOVE
    assert rules.of(finding(Kind.MISSING_ON, SEEN)) is Strategy.LATEST
    assert rules.of(finding(Kind.MISSING_ON, SEEN, namespace="bank")) is Strategy.PRIMARY
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"rule": [{"strategy": "guess"}]}, type=Rules)


def test_what_the_log_tells_later_hides_no_damage_below(running: list[Path], tmp_path: Path) -> None:
    """All is in the logs: a row that a checkpoint has wrong is what the log says, and nothing is to be done."""
    directories = copies(running, tmp_path)
    name = fragment_of(b"k346")
    for directory in directories:
        with read_directory(directory) as state:
            lwm, epoch = state.fragments[name].counter.lwm, state.partitions[name[1]].epoch
        append(directory, [r.Update([r.Write(*name, epoch, lwm, [b"k346"], [b"new"])])], now_ms=NOW_MS)
    replace(directories[1], name, {b"k346": Entry(1, 1, b"below")})
    assert run("check", *directories, "--grace", 0).exit_code == 0


def test_the_commands_of_the_page_lead_from_a_damage_to_copies_that_agree(stopped: list[Path], tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reconcile.md").read_text()
    _, _, told = page.partition("## What is done about it\n\n```sh\n")
    copies(stopped, tmp_path / "data")
    DAMAGES["several rows"].do(tmp_path / "data")
    codes: dict[str, int] = {}
    for line in told.partition("```")[0].splitlines():
        program, group, command, *words = shlex.split(line, comments=True)
        assert (program, group) == ("foreshore", "reconcile")
        here = [str(tmp_path / w) if w.startswith(("data/", "report", "plan.jsonl")) else w for w in words]
        codes[command] = run(command, *here).exit_code
    assert codes == {"check": 1, "diff": 0, "plan": 0, "apply": 0, "rerun": 0}
