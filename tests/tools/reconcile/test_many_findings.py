"""However many findings there are, a check and a plan hold few of them: they are merged, and read, from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from engine.errors import UsageError
from tests.support.damages import DAMAGES
from tests.support.directories import copies
from tests.support.memory import held_while
from tests.tools.reconcile.test_repair import run
from tools.reconcile import Finding, Kind, check, in_this_process
from tools.reconcile.apply import Limits, apply_plan
from tools.reconcile.aside import HELD_BYTES, Lines
from tools.reconcile.audit import Audit, Became
from tools.reconcile.changes import Outcome
from tools.reconcile.children import InChildren
from tools.reconcile.copies import Rules
from tools.reconcile.page import page_of
from tools.reconcile.plan import Plan, plan
from tools.reconcile.plans import Act, Action, Header
from tools.reconcile.report import make_report, read_report
from tools.reconcile.run import with_evidence
from tools.reconcile.saved_plan import read_plan
from tools.reconcile.share import Found, check_share
from tools.reconcile.survey import Look, surveys_of
from tools.reconcile.task import ShareResult

A = TypeVar("A")
B = TypeVar("B")

NOTHING = Plan(surveys=[], topology=None, shares=[])
SHARES, OF_EACH, LINE_BYTES = 12, 1_000, 2_000
RESULT_BYTES = 1 << 22


def line(partition: int, key: int) -> bytes:
    detail = f"{key:04}" * (LINE_BYTES // 4)
    return msgspec.json.encode(Finding(Kind.MISSING_ON, partition, "acc", key=f"k{key:06}", on=["n2"], detail=detail))


def found_by(share: int) -> ShareResult:
    result = ShareResult()
    result.keep(line(share, key) for key in range(OF_EACH))
    result.counts.kinds[Kind.MISSING_ON] = OF_EACH
    return result


def report_of(shares: int, limit: int, to: Path) -> int:
    """Write a report of so many shares, and say how many findings it keeps."""
    report = make_report(NOTHING, map(found_by, range(shares)), limit=limit)
    report.write(to, page_of(report))
    return read_report(to).summary.kept


def plan_of(report: Path, to: Path) -> tuple[int, str]:
    """Make a plan of a report as who types the command: the exit code, and what is printed."""
    told = run("plan", report, "-o", to, "--strategy", "latest")
    return told.exit_code, told.stdout


@pytest.mark.parametrize("limit", [0, SHARES * OF_EACH - 1])
def test_a_report_is_put_together_without_holding_its_findings(limit: int, tmp_path: Path) -> None:
    kept, held = held_while(report_of, SHARES, limit, tmp_path)
    assert kept == (limit or SHARES * OF_EACH)
    assert (tmp_path / "findings.jsonl").stat().st_size > kept * LINE_BYTES
    assert held < 3 * OF_EACH * LINE_BYTES + 2 * HELD_BYTES + (3 << 20), "one share's, what lines may hold, and the page"


def test_a_plan_is_made_without_holding_the_findings_or_its_lines(tmp_path: Path) -> None:
    """Nor does it hold more for more of them; and it counts all that it says, in the line before them."""
    most: list[int] = []
    for shares in (SHARES, 2 * SHARES):
        report, plan_file = tmp_path / str(shares), tmp_path / f"{shares}.jsonl"
        report_of(shares, 0, report)
        told, held = held_while(plan_of, report, plan_file)
        assert told == (1, f"none={shares * OF_EACH}\n")
        most.append(held)
        saved = read_plan(plan_file)
        assert (saved.header.findings, saved.header.actions) == (shares * OF_EACH, {"none": shares * OF_EACH})
        assert [a.n for a in saved] == [*range(1, shares * OF_EACH + 1)]
    assert (tmp_path / str(SHARES) / "findings.jsonl").stat().st_size > SHARES * OF_EACH * LINE_BYTES
    assert max(most) < 2 * HELD_BYTES + (3 << 20), "what lines may hold of the report and of the plan, and a few"


def plan_with(count: int, to: Path) -> None:
    """A plan of so many deletes, each about as long as a line of a report."""
    header = Header(cluster="c", cluster_id="", topology="", findings=count, actions={"delete": count})
    with to.open("wb") as file:
        file.write(msgspec.json.encode(header) + b"\n")
        for n in range(1, count + 1):
            reason, partition = "because" * (LINE_BYTES // 7), n // OF_EACH
            action = Action(n=n, action=Act.DELETE, kind=Kind.EXTRA_ON, partition=partition, key=f"k{n:06}", reason=reason)
            file.write(msgspec.json.encode(action) + b"\n")


def applied(plan_file: Path, audit_file: Path) -> dict[Outcome, int]:
    """What became of its actions, none of which can be done."""
    saved = read_plan(plan_file)
    apply_plan(saved, {}, Audit(audit_file, saved.digest), Limits())
    return dict(Audit(audit_file, saved.digest).counted())


def stands(plan_file: Path) -> tuple[int, str]:
    """How far a plan was carried out, as who types the command is told."""
    told = run("status", plan_file)
    return told.exit_code, told.stdout


def test_a_plan_is_carried_out_without_holding_its_lines_or_what_became_of_them(tmp_path: Path) -> None:
    """Nor is more held of more of them: where each begins, and what became of it."""
    most: list[int] = []
    for count in (SHARES * OF_EACH, 2 * SHARES * OF_EACH):
        plan_file = tmp_path / f"{count}"
        plan_with(count, plan_file)
        told, held = held_while(applied, plan_file, tmp_path / f"{count}.audit")
        assert told == {Outcome.FAILED: count}
        said, held_then = held_while(stands, plan_file)
        assert said == (1, f"changes={count} failed={count}\n")
        most += [held, held_then]
    assert (tmp_path / str(SHARES * OF_EACH)).stat().st_size > SHARES * OF_EACH * LINE_BYTES
    assert max(most) < HELD_BYTES + (3 << 20), "what lines may hold, and a few"


def test_a_half_line_of_an_audit_log_goes_with_the_first_note_and_not_before(tmp_path: Path) -> None:
    """Whoever asks how far a plan is changes nothing of the log of who carries it out."""
    path, one = tmp_path / "audit", Action(n=1, action=Act.DELETE, kind=Kind.EXTRA_ON, partition=0, key="k")
    Audit(path, "plan").note([Became(one, "", Outcome.FAILED, "no")])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-9])
    audit = Audit(path, "plan")
    assert (audit.counted(), path.read_bytes()) == ({Outcome.FAILED: 1}, whole + whole[:-9])
    audit.note([Became(msgspec.structs.replace(one, n=10**12), "n1", Outcome.APPLIED)])
    assert (path.read_bytes().startswith(whole), path.read_bytes().count(b"\n")) == (True, 2)
    assert [(note.n, note.node, note.key) for note in audit.noted()] == [(10**12, "n1", "k")]
    again = Audit(path, "plan")
    assert (again.counted(), again.is_done(10**12, "n1")) == ({Outcome.FAILED: 1, Outcome.APPLIED: 1}, True)
    assert not list(again.noted())
    with pytest.raises(UsageError, match="of another plan"):
        Audit(path, "another")


def test_a_fault_in_reading_is_not_told_as_a_want_of_room(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot read {tmp_path}: Is a directory; name a plan"):
        read_plan(tmp_path)


def test_what_a_report_has_no_room_for_is_counted_and_not_kept() -> None:
    few = make_report(NOTHING, map(found_by, range(SHARES)), limit=3)
    assert (few.summary.kept, few.summary.findings) == (3, {Kind.MISSING_ON: SHARES * OF_EACH})
    assert list(few.findings) == [line(0, key) for key in range(3)]


def test_findings_of_several_shares_about_one_partition_stand_in_its_order() -> None:
    """As where a fragment is cut by keys, or looked at again."""

    def results() -> Iterator[ShareResult]:
        for part in range(3):
            result = ShareResult()
            result.keep(line(7, key) for key in range(part, 3_000, 3))
            result.keep([line(8, part)])
            yield result

    report = make_report(NOTHING, results(), limit=0)
    assert list(report.findings) == [*(line(7, key) for key in range(3_000)), *(line(8, part) for part in range(3))]
    assert list(make_report(NOTHING, results(), limit=100).findings) == list(report.findings)[:100]


def test_lines_are_read_again_while_they_are_read() -> None:
    lines = Lines()
    written = [b"%d" % at * 50 for at in range(20_000)]
    assert lines.add(written) == written[-1]
    assert [*zip(lines, lines, strict=True)] == [*zip(written, written, strict=True)]
    assert b"".join(lines.chunks()).split(b"\n") == [*written, b""]
    assert len(lines) == len(written)


def large(number: int) -> bytes:
    """A task whose result is large."""
    return bytes([number]) * RESULT_BYTES


def all_from_children() -> list[int]:
    """Which result came at which place."""
    return [result[0] for result in InChildren(4)(large, range(8))]


def test_results_of_children_wait_outside_until_they_are_taken() -> None:
    came, held = held_while(all_from_children)
    assert came == list(range(8))
    assert held < 4 * RESULT_BYTES + 8 * (1 << 20)


def test_logs_say_the_same_of_findings_however_many_they_are_asked_about_at_once(
    stopped: list[Path], tmp_path: Path
) -> None:
    directories = [str(path) for path in copies(stopped, tmp_path)]
    DAMAGES["several rows"].do(tmp_path)
    planned = plan(surveys_of(in_this_process, [Look(path) for path in directories]), shares=3, rules=Rules(), limit=0)
    bare = make_report(planned, in_this_process(check_share, planned.shares), limit=0)
    told = [facts for finding in bare.decoded() for facts in finding.evidence.values()]
    assert not any("lsn" in facts for facts in told), "a share asks no log"
    one_by_one = with_evidence(bare, planned, in_this_process, at_once=1)
    assert sum(bool(finding.evidence) for finding in one_by_one.decoded()) > 1
    assert list(one_by_one.findings) == list(check(directories).findings)


def test_a_log_is_read_once_for_the_findings_of_all_shares(stopped: list[Path], tmp_path: Path) -> None:
    directories = [str(path) for path in copies(stopped, tmp_path)]
    DAMAGES["several rows"].do(tmp_path)
    asked: list[Found] = []

    def engine(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        asked.extend(item for item in items if isinstance(item, Found))
        return in_this_process(function, items)

    report = check(directories, engine=engine, shares=8)
    assert [found.result.kept for found in asked] == [report.summary.kept]
    few = check(directories, engine=engine, shares=8, limit=1)
    assert [found.result.kept for found in asked[1:]] == [few.summary.kept] == [1], "what is not kept is not asked about"
    assert check([str(path) for path in stopped], engine=engine).exit_code == 0
    assert len(asked) == 2, "where nothing was found nothing is asked"
