"""What it costs to read a log, in processor time, and beside it pg_waldump on a log of as many inserts, if it is here.

Each command is a process of its own, its start included, with its output thrown away, and its modules compiled before, as
those of an installation are. All of them run in turn, three times, and the median counts. PostgreSQL's log is made by a
server of its own in a new directory: as many rows, inserted one by one.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from engine.errors import UsageError
from tools.bench.figures import Measured, Setting
from tools.bench.log import NAMESPACE, PARTITIONS, UPDATES_PER_BLOCK, blocks_of, open_log
from wal import verify
from wal.ids import partition_of
from wal.records import Record

RUNS = 3
SHARE_RUNS = 7
LARGE_BYTES = 1 << 10
_COMMAND = [sys.executable, "-m", "foreshore", "wal"]
ROOT_RUNS_AS = "postgres"
_BIN = Path("/usr/lib/postgresql")


class Reading(msgspec.Struct, frozen=True):
    """One thing to do with a log: our words for it, pg_waldump's if it can do it, and how many times as long we may take.

    `per_record`: in microseconds for each record; `elapsed`: in seconds of the clock; else in milliseconds of the processor
    for each MB. `goal` is one that does not depend on what others take.
    """

    what: str
    ours: list[str]
    theirs: list[str] | None = None
    reach: float | None = None
    per_record: bool = False
    elapsed: bool = False
    goal: float | None = None


START = Reading("nothing: the start of the command", ["--help"], goal=0.2)
VERIFY = Reading("verify all of it", ["verify"], ["-q"], 4)


async def readings(setting: Setting, figure: str) -> list[Measured]:
    """Verify, count, print, and look for one thing."""
    path = _written(setting, figure, blocks_of(setting.updates))
    report = verify(path)
    wanted = _wanted(setting.updates)
    peer = _peer(setting, figure)
    ours: dict[str, list[float]] = {reading.what: [] for reading in wanted}
    theirs: dict[str, list[float]] = {reading.what: [] for reading in wanted}
    for at_run in range(RUNS):
        setting.say(f"{figure}: run {at_run + 1} of {RUNS}")
        for reading in wanted:
            ours[reading.what].append(_cost(setting, reading, path))
            if peer is not None and reading.theirs is not None:
                words = [word.format(xid=peer.xid) for word in reading.theirs]
                theirs[reading.what].append(_seconds(setting, [*peer.command, *words])[0])
    took = {reading.what: statistics.median(ours[reading.what]) for reading in wanted}
    found = []
    for reading in wanted:
        other = statistics.median(theirs[reading.what]) if peer is not None and reading.theirs is not None else None
        found.append(_measured(figure, reading, (took[reading.what], report.bytes, report.records), other, peer))
    return [*found, *_shares(setting, figure, report.blocks, path)]


def _shares(setting: Setting, figure: str, counted: int, path: Path) -> list[Measured]:
    """What it takes to look for one thing, of what it takes to verify all: without the start of either, which is what the
    same command takes of a log of one block, and with it. All in turn: they differ by little."""
    small = _written(setting, f"{figure}-small", blocks_of(UPDATES_PER_BLOCK))
    words = {
        at: {VERIFY.what: VERIFY.ours} | _looked(updates // 2)
        for at, updates in ((path, setting.updates), (small, UPDATES_PER_BLOCK))
    }
    runs: dict[Path, dict[str, list[float]]] = {at: {what: [] for what in words[at]} for at in words}
    for _ in range(SHARE_RUNS):
        for what in words[path]:
            for at in words:
                runs[at][what].append(_seconds(setting, [*_COMMAND, *words[at][what], str(at)])[0])
    took, starts = ({what: statistics.median(some) for what, some in runs[at].items()} for at in words)
    scan = max(1e-9, took[VERIFY.what] - starts[VERIFY.what])
    return [
        Measured(
            figure=figure,
            what=f"{what}, of what it takes to verify all, without the start of either",
            value=round(100 * max(0.0, took[what] - starts[what]) / scan, 1),
            unit="%",
            goal=goal,
            at_most=True,
            counted=counted,
            seconds=round(took[what], 3),
            parts={
                "% with it": round(100 * took[what] / took[VERIFY.what], 1),
                "seconds of the processor": round(took[what], 3),
                "of them the start": round(starts[what], 3),
            },
        )
        for what, goal in _LOOKED.items()
    ]


_LOOKED: dict[str, float | None] = {"the story of one key": 3, "the story of one transaction": None}
"""What of a verify each is to take at most, in percent. That of a transaction is held against `pg_waldump -x` instead."""


def _looked(number: int) -> dict[str, list[str]]:
    """How to ask for the update with this number, and for the transaction that made it."""
    key = f"key-{number:08d}"
    at = str(partition_of(key.encode(), PARTITIONS))
    return dict(zip(_LOOKED, (["key", NAMESPACE, key, "--partition", at], ["tx", _tx(number)]), strict=True))


def _tx(number: int) -> str:
    return number.to_bytes(16, "big").hex()


def _wanted(updates: int) -> list[Reading]:
    """What is done."""
    middle = updates // 2
    of_key, of_tx = _looked(middle).items()
    return [
        START,
        VERIFY,
        Reading("statistics", ["stat"], ["-z"], 6),
        Reading("dump as text", ["dump"], [], 6, per_record=True),
        Reading("dump as JSON", ["dump", "--json"], per_record=True),
        Reading("the records of one transaction", ["dump", "--tx", _tx(middle)], ["-x", "{xid}"], 1),
        Reading(*of_tx, ["-x", "{xid}"], 1),
        Reading(*of_key),
        *(
            Reading(f"{' '.join(verb)} by {jobs}", [*verb, "--jobs", str(jobs)], elapsed=True)
            for verb in (["verify"], ["stat"], ["dump", "--json"])
            for jobs in (1, 2)
        ),
    ]


async def large_values(setting: Setting, figure: str) -> list[Measured]:
    """Verify and count a log of values of 1 KiB, by the clock; beside that its processor time, and what it takes by all
    processors: of so large blocks one of them reads as fast as they are brought to it.

    Of so long a log nearly all is sealed: what its footers spare who looks for one thing is told beside a scan.
    """
    path = _written(setting, figure, blocks_of(setting.updates, value_bytes=LARGE_BYTES))
    size, jobs = verify(path).bytes, len(os.sched_getaffinity(0))
    found = []
    for verb, goal in (("verify", 1_000), ("stat", 500)):
        command = [*_COMMAND, verb, str(path)]
        wall, cpu = _by_the_clock(setting, command)
        by_all, _ = _by_the_clock(setting, [*command, "--jobs", str(jobs)])
        found.append(
            Measured(
                figure=figure,
                what=f"{verb} a log of values of {LARGE_BYTES} bytes",
                value=round(size / 1e6 / wall, 1),
                unit="MB/s",
                goal=goal,
                counted=size,
                seconds=round(wall, 3),
                parts={
                    "seconds of the processor": round(cpu, 3),
                    "MB for each": round(size / 1e6 / cpu, 1),
                    f"MB/s with --jobs {jobs}": round(size / 1e6 / by_all, 1),
                },
            )
        )
    return [*found, *_shares(setting, figure, size, path)]


def _by_the_clock(setting: Setting, command: Sequence[str]) -> tuple[float, float]:
    """How long a command takes, and of the processor: the median run of some."""
    runs = sorted((wall, cpu) for cpu, wall in (_seconds(setting, command) for _ in range(RUNS)))
    return runs[RUNS // 2]


def _written(setting: Setting, figure: str, blocks: Iterable[list[Record]]) -> Path:
    path = setting.directory / figure / "wal"
    setting.say(f"{figure}: writing a log of {setting.updates:,} updates")
    with closing(open_log(path)) as log:
        for block in blocks:
            if log.wants_next:
                log.prepare_next()
            if log.wants_index:
                log.write_index()
            log.append(block, now_ms=1, durable=False)
    _seconds(setting, [*_COMMAND, "stat", str(path)])  # and all modules are compiled
    return path


class Peer(msgspec.Struct, frozen=True):
    """PostgreSQL's log: how it is read, how large it is, and a transaction in it."""

    command: list[str]
    bytes: int
    records: int
    xid: str


