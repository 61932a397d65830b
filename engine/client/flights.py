"""Calls of a client that are under way, and the requests that were sent for them."""

from __future__ import annotations

from engine.client.calls import Call, Item
from engine.protocol.addresses import Address

MS = 1_000_000
ELSEWHERE_MS = 50
"""What any copy may answer is asked of another one after so long, and after twice as long each time."""


class Errand:
    """A call under way."""

    __slots__ = ("attempts", "begun", "call", "cause", "deadline", "flights", "last", "over", "retry_at", "todo")

    def __init__(self, call: Call, begun: int, deadline: int) -> None:
        self.call = call
        self.begun = begun
        self.deadline = deadline
        self.todo: list[Item] | None = None  # None: not split yet, because there is no table
        self.flights = 0
        self.attempts = 0
        self.retry_at = 0
        self.last = ""  # why it had to be tried again, for a person
        self.cause = ""  # the same as a code, where there is one
        self.over = False  # finished, or nobody waits for it any more

    def hindered(self, why: str, cause: str = "") -> None:
        """It has to be tried again."""
        self.last, self.cause = why, cause

    @property
    def may_be_done(self) -> bool:
        """Whether a call that ends without an answer may have taken effect, or some of it."""
        call = self.call
        return call.writes and bool(self.flights or call.unanswered or call.begun)


class Flight:
    """A request that was sent and not answered."""

    __slots__ = ("address", "errand", "items", "sent_at")

    def __init__(self, errand: Errand, items: list[Item], address: Address, sent_at: int) -> None:
        self.errand = errand
        self.items = items
        self.address = address
        self.sent_at = sent_at

    @property
    def patience_ends(self) -> int:
        """When another copy is asked, if any may answer."""
        return self.sent_at + (ELSEWHERE_MS << min(self.errand.attempts, 5)) * MS
