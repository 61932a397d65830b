"""Conversations with the rule that chooses how a copy catches up (`rebalance.choice.choose`).

```
choose [prefer-history]
  joiner   lwm=5 highest=9 ranges=(6,2) epochs=1:1,2:6 digests=5:a stable=3 [loading] [kept]
  supplier lwm=20 highest=20 epochs=1:1,2:6 digests=5:a reach=0 rows=100 bytes=100 changed=7
```

What a side does not mention is nothing: no counters, no epochs, a log that reaches back to the beginning. `highest` is
`lwm` unless it is said. Epoch tables are `epoch:first counter`, digests `counter:digest`, what lies beyond a gap is
`start:delta:epoch`. `changed` are keys that the supplier remembers.
"""

from __future__ import annotations

from rebalance.choice import Amount, choose, divergence
from rebalance.messages import Have
from tests.conversations.story import Command, Interpreter, StoryError


class ChoiceStory(Interpreter):
    """Remembers the last joiner and supplier, so that a story can change one side only."""

    def __init__(self) -> None:
        self.sides: dict[str, Command] = {}

    def on_choose(self, command: Command) -> list[str]:
        prefer = command.flag("prefer-history")
        for text in command.body:
            side = Command(text, [], command.line)
            if side.verb not in {"joiner", "supplier"}:
                raise StoryError(f"expected joiner or supplier: {text}")
            self.sides[side.verb] = side
        joiner, side = _have(self._side("joiner")), self._side("supplier")
        reach, rows = int(side.option("reach") or 0), int(side.option("rows") or 0)
        amount = Amount(rows, int(side.option("bytes") or 100))
        changed = side.option("changed")
        choice = choose(
            joiner,
            _have(side),
            reach,
            None if prefer else lambda _: rows,
            amount=lambda: amount,
            changed=lambda _: int(changed) if changed is not None else None,
        )
        undo = f" undo-above={choice.cut}" if choice.cut >= 0 else ""
        missing = f" missing={choice.missing}" if choice.missing else ""
        return [f"{choice.kind}{undo}{missing}: {choice.reason}"]

    def on_divergence(self, command: Command) -> str:
        """Where two histories part: `divergence 1:1 16 1:1,2:15 20`."""
        mine, my_end = pairs(command.word("epochs")), command.number("end")
        theirs, their_end = pairs(command.word("epochs")), command.number("end")
        return str(divergence(mine, my_end, theirs, their_end))

    def _side(self, name: str) -> Command:
        side = self.sides.get(name)
        if side is None:
            raise StoryError(f"nothing is known of the {name}")
        return Command(side.text, [], side.line)


def _have(side: Command) -> Have:
    """What a side has; nothing else may be said of it."""
    lwm = int(side.option("lwm") or 0)
    have = Have(
        "ns",
        0,
        lwm=lwm,
        highest=int(side.option("highest") or lwm),
        ranges=ranges(side.option("ranges") or ""),
        epochs=pairs(side.option("epochs") or ""),
        digests=pairs(side.option("digests") or "", 16),
        stable=int(side.option("stable") or 0),
        loading=side.flag("loading"),
        kept=side.flag("kept"),
        beyond=[(start, delta, epoch) for start, delta, epoch in triples(side.option("beyond") or "")],
    )
    side.done()
    return have


def pairs(text: str, base: int = 10) -> list[tuple[int, int]]:
    """`1:1,2:15` as pairs."""
    return [(int(a), int(b, base)) for a, b in (pair.split(":") for pair in text.split(",") if pair)]


def triples(text: str) -> list[tuple[int, ...]]:
    """`3:2:1,7:1:2` as triples."""
    return [tuple(map(int, triple.split(":"))) for triple in text.split(",") if triple]


def ranges(text: str) -> list[tuple[int, int]]:
    """`(6,2)(9,1)` as ranges."""
    return [(int(start), int(delta)) for start, delta in (r.split(",") for r in text.strip("()").split(")(") if r)]
