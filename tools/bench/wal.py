"""What it costs to read a log, in processor time, and beside it pg_waldump on a log of as many inserts, if it is here.

Each command is a process of its own, its start included, with its output thrown away. All of them run in turn, three
times, and the median counts. PostgreSQL's log is made by a server of its own in a new directory: as many rows, inserted
one by one.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from engine.errors import UsageError
from tools.bench.figures import Measured, Setting
from tools.bench.log import NAMESPACE, PARTITIONS, blocks_of, open_log
from wal import verify
from wal.ids import partition_of

RUNS = 3
ROOT_RUNS_AS = "postgres"
_BIN = Path("/usr/lib/postgresql")


class Reading(msgspec.Struct, frozen=True):
    """One thing to do with a log: our words for it, pg_waldump's if it can do it, and how many times as long we may take.

    `per_record`: in microseconds for each record; else in milliseconds for each MB.
    """

    what: str
    ours: list[str]
    theirs: list[str] | None = None
    reach: float | None = None
    per_record: bool = False


async def readings(setting: Setting, figure: str) -> list[Measured]:
    """Verify, count, print, and look for one thing."""
    path = setting.directory / figure / "wal"
    setting.say(f"{figure}: writing a log of {setting.updates:,} updates")
    with closing(open_log(path)) as log:
        for block in blocks_of(setting.updates):
            if log.wants_next:
                log.prepare_next()
            log.append(block, now_ms=1, durable=False)
    report = verify(path)
    middle = setting.updates // 2
    tx, key = middle.to_bytes(16, "big").hex(), f"key-{middle:08d}"
    at = str(partition_of(key.encode(), PARTITIONS))
    wanted = [
        Reading("verify all of it", ["verify"], ["-q"], 4),
        Reading("statistics", ["stat"], ["-z"], 6),
        Reading("dump as text", ["dump"], [], 6, per_record=True),
        Reading("dump as JSON", ["dump", "--json"], per_record=True),
        Reading("the records of one transaction", ["dump", "--tx", tx], ["-x", "{xid}"], 1),
        Reading("the story of one key", ["key", NAMESPACE, key, "--partition", at]),
        Reading("nothing: the start of the command", ["--help"]),
    ]
    peer = _peer(setting, figure)
    ours: dict[str, list[float]] = {reading.what: [] for reading in wanted}
    theirs: dict[str, list[float]] = {reading.what: [] for reading in wanted}
    for at_run in range(RUNS):
        setting.say(f"{figure}: run {at_run + 1} of {RUNS}")
        for reading in wanted:
            place = [] if reading.ours == ["--help"] else [str(path)]
            ours[reading.what].append(_cpu([sys.executable, "-m", "tools.cli", "wal", *reading.ours, *place]))
            if peer is not None and reading.theirs is not None:
                theirs[reading.what].append(_cpu([*peer.command, *(word.format(xid=peer.xid) for word in reading.theirs)]))
    found = []
    for reading in wanted:
        mine = statistics.median(ours[reading.what])
        other = statistics.median(theirs[reading.what]) if peer is not None and reading.theirs is not None else None
        found.append(_measured(figure, reading, (mine, report.bytes, report.records), other, peer))
    return found


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
    parts: dict[str, float] = {"seconds of the processor": round(seconds, 3)}
    goal = None
    if other is not None and peer is not None:
        theirs = _rate(reading, other, peer.bytes, peer.records)
        parts |= {"pg_waldump": round(theirs, 3), "times as much": round(value / theirs, 1) if theirs else 0.0}
        goal = round(theirs * reading.reach, 3) if reading.reach is not None else None
    return Measured(
        figure=figure,
        what=reading.what,
        value=round(value, 3),
        unit="us/record" if reading.per_record else "ms/MB",
        goal=goal,
        at_most=True,
        counted=records,
        seconds=round(seconds, 3),
        parts=parts,
    )


def _rate(reading: Reading, seconds: float, size: int, records: int) -> float:
    return 1e6 * seconds / max(1, records) if reading.per_record else 1e3 * seconds / max(1e-9, size / 1e6)


def _cpu(command: Sequence[str]) -> float:
    """The processor time of a command. Raises UsageError if it fails."""
    process = subprocess.Popen(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: S603  # our own
    assert process.stderr is not None
    with process.stderr as errors:
        said = errors.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UsageError(f"{' '.join(command)} ended with {process.returncode}: {said.decode(errors='replace')[-500:]}")
    return usage.ru_utime + usage.ru_stime


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
