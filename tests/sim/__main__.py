"""`python -m tests.sim run`: seeds of the simulated world, on every core, with a report of what they found and missed.

python -m tests.sim run --seeds 1-300           many seeds; exit code 1 if one of them found something
python -m tests.sim run --seed 7 -v             one seed with its whole trace
python -m tests.sim run --seed 7 --shrink       which of its faults it needs to fail
python -m tests.sim run --seeds 1-50 --rate wipe=5 --rate weather=0
python -m tests.sim run --seeds 1-50 --nodes 5 --backups 1 --density 3 --storm 60 --minutes 10
python -m tests.sim run --seeds 1-50 --cost count       what turns call is counted in all of them: the same worlds
python -m tests.sim run --seeds 1-5 --shape widest      as many partitions as there can be
python -m tests.sim long --seeds 1-10000        many seeds, and a line in docs/track-record.md
python -m tests.sim long --seeds 1-10000 --minutes 60 --resume seeds.jsonl      an hour of it; again, and it goes on
python -m tests.sim scenario FILE...            stories in the language of docs/scenarios.md
python -m tests.sim cost                        what turns take of this processor, beside what they ought to
python -m tests.sim bytecodes --functions 20    what a put, a get and a transaction execute: the same figure in each run
python -m tests.sim nonsense --seeds 1-300      small clusters among clients that ask what means nothing
python -m tests.sim nonsense --lies --seeds 1-5 and among members that say it, a kind at a time and all together
python -m tests.sim planted --renew             which seed or story catches each deliberate fault
python -m tests.sim explore WORLD               every order of what can happen in a small world: docs/explore.md
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from os import cpu_count
from pathlib import Path

from tests.sim import bytecodes
from tests.sim.calibrate import calibrate
from tests.sim.costs import COSTS
from tests.sim.explore import command as exploring
from tests.sim.faults import RATES
from tests.sim.heckled import play_many
from tests.sim.knobs import Knobs
from tests.sim.many import Book, run_many, sum_up
from tests.sim.planted import search as planted
from tests.sim.run import Result, run_seed
from tests.sim.scenario.interpreter import run_files
from tests.sim.shapes import SHAPES
from tests.sim.shrink import shrink
from tests.sim.world import Plant
from tests.support.patience import PATIENCE_SECONDS

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
    run.add_argument("-v", "--verbose", action="store_true", help="print the whole trace")
    long = commands.add_parser("long", help="run many seeds and record it")
    long.add_argument("--seeds", type=_range, metavar="A-B", default=range(1, 10_001))
    long.add_argument("--resume", type=Path, metavar="FILE", help="a book of the seeds that are done: go on behind it")
    for each in (run, long):
        each.add_argument("--jobs", type=int, default=cpu_count() or 1)
        each.add_argument("--minutes", type=float, help="no seed begins later than this")
        each.add_argument("--nodes", type=int, help="how many, in every seed")
        each.add_argument("--backups", type=int, help="copies beside the primary")
        each.add_argument("--density", type=float, default=1.0, help="so many times as many faults in a second")
        each.add_argument("--shape", default="", help=f"how large clusters are, in every seed: {', '.join(SHAPES)}")
        each.add_argument("--storm", type=float, metavar="SECONDS", help="how long faults happen, in simulated time")
        each.add_argument("--cost", choices=list(COSTS), default="model", help="how long turns take")
    scenario = commands.add_parser("scenario", help="run stories: docs/scenarios.md describes their language")
    scenario.add_argument("files", nargs="+", type=Path, metavar="FILE")
    scenario.add_argument("-v", "--verbose", action="store_true", help="print the whole trace")
    cost = commands.add_parser("cost", help="what turns take of this processor, beside what they ought to")
    cost.add_argument("--partitions", type=int, default=1_024)
    cost.add_argument("--namespaces", type=int, default=4)
    cost.add_argument("--nodes", type=int, default=3)
    heckled = commands.add_parser("nonsense", help="clusters among clients that ask what means nothing")
    heckled.add_argument("--seeds", type=_range, metavar="A-B", default=range(1, 101))
    heckled.add_argument("--times", type=int, default=500, help="how often each is interrupted")
    heckled.add_argument("--lies", action="store_true", help="by members, and not by clients")
    executed = commands.add_parser("bytecodes", help="what nodes execute for a put, a get and a transaction")
    executed.add_argument("--functions", type=int, default=0, help="show so many that execute most of it")
    planted.add_arguments(commands.add_parser("planted", help="which seed or story catches a deliberate fault"))
    exploring.add_arguments(commands.add_parser("explore", help="walk every order of what can happen in a small world"))
    args = parser.parse_args(argv)
    if args.command == "scenario":
        return run_files(args.files, verbose=args.verbose)
    if args.command == "planted":
        return planted.main(args)
    if args.command == "explore":
        return exploring.main(args)
    if args.command == "nonsense":
        return play_many(args.seeds, args.times, lies=args.lies)
    if args.command == "cost":
        return calibrate(args.partitions, args.namespaces, args.nodes)
    if args.command == "bytecodes":
        return bytecodes.show(functions=args.functions)
    rates = dict(args.rate) if args.command == "run" and args.rate else None
    knobs = Knobs(args.nodes, args.backups, args.density, args.shape, args.storm)
    if knobs.check():
        parser.error(knobs.check())
    if args.command == "run" and args.seed is not None:
        return _one(args.seed, rates, plant, knobs, args.cost, verbose=args.verbose, smaller=args.shrink)
    book = Book(args.resume if args.command == "long" else None, commit())
    seeds = [seed for seed in args.seeds if seed not in book.found]

    def told(result: Result) -> None:
        book.note(result)
        if result.violation is not None:
            _tell(result, rates, knobs)

    one = partial(run_seed, rates=rates, plant=plant, digest=False, knobs=knobs, cost=args.cost)
    budget_s = args.minutes * 60 if args.minutes is not None else None
    results = run_many(seeds, one, jobs=args.jobs, told=told, budget_s=budget_s)
    sum_up(results)
    found = {seed: said for seed, said in book.found.items() if seed in args.seeds}
    found |= {r.seed: str(r.violation).splitlines()[0] if r.violation is not None else "" for r in results}
    left = len(args.seeds) - len(found)
    print(f"{len(found)} of {len(args.seeds)} seeds done, {left} left, {sum(map(bool, found.values()))} failed")
    if args.command == "long" and not left:
        _record(record, args.seeds, found)
    return 1 if any(found.values()) else 0


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


def _one(
    seed: int,
    rates: dict[str, float] | None,
    plant: Plant | None,
    knobs: Knobs,
    cost: str,
    *,
    verbose: bool,
    smaller: bool,
) -> int:
    result = run_seed(seed, rates=rates, plant=plant, verbose=print if verbose else None, knobs=knobs, cost=cost)
    if result.violation is None:
        print(f"seed {seed}: nothing found; {_measure(result)}; trace {result.digest}")
        return 0
    _tell(result, rates, knobs)
    if smaller:
        needed = shrink(seed, rates, plant=plant, knobs=knobs)
        print("\nit needs only:", " ".join(f"--rate {kind}={rate:g}" for kind, rate in needed.items()) or "no fault at all")
    return 1


def _tell(result: Result, rates: dict[str, float] | None, knobs: Knobs) -> None:
    assert result.violation is not None
    more = "".join(f" --rate {kind}={rate:g}" for kind, rate in (rates or {}).items()) + knobs.options()
    print(f"\nseed {result.seed} at commit {commit()}: {result.options}")
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


def _record(path: Path, seeds: range, found: Mapping[int, str]) -> None:
    said = "; ".join(f"seed {seed}: {what}" for seed, what in sorted(found.items()) if what) or "nothing"
    with path.open("a", encoding="utf-8") as record:
        record.write(f"| {datetime.now(UTC):%Y-%m-%d} | {seeds[0]}-{seeds[-1]} | {commit()} | {said} |\n")


def commit() -> str:
    """Of this checkout, short."""
    told = subprocess.run(  # a fixed command
        ["git", "rev-parse", "--short", "HEAD"],  # whichever git there is
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        timeout=PATIENCE_SECONDS,
    )
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
