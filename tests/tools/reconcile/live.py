"""`python -m tests.tools.reconcile.live`: check after check of three nodes that are written to all the while.

python -m tests.tools.reconcile.live --checks 200 --rate 2000 --record live.jsonl

Exit code 1: a false alarm, or a key left uncompared. `--record` has a line for each check, written as it ends, and goes on
where it ended: who stops after 40 checks and begins again needs 160 more, of a new cluster.

Nothing is wrong with the copies, so each finding is a false alarm. Half of the checks read all rows, half go by digests.
After each the writers have a while without one: so it is told how much the checks slow them, by the clock (`slowed`, which
says little where others want the processors as well) and in the nodes' own processor time for an update (`dearer`).
Hot keys are put, deleted, and written by transactions over two partitions; cold ones lie between them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

import engine
from engine.testing import cluster
from tests.support.commands import foreshore
from tests.support.patience import joined
from tools.reconcile.report import Summary

KEYS, HOT = 2_000, 970
WRITERS = 8
TICK_SECONDS = 0.1
ALONE_SECONDS_MAX = 5.0
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """What the children of this process took, which are the nodes, with the children of theirs that have ended."""
    mine = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [pid for children in mine for pid in children.read_text(encoding="ascii").split()]
    stats = [Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split() for pid in pids]
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) / TICKS


class Writers:
    """Who writes all the while, at most `rate` updates a second (0: as fast as they can); `done` counts them."""

    def __init__(self, database: engine.Database, rate: int) -> None:
        self.done = 0
        self._database = database
        self._pause = TICK_SECONDS if rate else 0.0
        self._batch = max(1, round(rate * TICK_SECONDS / WRITERS) - 4) if rate else 1
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._lock = threading.Lock()

    def _write(self, me: int) -> None:
        acc, turn = self._database.namespace("acc"), 0
        try:
            while not self._over.is_set():
                began, turn = time.monotonic(), turn + 1
                hot = [b"k%04d" % ((turn * 7 + me * 131 + at * 37) % HOT) for at in range(self._batch + 4)]
                try:
                    acc.put_many(dict.fromkeys(hot[4:], b"%d.%d" % (me, turn)))
                    acc.put(hot[0], b"%d.%d" % (me, turn))
                    acc.delete(hot[1])
                    self._database.run(partial(_write_both, sorted(hot[2:4]), b"%d.%d in one" % (me, turn)))
                except (engine.CommitUnknown, engine.LockTimeout, engine.Unavailable):
                    continue  # a node was too slow for the others: whatever of it was done is done on all copies
                with self._lock:
                    self.done += len(hot)
                self._over.wait(self._pause - (time.monotonic() - began))
        except BaseException as error:
            self._failed.append(error)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """They write for as long as this lasts; raises what failed one of them."""
        threads = [threading.Thread(target=self._write, args=(me,), daemon=True) for me in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                joined(thread)
        for error in self._failed:
            raise error


def _write_both(keys: Sequence[bytes], value: bytes, tx: engine.Transaction) -> None:
    """Batches take the same keys in an order of their own: this may have to give way, and is run again then."""
    for key in keys:
        tx.namespace("acc").put(key, value)


class Line(msgspec.Struct, frozen=True):
    """One check, as it is recorded. `findings` are by kind; `seconds` it took, beside writers, who then had a while alone.

    `alone` is their rate then, 0 if that was left out. `processor` and `processor_alone` are microseconds that the nodes
    took for an update.
    """

    level: str
    verdict: str
    keys: int
    uncompared: int
    findings: dict[str, int]
    seconds: float
    writes_per_second: float
    alone: float = 0.0
    processor: float = 0.0
    processor_alone: float = 0.0


class Checked(msgspec.Struct):
    """What came of it. `written` are updates beside the checks, and of these `beside` where `alone` were measured, those
    in as long a time without a check; `processor` is of each check what an update took on the nodes, added up."""

    checks: int = 0
    false_alarms: int = 0
    uncompared: int = 0  # keys, over all checks
    keys_min: int = KEYS
    written: float = 0.0
    beside: float = 0.0
    alone: float = 0.0
    processor: float = 0.0
    processor_alone: float = 0.0

    def take(self, line: Line) -> None:
        """One check more."""
        self.checks += 1
        self.false_alarms += line.verdict != "consistent"
        self.uncompared += line.uncompared
        self.keys_min = min(self.keys_min, line.keys) if line.level == "rows" else self.keys_min
        self.written += line.writes_per_second * line.seconds
        if line.alone:
            self.beside += line.writes_per_second * line.seconds
            self.alone += line.alone * line.seconds
            self.processor += line.processor
            self.processor_alone += line.processor_alone

    def __str__(self) -> str:
        slowed = f" slowed={1 - self.beside / self.alone:.3f}" if self.alone else ""
        if self.processor_alone:
            slowed += f" dearer={self.processor / self.processor_alone - 1:.3f}"
        return (
            f"checks={self.checks} false_alarms={self.false_alarms} uncompared={self.uncompared} "
            f"keys>={self.keys_min} written={self.written:.0f}{slowed}"
        )


def check_beside_writers(directory: Path, checks: int, rate: int, record: Path | None = None) -> Checked:
    """Form a cluster in an empty directory, write to it, and check until there were so many checks, with those recorded."""
    found = Checked()
    if record is not None and record.exists():
        for one in record.read_bytes().splitlines():
            found.take(msgspec.json.decode(one, type=Line))
    with cluster(3, directory=directory, partitions=64) as nodes, nodes.connect() as database:
        database.namespace("acc").put_many({b"k%04d" % n: b"%d" % n for n in range(KEYS)})
        writers = Writers(database, rate)
        with writers.writing():
            began = time.monotonic()
            while found.checks < checks:
                level, start, so_far = ("rows", "digest")[found.checks % 2], time.monotonic(), writers.done
                used = processor_seconds()
                words = ["check", *(directory / name for name in nodes.names), "--json", "--level", level]
                told = foreshore("reconcile", *words, "--recheck", "20", "--delay", "0.1")
                took, written, beside = time.monotonic() - start, writers.done, processor_seconds()
                alone = min(took, ALONE_SECONDS_MAX) if checks > 2 else 0.0  # what a test asks for is no measurement
                time.sleep(alone)
                more, without = writers.done - written, processor_seconds()
                summary = msgspec.json.decode(told.stdout.splitlines()[-1], type=Summary)
                line = Line(
                    level,
                    summary.verdict,
                    summary.keys,
                    summary.unsettled.keys,
                    summary.findings,
                    round(took, 1),
                    round((written - so_far) / took),
                    round(more / alone) if alone else 0.0,
                    round((beside - used) * 1e6 / max(1, written - so_far)),
                    round((without - beside) * 1e6 / max(1, more)) if alone else 0.0,
                )
                found.take(line)
                if record is not None:
                    with record.open("ab") as file:
                        file.write(msgspec.json.encode(line) + b"\n")
                what = told.stdout if summary.verdict != "consistent" else f"{level} keys={summary.keys} {found}"
                print(f"{time.monotonic() - began:7.1f} {what}", file=sys.stderr, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.reconcile.live")
    parser.add_argument("--checks", type=int, default=200)
    parser.add_argument("--rate", type=int, default=2_000, help="updates a second; 0: as many as there can be")
    parser.add_argument("--record", type=Path, help="a file with a line for each check, old ones included")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="foreshore-live-") as place:
        found = check_beside_writers(Path(place) / "nodes", args.checks, args.rate, args.record)
    print(found)
    return int(bool(found.false_alarms or found.uncompared))


if __name__ == "__main__":
    sys.exit(main())
