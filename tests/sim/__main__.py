"""`python -m tests.sim run`: seeds of the simulated world, on every core, with a report of what they found and missed.

python -m tests.sim run --seeds 1-300           many seeds; exit code 1 if one of them found something
python -m tests.sim run --seed 7 -v             one seed with its whole trace
python -m tests.sim run --seed 7 --shrink       which of its faults it needs to fail
python -m tests.sim run --seeds 1-50 --rate wipe=5 --rate weather=0
python -m tests.sim long --seeds 1-10000        the same, and a line in docs/track-record.md
python -m tests.sim scenario FILE...            stories in the language of docs/scenarios.md
python -m tests.sim cost                        what turns take of this processor, beside what they ought to
python -m tests.sim planted --renew             which seed or story catches each deliberate fault
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from os import cpu_count
from pathlib import Path

from tests.sim.calibrate import calibrate
from tests.sim.faults import RATES
from tests.sim.planted import search as planted
from tests.sim.run import DELIVERIES_MIN, KINDS_MIN, Result, run_seed
from tests.sim.scenario.interpreter import run_files
from tests.sim.shrink import shrink
from tests.sim.world import Plant
from tests.support.probes import declared

RECORD = Path(__file__).parents[2] / "docs" / "track-record.md"


def main(argv: Sequence[str] | None = None, *, plant: Plant | None = None, record: Path = RECORD) -> int:
    """Run the command; its exit code: 0 nothing was found, 1 a promise was broken, 2 usage.

    `plant` is a deliberate fault in every node: how tests see a seed fail. `record` is where `long` writes.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Seeds of the simulated world.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run seeds")
    which = run.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--seeds", type=_range, metavar="A-B")
    run.add_argument("--rate", action="append", default=[], type=_rate, metavar="FAULT=RATE", help=", ".join(RATES))
    run.add_argument("--shrink", action="store_true", help="leave out the faults that a failing seed does not need")
    run.add_argument("--jobs", type=int, default=cpu_count() or 1)
    run.add_argument("-v", "--verbose", action="store_true", help="print the whole trace")
    long = commands.add_parser("long", help="run many seeds and record it")
    long.add_argument("--seeds", type=_range, metavar="A-B", default=range(1, 10_001))
    long.add_argument("--jobs", type=int, default=cpu_count() or 1)
    scenario = commands.add_parser("scenario", help="run stories: docs/scenarios.md describes their language")
    scenario.add_argument("files", nargs="+", type=Path, metavar="FILE")
    scenario.add_argument("-v", "--verbose", action="store_true", help="print the whole trace")
    cost = commands.add_parser("cost", help="what turns take of this processor, beside what they ought to")
    cost.add_argument("--partitions", type=int, default=1_024)
    cost.add_argument("--namespaces", type=int, default=4)
    cost.add_argument("--nodes", type=int, default=3)
    planted.add_arguments(commands.add_parser("planted", help="which seed or story catches a deliberate fault"))
    args = parser.parse_args(argv)
    if args.command == "scenario":
        return run_files(args.files, verbose=args.verbose)
    if args.command == "planted":
        return planted.main(args)
    if args.command == "cost":
        return calibrate(args.partitions, args.namespaces, args.nodes)
    rates = dict(args.rate) if args.command == "run" and args.rate else None
    if args.command == "run" and args.seed is not None:
        return _one(args.seed, rates, plant, verbose=args.verbose, smaller=args.shrink)
    results = _many(args.seeds, rates, plant, args.jobs)
    if args.command == "long":
        _record(record, args.seeds, results)
    return 1 if any(result.violation for result in results) else 0


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a range such as 1-300")
    return range(int(first), int(last or first) + 1)


def _rate(text: str) -> tuple[str, float]:
    name, _, rate = text.partition("=")
    if name not in RATES:
        raise argparse.ArgumentTypeError(f"there is no fault {name!r}: expected one of {', '.join(RATES)}")
    try:
        wanted = float(rate)
    except ValueError:
        wanted = -1.0
    if not 0 <= wanted < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a rate such as {name}=2.0")
    return name, wanted


