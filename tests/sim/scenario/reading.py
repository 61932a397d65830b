"""What the text of a story shows to be wrong before anything happens, and the orders in which it is to be told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import permutations, product

from tests.sim.scenario import expects
from tests.sim.scenario.knobs import shape_of
from tests.sim.scenario.language import ScenarioError, Statement, parse, parse_statement, unknown
from tests.sim.scenario.operations import ABORTED, COMMITTED, PENDING, PREPARED, UNKNOWN
from tests.sim.scenario.registry import VERBS

ORDER = "for each order of "
WHEN = re.compile(r"when (?P<what>.+?) is delivered then (?P<then>.+)")
TELLINGS_MAX = 150
"""So many orders at most, all taken together: each is a story from its beginning."""
TOLD = (COMMITTED, ABORTED, PREPARED, UNKNOWN, PENDING, "not-applied", "none")
"""All that a client can be told of what it wrote."""


def understand(text: str, file: str) -> list[Statement]:
    """The statements of a story; raises ScenarioError for whatever the text alone shows to be wrong."""
    statements = list(parse(text, file))
    if not statements or statements[0].verb != "cluster":
        raise ScenarioError("a scenario begins with `cluster`, such as `cluster nodes=3 backups=2 partitions=32`", file)
    shape = shape_of(statements[0])
    flat = [part for statement in statements[1:] for part in parts_of(statement)]
    nodes = [*shape.nodes, *(word for s in flat if s.verb == "join" for word in s.words)]
    telling = [s for s in flat if s.verb in ("get", "scan") or (s.verb == "swap" and s.option("how", "set") != "set")]
    readers = {s.option("as") for s in telling} | {s.words[0] for s in flat if s.verb == "get" and s.words}
    for statement in flat:
        if statement.verb == "cluster":
            raise statement.error("there is one cluster, and the first statement makes it")
        if statement.verb == "expect":
            _check_expectation(statement, readers)
        elif statement.verb in VERBS:
            VERBS[statement.verb].check(statement)
            _check_nodes(statement, nodes)
        else:
            raise unknown(statement, statement.verb, "verb", ["cluster", "expect", "for", "when", *VERBS])
    if sum(1 for _ in orders(statements)) > TELLINGS_MAX:
        raise ScenarioError(f"the story would be told in more than {TELLINGS_MAX} orders", file)
    return statements


def parts_of(statement: Statement) -> list[Statement]:
    """The statements that one is made of: those of `for each order of`, the hold and the deed of `when`, or itself."""
    if statement.text.startswith(ORDER):
        texts = [part.strip() for part in statement.text.removeprefix(ORDER).split("|")]
        if len(texts) < 2 or not all(texts):
            raise statement.error("this is written `for each order of STATEMENT | STATEMENT ...`")
        return [part for text in texts for part in parts_of(parse_statement(text, statement.where))]
    if statement.verb == "when":
        meant = WHEN.fullmatch(statement.text)
        if meant is None:
            raise statement.error("this is written `when KIND [TX] [from=NODE] [to=NODE] is delivered then STATEMENT`")
        then = parse_statement(meant["then"], statement.where)
        if then.verb in ("expect", "settle", "run", "for", "when", "cluster"):
            raise statement.error(f"{then.verb} cannot stand behind `then`: expected something that is done at once")
        return [parse_statement(f"hold {meant['what']}", statement.where), then]
    return [statement]


def orders(statements: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Each way to tell the story: every `for each order of` in each of its orders."""
    ways: list[list[list[Statement]]] = []
    for statement in statements:
        if statement.text.startswith(ORDER):
            texts = [part.strip() for part in statement.text.removeprefix(ORDER).split("|")]
            said = [parse_statement(text, statement.where) for text in texts]
            ways.append([list(order) for order in permutations(said)])
        else:
            ways.append([[statement]])
    for way in product(*ways):
        yield [statement for part in way for statement in part]


def _check_expectation(statement: Statement, readers: set[str]) -> None:
    known, wanted = expects.understood(statement)
    if known.name == "answer" and wanted.comparison and wanted.words[0] not in readers:
        expects.closed(statement, known, wanted, TOLD)


def _check_nodes(statement: Statement, nodes: Sequence[str]) -> None:
    """Where a verb takes nodes, and nothing else, each must be one of the story."""
    written = VERBS[statement.verb].words
    if statement.verb == "join":
        return
    words: list[str] = []
    if written.startswith(" NODE..."):
        words = [word for word in statement.words if word not in written]
    elif written.startswith(" NODE "):
        words = statement.words[:1]
    for word in words:
        if word not in nodes:
            raise unknown(statement, word, "node", nodes)
