"""`foreshore reconcile watch DIR...`: check again and again, digests first, and serve the figures as metrics.

Where all copies are at one counter with equal digests no row is read. What is served is the text format of Prometheus, by
a child that knows nothing but a file: whoever asks for metrics keeps no check waiting, and no check forks a process that
has threads.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tools.metrics import Figures, MetricsServer, metrics_server
from tools.outputs import folder_of_its_own
from tools.reconcile.children import InChildren, uninterrupted
from tools.reconcile.copies import Level
from tools.reconcile.findings import KINDS
from tools.reconcile.report import ExitCode, Report, Summary
from tools.reconcile.run import check
from tools.terminal import emit, finite

ORPHAN_SECONDS = 1.0


def watch_command(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", help="Data directories, one per node.")],
    every: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds from the end of a check to the next.")
    ] = 30.0,
    rounds: Annotated[int, typer.Option(min=0, help="Stop after so many checks; 0: go on.")] = 0,
    recheck: Annotated[int, typer.Option(min=0, help="Look again, so often, at keys that nobody could compare.")] = 3,
    delay: Annotated[float, typer.Option(min=0, callback=finite, help="Seconds before each look.")] = 1.0,
    level: Annotated[Level, typer.Option(help="Read all rows, or those of fragments whose digests differ.")] = Level.DIGEST,
    listen: Annotated[str, typer.Option(help="HOST:PORT for metrics, at /metrics; port 0: any.")] = "",
) -> None:
    """Check these directories again and again: a line for each check, and metrics for whoever collects them.

    Exit codes, after --rounds: those of the last check; 130 interrupted.
    """
    checked = 0
    with _served(listen) as publish:
        while True:
            began = time.monotonic()
            report = check(directories, engine=InChildren(), level=level, recheck=recheck, delay_seconds=delay)
            checked += 1
            took = time.monotonic() - began
            publish(metrics(report.summary, checked, took))
            emit([_line(report, took)])
            if checked == rounds:
                raise typer.Exit(report.exit_code)
            time.sleep(every)


def _line(report: Report, took: float) -> str:
    s = report.summary
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = "".join(f" {kind}={count}" for kind, count in s.findings.items())
    return (
        f"{when} {s.verdict} findings={sum(s.findings.values())}{kinds} keys={s.keys} unsettled={s.unsettled.keys} "
        f"fragments={s.fragments} by_digest={s.by_digest} seconds={took:.2f}"
    )


def metrics(summary: Summary, checked: int, took: float) -> str:
    """The figures of the last check, in the text format of Prometheus."""
    s, told = summary, Figures("foreshore_reconcile")
    for kind in KINDS:
        told.gauge("findings", "inconsistencies, by kind", s.findings.get(kind, 0), kind=kind)
    told.gauge("unsettled_keys", "keys that could not be compared", s.unsettled.keys)
    told.gauge("keys", "keys that were compared", s.keys)
    told.gauge("fragments", "fragments that were compared", s.fragments)
    told.gauge("fragments_by_digest", "of these, by digests alone", s.by_digest)
    for code in _VERDICTS:
        told.gauge("verdict", "1: this one", code == s.exit_code, verdict=code.name.lower())
    told.gauge("seconds", "how long the last check took", round(took, 3))
    told.counter("checks", "checks since the beginning", checked)
    return told.text()


_VERDICTS = (ExitCode.CONSISTENT, ExitCode.DIFFERENCES, ExitCode.INCOMPLETE)


# What is served.


@contextmanager
def _served(listen: str) -> Iterator[Callable[[str], None]]:
    """What publishes metrics; without an address it does nothing."""
    if not listen:
        yield lambda _: None
        return
    with folder_of_its_own("foreshore-metrics-") as folder:
        file = folder / "metrics"
        server = metrics_server(listen, partial(_text_of, file))
        server.timeout = ORPHAN_SECONDS

        def publish(text: str) -> None:
            new = file.with_suffix(".new")
            new.write_text(text, encoding="utf-8")
            new.replace(file)

        child = 0
        try:
            with uninterrupted():
                child = os.fork()
                if not child:
                    _serve(server, os.getppid())
            server.server_close()
            emit([f"metrics on {server.url}"])
            yield publish
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _text_of(file: Path) -> str | None:
    """What was published last, if the first check is done."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _serve(server: MetricsServer, parent: int) -> None:
    """Serve for as long as the parent lives; never returns."""
    try:
        while os.getppid() == parent:
            server.handle_request()
    finally:
        os._exit(0)