def _one(seed: int, rates: dict[str, float] | None, plant: Plant | None, *, verbose: bool, smaller: bool) -> int:
    result = run_seed(seed, rates=rates, plant=plant, verbose=print if verbose else None)
    if result.violation is None:
        print(f"seed {seed}: nothing found; {_measure(result)}; trace {result.digest}")
        return 0
    _tell(result, rates)
    if smaller:
        needed = shrink(seed, rates, plant=plant)
        print("\nit needs only:", " ".join(f"--rate {kind}={rate:g}" for kind, rate in needed.items()) or "no fault at all")
    return 1


def _many(seeds: range, rates: dict[str, float] | None, plant: Plant | None, jobs: int) -> list[Result]:
    results: list[Result] = []
    with ProcessPoolExecutor(max_workers=max(1, jobs)) as pool:
        for result in pool.map(partial(run_seed, rates=rates, plant=plant, digest=False), seeds, chunksize=4):
            results.append(result)
            if result.violation is not None:
                _tell(result, rates)
            if sys.stdout.isatty():
                print(f"\r{len(results)} of {len(seeds)}", end="", flush=True)
    _sum_up(results)
    return results


def _tell(result: Result, rates: dict[str, float] | None) -> None:
    assert result.violation is not None
    more = "".join(f" --rate {kind}={rate:g}" for kind, rate in (rates or {}).items())
    print(f"\nseed {result.seed} at commit {_commit()}: {result.options}")
    print(f"  {result.violation}")
    print(f"  about {result.violation.about}; its story:")
    for line in result.story:
        print(f"    {line[:240]}")
    print(f"  again: python -m tests.sim run --seed {result.seed}{more} -v")


def _measure(result: Result) -> str:
    return (
        f"{result.deliveries:,} deliveries, {result.simulated_s:.0f} simulated seconds, "
        f"{sum(result.faults.values())} faults of {len(result.faults)} kinds, "
        f"{result.operations['ok']} operations ok, {result.operations['fail']} refused, {result.operations['info']} unknown"
    )


def _sum_up(results: Iterable[Result]) -> None:
    found = list(results)
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
    print(f"\n{len(found)} seeds, {sum(deliveries):,} deliveries (median {deliveries[len(deliveries) // 2]:,} a seed)")
    print("operations:", ", ".join(f"{count:,} {name}" for name, count in operations.items()))
    print("done:", ", ".join(f"{name} {count:,}" for name, count in done.most_common()))
    print("faults:", ", ".join(f"{kind} {count:,}" for kind, count in faults.most_common()))
    print("faults that never came:", ", ".join(kind for kind in RATES if kind not in faults) or "none")
    small = [r.seed for r in found if r.shape.small and (r.deliveries < DELIVERIES_MIN or len(r.faults) < KINDS_MIN)]
    little = f"seeds with less than {DELIVERIES_MIN:,} deliveries or {KINDS_MIN} kinds of faults"
    print(f"{little}: {', '.join(map(str, small)) or 'none'}")
    known = declared()
    print(f"rare paths: {sum(name in probes for name in known)} of {len(known)} reached; never reached:")
    for name in known:
        if name not in probes:
            print(f"  {name}")
    failed = [str(result.seed) for result in found if result.violation is not None]
    print(f"failing seeds: {', '.join(failed) or 'none'}")


def _record(path: Path, seeds: range, results: Sequence[Result]) -> None:
    failed = [result for result in results if result.violation is not None]
    said = "; ".join(f"seed {r.seed}: {str(r.violation).splitlines()[0]}" for r in failed) or "nothing"
    with path.open("a", encoding="utf-8") as record:
        record.write(f"| {datetime.now(UTC):%Y-%m-%d} | {seeds[0]}-{seeds[-1]} | {_commit()} | {said} |\n")


def _commit() -> str:
    told = subprocess.run(  # a fixed command
        ["git", "rev-parse", "--short", "HEAD"],  # whichever git there is
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
