"""Calls of a client that are under way, and the requests that were sent for them."""

from __future__ import annotations

from collections.abc import Container, Sequence

from engine.client.calls import Call, Item
from engine.protocol.addresses import Address

MS = 1_000_000
NEVER = 1 << 63
BACKOFF_MS = (5, 10, 20, 50, 100, 200)
WITHIN_MS_MAX = 3_600_000
"""Who waits for longer than that is said to wait for ever."""
ELSEWHERE_MS = 50
"""What any copy may answer is asked of another one after so long, and after twice as long each time."""

NOTHING: dict[Item, None] = {}


class Errand:
    """A call under way."""

    # What every errand begins with stands in the class: most are done at once.
    todo: list[Item] | None = None  # None: not split yet, because there is no table
    flights = 0
    answered: dict[Item, None] = NOTHING  # of what any copy may answer
    attempts = 0
    retry_at = 0
    last = ""  # why it had to be tried again, for a person
    cause = ""  # the same as a code, where there is one
    over = False  # finished, or nobody waits for it any more

    def __init__(self, call: Call, begun: int, deadline: int) -> None:
        self.call = call
        self.begun = begun
        self.deadline = deadline

    def hindered(self, why: str, cause: str = "") -> None:
        """It has to be tried again."""
        self.last, self.cause = why, cause

    def back_off(self, now: int) -> None:
        """It is tried again a little later, each time after a longer while."""
        self.retry_at = now + BACKOFF_MS[min(self.attempts, len(BACKOFF_MS) - 1)] * MS
        self.attempts += 1

    def within_ms(self, now: int) -> int:
        """How long its answer is of use; 0: always."""
        within = (self.deadline - now) // MS + 1
        return within if within <= WITHIN_MS_MAX else 0

    def was_answered(self, items: Sequence[Item]) -> None:
        """Of what any copy may answer these were, but for what its answer did not reach: nobody needs to be asked."""
        assert self.todo is not None, "it was split before anything was sent"
        left = dict.fromkeys(self.call.rest)
        if self.answered is NOTHING:
            self.answered = {}
        self.answered.update((item, None) for item in items if item not in left)
        self.todo = [item for item in self.todo if item not in self.answered]

    @property
    def may_be_done(self) -> bool:
        """Whether a call that ends without an answer may have taken effect, or some of it."""
        call = self.call
        return call.writes and call.asked and bool(self.flights or call.unanswered or call.begun)


class Elsewhere:
    """What any copy may answer, of which another one is asked where the first does not answer in time.

    The first is waited for on: it may be busy and no more, and the others as much. If an answer counted only as long as
    nobody else had been asked, nothing would ever be answered where all take longer than that, and each would be asked
    again and again for what it is doing.
    """

    def __init__(self) -> None:
        self._first: dict[int, Flight] = {}  # whose answer is expected now
        self._late: dict[int, Flight] = {}  # who was not waited for alone
        self.look_at = NEVER

    def __len__(self) -> int:
        return len(self._first) + len(self._late)

    def add(self, request_id: int, flight: Flight) -> None:
        """It was sent."""
        self._first[request_id] = flight
        self.look_at = min(self.look_at, flight.patience_ends)

    def overdue(self, now: int, flights: Container[int]) -> list[int]:
        """Those of which another copy is to be asked by now, of the `flights` that were not answered."""
        self._late = {i: flight for i, flight in self._late.items() if not flight.errand.over}
        first, self._first, self.look_at = self._first, {}, NEVER
        found: list[int] = []
        for request_id, flight in first.items():
            if request_id not in flights or flight.errand.over:
                continue
            if now < flight.patience_ends:
                self.add(request_id, flight)
            else:
                found.append(request_id)
                self._late[request_id] = flight
        return found

    def late(self, request_id: int) -> Flight | None:
        """Who answers although another one was asked, if that is still of use."""
        flight = self._late.pop(request_id, None)
        return flight if flight is not None and not flight.errand.over else None


class Flight:
    """A request that was sent and not answered."""

    __slots__ = ("address", "errand", "items", "sent_at")

    def __init__(self, errand: Errand, items: list[Item], address: Address, sent_at: int) -> None:
        self.errand = errand
        self.items = items
        self.address = address
        self.sent_at = sent_at

    @property
    def is_answered(self) -> bool:
        """Whether something of what was asked has been answered by another copy."""
        answered = self.errand.answered
        return bool(answered) and any(item in answered for item in self.items)

    @property
    def patience_ends(self) -> int:
        """When another copy is asked, if any may answer."""
        return self.sent_at + (ELSEWHERE_MS << min(self.errand.attempts, 5)) * MS


def withdraw_repeated(flights: dict[int, Flight], errand: Errand) -> None:
    """Nobody waits for what would say again what has been answered; what else was asked with it is to be asked anew."""
    assert errand.todo is not None, "it was split before anything was sent"
    for request_id, flight in list(flights.items()):
        if flight.errand is errand and flight.is_answered:
            del flights[request_id]
            errand.flights -= 1
            errand.todo += [item for item in flight.items if item not in errand.answered]
