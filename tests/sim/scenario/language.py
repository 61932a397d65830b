"""The scenario language as text: statements, words, options, groups, durations, sizes.

```
 line       = statement { ";" statement } [ "#" comment ]
 statement  = verb { word | option | group | "text" }
 option     = name "=" value              no space around "="
 group      = "{" { name } "}"
 expect     = "expect" [ "not" ] what { word } [ comparison value ]      spaces around the comparison are free
 comparison = "=" | "!=" | "<" | "<=" | ">" | ">="
```

Nothing here knows a verb. What is wrong is a `ScenarioError` with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

_TOKEN = re.compile(r'\{([^}]*)\}|"([^"]*)"|([^\s{}"]+(?:="[^"]*")?)')
_OPTION = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_COMPARISON = re.compile(r"\s*(<=|>=|!=|==|=|<|>)\s*")
_DURATION = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(ns|us|ms|s|m|min|h|d)")
_SIZE = re.compile(r"(\d+)(?:([kKmMgG])(?:i?[bB])?|[bB])?")
_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}


class ScenarioError(Exception):
    """A scenario that cannot be understood: exit code 2."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message


@dataclass(frozen=True)
class Statement:
    """One statement. `text` is what stands in the file; `rest` what follows the verb."""

    where: str
    text: str
    verb: str
    rest: str
    words: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    groups: list[list[str]] = field(default_factory=list)

    def error(self, message: str) -> ScenarioError:
        """What is wrong here."""
        return ScenarioError(f"{message}\n    {self.text}", self.where)

    def option(self, name: str, default: str = "") -> str:
        """An option's value."""
        return self.options.get(name, default)

    def number(self, name: str, default: int) -> int:
        """An option that is a whole number."""
        text = self.options.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?\d+", text):
            raise self.error(f"{name}={text} is not a number")
        return int(text)


def unknown(statement: Statement, name: str, what: str, names: Sequence[str]) -> ScenarioError:
    """Nothing is called so; the nearest known word, or all of them."""
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names)}"
    return statement.error(f"unknown {what} {name!r}: {hint}")


def parse(text: str, file: str) -> Iterator[Statement]:
    """The statements of a scenario."""
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{file}:{number}"
        for part in _split(line, where):
            yield parse_statement(part, where)


def parse_statement(text: str, where: str) -> Statement:
    """One statement."""
    verb, _, rest = text.partition(" ")
    statement = Statement(where, text, verb, rest.strip())
    if verb in ("expect", "for", "when"):
        return statement  # it has a comparison, or other statements in it; `expectation`, or `reading`, takes it apart
    at = 0
    for match in _TOKEN.finditer(rest):
        if rest[at : match.start()].strip():
            raise statement.error(f"cannot read {rest[at : match.start()].strip()!r}")
        at = match.end()
        group, quoted, word = match.groups()
        if group is not None:
            statement.groups.append(group.replace(",", " ").split())
            statement.words.append("{}")
        elif quoted is not None:
            statement.words.append(quoted)
        elif option := _OPTION.fullmatch(word):
            name, value = option.groups()
            if name in statement.options:
                raise statement.error(f"{name} is given twice")
            statement.options[name] = value[1:-1] if value.startswith('"') else value
        else:
            statement.words.append(word)
    if rest[at:].strip():
        raise statement.error(f"cannot read {rest[at:].strip()!r}")
    return statement


def _split(line: str, where: str) -> list[str]:
    """The statements of one line, without its comment."""
    parts, part, quoted = [], "", False
    for at, char in enumerate(line):
        if char == '"':
            quoted = not quoted
        if not quoted and char == "#" and (at == 0 or line[at - 1].isspace()):
            break
        if not quoted and char == ";":
            parts.append(part)
            part = ""
        else:
            part += char
    if quoted:
        raise ScenarioError("a quotation mark is not closed", where)
    return [p.strip() for p in [*parts, part] if p.strip()]


@dataclass(frozen=True)
class Expectation:
    """`expect` taken apart: `what` with its words; comparison and value, if there are any."""

    negated: bool
    what: str
    words: list[str]
    comparison: str
    value: str


def expectation(statement: Statement) -> Expectation:
    """Take an `expect` apart."""
    match = _COMPARISON.search(statement.rest)
    left, comparison, value = statement.rest, "", ""
    if match is not None:
        left, comparison = statement.rest[: match.start()], match[1].replace("==", "=")
        value = statement.rest[match.end() :].strip().strip('"')
        if not value:
            raise statement.error(f"nothing stands after {comparison!r}")
    words = left.split()
    negated = bool(words) and words[0] == "not"
    if negated:
        words = words[1:]
    if not words:
        raise statement.error("expect what? See docs/scenarios.md")
    return Expectation(negated, words[0], words[1:], comparison, value)


def duration(text: str) -> int:
    """`300ms`, `+1h`, `2.5s` in nanoseconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time: expected a number and one of ns, us, ms, s, m, h, d, such as 300ms")
    ns = int(float(match[2]) * _NANOSECONDS[match[3]])
    return -ns if match[1] == "-" else ns


def size(text: str) -> int:
    """`4096`, `4k`, `1m` in bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: expected bytes, or a number with k, m or g, such as 4k")
    return int(match[1]) << _SHIFTS[(match[2] or "").lower()]
