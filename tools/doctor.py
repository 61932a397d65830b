"""`foreshore doctor`: is this machine fit for a node, and what should be changed?

Each check is a function of what was found (`Finding`), so that it can be tested without a machine that is unfit; what is
found is measured or read by `examine`, and nothing is changed but one file in the data directory, which is removed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from engine.errors import UsageError
from engine.host.sockets import files_obtainable
from engine.protocol.addresses import given_address
from engine.turn.settings import Settings
from tools.parser import program
from tools.reconcile.session import find_java
from tools.terminal import ExitCode, Row, emit, show
from wal import checksum

app = program("doctor", epilog="Exit codes: 0 fit; 1 something is not as a node needs it; 2 usage.")

SYNCS = 60
BLOCK = 4096
NEEDED = ("lmdb", "msgspec", "crcmod", "google-crc32c", "sortedcontainers", "xxhash", "uvloop", "typer", "rich")
IN_MEMORY = ("tmpfs", "ramfs")
ELSEWHERE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")
LYING_MS = 0.02
"""No disk that keeps what it says takes less for a sync; one that turns takes at least `ROTATION_MS`."""
ROTATION_MS = 2.0
SLOW_MS = 20.0
_LYING = (
    "no disk of its kind is so quick: it says that it wrote what it has in a cache, and a power cut may take acknowledged "
    "writes; turn the cache off, or make sure that it has a battery"
)
FILES_MIN = 4096
MEMORY_MIN = 1 << 30
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*(.*)")
_BOUND = re.compile(r"(>=|<=|==|<|>|!=)\s*([0-9][^,]*)")
_HOLDS = {"<": lt, "<=": le, "==": eq, "!=": ne, ">=": ge, ">": gt}
TIME_ERROR = 5
"""What adjtimex says of a clock that nothing disciplines."""

State = Literal["ok", "warn", "bad"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at, what was found, and what to do about it."""

    check: str
    state: State
    found: str
    advice: str = ""

    def row(self) -> Row:
        """As it is printed."""
        return {"check": self.check, "state": self.state, "found": self.found, "advice": self.advice}


def judge_sync(milliseconds: list[float], *, kind: str, rotates: bool) -> Finding:
    """What `milliseconds` of single syncs say of a disk; `kind` is its file system."""
    median, worst = statistics.median(milliseconds), max(milliseconds)
    found = f"fdatasync of {BLOCK} bytes on {kind}: median {median:.3f} ms, longest {worst:.1f} ms"
    if kind in IN_MEMORY:
        return Finding("disk", "bad", found, "this directory is memory: nothing in it survives a power cut; choose a disk")
    if kind in ELSEWHERE:
        return Finding("disk", "bad", found, "a network's file system is not safe for LMDB: choose a local disk")
    if median < (ROTATION_MS if rotates else LYING_MS):
        return Finding("disk", "bad", found, _LYING)
    if median > SLOW_MS:
        return Finding("disk", "warn", found, "each acknowledged write waits for a sync: a quicker disk, or one not shared")
    return Finding("disk", "ok", found)


def judge_space(free: int, log_bytes: int) -> Finding:
    """Room for the log at its full size, and as much again for the store."""
    found = f"{free >> 20:,} MiB free, the log alone may take {log_bytes >> 20:,} MiB"
    if free < log_bytes:
        return Finding("space", "bad", found, "a node stops when its disk is full: make room, or lower wal_total_bytes")
    if free < 2 * log_bytes:
        return Finding("space", "warn", found, "little is left for the store: make room, or lower wal_total_bytes")
    return Finding("space", "ok", found)


def judge_files(limit: int) -> Finding:
    """How many files and sockets a process may have open."""
    found = f"up to {limit} open files and connections"
    if limit < FILES_MIN:
        return Finding("open files", "warn", found, f"raise it (`ulimit -n {FILES_MIN}`, LimitNOFILE= of a unit)")
    return Finding("open files", "ok", found)


def judge_memory(available: int, swap: int) -> list[Finding]:
    """Memory for a node, and whether it may be swapped out: a node that is looks dead to the others."""
    enough = available >= MEMORY_MIN
    return [
        Finding(
            "memory",
            "ok" if enough else "warn",
            f"{available >> 20:,} MiB available",
            "" if enough else f"a node wants {MEMORY_MIN >> 20:,} MiB or more",
        ),
        Finding(
            "swap",
            "warn" if swap else "ok",
            f"{swap >> 20:,} MiB",
            "a node that is swapped out is suspected: `swapoff -a`, or vm.swappiness=1" if swap else "",
        ),
    ]


def judge_clock(state: int) -> Finding:
    """Whether something keeps the wall clock right; nothing that is promised depends on it."""
    if state == TIME_ERROR:
        return Finding(
            "clock", "warn", "not synchronized", "times in logs will mislead you: run chrony or systemd-timesyncd"
        )
    return Finding("clock", "ok", "synchronized" if state >= 0 else "cannot be asked here")


def judge_python(*, optimized: bool, crc: str, missing: list[str], unfit: list[str]) -> list[Finding]:
    """The interpreter and what it imports. `unfit`: packages of versions with which this one was not made to work."""
    found = [Finding("python", "ok", f"{platform.python_implementation()} {platform.python_version()}")]
    if optimized:
        found = [Finding("python", "bad", "python -O", "assertions are part of a node: run it without -O")]
    if missing:
        found.append(Finding("packages", "bad", f"missing: {', '.join(missing)}", "install the project again"))
    if unfit:
        found.append(
            Finding("versions", "bad", "; ".join(unfit), "install the project again, in an environment of its own")
        )
    if crc != "google_crc32c":
        found.append(Finding("checksum", "warn", crc, "20 times slower than in hardware: `pip install google-crc32c`"))
    return found


