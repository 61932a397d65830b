"""What catches each fault: one place, which the tests, the search and the document all read.

`catches.json` holds a line for each fault that is caught: a seed with the length of its storm, or the name of a story
(`tests.sim.planted.stories`), and the oracle that speaks. It is written by `python -m tests.sim planted --renew`, and so
is the document: a change of the simulator moves what a seed draws, and then another seed catches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.sim.planted.catalogue import FAULTS
from tests.sim.planted.fault import Fault
from tests.sim.planted.stories import STORIES
from tests.sim.run import run_seed
from tests.sim.violation import Violation
from tests.sim.world import SECOND, Plant

FILE = Path(__file__).with_name("catches.json")
DOCUMENT = Path(__file__).parents[3] / "docs" / "planted-faults.md"


class Catch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What catches a fault: a seed whose storm lasts `storm_s`, or else a story; and the oracle that says so."""

    oracle: str
    seed: int = 0
    storm_s: int = 0
    story: str = ""

    def run(self, plant: Plant | None, rates: Mapping[str, float] | None = None) -> Violation | None:
        """Live through it, with a fault or without."""
        if not self.story:
            found = run_seed(self.seed, storm_ns=self.storm_s * SECOND, rates=rates, plant=plant, digest=False)
            return found.violation
        try:
            STORIES[self.story](plant)
        except Violation as violation:
            return violation
        return None

    def __str__(self) -> str:
        return f"story `{self.story}`" if self.story else f"seed {self.seed}, {self.storm_s} s"


def load() -> dict[str, Catch]:
    """All catches, by fault."""
    found: dict[str, Catch] = msgspec.json.decode(FILE.read_bytes(), type=dict[str, Catch])
    return found


def save(catches: Mapping[str, Catch]) -> None:
    """Write the catches, in the order of the faults, and the document."""
    lines: list[str] = []
    for name in FAULTS:
        if name in catches:
            said: Any = msgspec.to_builtins(catches[name])
            lines.append(f"  {json.dumps(name)}: {json.dumps(said)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    DOCUMENT.write_text(document(catches), encoding="utf-8")


HEAD = """# Does it bite? The deliberate faults

An oracle that never speaks proves nothing. So the simulated nodes are given deliberate faults, one at a time: a method
of a live machine is replaced or wrapped on that instance (`tests/sim/planted/`), which production code knows nothing of.
Each fault is caught by the seed or the story that is named here, which finds nothing without the fault; the tests prove
both. The numbers of the invariants are those of `ARCHITECTURE.md`. This page is written by
`python -m tests.sim planted --renew`, which looks for another seed where the named one does not catch any more;
`python -m tests.sim planted NAME --seeds A-B` searches for one fault.

"""
UNCAUGHT = """
## What nothing catches

Each of these takes away one line of defence, and another one holds. Where the table above has a fault that takes away
both, it is named: it shows that the second line is what holds.

| fault | what it breaks | endangers | why it is harmless | both lines gone |
| --- | --- | --- | --- | --- |
"""


def document(catches: Mapping[str, Catch]) -> str:
    """The page about all faults."""
    caught = [f for f in FAULTS.values() if f.name in catches]
    rows = [
        f"| {f.name} | {f.breaks} | {f.endangers} | {catches[f.name].oracle} | {catches[f.name]}{_rates(f)} |"
        for f in caught
    ]
    table = "| fault | what it breaks | endangers | oracle | caught by |\n| --- | --- | --- | --- | --- |\n"
    rest = [
        f"| {f.name} | {f.breaks} | {f.endangers} | {f.harmless} | {f.both} |"
        for f in FAULTS.values()
        if f.name not in catches
    ]
    return f"{HEAD}{table}" + "\n".join(rows) + f"\n{UNCAUGHT}" + "\n".join(rest) + "\n"


def _rates(fault: Fault) -> str:
    if fault.rates is None:
        return ""
    return ", with only " + ", ".join(fault.rates) if fault.rates else ", with no fault of the world"
