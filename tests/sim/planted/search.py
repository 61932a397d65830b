"""`python -m tests.sim planted`: which seed catches a deliberate fault.

python -m tests.sim planted                         whether each fault's catch still catches it
python -m tests.sim planted NAME... --seeds 1-300   search the seeds for these faults; all of them, if none is named
python -m tests.sim planted --renew                 look for another seed where one does not catch, and write it down
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.sim.planted.catalogue import FAULTS
from tests.sim.planted.catches import Catch, load, save
from tests.sim.planted.fault import Fault
from tests.sim.planted.stories import STORIES

STORMS_S = (6, 15)
"""Short storms first: most faults show in one."""
RENEW = range(1, 301)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault; see docs/planted-faults.md")
    parser.add_argument("--seeds", metavar="A-B", help="search these seeds")
    parser.add_argument("--storm", type=int, help=f"how many seconds a storm lasts (default: {STORMS_S})")
    parser.add_argument("--renew", action="store_true", help="search for what is not caught, and write it down")


def main(args: argparse.Namespace) -> int:
    """Run the command; exit code 0 if every fault was caught or is understood, 1 if not, 2 usage."""
    unknown = [name for name in args.names if name not in FAULTS]
    if unknown:
        print(f"there is no fault {', '.join(unknown)}: expected some of {', '.join(FAULTS)}")
        return 2
    faults = [FAULTS[name] for name in args.names or FAULTS]
    catches = load()
    storms = (args.storm,) if args.storm else STORMS_S
    missed = 0
    for fault in faults:
        catch = None if args.seeds else _still(fault, catches.get(fault.name))
        if catch is None and args.seeds:
            first, _, last = args.seeds.partition("-")
            catch = search(fault, range(int(first), int(last or first) + 1), storms)
        elif catch is None and args.renew and not fault.harmless:
            catch = tell(fault) or search(fault, RENEW, storms)
        if catch is not None:
            print(f"{fault.name}: {catch.oracle}, {catch}", flush=True)
            catches[fault.name] = catch
        elif fault.harmless and fault.name not in catches:
            print(f"{fault.name}: not caught, as it should be", flush=True)
        else:
            print(f"{fault.name}: NOT CAUGHT", flush=True)
            catches.pop(fault.name, None)
            missed += 1
        if args.renew:
            save(catches)
    return 1 if missed else 0


def tell(fault: Fault, stories: Sequence[str] | None = None) -> Catch | None:
    """The first story, or the first of these, that finds something with the fault."""
    for story in STORIES if stories is None else stories:
        found = Catch("", story=story).run(fault.plant)
        if found is not None and Catch("", story=story).run(None) is None:
            return Catch(found.oracle, story=story)
    return None


def search(fault: Fault, seeds: Sequence[int], storms: Sequence[int] = STORMS_S) -> Catch | None:
    """The first seed that finds something with the fault, and nothing without it."""
    for storm_s in storms:
        for seed in seeds:
            found = Catch("", seed=seed, storm_s=storm_s).run(fault.plant, fault.rates)
            if found is None:
                continue
            catch = Catch(found.oracle, seed=seed, storm_s=storm_s)
            if catch.run(None, fault.rates) is None:
                return catch
    return None


def _still(fault: Fault, catch: Catch | None) -> Catch | None:
    """The catch as it is now, if it still catches."""
    if catch is None:
        return None
    found = catch.run(fault.plant, fault.rates)
    if found is None or catch.run(None, fault.rates) is not None:
        return None
    return Catch(found.oracle, seed=catch.seed, storm_s=catch.storm_s, story=catch.story)