def _measured(
    figure: str, reading: Reading, mine: tuple[float, int, int], other: float | None, peer: Peer | None
) -> Measured:
    seconds, size, records = mine
    value = _rate(reading, seconds, size, records)
    parts: dict[str, float] = {"seconds" if reading.elapsed else "seconds of the processor": round(seconds, 3)}
    goal = reading.goal
    if other is not None and peer is not None:
        theirs = _rate(reading, other, peer.bytes, peer.records)
        parts |= {"pg_waldump": round(theirs, 3), "times as much": round(value / theirs, 1) if theirs else 0.0}
        goal = round(theirs * reading.reach, 3) if reading.reach is not None else None
    return Measured(
        figure=figure,
        what=reading.what,
        value=round(value, 3),
        unit="us/record" if reading.per_record else "s" if reading.elapsed or reading is START else "ms/MB",
        goal=goal,
        at_most=True,
        counted=records,
        seconds=round(seconds, 3),
        parts=parts,
    )


def _rate(reading: Reading, seconds: float, size: int, records: int) -> float:
    if reading.elapsed or reading is START:
        return seconds
    return 1e6 * seconds / max(1, records) if reading.per_record else 1e3 * seconds / max(1e-9, size / 1e6)


def _cost(setting: Setting, reading: Reading, path: Path) -> float:
    """What one of our commands takes."""
    place = [] if reading is START else [str(path)]
    cpu, wall = _seconds(setting, [*_COMMAND, *reading.ours, *place])
    return wall if reading.elapsed else cpu


