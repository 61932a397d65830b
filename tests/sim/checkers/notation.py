"""Histories as text: one line for each operation, so that a failing history is pasted into a test as it stands.

```
# process  invoked..completed  outcome  action; `-` is "never" or "nothing", `?` is "not known"
p1 0..10  ok   append x 1; read x [1]         p1 0..10 ok  update x 2.17 5
p2 5..-   info append x 2; read x ?           p1 0..10 ok  observe x 2.17 5
p1 0..10  ok   get x 5                        p1 0..10 ok  transfer a b 3
p1 0..10  ok   put x -                        p1 0..10 ok  balances a=7 b=3
p1 0..10  ok   cas x 5 6 swapped              p1 0..10 ok  rotate a b c
p1 0..10  ok   cas x 5 6 unchanged            p1 0..10 ok  ring a>b b>c c>a
p1 0..10  ok   add 1                          p1 0..10 ok  apply t1 done
p1 0..10  ok   elements [1 2]                 p1 0..10 ok  applied t1=1 t2=0
p1 0..10  ok   scan a m [a=1 b=2] get b=2 c=-
```

Names hold no space and none of `;=>[]#`. `parse(dump(history))` is the history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, assert_never

from tests.sim.checkers.history import (
    Action,
    Add,
    Append,
    Apply,
    CompareAndSet,
    Get,
    HistoryError,
    Observe,
    Operation,
    Outcome,
    Put,
    Read,
    ReadApplied,
    ReadBalances,
    ReadRing,
    ReadSet,
    Rotate,
    Scan,
    Stamp,
    Transaction,
    Transfer,
    Update,
    Value,
)

_LINE = re.compile(r"p(\d+)\s+(-?\d+)\.\.(-?\d+|-)\s+(ok|fail|info)\s+(\S.*)")
_TOKEN = re.compile(r"\[[^\]]*\]|[^\s\[\]]+")
_OUTCOMES: dict[str, Outcome] = {"ok": "ok", "fail": "fail", "info": "info"}


def dump(history: Iterable[Operation]) -> str:
    """The history as text, in the order in which operations were invoked."""
    return "\n".join(line(op) for op in sorted(history, key=lambda op: (op.invoked, op.process)))


def line(operation: Operation) -> str:
    """One operation as one line: `p1 0..10 ok append x 1; read x [1]`."""
    completed = "-" if operation.completed is None else operation.completed
    when = f"{operation.invoked}..{completed}"
    return f"p{operation.process} {when} {operation.outcome} {describe(operation.action)}"


def describe(action: Action) -> str:
    """What was asked and answered, without who and when."""
    match action:
        case Transaction(ops):
            return "; ".join(_describe_part(op) for op in ops) or "nothing"
        case Get(key, value):
            return f"get {key} {_maybe(value)}"
        case Put(key, value):
            return f"put {key} {_maybe(value)}"
        case CompareAndSet(key, expected, value, swapped):
            return f"cas {key} {_maybe(expected)} {_maybe(value)} {'swapped' if swapped else 'unchanged'}"
        case Add(element):
            return f"add {element}"
        case ReadSet(elements):
            return f"elements {_list(elements)}"
        case Transfer(source, target, amount):
            return f"transfer {source} {target} {amount}"
        case ReadBalances(balances):
            return _pairs("balances", "=", balances)
        case Rotate(keys):
            return f"rotate {' '.join(keys)}"
        case ReadRing(successors):
            return _pairs("ring", ">", successors)
        case Update(key, version, new):
            return f"update {key} {version or '?'} {new}"
        case Observe(key, version, value):
            return f"observe {key} {version or '-'} {_maybe(value)}"
        case Apply(tx, answer):
            return f"apply {tx} {'?' if answer is None else answer}"
        case ReadApplied(counts):
            return _pairs("applied", "=", counts)
        case Scan(low, high, rows, gets):
            found = "?" if rows is None else f"[{' '.join(f'{key}={value}' for key, value in rows)}]"
            also = "".join(f" {key}={_maybe(value)}" for key, value in gets)
            return f"scan {low} {high} {found}" + (f" get{also}" if gets else "")
        case _:
            assert_never(action)


def parse(text: str) -> list[Operation]:
    """The inverse of `dump`; ignores blank lines and `#` to the end of a line. Raises HistoryError with the line."""
    history: list[Operation] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        content = raw.split("#", 1)[0].strip()
        if not content:
            continue
        found = _LINE.fullmatch(content)
        if not found:
            raise HistoryError(f"line {number}: expected `p1 0..10 ok get x 5`, found `{content}`")
        process, invoked, completed, outcome, asked = found.groups()
        try:
            action = _parse_action(asked)
        except (ValueError, KeyError, IndexError) as error:
            raise HistoryError(f"line {number}: cannot read `{asked}`: {error!r}") from error
        ended = None if completed == "-" else int(completed)
        history.append(Operation(int(process), int(invoked), ended, _OUTCOMES[outcome], action))
    return history


def _parse_action(text: str) -> Action:
    words = _TOKEN.findall(text)
    if words[0] in {"append", "read", "nothing"}:
        parts = [] if words[0] == "nothing" else [_TOKEN.findall(part) for part in text.split(";")]
        return Transaction(tuple(_parse_part(part) for part in parts))
    return _PARSERS[words[0]](words[1:])


def _parse_part(words: Sequence[str]) -> Append | Read:
    verb, key, argument = words
    if verb == "append":
        return Append(key, int(argument))
    if verb == "read":
        return Read(key, _parse_list(argument))
    raise ValueError(f"expected append or read, found {verb}")


def _parse_scan(words: Sequence[str]) -> Scan:
    low, high, found, *rest = words
    if rest[:1] not in ([], ["get"]):
        raise ValueError(f"expected get, found {rest[0]}")
    rows = None
    if found != "?":
        rows = tuple((key, int(value)) for key, value in _split(found.strip("[]").split(), "="))
    return Scan(low, high, rows, tuple((key, _parse_maybe(value)) for key, value in _split(rest[1:], "=")))


def _split(words: Sequence[str], separator: str) -> list[tuple[str, str]]:
    pairs = [word.partition(separator) for word in words]
    for key, found, value in pairs:
        if not (key and found and value):
            raise ValueError(f"expected name{separator}value, found {key}{found}{value}")
    return [(key, value) for key, _, value in pairs]


def _parse_list(text: str) -> tuple[Value, ...] | None:
    return None if text == "?" else tuple(int(value) for value in text.strip("[]").split())


def _parse_maybe(text: str) -> Value | None:
    return None if text == "-" else int(text)


def _parse_stamp(text: str) -> Stamp | None:
    if text in {"-", "?"}:
        return None
    epoch, counter = text.split(".")
    return Stamp(int(epoch), int(counter))


def _parse_counts(words: Sequence[str]) -> dict[str, int] | None:
    return None if words == ["?"] else {key: int(value) for key, value in _split(words, "=")}


def _parse_ring(words: Sequence[str]) -> dict[str, str] | None:
    return None if words == ["?"] else dict(_split(words, ">"))


_Parser: TypeAlias = Callable[[list[str]], Action]
_PARSERS: dict[str, _Parser] = {
    "get": lambda w: Get(w[0], _parse_maybe(w[1])),
    "put": lambda w: Put(w[0], _parse_maybe(w[1])),
    "cas": lambda w: CompareAndSet(
        w[0], _parse_maybe(w[1]), _parse_maybe(w[2]), {"swapped": True, "unchanged": False}[w[3]]
    ),
    "add": lambda w: Add(int(w[0])),
    "elements": lambda w: ReadSet(_parse_list(w[0])),
    "transfer": lambda w: Transfer(w[0], w[1], int(w[2])),
    "balances": lambda w: ReadBalances(_parse_counts(w)),
    "rotate": lambda w: Rotate(tuple(w)),
    "ring": lambda w: ReadRing(_parse_ring(w)),
    "update": lambda w: Update(w[0], _parse_stamp(w[1]), int(w[2])),
    "observe": lambda w: Observe(w[0], _parse_stamp(w[1]), _parse_maybe(w[2])),
    "apply": lambda w: Apply(w[0], None if w[1] == "?" else w[1]),
    "applied": lambda w: ReadApplied(_parse_counts(w)),
    "scan": _parse_scan,
}


def _describe_part(op: Append | Read) -> str:
    match op:
        case Append(key, value):
            return f"append {key} {value}"
        case Read(key, values):
            return f"read {key} {_list(values)}"
        case _:
            assert_never(op)


def _list(values: Sequence[Value] | None) -> str:
    return "?" if values is None else f"[{' '.join(map(str, values))}]"


def _maybe(value: Value | None) -> str:
    return "-" if value is None else str(value)


def _pairs(verb: str, between: str, pairs: dict[str, int] | dict[str, str] | None) -> str:
    if pairs is None:
        return f"{verb} ?"
    return " ".join([verb, *(f"{key}{between}{value}" for key, value in pairs.items())])
