"""`foreshore bench`: every figure of this project, measured here and now, with real processes, LMDB and fsync.

Each figure names what it measures and, where there is one, the goal; the last row is the machine. A figure counts: what
clients were told is compared with what the nodes count afterwards, and where the two differ there is no figure but an
error. Speed is never an error: a goal that is missed says so in its row.

Exit codes: 0 measured, and all that was counted is there; 1 something that was acknowledged is not; 2 usage; 3 a node
could not be reached; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
import uvloop
from rich.console import Console

from engine.errors import UsageError
from tools.bench.cluster import counter, crossing, puts, queue, reads_of_one, transactions, year
from tools.bench.embedded import embedded_batches, embedded_puts, scans
from tools.bench.exchange import exchanges
from tools.bench.expiring import expiring
from tools.bench.failures import blocked
from tools.bench.figures import Measured, Setting, machine
from tools.bench.labels import labels
from tools.bench.large_transaction import large_transaction
from tools.bench.log import archives, history, log_parts, replay
from tools.bench.memory import at_rest, of_fragments
from tools.bench.reconcile import linear, reconciled, skewed
from tools.bench.reconcile_spark import on_spark
from tools.bench.rolling import rolling_restart
from tools.bench.side_by_side import side_by_side
from tools.bench.snapshots import snapshot_scan
from tools.bench.store import store_parts
from tools.bench.sustained import sustained
from tools.bench.transactions import one_partition, one_shot, read_only
from tools.bench.transfer import full_transfer, replaced, returned, returned_without_history
from tools.bench.transfer_memory import transfer_memory
from tools.bench.transfer_parts import transfer_parts
from tools.bench.turns import node_returns, turns_at_limits
from tools.bench.wal import large_values, readings
from tools.parser import program
from tools.terminal import emit, finite, show, to_json

app = program("bench")

Measure: TypeAlias = Callable[[Setting, str], Awaitable[list[Measured]]]

FIGURES: dict[str, Measure] = {
    "puts-64": partial(puts, clients=64, goal=6_000),
    "puts-1024": partial(puts, clients=1_024, goal=15_000),
    "transactions-64": partial(transactions, clients=64, goal=1_500),
    "one-shot-64": partial(one_shot, clients=64, goal=200),
    "one-partition-64": partial(one_partition, clients=64, goal=120),
    "read-only-64": partial(read_only, clients=64, goal=150),
    "snapshot": partial(snapshot_scan, writers=64, goal=150_000, kept_goal=0.8),
    "expiring": partial(expiring, writers=64, goal=0.8),
    "reads-of-one-64": partial(reads_of_one, clients=64, goal=0.9),
    "counter-64": partial(counter, clients=64, goal=1_000),
    "crossing-64": partial(crossing, clients=64, keys=8, goal=1_000),
    "queue-64": partial(queue, clients=64, goal=2_000),
    "sustained": partial(sustained, goal=2.0),
    "load": partial(year, keys_goal=30_000, memory_goal=300),
    "blocked": partial(blocked, goal=2.0),
    "blocked-two": partial(blocked, goal=2.0, killed=2),
    "blocked-three": partial(blocked, goal=2.0, killed=3),
    "at-rest": partial(at_rest, goal=150),
    "at-rest-fragments": partial(of_fragments, goal=1.0),
    "embedded-puts": partial(embedded_puts, tasks=64, goal=20_000),
    "embedded-batches": partial(embedded_batches, tasks=64, batch=100, goal=100_000),
    "labels": labels,
    "scans": partial(scans, rows=60_000, few=16, many=1_024, goal=50),
    "transfer": partial(full_transfer, size=100, goal=150_000),
    "transfer-large": partial(full_transfer, size=10_000, goal=200),
    "transaction-256-mib": partial(large_transaction, goal=256),
    "transfer-memory": partial(transfer_memory, goal=64),
    "transfer-parts": transfer_parts,
    "replace": partial(replaced, goal=12),
    "rolling-restart": partial(rolling_restart, goal=0, put_goal=200),
    "return": partial(returned, goal=8.0),
    "return-without-history": partial(returned_without_history, goal=1.3, remembered=True),
    "return-without-memory": partial(returned_without_history, goal=1.3, remembered=False),
    "serial-parallel": side_by_side,
    "exchange": exchanges,
    "history": partial(history, goal=150_000),
    "replay": partial(replay, goal=200_000),
    "log": log_parts,
    "archives": archives,
    "wal": readings,
    "wal-values": large_values,
    "store": store_parts,
    "reconcile": reconciled,
    "reconcile-skew": skewed,
    "reconcile-linear": linear,
    "reconcile-spark": on_spark,
    "turns": turns_at_limits,
    "return-partitions": partial(node_returns, partitions=16_384, namespaces=1),
    "return-namespaces": partial(node_returns, partitions=1_024, namespaces=100),
    "return-fragments": partial(node_returns, partitions=16_384, namespaces=16),
}


@app.command(
    epilog="Exit codes: 0 measured; 1 something acknowledged was not counted; 2 usage; 3 a node could not be reached; "
    "130 interrupted. A goal that is missed is no error."
)
def bench(
    figures: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help=f"Which; all by default: {', '.join(FIGURES)}.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, callback=finite, help="How long each rate is measured.")] = 10.0,
    updates: Annotated[int, typer.Option(min=100, help="How many updates a log has, and rows a store.")] = 200_000,
    hours: Annotated[int, typer.Option(min=0, help="Load so many hours of the year of flights; 0: all.")] = 0,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the data goes; a new directory is made in it, and removed.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data and the nodes' logs there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line: figures, then the machine.")] = False,
) -> None:
    """Measure every figure of this project on this machine. `load` measures the memory of a node too."""
    wanted = _wanted(figures or list(FIGURES))
    with _workplace(directory, keep=keep) as place:
        console, began = Console(stderr=True, highlight=False), time.monotonic()

        def say(text: str) -> None:
            console.print(f"{time.monotonic() - began:6.1f} {text}", markup=False, soft_wrap=True)

        setting = Setting(directory=place, seconds=seconds, updates=updates, hours=hours, say=say)
        measured_on = machine(place)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(_measure(setting, wanted))
        if keep:
            say(f"the data directories and the nodes' logs are in {place}")
    if as_json:
        emit(to_json(row) for row in (*(measured.object() for measured in found), {"machine": measured_on}))
    else:
        show((measured.row() for measured in found), as_json=False)
        show([{name: str(value) for name, value in measured_on.items()}], as_json=False)


async def _measure(setting: Setting, wanted: Sequence[str]) -> list[Measured]:
    """Each figure by itself, one after the other."""
    found: list[Measured] = []
    for name in wanted:
        try:
            more = await FIGURES[name](setting, name)
        except BaseExceptionGroup as group:
            raise _first(group) from group
        for measured in more:
            setting.say(f"{measured.figure}: {measured.row()['measured']}, {measured.what}")
        found += more
    return found


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, of tasks that ran together."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _wanted(names: Sequence[str]) -> list[str]:
    """The figures, each once. Raises UsageError."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise UsageError(f"there is no figure {unknown[0]!r}: expected some of {', '.join(FIGURES)}")
    return list(dict.fromkeys(names))


@contextmanager
def _workplace(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """A new directory, removed afterwards unless it is to be kept."""
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix="foreshore-bench-", dir=directory))
    except OSError as error:
        raise UsageError(f"cannot make a directory in {directory}: {error.strerror}; name another --dir") from None
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
