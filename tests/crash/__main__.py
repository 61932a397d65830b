"""`python -m tests.crash`: kill -9 of real nodes under load, for as long as you like.

python -m tests.crash --cycles 1000             a run of a seed that is drawn; exit code 1 if a promise was broken
python -m tests.crash --cycles 25 --seed 7      the same things again
python -m tests.crash --nemesis --cycles 1000 --record      links, disks, names and directories as well
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

from tests.crash.run import Broken, crash_run
from tests.sim.__main__ import RECORD, commit


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0 every promise was kept, 1 one was not, 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="kill -9 of real nodes under load.")
    parser.add_argument("--cycles", type=int, default=50, help="how many times something is killed")
    parser.add_argument("--seed", type=int, help="what is done and when; drawn if it is not given")
    parser.add_argument("--nodes", type=int, default=3, choices=range(3, 8))
    parser.add_argument("--backups", type=int, default=2, choices=range(1, 7))
    parser.add_argument(
        "--nemesis", action="store_true", help="cut, slow and half-open links, disks, names; not only kills"
    )
    parser.add_argument("--record", action="store_true", help="add a line to docs/track-record.md")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that found nothing, too")
    args = parser.parse_args(argv)
    if args.cycles < 1:
        parser.error(f"--cycles is {args.cycles}: expected 1 or more")
    seed = args.seed if args.seed is not None else SystemRandom().randrange(1 << 31)
    directory = Path(tempfile.mkdtemp(prefix="foreshore-crash-"))
    print(f"seed {seed}, in {directory}", file=sys.stderr)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        report = crash_run(
            directory,
            seed=seed,
            cycles=args.cycles,
            nodes=args.nodes,
            backups=args.backups,
            nemesis=args.nemesis,
            note=note,
        )
    except Broken as error:
        print(error)
        return 1
    print("\n".join(report.lines()))
    if args.record:
        with RECORD.open("a", encoding="utf-8") as record:
            what = "nemesis" if args.nemesis else "kills"
            record.write(f"| {datetime.now(UTC):%Y-%m-%d} | {args.cycles} {what}, seed {seed} | {commit()} | nothing |\n")
    if not args.keep:
        report.forget()
    return 0


if __name__ == "__main__":
    sys.exit(main())
