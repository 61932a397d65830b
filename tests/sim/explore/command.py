"""`python -m tests.sim explore WORLD`: every order of what can happen in a small world (docs/explore.md)."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.explore.catalogue import WORLDS
from tests.sim.explore.search import STATES, Found, Walk
from tests.sim.planted.catalogue import FAULTS
from tests.sim.world import Plant

SECONDS = 600.0
COLLECTED_AFTER = 200_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"all, if none is named: {', '.join(WORLDS)}")
    parser.add_argument("--depth", type=int, help="walk no further than so many steps; what a world has, by default")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each world, at most ({SECONDS:g})")
    parser.add_argument(
        "--states", type=int, default=STATES, help=f"of each world, at most ({STATES:,}): all are in memory"
    )
    parser.add_argument("--fault", choices=list(FAULTS), metavar="FAULT", help="plant this one (docs/planted-faults.md)")


def main(args: argparse.Namespace) -> int:
    """Run the command; exit code 0 if nothing was found, 1 if a promise was broken, 2 usage."""
    unknown = [name for name in args.worlds if name not in WORLDS]
    if unknown:
        print(f"there is no world {', '.join(unknown)}: expected some of {', '.join(WORLDS)}")
        return 2
    plant = FAULTS[args.fault].plant if args.fault is not None else None
    broken = 0
    for name in args.worlds or WORLDS:
        print(f"{name}: {WORLDS[name].about}", flush=True)
        found = explore(name, plant, depth=args.depth, seconds=args.seconds, states=args.states, loud=True)
        print(found, flush=True)
        broken += bool(found.violation)
    return 1 if broken else 0


def explore(
    name: str,
    plant: Plant | None = None,
    *,
    depth: int | None = None,
    seconds: float = SECONDS,
    states: int = STATES,
    loud: bool = False,
) -> Found:
    """Walk one world."""
    world = WORLDS[name]
    with _seldom_collected():
        walk = Walk(world, plant)
        world.begin(walk)
        say = _progress if loud else _silent
        return walk.search(depth=depth or world.depth, seconds=seconds, states=states, say=say)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """All states stay; what goes are nodes that were told their story again. To look for those after each 700 objects
    takes a quarter of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _progress(line: str) -> None:
    print(f"  {line}", flush=True)


def _silent(_: str) -> None:
    pass
