"""One crash run: a cluster under load, a number of kills, and after each group of them the judgement.

The seed draws who is killed how and when, and what the clients do. What the processes make of it is the machine's: the
same seed tries the same things again, and is not bound to go the same way.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from engine import aio
from engine.errors import Error
from tests.crash.journal import Journal
from tests.crash.kills import KILLS, Kill, schedule
from tests.crash.load import Load
from tests.crash.nemesis import NEMESIS, ProxiedCluster
from tests.crash.processes import Cluster
from tests.support.commands import foreshore
from tools.reconcile.run import check

ROUND_CYCLES = 5
CALM_SECONDS = 0.3
"""How long the load runs over a healthy cluster before the next kill."""
CLIENT_SECONDS = 2.0
"""Shorter than some failovers, so that clients are told CommitUnknown, and ask what became of it."""


class Broken(Error):
    """A promise was broken, or a cluster did not come back."""


@dataclass
class Report:
    """What a run did."""

    seed: int
    directory: Path
    kills: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """For a person."""
        return [
            f"seed={self.seed} cycles={self.kills.total()} seconds={self.seconds:.0f} directory={self.directory}",
            "kills " + _counts(self.kills),
            "operations " + _counts(self.answers),
            "errors " + _counts(self.errors),
            "copies caught up " + _counts(self.ways),
        ]

    def forget(self) -> None:
        """Remove what the run left: nothing was found, so nobody will look at it."""
        shutil.rmtree(self.directory)


def _counts(counter: Counter[str]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counter.items())) or "none"


def crash_run(
    directory: Path,
    *,
    seed: int,
    cycles: int,
    nodes: int = 3,
    backups: int = 2,
    nemesis: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Report:
    """Do `cycles` kills, or what a `nemesis` does.

    Raises Broken with the seed, how to repeat it, and where everything is kept.
    """
    report = Report(seed, directory)
    began = time.monotonic()
    names = [f"n{at + 1}" for at in range(nodes)]
    try:
        with (
            Journal(directory / "journal.jsonl") as journal,
            _cluster(directory, names, backups, nemesis=nemesis) as cluster,
        ):
            report.answers, report.errors = journal.answers, journal.errors
            try:
                asyncio.run(_story(cluster, journal, report, cycles, NEMESIS if nemesis else KILLS, note))
                asyncio.run(cluster.quiet())
            except Error as error:
                asyncio.run(cluster.keep_evidence())
                raise Broken(str(error)) from error
            for name in names:
                cluster.kill(name)
            check_directories([cluster.node(name).data for name in names])
    except Broken as error:
        again = f"--seed {seed} --cycles {cycles} --nodes {nodes} --backups {backups}{' --nemesis' if nemesis else ''}"
        raise Broken(
            f"{error}\nafter {report.kills.total()} of {cycles} kills; again: python -m tests.crash {again}\n"
            f"the nodes' logs (*.log), their directories and what the clients were told (journal.jsonl): {directory}"
        ) from error
    report.seconds = time.monotonic() - began
    return report


def _cluster(directory: Path, names: list[str], backups: int, *, nemesis: bool) -> Cluster:
    return ProxiedCluster(directory, names, backups=backups) if nemesis else Cluster(directory, names, backups=backups)


async def _story(
    cluster: Cluster,
    journal: Journal,
    report: Report,
    cycles: int,
    deeds: Mapping[str, tuple[Kill, int]],
    note: Callable[[str], None],
) -> None:
    draw = Random(report.seed)
    kinds = schedule(draw, cycles, deeds)
    await cluster.form()
    async with await aio.connect(cluster.addresses, timeout=CLIENT_SECONDS) as database:
        load = Load(database, journal, Random(draw.getrandbits(64)))
        await load.set_up()
        while kinds:
            round_, kinds = kinds[:ROUND_CYCLES], kinds[ROUND_CYCLES:]
            load.begin()
            try:
                for kind in round_:
                    await asyncio.sleep(draw.uniform(0, CALM_SECONDS))
                    said = await deeds[kind][0](cluster, draw)
                    report.kills[kind] += 1
                    note(f"{report.kills.total()}/{cycles} {kind}: {said}")
                    began = time.monotonic()
                    await cluster.healthy()
                    note(f"  healthy after {time.monotonic() - began:.2f} s")
                    load.check_alive()
                    await cluster.count_ways(report.ways)
            finally:
                await load.stop()
            await load.read_everything()
            problems = load.judge()
            if problems:
                raise Broken("\n".join(problems))


def check_directories(directories: list[Path]) -> None:
    """What the dead nodes left: whole logs, and copies that agree to the last byte."""
    verified = foreshore("wal", "verify", *directories)
    if verified.returncode:
        raise Broken(f"`foreshore wal verify` says {verified.returncode}:\n{verified.stdout}{verified.stderr}")
    compared = check([str(path) for path in directories], grace_seconds=0)
    if compared.exit_code or not compared.summary.keys:
        raise Broken(f"the copies differ: {compared.summary}\n{compared.findings_bytes().decode()}")