def _seconds(setting: Setting, command: Sequence[str]) -> tuple[float, float]:
    """The processor time of a command, and how long it took. Raises UsageError if it fails."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(setting.directory / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: S603  # our own
        list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    assert process.stderr is not None
    with process.stderr as errors:
        said = errors.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UsageError(f"{' '.join(command)} ended with {process.returncode}: {said.decode(errors='replace')[-500:]}")
    return usage.ru_utime + usage.ru_stime, wall


# The other one.


def _peer(setting: Setting, figure: str) -> Peer | None:
    """PostgreSQL's log of as many inserts; None, and a word about it, where it is not installed or cannot be run."""
    places = sorted(_BIN.glob("*/bin"), key=lambda path: path.parent.name)
    found = shutil.which("pg_waldump")
    binaries = places[-1] if places else Path(found).parent if found is not None else None
    if binaries is None or not (binaries / "initdb").exists() or not (binaries / "pg_waldump").exists():
        setting.say(f"{figure}: PostgreSQL is not installed, so nothing stands beside these figures")
        return None
    try:
        return _make(setting, figure, binaries)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        setting.say(f"{figure}: PostgreSQL cannot be run here ({error}), so nothing stands beside these figures")
        return None


def _make(setting: Setting, figure: str, binaries: Path) -> Peer:
    place = setting.directory / figure / "postgres"
    place.mkdir(mode=0o700)
    before: list[str] = []
    if os.geteuid() == 0:  # it refuses to run as root
        for path in (setting.directory, setting.directory / figure):
            path.chmod(0o711)
        shutil.chown(place, ROOT_RUNS_AS, ROOT_RUNS_AS)
        before = ["runuser", "-u", ROOT_RUNS_AS, "--"]
    data = place / "data"

    def run(name: str, *words: object) -> str:
        command = [*before, str(binaries / name), *map(str, words)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd="/", timeout=600)  # noqa: S603
        if done.returncode:
            raise subprocess.SubprocessError(f"{name} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout.strip()

    def ask(words: str) -> str:
        return run("psql", "-h", place, "-U", "postgres", "-qAtc", words)

    setting.say(f"{figure}: PostgreSQL inserts as many rows")
    run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    # It keeps its log when it stops, to be read.
    options = (
        f"-c listen_addresses='' -c unix_socket_directories={place} -c fsync=off -c max_wal_size=8GB -c wal_keep_size=8GB"
    )
    run("pg_ctl", "-D", data, "-w", "-l", place / "log", "-o", options, "start")
    try:
        ask("create table t (k bigint primary key, v text not null)")
        ask("checkpoint")
        begins = ask("select pg_current_wal_lsn()")
        rows = f"for i in 1..{setting.updates} loop insert into t values (i, repeat('v', 80)); end loop;"  # noqa: S608
        ask(f"do $$ begin {rows} end $$")  # a number of our own
        ask("insert into t values (0, 'by itself')")
        xid = ask("select xmin from t where k = 0")
        ends = ask("select pg_current_wal_lsn()")
        size = int(ask(f"select pg_wal_lsn_diff('{ends}', '{begins}')::bigint"))
    finally:
        run("pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "0:0", str(place)], check=True)  # noqa: S603, S607  # it is read as who we are
    command = [str(binaries / "pg_waldump"), "-p", str(data / "pg_wal"), "-s", begins, "-e", ends]
    told = subprocess.run([*command, "-z"], capture_output=True, encoding="utf-8", check=True).stdout  # noqa: S603
    totals = re.search(r"^Total\s+(\d+)", told, re.MULTILINE)
    if totals is None:
        raise LookupError("pg_waldump -z tells no total")
    return Peer(command, size, int(totals[1]), xid)