# What is found.


def examine(data: Path, listen: str) -> Iterator[Finding]:
    """Look at this machine as a node with these settings would find it."""
    kind, rotates = _file_system(data)
    yield judge_sync(_syncs(data), kind=kind, rotates=rotates)
    yield judge_space(shutil.disk_usage(data).free, Settings().wal_total_bytes)
    yield judge_files(files_obtainable())
    memory = _memory()
    yield from judge_memory(memory.get("MemAvailable", 0), memory.get("SwapTotal", 0))
    yield judge_clock(_clock_state())
    yield _port(listen)
    yield from judge_python(
        optimized=not __debug__,
        crc=checksum.IMPLEMENTATION,
        missing=[name for name in NEEDED if not _version(name)],
        unfit=[said for text in _requirements() if (said := unfit_version(text, _version))],
    )
    yield _spark()


def _syncs(data: Path) -> list[float]:
    """How long each of some syncs took, in ms: appended blocks, as a log writes them."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=data, prefix=".foreshore-doctor-") as file:
        for _ in range(SYNCS):
            file.write(os.urandom(BLOCK))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1e3)
    return taken


def _file_system(data: Path) -> tuple[str, bool]:
    """The kind of file system that `data` is on, and whether its disk turns."""
    kind, device, longest = "unknown", "", -1
    place = data.resolve()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, mounted, found, *_ = line.split()
        at = Path(mounted.replace(r"\040", " "))
        if place.is_relative_to(at) and len(at.parts) >= longest:
            kind, device, longest = found, Path(source).name, len(at.parts)
    turns = Path("/sys/class/block", device, "queue", "rotational")
    return kind, bool(device) and turns.exists() and turns.read_text().strip() == "1" and not device.startswith("vd")


def _memory() -> dict[str, int]:
    """/proc/meminfo, in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def _clock_state() -> int:
    """What the kernel says of the clock: 5 is not synchronized, -1 that it may not be asked."""
    buffer = ctypes.create_string_buffer(512)  # a timex of zeros: only look
    try:
        return int(ctypes.CDLL(None).adjtimex(buffer))
    except (OSError, AttributeError):
        return -1


def _port(listen: str) -> Finding:
    try:
        host, port = given_address(listen)
    except ValueError as error:
        raise UsageError(f"listen: {error}") from None
    try:
        with socket.create_server((host, port)):
            return Finding("port", "ok", f"{listen} is free")
    except OSError as error:
        return Finding("port", "bad", f"{listen}: {error.strerror}", "stop who has it, or give --listen another address")


def _version(package: str) -> str:
    """The version of a package that is installed; nothing if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _requirements() -> list[str]:
    """What this package says of the versions of others, in the words of its metadata; nothing in a bare checkout."""
    try:
        return [text for text in requires("foreshore") or [] if not text.endswith('extra == "dev"')]
    except PackageNotFoundError:
        return []


def unfit_version(requirement: str, installed: Callable[[str], str]) -> str:
    """What is wrong with a package that is installed, by a requirement such as `lmdb<4,>=3; extra == "node"`; or nothing.

    >>> unfit_version("lmdb<4,>=3", lambda name: "2.1"), unfit_version("lmdb<4,>=3", lambda name: "3.0.1")
    ('lmdb 2.1 is installed, expected <4,>=3', '')
    """
    said = _REQUIREMENT.fullmatch(requirement.partition(";")[0].strip())
    assert said is not None, "metadata begins with a name"
    found = installed(said[1])
    fits = all(_HOLDS[operator](_numbers(found), _numbers(bound)) for operator, bound in _BOUND.findall(said[2]))
    return f"{said[1]} {found} is installed, expected {said[2]}" if found and not fits else ""


def _numbers(said: str) -> tuple[int, ...]:
    """A version's first numbers: 4.1rc1 is 4.1.0.0 here."""
    return tuple(int(found[0]) for part in f"{said}.0.0.0".split(".")[:4] if (found := re.match(r"[0-9]+", part)))


def _spark() -> Finding:
    if not _version("pyspark"):
        return Finding("spark", "ok", "pyspark is not installed: `reconcile` works with --engine local")
    try:
        return Finding("spark", "ok", f"pyspark {version('pyspark')} on {find_java(os.environ)}")
    except UsageError as error:
        return Finding("spark", "warn", str(error), "only `reconcile --engine spark` and the demo need it")


@app.command()
def doctor(
    data: Annotated[Path, typer.Option(help="The data directory, or where it will be.")] = Path(),
    listen: Annotated[str, typer.Option(help="host:port at which the node will listen.")] = "127.0.0.1:7400",
    as_json: Annotated[bool, typer.Option("--json", help="For a program: one JSON object a line.")] = False,
) -> None:
    """Say whether this machine is fit for a node: disk, space, limits, memory, clock, port, Python, Java."""
    place = data
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK) or not place.is_dir():
        raise UsageError(f"{data}: expected a directory that may be written to, and {place} is none")
    try:
        findings = list(examine(place, listen))
    except OSError as error:
        raise UsageError(
            f"{data}: expected a directory that may be written to, and {place} is none: {error.strerror}"
        ) from error
    show((finding.row() for finding in findings), as_json=as_json)
    wrong = [finding for finding in findings if finding.state == "bad"]
    if not as_json:
        emit([f"{len(wrong)} of {len(findings)} checks failed" if wrong else "fit for a node"])
    if wrong:
        raise typer.Exit(ExitCode.WRONG)
