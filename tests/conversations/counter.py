"""Conversations with a partition update counter (`wal.counters`).

One counter, which every command acts on; the answer is what it returned, and what it is then:

```
new 5                   a counter with this lwm           reserve 4        promise the next four; the range
update 6 2              apply (6,2): counters 7 and 8     promise 9        a prepare is known up to there
missing 9               the gaps up to there              covers 6 2       is (6,2) applied?
advance 9 | finalize | cut 4                              bytes, load HEX  its encoding, and back
backup: update 6 2      said to the counter of that name; each is a counter of its own, new when it is first named
```
"""

from __future__ import annotations

from tests.conversations.story import Command, Interpreter
from wal.counters import RANGES_MAX, CounterAhead, CounterError, CounterOverlap, PartitionCounter, TooManyRanges

_REFUSALS = (CounterAhead.__name__, CounterOverlap.__name__, TooManyRanges.__name__)


class CounterStory(Interpreter):
    """Counters by name; a command that does not begin with a name talks to the one without."""

    refusals = (CounterError, ValueError)

    def __init__(self) -> None:
        self.counters: dict[str, PartitionCounter] = {}
        self.name = ""

    @property
    def counter(self) -> PartitionCounter:
        """The one that is talked to."""
        return self.counters.setdefault(self.name, PartitionCounter())

    def answer(self, command: Command) -> list[str]:
        """A refusal must not have changed anything."""
        self.name = command.to
        before = self.counter.copy()
        lines = super().answer(command)
        if lines[0].startswith(_REFUSALS):
            assert self.counter == before, f"a refusal changed {before} to {self.counter}"
        return lines

    def check(self) -> None:
        for counter in self.counters.values():
            counter.check()

    def on_new(self, command: Command) -> str:
        self.counters[self.name] = PartitionCounter(command.number("lwm"))
        return said(self.counter)

    def on_show(self, _: Command) -> str:
        return said(self.counter)

    def on_reserve(self, command: Command) -> str:
        n = command.number("how many")
        return f"({self.counter.reserve(n)},{n}) {said(self.counter)}"

    def on_promise(self, command: Command) -> str:
        self.counter.reserve_to(command.number("a counter"))
        return said(self.counter)

    def on_update(self, command: Command) -> str:
        new = self.counter.update(command.number("start"), command.number("delta"))
        return f"{'new' if new else 'known'} {said(self.counter)}"

    def on_every_other(self, command: Command) -> str:
        """Apply so many single counters, each beyond a gap of its own."""
        start = self.counter.highest_applied
        for i in range(command.number("how many")):
            self.counter.update(start + 1 + 2 * i, 1)
        return said(self.counter)

    def on_missing(self, command: Command) -> str:
        gaps = self.counter.missing(command.number("up to"))
        return _ranges(gaps) + (f" {sum(delta for _, delta in gaps)} counters" if gaps else "")

    def on_covers(self, command: Command) -> str:
        return "yes" if self.counter.covers(command.number("start"), command.number("delta")) else "no"

    def on_advance(self, command: Command) -> str:
        self.counter.advance(command.number("to"))
        return said(self.counter)

    def on_finalize(self, _: Command) -> str:
        return f"closed {_ranges(self.counter.finalize())} {said(self.counter)}"

    def on_cut(self, command: Command) -> str:
        self.counter.cut(command.number("above"))
        return said(self.counter)

    def on_bytes(self, _: Command) -> str:
        return self.counter.to_bytes().hex()

    def on_load(self, command: Command) -> str:
        self.counters[self.name] = PartitionCounter.from_bytes(bytes.fromhex(command.word("hex")))
        return said(self.counter)


def said(counter: PartitionCounter) -> str:
    """A counter in one line, however many ranges it has."""
    if len(counter.ranges) <= 8:
        return str(counter)
    return f"lwm={counter.lwm} hwm={counter.hwm} and {len(counter.ranges)} of {RANGES_MAX} ranges"


def _ranges(ranges: list[tuple[int, int]]) -> str:
    return "".join(f"({start},{delta})" for start, delta in ranges) or "nothing"
