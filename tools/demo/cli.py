"""`foreshore demo`: the whole path with real data; a node dies, history brings it back, Spark agrees.

A year of flights is loaded into three real server processes, in transactions over several primaries. A third of the way
in, one of them is killed; two thirds in, it comes back and catches up with what it missed, while the load goes on. Then a
node with an empty directory replaces another. In the end everything is compared: with the file the data came from, copy
with copy, and once more by Spark from the files alone.

Exit codes: 0 every check held; 1 one did not, or the story could not go on; 2 usage; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from rich.console import Console

from engine.errors import Error, UsageError
from engine.turn.settings import Settings, check_settings
from tools.demo.flights import data_file
from tools.demo.screen import Screen, summary_rows, summary_table
from tools.demo.story import Options, Story, check_hours
from tools.demo.summary import Summary
from tools.parser import program
from tools.reconcile.session import find_java
from tools.terminal import emit, emit_bytes

BYTES_PER_MONTH = 250 << 20
BYTES_MIN = 1 << 30

app = program("demo")


class Victim(StrEnum):
    """Whom `kill -9` hits."""

    PRIMARY = "primary"
    COORDINATOR = "coordinator"


class Engine(StrEnum):
    """What reconciles in the end."""

    SPARK = "spark"
    LOCAL = "local"


@app.command()
def demo(
    months: Annotated[int, typer.Option(min=1, max=12, help="Load so many months of the year.")] = 12,
    hours: Annotated[int, typer.Option(min=0, help="Load so many hours only; 0: all.")] = 0,
    partitions: Annotated[int, typer.Option(help="A power of two up to 16384.")] = 1024,
    kill: Annotated[
        Victim, typer.Option(help="A primary that is not the coordinator, or the coordinator.")
    ] = Victim.PRIMARY,
    engine: Annotated[Engine, typer.Option(help="Reconcile with Spark, or in one process.")] = Engine.SPARK,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the data goes; it must be empty. Default: a temporary directory.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data directories and the nodes' logs there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout, instead of a table.")] = False,
) -> None:
    """Load a year of flights into three nodes, kill one, bring it back, replace another, and compare everything."""
    screen, summary = Screen(), Summary()
    try:
        check_settings(Settings(partitions=partitions))
        if hours:
            check_hours(hours)
        data_file("flights.csv.zip")
        if engine is Engine.SPARK:
            find_java(os.environ)
        with _workplace(directory, months, keep=keep) as place, screen:
            options = Options(
                directory=place, months=months, hours=hours, partitions=partitions, kill=kill.value, engine=engine.value
            )
            code = _tell(options, screen, summary)
            if keep:
                for line in look_around(place):
                    screen.say(line)
            elif code:
                screen.say("use --keep to look at the logs")
    except UsageError as error:
        screen.console.print(f"foreshore: {error}", soft_wrap=True, markup=False)
        raise typer.Exit(2) from None
    summary.seconds_total = round(screen.seconds, 1)
    if as_json:
        emit_bytes([msgspec.json.format(msgspec.json.encode(summary), indent=2), b"\n"])
    else:
        _print(summary)
    raise typer.Exit(code)


def look_around(place: Path) -> list[str]:
    """Where everything is, and the commands with which to look at it."""
    found = [quote(str(identity.parent)) for identity in sorted(place.glob("*/identity.json"))]
    directories = " ".join(found)
    if not found:
        return [f"the nodes' logs are in {place}"]
    return [
        f"the data directories and the nodes' logs are in {place}; look around with",
        f"  foreshore wal counters {directories}",
        f"  foreshore wal dump {found[0]} --namespace carriers --limit 20",
        f"  foreshore reconcile check --engine local {directories}",
    ]


def _tell(options: Options, screen: Screen, summary: Summary) -> int:
    """Tell the story; the exit code. Raises UsageError."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_told_to_stop(Story(options, screen, summary).tell()))
    except KeyboardInterrupt:
        screen.say("interrupted: every node is gone")
        return 130
    except BaseExceptionGroup as group:
        errors = _leaves(group)
        if not all(isinstance(error, Error) for error in errors):
            raise
        summary.verdict = "failed"
        screen.say(f"the story ends here: {errors[0]}")
        return 1
    except UsageError:
        raise
    except Error as error:
        summary.verdict = "failed"
        screen.say(f"the story ends here: {error}")
        return 1
    summary.verdict = "failed" if summary.failed else "ok"
    return 1 if summary.failed else 0


async def _told_to_stop(story: Coroutine[Any, Any, None]) -> None:
    """The story; SIGTERM ends it as Ctrl-C does, so that no process and no directory is left."""
    telling = asyncio.ensure_future(story)
    told: list[bool] = []

    def stop() -> None:
        told.append(True)
        telling.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        await telling
    except asyncio.CancelledError:
        if not told:
            raise
        raise KeyboardInterrupt from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _print(summary: Summary) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(summary_table(summary))
        return
    rows = [f"{what}: {found}" + (f" (goal: {goal})" if goal else "") for what, found, goal in summary_rows(summary)]
    emit([*rows, f"verdict: {summary.verdict} in {summary.seconds_total:.0f} s"])


@contextmanager
def _workplace(directory: Path | None, months: int, *, keep: bool) -> Iterator[Path]:
    """An empty directory with enough room, removed afterwards unless it is to be kept."""
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {directory}: {error.strerror}; name another --dir") from None
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty: name another --dir, or empty it")
        place = directory
    else:
        place = Path(tempfile.mkdtemp(prefix="foreshore-demo-"))
    try:
        needed = max(BYTES_MIN, months * BYTES_PER_MONTH)
        free = shutil.disk_usage(place).free
        if free < needed:
            raise UsageError(
                f"{place} has {free >> 20} MB free and the demo needs {needed >> 20} MB: free some, name another --dir, "
                "or load fewer --months"
            )
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """The command by itself: `python -m tools.demo.cli`."""
    app(prog_name="foreshore demo")


if __name__ == "__main__":
    main()
