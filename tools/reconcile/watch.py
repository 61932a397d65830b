"""`foreshore reconcile watch DIR...`: check again and again, digests first, and serve the figures as metrics.

Where all copies are at one counter with equal digests no row is read. What is served is the text format of Prometheus, by
a child that knows nothing but a file: whoever asks for metrics keeps no check waiting, and no check forks a process that
has threads.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from engine.errors import UsageError
from engine.protocol.addresses import given_address
from tools.outputs import folder_of_its_own
from tools.reconcile.children import InChildren, uninterrupted
from tools.reconcile.copies import Level
from tools.reconcile.findings import KINDS
from tools.reconcile.report import ExitCode, Report, Summary
from tools.reconcile.run import check
from tools.terminal import emit, finite

ORPHAN_SECONDS = 1.0
ASKING_SECONDS = 5.0
"""Who has not asked by then is hung up on."""


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
    s = summary
    gauges: list[tuple[str, str, list[tuple[str, float]]]] = [
        ("findings", "inconsistencies, by kind", [(f'{{kind="{k}"}}', s.findings.get(k, 0)) for k in KINDS]),
        ("unsettled_keys", "keys that could not be compared", [("", s.unsettled.keys)]),
        ("keys", "keys that were compared", [("", s.keys)]),
        ("fragments", "fragments that were compared", [("", s.fragments)]),
        ("fragments_by_digest", "of these, by digests alone", [("", s.by_digest)]),
        ("verdict", "1: this one", [(f'{{verdict="{c.name.lower()}"}}', int(c == s.exit_code)) for c in _VERDICTS]),
        ("seconds", "how long the last check took", [("", round(took, 3))]),
    ]
    lines: list[str] = []
    for name, says, samples in gauges:
        lines += [f"# HELP foreshore_reconcile_{name} {says}", f"# TYPE foreshore_reconcile_{name} gauge"]
        lines += [f"foreshore_reconcile_{name}{labels} {value}" for labels, value in samples]
    lines += ["# HELP foreshore_reconcile_checks_total checks since the beginning"]
    lines += ["# TYPE foreshore_reconcile_checks_total counter", f"foreshore_reconcile_checks_total {checked}"]
    return "\n".join(lines) + "\n"


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
        server = _server(listen, file)

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
            host, port = server.server_address[:2]
            server.server_close()
            shown = f"[{host!s}]" if ":" in str(host) else host
            emit([f"metrics on http://{shown!s}:{port}/metrics"])
            yield publish
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


class Server(ThreadingHTTPServer):
    """Each who asks has a thread, so that who is connected and says nothing, or reads slowly, keeps nobody waiting."""

    daemon_threads = True
    request_queue_size = 128
    timeout = ORPHAN_SECONDS

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def handle_error(self, *_: object) -> None:
        """Who asked has hung up."""


def _server(listen: str, file: Path) -> Server:
    class Metrics(BaseHTTPRequestHandler):
        """Gives the file to whoever asks for /metrics."""

        timeout = ASKING_SECONDS

        def do_GET(self) -> None:  # http.server names it so
            """The file, or 503 before the first check is done."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                body = file.read_bytes()
            except FileNotFoundError:
                self.send_error(503, "the first check is not done yet")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    try:
        host, port = given_address(listen)
        server = Server(host, port, Metrics)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    except OSError as error:
        raise UsageError(f"--listen {listen}: {error.strerror}; name another address") from error
    return server


def _serve(server: Server, parent: int) -> None:
    """Serve for as long as the parent lives; never returns."""
    try:
        while os.getppid() == parent:
            server.handle_request()
    finally:
        os._exit(0)
