"""`python -m tests.sim scenario FILE...`: runs stories, and says where one does not go as it says.

The whole text of every file is understood before anything happens, so that a misspelt word at the end costs no time.
Exit codes: 0 every expectation was met; 1 one was not, or an oracle found a broken promise; 2 a story cannot be
understood.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.oracles import look_inside
from tests.sim.scenario import client_verbs, expects, questions, world_verbs
from tests.sim.scenario.knobs import shape_of
from tests.sim.scenario.language import ScenarioError, Statement
from tests.sim.scenario.reading import orders, parts_of, understand
from tests.sim.scenario.registry import VERBS
from tests.sim.scenario.stage import Stage, Unmet
from tests.sim.violation import Violation
from tests.sim.world import SECOND

VOCABULARY = (client_verbs, world_verbs, questions)
"""Each registers its words when it is imported."""
STORY_LINES_MAX = 80
LINE_MAX = 220


@dataclass
class Ending:
    """How a story ended. `problem` is empty if everything was met; `story` is of what the problem is about."""

    file: str
    expectations: int = 0
    tellings: int = 0  # in so many orders
    simulated_s: float = 0.0
    problem: str = ""
    story: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def tell(text: str, file: str, *, trace: bool = False) -> Ending:
    """Run a story in each of its orders, up to its end, or to the first expectation that is not met."""
    ending = Ending(file)
    for told in orders(understand(text, file)):
        one = _tell(told, file, trace=trace)
        one.expectations += ending.expectations
        one.simulated_s += ending.simulated_s
        one.tellings = ending.tellings + 1
        ending = one
        if ending.problem:
            break
    return ending


def _tell(statements: Sequence[Statement], file: str, *, trace: bool) -> Ending:
    ending = Ending(file)
    with Stage(shape_of(statements[0])) as stage:
        flat = [part for statement in statements[1:] for part in parts_of(statement)]
        stage.coming = [_named(s) for s in flat if _named(s)]
        try:
            _play(stage, statements)
        except Unmet as unmet:
            ending.problem = str(unmet)
            ending.story = _story(stage, unmet)
        except Violation as violation:
            ending.problem = f"{stage.where}: an oracle found a broken promise\n    {violation}"
            ending.story = _story(stage, violation)
        ending.expectations = stage.expectations
        ending.simulated_s = stage.world.now / SECOND
        if trace:
            ending.trace = list(stage.world.trace.lines(chatter=False))
    return ending


def _play(stage: Stage, statements: Sequence[Statement]) -> None:
    stage.where = statements[0].where
    stage.open()
    for statement in statements[1:]:
        stage.where = statement.where
        stage.world.say(f"----- {statement.text}")
        if statement.verb == "expect":
            expects.check(stage, statement)
        elif statement.verb == "when":
            meant, then = parts_of(statement)
            world_verbs.when(stage, meant, then)
        else:
            VERBS[statement.verb].do(stage, statement)
    stage.oracles.look(stage.world)
    look_inside(stage.world)


def _named(statement: Statement) -> str:
    """The name that a statement gives to what it does."""
    if statement.verb in ("begin", "stream"):
        return statement.words[0]
    return statement.option("as")


def _story(stage: Stage, found: Unmet | Violation) -> list[str]:
    lines = [line[:LINE_MAX] for line in stage.world.trace.story(found.about)]
    if len(lines) > STORY_LINES_MAX:
        lines = [f"... {len(lines) - STORY_LINES_MAX} lines before; -v prints all ...", *lines[-STORY_LINES_MAX:]]
    return [f"the story of {found.about}:", *(f"  {line}" for line in lines)]


def run_files(files: Sequence[Path], *, verbose: bool = False, out: Callable[[str], None] = print) -> int:
    """Run each file; the exit code."""
    worst = 0
    texts: list[tuple[str, str]] = []
    try:
        for file in files:
            texts.append((str(file), file.read_text(encoding="utf-8")))
            understand(texts[-1][1], str(file))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{file}: cannot be read: {error}", file=sys.stderr)
        return 2
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return 2
    for name, text in texts:
        try:
            ending = tell(text, name, trace=verbose)
        except ScenarioError as error:
            print(error, file=sys.stderr)
            return 2
        for line in ending.trace:
            out(line)
        if ending.problem:
            worst = 1
            out(ending.problem)
            for line in ending.story:
                out(f"    {line}")
        else:
            orders_ = f" in {ending.tellings} orders" if ending.tellings > 1 else ""
            out(f"ok {name}: {ending.expectations} expectations{orders_}, {ending.simulated_s:.1f} simulated seconds")
    return worst
