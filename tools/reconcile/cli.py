"""`foreshore reconcile check DIR...`: do the copies in these data directories agree? `watch` and `repair_cli` follow.

Results are on stdout, everything else on stderr. A person at a terminal gets a table, a pipe one line per finding, and
`--json` the findings as JSON Lines with the summary as the last line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from enum import StrEnum
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from engine.errors import CorruptionError, Error, UsageError
from engine.state.identity import no_directory, read_identity
from tools.outputs import check_place
from tools.parser import program
from tools.reconcile.children import InChildren
from tools.reconcile.copies import Level, Rules
from tools.reconcile.exported import check_for_spark, check_tables, check_tables_by_spark, is_table
from tools.reconcile.on_hosts import SCHEME, check_hosts
from tools.reconcile.on_spark import OnSpark
from tools.reconcile.page import page_of
from tools.reconcile.repair_cli import COMMANDS
from tools.reconcile.report import ExitCode, Report, lines_of, show
from tools.reconcile.run import FINDINGS_KEPT, check
from tools.reconcile.session import borrowed, stays_here
from tools.reconcile.sketch_cli import write_asking
from tools.reconcile.sketched import check_sketches
from tools.reconcile.watch import watch_command
from tools.shown import Values
from tools.terminal import complain, emit, emit_bytes, finite
from wal import LogError

app = program("reconcile", "Find out from data directories whether the copies of a cluster agree.")


class EngineName(StrEnum):
    """Where the work is done."""

    LOCAL = "local"
    SPARK = "spark"


@app.callback()
def reconcile() -> None:
    """Find out from data directories whether the copies of a cluster agree, and where they do not."""


def check_command(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", help="Data directories, one per node.")],
    engine: Annotated[EngineName, typer.Option(help="One process, or Spark.")] = EngineName.LOCAL,
    master: Annotated[str | None, typer.Option(help="Spark's master; local[2] unless spark-submit gave one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write findings.jsonl, report.html and summary.json here.")] = None,
    values: Annotated[Values, typer.Option(help="What a report says of values, beside their size.")] = Values.HASH,
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON Lines, and last the summary.")] = False,
    parallelism: Annotated[int, typer.Option(min=0, help="Tasks; 0: one, or as many as Spark has processors.")] = 0,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Seconds: what the end of a log touched is under way; 10 where a node runs, else 0.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Findings to keep in the report; 0: all.")] = FINDINGS_KEPT,
    level: Annotated[Level, typer.Option(help="Read all rows, or those of fragments whose digests differ.")] = Level.ROWS,
    recheck: Annotated[int, typer.Option(min=0, help="Look again, so often, at keys that nobody could compare.")] = 0,
    delay: Annotated[float, typer.Option(min=0, callback=finite, help="Seconds before each look.")] = 1.0,
    sketches: Annotated[
        bool, typer.Option("--sketches", help="Not directories: files of `sketch` and `rows`, or tables of `export`.")
    ] = False,
    ask: Annotated[Path | None, typer.Option(help="With --sketches: write here what has to be seen yet.")] = None,
) -> None:
    """Compare the copies in these directories, of live or stopped nodes or copied from them; nothing is changed.

    With --sketches they are files that the hosts made of their own directories, or tables that they exported.

    Exit codes: 0 every fragment has two copies here or more, and they agree; 1 they differ; 2 usage; 3 nothing differs as
    far as could be compared, and something could not be; 130 interrupted.
    """
    if out is not None:
        check_place(out, directory=True)
    if ask is not None:
        check_place(ask, "--ask")
    terminal = Console(stderr=True, highlight=False, markup=False)
    busy = terminal.status(f"comparing {len(directories)} directories") if terminal.is_terminal else nullcontext()
    with busy:
        if sketches and engine is EngineName.SPARK:
            if stays_here(master):
                for given in directories:
                    check_for_spark(given)
            with borrowed(master) as spark:
                report = check_tables_by_spark(spark, directories, rules=_rules(values, grace), limit=limit)
        elif sketches:
            report = _of_sketches(directories, values, grace, limit, ask)
        else:
            report = _run(
                directories,
                engine,
                master,
                parallelism,
                values=values,
                grace=grace,
                limit=limit,
                level=level,
                recheck=recheck,
                delay=delay,
            )
    try:
        if out is not None:
            report.write(out, page_of(report))
    finally:  # it may have taken hours, and the disk be full
        _print(report, as_json=as_json)
    raise typer.Exit(report.exit_code)


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with what went wrong said and made an exit code."""

    @wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except UsageError as error:
            complain(error)
            raise typer.Exit(ExitCode.USAGE) from None
        except (Error, LogError) as error:
            complain(error)
            raise typer.Exit(ExitCode.INCOMPLETE) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return run


_ALL: dict[str, Callable[..., None]] = {"check": check_command, "watch": watch_command, **COMMANDS}
for _name, _command in _ALL.items():
    app.command(_name)(_told(_command))


def _run(
    directories: Sequence[str],
    engine: EngineName,
    master: str | None,
    parallelism: int,
    values: Values,
    grace: float | None,
    limit: int,
    level: Level,
    recheck: int,
    delay: float,
) -> Report:
    if any(given.startswith(SCHEME) for given in directories):
        if engine is EngineName.LOCAL:
            raise UsageError(f"{SCHEME} names directories of the hosts of Spark's executors: add --engine spark")
        if level is not Level.ROWS or recheck:
            raise UsageError(f"{SCHEME} directories are compared by sketches of all rows: leave out --level and --recheck")
        with borrowed(master) as spark:
            return check_hosts(spark.sparkContext, directories, rules=_rules(values, grace), limit=limit)
    checked = partial(
        check,
        directories,
        values=values,
        grace_seconds=grace,
        limit=limit,
        level=level,
        recheck=recheck,
        delay_seconds=delay,
    )
    if engine is EngineName.LOCAL:
        if master is not None:
            raise UsageError("--master is Spark's: add --engine spark, or leave it out")
        return checked(engine=InChildren(parallelism), shares=parallelism or 1)
    if stays_here(master):  # a name that was mistyped is told before Spark is started
        for given in directories:
            _check_there(given)
    with borrowed(master) as spark:
        on_spark = OnSpark(spark)
        return checked(engine=on_spark, shares=parallelism or on_spark.processors, path_of=on_spark.path_of)


def _check_there(given: str) -> None:
    """Raise UsageError if this is a path, and no data directory; what cannot be read is for the check to say."""
    path = given.removeprefix("file://")
    with suppress(CorruptionError, OSError):
        if "://" not in path and read_identity(Path(path)) is None:
            raise UsageError(no_directory(Path(path)))


def _rules(values: Values, grace: float | None) -> Rules:
    return Rules(grace_ms=-1 if grace is None else round(grace * 1000), values=values)


def _of_sketches(files: Sequence[str], values: Values, grace: float | None, limit: int, ask: Path | None) -> Report:
    if any(is_table(path) for path in files):
        return check_tables(files, rules=_rules(values, grace), limit=limit)
    report, asking = check_sketches(files, rules=_rules(values, grace), limit=limit)
    if asking is not None and ask is not None:
        write_asking(ask, asking)
    return report


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        emit_bytes(chain(report.findings.chunks(), [msgspec.json.encode(report.summary), b"\n"]))
        return
    console = Console(highlight=False)
    if console.is_terminal:
        show(report, console)
        return
    emit(lines_of(report))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, and exit with its code."""
    app(args=list(arguments) if arguments is not None else None, prog_name="foreshore reconcile")
