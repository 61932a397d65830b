"""How long a node's turns take, as whoever pays them measured: facts for the operator, by which nothing is decided.

While a turn goes on the node hears nobody and nobody hears it, so no legal input may make one take longer than
`TURN_MS_MAX` of processor time. What would is cut, and resumed in the next turn (`engine.turn.core.Core.resume`). A turn
above the bound is a defect: it is counted here, with the longest one and what it took, and `node status` shows it.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Collection, Sequence

import msgspec

from engine.messages import kind_of
from engine.turn.events import Asked, Event, Received

TURN_MS_MAX = 50
_NS_MAX = TURN_MS_MAX * 1_000_000
KINDS_SHOWN = 6
EVENTS_NAMED = 10_000
"""Of what came for a turn so much is told by its kind: one that stood still may find hundreds of thousands of messages."""
KEPT = 1_024
"""Of so many partitions that moved last is kept how long they stopped."""
_MS = 1_000_000


class Turns(msgspec.Struct):
    """The turns of one life of a node; times are of the processor, in ns, without what the disk took."""

    taken: int = 0
    above: int = 0  # took longer than TURN_MS_MAX
    longest: int = 0
    longest_took: str = ""  # the kinds of events of the longest, the commonest first

    def note(self, took: int, events: Sequence[Event]) -> None:
        """A turn over these events took so many ns of the processor."""
        self.taken += 1
        if took > _NS_MAX:
            self.above += 1
        if took > self.longest:
            self.longest, self.longest_took = took, what(events)


class Maps(msgspec.Struct):
    """The maps that one life of a node has taken, and for how long it stopped for them; times in ns."""

    full: int = 0
    light: int = 0  # steps, for which nobody stops
    stopped: int = 0
    longest: int = 0
    stopped_at: int = 0  # the last time
    left: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT))
    """For how long partitions took nothing new here before a step that moved them elsewhere took effect."""
    taken: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT))
    """For how long they waited to be served after a step that moved them here took effect."""

    def note(self, now: int | None, *, light: bool) -> None:
        """Another map; None: the node had not stopped for it."""
        self.light += light
        self.full += not light
        if now is not None:
            self.stopped += now - self.stopped_at
            self.longest = max(self.longest, now - self.stopped_at)

    def as_object(self) -> dict[str, object]:
        """It as plain data. What a handover stops is what its old primary and its new one tell, added."""
        found: dict[str, object] = {
            "full": self.full,
            "light": self.light,
            "stopped_ms": round(self.stopped / _MS, 1),
            "longest_stop_ms": round(self.longest / _MS, 1),
        }
        for what_happened, times in (("handed_over", self.left), ("taken_over", self.taken)):
            found[what_happened] = len(times)
            found |= {f"{what_happened}_p{at}_ms": round(_percentile(times, at) / _MS, 1) for at in (50, 99)}
        return found


def _percentile(times: Collection[int], at: int) -> int:
    return sorted(times)[min(len(times) - 1, len(times) * at // 100)] if times else 0


def what(events: Sequence[Event]) -> str:
    """The kinds of the first events, with how many of each; a turn may also go on with what an earlier one began."""
    kinds = Counter(_kind(event) for event in events[:EVENTS_NAMED])
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(KINDS_SHOWN)) or "nothing new"


def _kind(event: Event) -> str:
    match event:
        case Received(_, _, _, message):
            return kind_of(message)
        case Asked(_, request):
            return str(request.__struct_config__.tag)
        case _:
            return type(event).__name__


def collect_nothing() -> None:
    """For a process that is a node and nothing else: look for no garbage that is held in circles.

    A node frees what it drops by counting references, and makes no circles (`tests/engine/host/test_circles.py`). To look
    for some among what came lately took up to 80 ms in a turn of a node with 100,000 fragments; among all that it holds, a
    few million things at the limits, it would take seconds.
    """
    gc.disable()
