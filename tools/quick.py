"""Questions to a log, and for the version, that leave nothing to be parsed: answered without making a parser first.

To import one, and to read all that a verb could be told, takes longer than a short answer. Where a verb is given what it is
about, and of its options only those that stand here, in words of their own, it is called with them as they are. Anything
else, a slip too, goes the long way (`tools.cli`), to the same functions.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tools.importing import whole_module
from tools.terminal import emit, end_of
from wal.ids import TABLE_MAX


class _Verb:
    """The arguments of a verb, the first by name, and the name of all others; options with a text, or with a number."""

    def __init__(
        self,
        rest: str = "directories",
        *,
        first: tuple[str, ...] = (),
        texts: tuple[str, ...] = (),
        numbers: tuple[str, ...] = (),
    ) -> None:
        self.rest = rest
        self.first = first
        self.texts = texts
        self.numbers = numbers


_NAME, _METADATA = "foreshore-", ".dist-info"
_VERBS = {
    "verify": _Verb(),
    "stat": _Verb(),
    "dump": _Verb(texts=("tx",)),
    "tx": _Verb("words"),
    "key": _Verb(first=("namespace", "key"), numbers=("partition",)),
}


def quickly(words: Sequence[str]) -> int | None:
    """Answer such a question; the exit code. None, and nothing was done, if it is no such question."""
    if list(words) in (["--version"], ["version"]):
        version = _version()
        return end_of(lambda: emit([f"foreshore {version}"])) if version else None
    if len(words) < 3 or words[0] != "wal" or words[1] not in _VERBS:
        return None
    name, verb = words[1], _VERBS[words[1]]
    given = _given(verb, words[2:])
    if given is None:
        return None

    def command() -> object:
        function = getattr(whole_module(f"tools.wal.{name}"), name)
        gc.freeze()
        gc.enable()  # see `foreshore`
        return function(**given)

    return end_of(command)


def _version() -> str:
    """What is installed, by the name of its metadata: to import what would read these takes longer than all else here."""
    for path in sys.path:
        with suppress(OSError):
            for name in os.listdir(path or "."):
                if name.startswith(_NAME) and name.endswith(_METADATA):
                    return name.removeprefix(_NAME).removesuffix(_METADATA)
    return ""


def _given(verb: _Verb, words: Sequence[str]) -> dict[str, Any] | None:
    """What a verb is called with; None where these words are more than that."""
    found: dict[str, Any] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            rest.append(word)
            continue
        option = word.removeprefix("--")
        value: object = True
        if option in (*verb.texts, *verb.numbers):
            text = next(left, "-")
            if option in verb.numbers:
                value = int(text) if text.isascii() and text.isdecimal() and int(text[:9]) < TABLE_MAX else None
            else:
                value = None if text.startswith("-") else text
        elif word != "--json":
            return None
        if value is None or option in found:
            return None
        found[option] = value
    count = len(verb.first)
    if len(rest) <= count or not all(rest):
        return None
    if found.pop("json", False):
        found["as_json"] = True
    return found | dict(zip(verb.first, rest, strict=False)) | {verb.rest: rest[count:]}
