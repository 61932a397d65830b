"""The words of the language: each verb and each expectation with the words and options that it takes.

`docs/scenarios.md` describes exactly these; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.scenario.language import Statement, unknown

if TYPE_CHECKING:
    from tests.sim.scenario.stage import Stage

Deed = Callable[["Stage", Statement], None]


@dataclass(frozen=True)
class Verb:
    """One verb. `words` is how it is written, for an error; `least` and `most` bound how many words follow it."""

    name: str
    words: str
    least: int
    most: int
    options: tuple[str, ...]
    do: Deed

    def check(self, statement: Statement) -> None:
        """Refuse what this verb does not take."""
        words = [word for word in statement.words if word != "async" or "async" not in self.options]
        if not self.least <= len(words) <= self.most:
            raise statement.error(f"{self.name} is written `{self.name}{self.words}`")
        for option in statement.options:
            if option not in self.options:
                known = [name for name in self.options if name != "async"]
                if not known:
                    raise statement.error(f"{self.name} takes no options, and not {option}=")
                raise unknown(statement, option, f"option of {self.name}", known)


VERBS: dict[str, Verb] = {}


def verb(
    name: str, words: str = "", *, least: int = 0, most: int | None = None, options: str = ""
) -> Callable[[Deed], Deed]:
    """Register a verb."""

    def register(do: Deed) -> Deed:
        assert name not in VERBS, f"verb {name} is there already"
        told = f" {words}" if words else ""
        VERBS[name] = Verb(name, told, least, least if most is None else most, tuple(options.split()), do)
        return do

    return register


MANY = 1_000
"""As many words as anybody likes."""
