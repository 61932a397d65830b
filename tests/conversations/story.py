"""A story: comments that say why, commands, and what a machine answers to each.

```
# Lines that say why the next command matters.
update 6 2
----
True lwm=5 hwm=9 ranges=(6,2)

```

An answer ends at a blank line. Lines between a command and its `----` are the command's body. Everything else in a file
is left alone when the answers are written anew, so a story can be laid out as its reader needs it. A command that has no
answer yet is one for which `--rewrite` writes the first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

TESTDATA = Path(__file__).parent.parent / "testdata"
RULE = "----"


class StoryError(Exception):
    """A story that its machine does not understand: the story is wrong, not the engine."""


class Command:
    """One command, which an interpreter takes apart word by word; a word that is left over is an error.

    `to` is whom it is said to, in a story with several of a kind: `n2: update 6 2`.
    """

    def __init__(self, text: str, body: list[str], line: int) -> None:
        self.text = text
        self.body = body
        self.line = line
        first, *self._words = text.split()
        self.to = first.removesuffix(":") if first.endswith(":") else ""
        self.verb = self.word("a command") if self.to else first

    def word(self, what: str) -> str:
        """The next word."""
        if not self._words:
            raise StoryError(f"{what} is missing")
        return self._words.pop(0)

    def number(self, what: str) -> int:
        """The next word, as a number."""
        word = self.word(what)
        if not word.lstrip("-").isdigit():
            raise StoryError(f"{what} should be a number: {word!r}")
        return int(word)

    def rest(self) -> list[str]:
        """All words that are left."""
        words, self._words = self._words, []
        return words

    def option(self, name: str) -> str | None:
        """The value of the word `name=value`, wherever it stands."""
        for word in self._words:
            if word.startswith(f"{name}="):
                self._words.remove(word)
                return word.removeprefix(f"{name}=")
        return None

    def flag(self, name: str) -> bool:
        """Whether the word `name` is there."""
        if name not in self._words:
            return False
        self._words.remove(name)
        return True

    def done(self) -> None:
        """Everything was understood."""
        if self._words:
            raise StoryError(f"not understood: {' '.join(self._words)}")


Answer: TypeAlias = str | Iterable[str] | None


class Interpreter:
    """Understands the commands of one machine: `on_some_verb` takes the command `some-verb ...`.

    `refusals` are the errors that are answers: they print as `CounterOverlap: why`.
    """

    refusals: tuple[type[Exception], ...] = ()

    def answer(self, command: Command) -> list[str]:
        """Do a command; the lines of its answer."""
        handler = getattr(self, f"on_{command.verb.replace('-', '_')}", None)
        if handler is None:
            known = sorted(name.removeprefix("on_").replace("_", "-") for name in dir(self) if name.startswith("on_"))
            raise StoryError(f"no such command: {command.verb}; known: {', '.join(known)}")
        try:
            said: Answer = handler(command)
            lines = said.splitlines() if isinstance(said, str) else list(said or [])
        except self.refusals as error:
            lines = [f"{type(error).__name__}: {error}"]
        command.done()
        self.check()
        assert not any(line != line.rstrip() or not line for line in lines), f"blanks in the answer to {command.text}"
        return lines or ["ok"]

    def check(self) -> None:
        """Assert everything that is always true of the machine; after every command."""

    def close(self) -> None:
        """The story is over."""


def tell(path: Path, machine: Interpreter) -> tuple[str, str]:
    """Tell a story to its machine: (the file as it is, the file as it should be)."""
    told = path.read_text()
    lines = told.splitlines()
    retold: list[str] = []
    at = 0
    try:
        while at < len(lines):
            if not lines[at] or lines[at].startswith("#"):
                retold.append(lines[at])
                at += 1
                continue
            begin = at
            while at < len(lines) and lines[at] and lines[at] != RULE:
                at += 1
            asked = lines[begin:at]
            if at < len(lines) and lines[at] == RULE:
                while at < len(lines) and lines[at]:
                    at += 1
            command = Command(asked[0], asked[1:], begin + 1)
            try:
                retold += [*asked, RULE, *machine.answer(command)]
            except StoryError as error:
                raise StoryError(f"{path.name}:{command.line}: {command.text}\n  {error}") from None
            except Exception as error:
                error.add_note(f"{path.name}:{command.line}: {command.text}")
                raise
    finally:
        machine.close()
    return told, "\n".join(retold).rstrip("\n") + "\n"


def difference(path: Path, told: str, retold: str) -> str:
    """What another answer looks like."""
    lines = difflib.unified_diff(told.splitlines(), retold.splitlines(), f"{path.name} (told)", "(answered)", lineterm="")
    return "\n".join(lines)
