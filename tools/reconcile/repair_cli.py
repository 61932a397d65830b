"""`foreshore reconcile diff|plan|apply|rerun|status`: from a saved report to copies that agree."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.errors import UsageError
from tools.outputs import new_file
from tools.reconcile.apply import Limits, apply_plan, paths_of
from tools.reconcile.aside import Lines
from tools.reconcile.audit import DONE, Audit
from tools.reconcile.changes import Outcome
from tools.reconcile.export import export_command
from tools.reconcile.findings import Finding, facts_text
from tools.reconcile.plans import Act, Action, Header, Rules, Strategy, make_plan
from tools.reconcile.report import ExitCode, lines_of, read_report
from tools.reconcile.run import check
from tools.reconcile.saved_plan import SavedPlan, read_plan
from tools.reconcile.sketch_cli import rows_command, sketch_command
from tools.terminal import complain, emit, finite

PART_WAY = 4
"""The exit code of an application that could not do everything."""

ReportDir = Annotated[Path, typer.Argument(metavar="REPORT", help="What `check --out` wrote.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="What `plan` wrote.")]
Directories = Annotated[list[str], typer.Argument(metavar="DIR...", help="Data directories, one per node.")]


def diff_command(
    report: ReportDir,
    key: Annotated[str | None, typer.Option(help="This key only, as the report shows it.")] = None,
) -> None:
    """Show what was found side by side: what every copy has, and the last record of it in every log."""
    found = (f for f in read_report(report).decoded() if key is None or f.key == key)
    emit(line for finding in found for line in _side_by_side(finding))


def _side_by_side(finding: Finding) -> Iterator[str]:
    key = f" key={finding.key}" if finding.key is not None else ""
    proof = f" proof={finding.proof}" if finding.proof is not None else ""
    yield f"{finding.kind} {finding.where}{key}{proof} {finding.detail}".rstrip()
    for node in dict.fromkeys([*finding.copies, *finding.on, *finding.evidence]):
        wrong = "!" if node in finding.on else " "
        has = facts_text(finding.copies.get(node, {}))
        log = f"  log({facts_text(finding.evidence[node])})" if node in finding.evidence else ""
        yield f"  {wrong} {node} {has}{log}".rstrip()
    if finding.right:
        yield f"    right: {facts_text(finding.right)}"


def plan_command(
    report: ReportDir,
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the plan here.")],
    strategy: Annotated[Strategy, typer.Option(help="What to do about rows of which nothing is proven.")] = Strategy.PROOF,
    rules: Annotated[Path | None, typer.Option(help="A TOML file: strategies by kind and namespace.")] = None,
) -> None:
    """Say what to do about each finding, one JSON line each, with the reason. Nothing is changed, nor is a plan that is
    there already, which may have been edited.

    Exit codes: 0 every finding has an action; 1 some have none; 2 usage.
    """
    saved = read_report(report)
    counted = Counter[str]()
    actions = Lines()
    actions.add(_lines(make_plan(saved.decoded, _rules(rules, strategy)), counted))
    summary = saved.summary
    header = Header(
        cluster=summary.cluster,
        cluster_id=summary.cluster_id,
        topology=summary.topology,
        findings=sum(summary.findings.values()),
        actions=dict(sorted(counted.items())),
    )
    new_file(out, chain([msgspec.json.encode(header) + b"\n"], actions.chunks()))
    emit([" ".join(f"{name}={count}" for name, count in header.actions.items()) or "nothing to do"])
    raise typer.Exit(ExitCode.DIFFERENCES if counted[Act.NONE] or header.findings > len(actions) else ExitCode.CONSISTENT)


def _lines(actions: Iterable[Action], counted: Counter[str]) -> Iterator[bytes]:
    """The actions as lines of a plan, counted as they go by: the header, which comes before them, says how many."""
    for action in actions:
        counted[str(action.action)] += 1
        yield msgspec.json.encode(action)


def _rules(path: Path | None, strategy: Strategy) -> Rules:
    if path is None:
        return Rules(strategy=strategy)
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert({"strategy": strategy} | told, type=Rules)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}: expected TOML with [[rule]] tables of strategy, kind, namespace") from None


def apply_command(
    plan: PlanFile,
    directories: Directories,
    at: Annotated[
        str, typer.Option(help="HOST:PORT,... of the cluster, for what goes through the API, and for nodes that run.")
    ] = "",
    max_changes: Annotated[int, typer.Option(min=0, help="Change nothing if there is more to do; 0: no limit.")] = 0,
    no_deletes: Annotated[bool, typer.Option("--no-deletes", help="Leave out what removes a row.")] = False,
    rate: Annotated[float, typer.Option(min=0, callback=finite, help="Changes a second; 0: no limit.")] = 0,
    audit: Annotated[Path | None, typer.Option(help="The audit log; PLAN.audit unless it is named.")] = None,
) -> None:
    """Carry out a plan, and check what it touched. Begin again after an interruption: what was done is passed over.

    Refetches are written into the directories of stopped nodes, and ordered of those that run; puts and deletes go through
    the API. Each happens only if the row still is what was seen. Exit codes: 0 all was done and the copies agree; 1 they
    still differ; 2 usage; 3 the check is incomplete; 4 something could not be done; 130 interrupted.
    """
    told = read_plan(plan)
    paths = paths_of(told.header, directories)
    log = Audit(_audit(plan, audit), told.digest)
    apply_plan(told, paths, log, Limits(max_changes, not no_deletes, rate), at=at)
    for note in log.noted():
        if note.outcome not in DONE:
            complain(f"{note.outcome} {note.key or '-'} on {note.node or 'the cluster'}: {note.why}")
    emit(_stands(told, log))
    left = any(log.counted()[outcome] for outcome in Outcome if outcome not in DONE)
    touched = sorted({a.partition for a in told if a.action is not Act.NONE})
    code = ExitCode.CONSISTENT
    if touched:
        after = check([str(path) for path in paths.values()], only=touched)
        emit(lines_of(after))
        code = after.exit_code
        ended = {a.tx for a in told if a.tx and log.outcome(a.n, "") is not None}
        if code is ExitCode.DIFFERENCES and ended >= {finding.tx for finding in after.decoded()}:
            emit([f"transactions={len(ended)} are whole now: that they ended in two ways stays in the logs until these go"])
            code = ExitCode.CONSISTENT
    raise typer.Exit(PART_WAY if left else code)


def rerun_command(report: ReportDir, directories: Directories) -> None:
    """Check again only the partitions that a saved report has findings in. Exit codes as with `check`."""
    touched = sorted({f.partition for f in read_report(report).decoded() if f.partition >= 0})
    if not touched:
        raise UsageError(f"{report} has no finding in any partition: there is nothing to check again")
    after = check(directories, only=touched)
    emit(lines_of(after))
    raise typer.Exit(after.exit_code)


def status_command(
    plan: PlanFile, audit: Annotated[Path | None, typer.Option(help="The audit log; PLAN.audit unless it is named.")] = None
) -> None:
    """How far a plan was carried out. Exit codes: 0 all of it; 1 not all; 2 usage."""
    told = read_plan(plan)
    log = Audit(_audit(plan, audit), told.digest)
    emit(_stands(told, log))
    counted = log.counted()
    raise typer.Exit(
        ExitCode.CONSISTENT if sum(counted[outcome] for outcome in DONE) == told.changes else ExitCode.DIFFERENCES
    )


def _stands(plan: SavedPlan, log: Audit) -> Iterator[str]:
    counted = log.counted()
    told = " ".join(f"{outcome}={counted[outcome]}" for outcome in Outcome if counted[outcome])
    yield f"changes={plan.changes} {told}".rstrip()


def _audit(plan: Path, named: Path | None) -> Path:
    return named or plan.with_name(plan.name + ".audit")


COMMANDS: dict[str, Callable[..., None]] = {
    "diff": diff_command,
    "plan": plan_command,
    "apply": apply_command,
    "rerun": rerun_command,
    "status": status_command,
    "export": export_command,
    "sketch": sketch_command,
    "rows": rows_command,
}
"""The commands by name."""
