"""What a person sees of the demo: progress bars at a terminal, plain lines in a pipe, a table at the end.

Results go to stdout, everything else to stderr. A line begins with the seconds since the start.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools.demo.evidence import Check
from tools.demo.load import Load, Watch, spark_line
from tools.demo.summary import Summary

LINE_SECONDS = 5.0
SPARKS_LIVE = 20
GOAL_KEYS = 30_000
GOAL_BLOCKED = 2.0
GOAL_RSS = 300 << 20


class Screen:
    """Where the story is told."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._watching: TaskID | None = None

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def act(self, title: str) -> None:
        """A new act begins."""
        self._line(f"[bold]{escape(title)}[/bold]" if self.console.is_terminal else title)

    def say(self, text: str) -> None:
        """Something happened."""
        self._line("  " + escape(text))

    def watch(self, watch: Watch) -> None:
        """A load goes on: at a terminal its last seconds are seen as they pass."""
        if not self.console.is_terminal:
            return
        if self._watching is None:
            self._watching = self._progress.add_task("", total=None, rate="")
        rates, lags = watch.rates[-SPARKS_LIVE:], watch.lags[-SPARKS_LIVE:]
        live = f"writes {spark_line(rates)}  copies missing {spark_line(lags, worst=max)} {lags[-1]:,}"
        self._progress.update(self._watching, description=live)

    def watched(self, watch: Watch) -> None:
        """The whole of it: the rate of the load above what lagged, on one scale of time."""
        if self._watching is not None:
            self._progress.remove_task(self._watching)
            self._watching = None
        for what, counts, worst, unit in (
            ("writes", watch.rates, min, "writes/s at most"),
            ("lag", watch.lags, max, "partitions lacked a copy at most"),
        ):
            self.say(f"{what:<7}{spark_line(counts, worst=worst)} {max(counts, default=0):,} {unit}")

    def check(self, check: Check) -> None:
        """Something was checked."""
        text = escape(str(check))
        if self.console.is_terminal:
            text = f"[green]{text}[/green]" if check.held else f"[red]{text}[/red]"
        self._line("  " + text)

    async def follow(self, load: Load, loading: asyncio.Task[None]) -> None:
        """Show how far the load is, until it is over."""
        self._bar = self._progress.add_task("hours loaded", total=load.total, rate="")
        said = time.monotonic()
        while not loading.done():
            await asyncio.sleep(0.1)
            rate = f"{load.keys_per_second(load.seconds - 1.0, load.seconds):>7,.0f} keys/s"
            self._progress.update(self._bar, completed=load.done, rate=rate)
            if not self.console.is_terminal and time.monotonic() - said >= LINE_SECONDS:
                said = time.monotonic()
                self.say(f"{load.done:,} of {load.total:,} hours, {rate.strip()}")
        self._progress.remove_task(self._bar)

    def _line(self, text: str) -> None:
        self.console.print(f"{self.seconds:6.1f} {text}", soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


def summary_table(summary: Summary) -> Table:
    """The end of the story, for a person."""
    table = Table(title=f"foreshore demo: {summary.verdict} in {summary.seconds_total:.0f} s", title_justify="left")
    table.add_column("what")
    table.add_column("found", overflow="fold")
    table.add_column("goal")
    for what, found, goal in summary_rows(summary):
        table.add_row(escape(what), escape(found), escape(goal))
    return table


def summary_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """The same as text: what, found, goal."""
    load, rows = summary.load, list[tuple[str, str, str]]()
    if load.transactions:
        rows += [
            ("load", f"{load.transactions:,} transactions, {load.keys:,} keys in {load.seconds:.1f} s", ""),
            ("keys/s, before the kill", f"{load.keys_per_second:,}", f">= {GOAL_KEYS:,}"),
            ("tried again; sent again by id", f"{load.tries - load.transactions:,}; {load.sent_again:,}", ""),
            ("memory of a node", f"{max(load.rss_bytes.values(), default=0) >> 20} MB", f"< {GOAL_RSS >> 20} MB"),
        ]
    if (killed := summary.kill) is not None:
        who = f"{killed.node}, primary of {killed.primary_of}" + (", the coordinator" if killed.coordinator else "")
        rows.append((f"kill -9 of {who}", f"writes blocked for {killed.blocked_seconds:.2f} s", f"< {GOAL_BLOCKED:.0f} s"))
    if (back := summary.back) is not None:
        moved = f"{_ways(back.fragments)}; {back.supplied:,} updates supplied, {back.live:,} live, {back.undone:,} undone"
        rows.append((f"{back.node} came back after {back.away_seconds:.1f} s", moved, "no fragment in full"))
    if (replaced := summary.replacement) is not None:
        found = f"{_ways(replaced.fragments)}; {replaced.rows.get('full', 0):,} rows in {replaced.seconds:.1f} s"
        found += f"; writes blocked for {replaced.blocked_seconds:.2f} s at most"
        rows.append((f"{replaced.node} replaced {replaced.gone}", found, "full"))
    if (reconciled := summary.reconciliation) is not None:
        named = "; ".join(f"{key} on {', '.join(on)}" for key, on in reconciled.found)
        rows.append((f"reconciliation ({reconciled.engine})", f"{reconciled.differences} of {reconciled.keys:,} keys", "0"))
        rows.append(("after damage", named, f"{reconciled.damaged_key} alone"))
    rows.append(("checks", f"{len(summary.checks) - len(summary.failed)} of {len(summary.checks)} held", "all"))
    rows += [(f"FAILED: {check.name}", check.found, check.expected) for check in summary.failed]
    return rows


def _ways(fragments: dict[str, int]) -> str:
    return ", ".join(f"{way} {fragments.get(way, 0)}" for way in ("nothing", "historical", "full"))
