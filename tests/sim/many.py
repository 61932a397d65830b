"""Many seeds, on every core: with progress while it runs, a budget of time, and a book of what is done, from which the
next part goes on.

Each seed has a process of its own, and its world goes with that: to take one apart, object by object, is a tenth of what
a seed costs.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.sim.faults import RATES
from tests.sim.run import DELIVERIES_MIN, EVENTS_MIN, KINDS_MIN, Result
from tests.support.patience import PATIENCE_SECONDS
from tests.support.probes import declared

TOLD_EVERY_S = 10.0
"""On a pipe there is a line of progress so often; on a terminal the same line is written anew."""


class Book:
    """What was found, seed by seed, in a file of one JSON line each: a run that was interrupted goes on behind it."""

    def __init__(self, path: Path | None, commit: str) -> None:
        self._path = path
        self._commit = commit
        self.found: dict[int, str] = {}  # of earlier parts, at this commit: seed -> what is wrong, or nothing
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                if entry["commit"] == commit:
                    self.found[int(entry["seed"])] = str(entry["found"])

    def note(self, result: Result) -> None:
        """A seed is done."""
        if self._path is None:
            return
        found = str(result.violation).splitlines()[0] if result.violation is not None else ""
        with self._path.open("a", encoding="utf-8") as book:
            book.write(json.dumps({"seed": result.seed, "commit": self._commit, "found": found}) + "\n")


def run_many(
    seeds: Sequence[int],
    one: Callable[[int], Result],
    *,
    jobs: int,
    told: Callable[[Result], None],
    budget_s: float | None = None,
) -> list[Result]:
    """The results, as they come. No seed begins once the budget is spent. `told` hears of each that is done."""
    began = last = time.monotonic()
    results: list[Result] = []
    left = iter(seeds)
    running: dict[Connection, _Running] = {}
    try:
        while True:
            spent = time.monotonic() - began
            while len(running) < max(1, jobs) and (budget_s is None or spent < budget_s):
                seed = next(left, None)
                if seed is None:
                    break
                begun = _Running(one, seed)
                running[begun.hears] = begun
            if not running:
                break
            for ended in wait(list(running), timeout=TOLD_EVERY_S):
                results.append(running.pop(ended).result())  # type: ignore[call-overload]  # it waits for connections
                told(results[-1])
            if sys.stderr.isatty() or time.monotonic() - last >= TOLD_EVERY_S:
                last = time.monotonic()
                _progress(results, len(seeds), [run.seed for run in running.values()], last - began)
    finally:
        for run in running.values():
            run.process.kill()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return sorted(results, key=lambda result: result.seed)


class _Running:
    """A seed in its process."""

    def __init__(self, one: Callable[[int], Result], seed: int) -> None:
        self.seed = seed
        context = multiprocessing.get_context("fork")  # all is loaded once
        self.hears, says = context.Pipe(duplex=False)
        self.process = context.Process(target=_tell, args=(one, seed, says))
        self.process.start()
        says.close()

    def result(self) -> Result:
        """What came of it; raises what it died of."""
        try:
            said: Result | str = self.hears.recv()
        except EOFError:
            said = "it was killed"
        self.hears.close()
        self.process.join(timeout=PATIENCE_SECONDS)  # it has nothing left to say
        if isinstance(said, str):
            raise RuntimeError(f"seed {self.seed} is not done: {said}")
        return said


def _tell(one: Callable[[int], Result], seed: int, says: Connection) -> None:
    gc.disable()  # what is left of a world need not be found
    try:
        says.send(one(seed))
    except Exception:
        says.send(traceback.format_exc())


def _progress(results: Sequence[Result], of: int, running: Sequence[int], seconds: float) -> None:
    failed = sum(result.violation is not None for result in results)
    line = f"{len(results)} of {of} seeds, {failed} failed, {seconds:.0f} s; now {', '.join(map(str, sorted(running)))}"
    if sys.stderr.isatty():
        print(f"\r{line[:100]:100}", end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


def sum_up(found: Sequence[Result]) -> None:
    """What all of them did and missed; the last line says it in short."""
    probes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for result in found:
        probes += result.probes
        faults += Counter(result.faults)
        operations += result.operations
        done += result.done
    deliveries = sorted(result.deliveries for result in found)
    median = deliveries[len(deliveries) // 2] if deliveries else 0
    print(f"\n{len(found)} seeds, {sum(deliveries):,} deliveries (median {median:,} a seed)")
    print("shapes:", _counted(Counter(result.shape.name for result in found).most_common()))
    print("operations:", ", ".join(f"{count:,} {name}" for name, count in operations.items()))
    print("done:", _counted(done.most_common()))
    print("faults:", _counted(faults.most_common()))
    print("faults that never came:", ", ".join(kind for kind in RATES if kind not in faults) or "none")
    small = [r.seed for r in found if r.shape.small and not r.shows_enough]
    little = f"seeds with neither {DELIVERIES_MIN:,} deliveries or answers nor {EVENTS_MIN:,} events"
    little += f", or {KINDS_MIN} kinds of faults"
    print(f"{little}: {', '.join(map(str, small)) or 'none'}")
    spoken = [dict.fromkeys(result.unsaid) for result in found]
    unsaid = [name for name in spoken[0] if all(name in each for each in spoken)] if spoken else []
    print(f"what no client said: {', '.join(unsaid) or 'none'}")
    known = declared()
    print(f"rare paths: {sum(name in probes for name in known)} of {len(known)} reached; never reached:")
    for name in known:
        if name not in probes:
            print(f"  {name}")
    failed = [str(result.seed) for result in found if result.violation is not None]
    print(f"failing seeds: {', '.join(failed) or 'none'}")


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in pairs)
