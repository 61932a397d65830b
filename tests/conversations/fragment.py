"""Conversations with copies of one fragment (`rebalance.fragment`): counter, epoch table, digest, tail.

```
n1: write 0 e1 a=1 b=2        apply counters 1 and 2, issued in epoch 1; `b=` deletes; stable=N, origin=N as in a record
n1: close 2 1 e1              counter 3 is a closed gap
n1: epoch 2 from 4            counters from 4 on belong to epoch 2
n1: cut 3                     undo everything above 3
n1: stable 2                  everything up to 2 is on every in-sync copy
n1: clear                     emptied, to be taken in full
n1: ready n2                  the full transfer from n2 is complete
n1: lacking 2 (3,1)           what of the tail a copy with this lwm and these ranges lacks
n1: digest 2                  the digest there
n1: image                     what a checkpoint stores, read back
compare n1 n2                 what two copies say of each other
```
"""

from __future__ import annotations

from rebalance.fragment import CannotUndo, FragmentState
from rebalance.image import fragment_of
from tests.conversations import records
from tests.conversations.choice import ranges
from tests.conversations.names import Names
from tests.conversations.story import Command, Interpreter, StoryError
from tests.support.images import image_of
from wal.counters import CounterError
from wal.ids import Fragment
from wal.records import Write

NAME: Fragment = ("acc", 7)


class FragmentStory(Interpreter):
    """Copies of `acc/7`, by the node that has them."""

    refusals = (CannotUndo, CounterError)

    def __init__(self) -> None:
        self.copies: dict[str, FragmentState] = {}
        self.node = ""

    @property
    def copy(self) -> FragmentState:
        """The one that is talked to."""
        return self.copies.setdefault(self.node, FragmentState(NAME))

    def answer(self, command: Command) -> list[str]:
        """Most commands are said to a copy."""
        self.node = command.to
        return super().answer(command)

    def check(self) -> None:
        for copy in self.copies.values():
            copy.check()

    def on_write(self, command: Command) -> str:
        return self._apply(records.write(command, NAME, Names()))

    def on_close(self, command: Command) -> str:
        start, delta = command.number("start"), command.number("delta")
        return self._apply(Write(*NAME, records.epoch(command), start, [], [], closed=delta))

    def _apply(self, write: Write) -> str:
        return f"{'new' if self.copy.apply(write) else 'known'} {self.on_show()}"

    def on_epoch(self, command: Command) -> str:
        epoch = command.number("epoch")
        if command.word("from") != "from":
            raise StoryError("expected: epoch 2 from 4")
        return self._undone(self.copy.begin_epoch(epoch, command.number("the first counter")))

    def on_cut(self, command: Command) -> str:
        return self._undone(self.copy.cut(command.number("above")))

    def _undone(self, writes: list[Write]) -> str:
        return f"undone {written(writes)}; {self.on_show()}"

    def on_stable(self, command: Command) -> str:
        self.copy.note_stable(command.number("stable"))
        return self.on_show()

    def on_clear(self, _: Command) -> str:
        self.copy.clear(loading=True)
        return self.on_show()

    def on_ready(self, command: Command) -> str:
        other = self.copies[command.word("supplier")]
        self.copy.ready(other.counter.lwm, other.digest, other.history, full=True)
        return self.on_show()

    def on_lacking(self, command: Command) -> str:
        return written(self.copy.lacking(command.number("lwm"), ranges(" ".join(command.rest()))))

    def on_digest(self, command: Command) -> str:
        digest = self.copy.digest_at(command.number("counter"))
        return "forgotten" if digest is None else short(digest)

    def on_image(self, _: Command) -> str:
        self.copies[self.node] = fragment_of(NAME, image_of(self.copy))
        return self.on_show()

    def on_show(self, _: Command | None = None) -> str:
        return standing_of(self.copy)

    def on_compare(self, command: Command) -> str:
        a, b = (self.copies[command.word("copy")] for _ in range(2))
        same = [
            ("lwm", a.counter.lwm == b.counter.lwm),
            ("epochs", a.history == b.history),
            ("digest", a.digest == b.digest),
        ]
        return ", ".join(f"{'same' if equal else 'another'} {what}" for what, equal in same)


def standing_of(copy: FragmentState) -> str:
    """One copy in one line."""
    epochs = ",".join(f"{epoch}:{first}" for epoch, first in copy.epochs) or "-"
    suspects = " ".join(key.decode() for key in copy.suspects)
    return (
        f"{copy.counter} stable={copy.stable} epochs={epochs} digest={short(copy.digest)}"
        f"{' loading' if copy.loading else ''}{f' suspects={suspects}' if suspects else ''}"
    )


def short(digest: int) -> str:
    """Enough of a digest to tell it from another."""
    return f"{digest >> 48:04x}"


def written(writes: list[Write]) -> str:
    """Writes in the notation of ranges, with their epochs: `(3,2)e1`."""
    return " ".join(f"({w.start},{w.delta})e{w.epoch}{' closed' if w.closed else ''}" for w in writes) or "nothing"
