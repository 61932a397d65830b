"""What came to a node and was not taken yet: what is to be taken next, and behind it what came while there was very much.

Who stood still finds hundreds of thousands of messages before it. What a turn cannot come to in any case it does not look
at, either: it stays as it came, with when that was, until its turn has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from engine.turn.events import Asked, Event
from rebalance.ports import WORK_MAX


class Untaken:
    """In the order in which it will be taken: all that is `ready`, and then what lies behind.

    Of what a client asks is noted since when it waits, where that is for longer than a turn: it may tire of that.

    Invariant: where nothing is ready at the end of a turn, nothing lies behind.
    """

    def __init__(self) -> None:
        self.ready: deque[Event] = deque()
        self._behind: deque[tuple[int, deque[Event]]] = deque()  # what came at a time
        self._fresh = 0, 0  # at a time, of those that are ready, so many of the last ones had come for that turn

    def all(self) -> Sequence[Event]:
        """All of it, in order."""
        return [*self.ready, *chain.from_iterable(came for _, came in self._behind)] if self._behind else self.ready

    def come(self, events: Sequence[Event], now: int) -> None:
        """These came for the turn that begins. Where they are few, and nothing is ready, they are ready as they come."""
        ready, behind = self.ready, self._behind
        if not behind and len(events) <= WORK_MAX:
            ready.extend(events)
            return
        if events:
            behind.append((now, deque(events)))
        fresh = 0
        while behind and len(ready) <= WORK_MAX:  # one more than a turn can take
            since, came = behind[0]
            some = [came.popleft() for _ in range(min(len(came), 1 + WORK_MAX - len(ready)))]
            ready.extend(some if since == now else _waiting(some, since))
            fresh = fresh + len(some) if since == now else 0
            if not came:
                behind.popleft()
        self._fresh = now, fresh

    def leave(self, came: int, now: int) -> None:
        """What is left of a turn, for which so many `came`, waits for the next one."""
        ready, (at, count) = self.ready, self._fresh
        fresh = [ready.pop() for _ in range(min(count if at == now else came, len(ready)))]
        ready.extend(_waiting(reversed(fresh), now))

    def ask_again(self, asked: Sequence[Asked]) -> None:
        """Requests that waited for something else are taken before those that came later."""
        self.ready.extendleft(reversed(asked))


def _waiting(events: Iterable[Event], since: int) -> Iterable[Event]:
    return [Asked(e.session, e.request, since) if isinstance(e, Asked) and not e.since else e for e in events]
