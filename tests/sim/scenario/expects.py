"""`expect`: what it may ask is registered here by `questions`; the answer is compared as words or as a number."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.sim.network import MS
from tests.sim.scenario.language import Expectation, Statement, duration, expectation, unknown
from tests.sim.scenario.stage import Stage, Unmet
from tests.sim.violation import Violation

NONE = "none"
ONE_OF = "one of "
Answer = int | str | bool
Question = Callable[[Stage, Statement, list[str]], Answer]
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Expect:
    """One thing to expect. A question whose answer is a bool takes no comparison."""

    name: str
    words: str
    least: int
    most: int
    ask: Question
    values: tuple[str, ...] = ()  # all that it can be, if that is a closed set
    timed: bool = False  # its answer is a time


EXPECTS: dict[str, Expect] = {}


def expects(
    name: str, words: str = "", *, least: int = 0, most: int | None = None, values: str = "", timed: bool = False
) -> Callable[[Question], Question]:
    """Register an expectation."""

    def register(ask: Question) -> Question:
        assert name not in EXPECTS, f"expect {name} is there already"
        told = f" {words}" if words else ""
        EXPECTS[name] = Expect(name, told, least, least if most is None else most, ask, tuple(values.split()), timed)
        return ask

    return register


def understood(statement: Statement) -> tuple[Expect, Expectation]:
    """What an `expect` asks for, checked as far as the text alone allows."""
    wanted = expectation(statement)
    known = EXPECTS.get(wanted.what)
    if known is None:
        raise unknown(statement, wanted.what, "expectation", list(EXPECTS))
    if not known.least <= len(wanted.words) <= known.most:
        raise statement.error(f"this is written `expect {known.name}{known.words}`")
    if known.values and wanted.comparison:
        closed(statement, known, wanted, known.values)
    if known.timed and wanted.comparison:
        _time(statement, wanted.value)
    return known, wanted


def closed(statement: Statement, known: Expect, wanted: Expectation, values: Sequence[str]) -> None:
    """Refuse a value that this can never be: with `!=` it would always be met."""
    for value in alternatives(wanted.value):
        if value not in values:
            raise unknown(statement, value, f"value of {known.name}", list(values))


def alternatives(value: str) -> list[str]:
    """`one of a b`: any of these; else the value alone."""
    return value.removeprefix(ONE_OF).replace(",", " ").split() if value.startswith(ONE_OF) else [value]


def _time(statement: Statement, text: str) -> int:
    try:
        return duration(text)
    except ValueError as error:
        raise statement.error(str(error)) from None


def check(stage: Stage, statement: Statement) -> None:
    """Ask, compare, and raise Unmet if it is not so."""
    known, wanted = understood(statement)
    stage.expectations += 1
    about = stage.about(wanted.words)
    try:
        found = known.ask(stage, statement, wanted.words)
    except Violation as violation:
        if wanted.negated:
            return
        raise Unmet(statement, statement.rest, str(violation), violation.about) from violation
    if known.timed and isinstance(found, int):
        met = _COMPARE[wanted.comparison](found, _time(statement, wanted.value)) if wanted.comparison in _COMPARE else None
        if met is None:
            raise statement.error(f"{wanted.what} is a time: compare it with <, <=, > or >=")
        if met == wanted.negated:
            raise Unmet(statement, statement.rest, f"{found / MS:g}ms", about)
        return
    if _met(statement, wanted, found) == wanted.negated:
        shown = found if not isinstance(found, bool) else ("yes" if found else "no")
        raise Unmet(statement, statement.rest, f"{shown}", about)


def _met(statement: Statement, wanted: Expectation, found: Answer) -> bool:
    if isinstance(found, bool):
        if wanted.comparison:
            raise statement.error(f"{wanted.what} is or is not: write `expect [not] {wanted.what} ...`")
        return found
    if not wanted.comparison:
        raise statement.error(f"compare {wanted.what} with something, such as `= {found}`")
    if wanted.value.startswith(ONE_OF):
        if wanted.comparison not in ("=", "!="):
            raise statement.error("`one of` is compared with = or !=")
        return (_plain(str(found)) in alternatives(wanted.value)) == (wanted.comparison == "=")
    if isinstance(found, int) and not wanted.value.removeprefix("-").isdigit():
        raise statement.error(f"{wanted.what} is a number: expected one, not {wanted.value!r}")
    if wanted.comparison in ("=", "!="):
        return (_plain(wanted.value) == _plain(str(found))) == (wanted.comparison == "=")
    if not isinstance(found, int):
        raise statement.error(f"{wanted.what} is compared with = or !=, not with {wanted.comparison}: it is {found!r}")
    return _COMPARE[wanted.comparison](found, int(wanted.value))


def _plain(text: str) -> str:
    """`n1, n2` and `n1 n2` are the same."""
    return " ".join(text.replace(",", " ").split())
