"""The desk for clients: answers, refusals, and requests that wait. `engine.data.admission` says which are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from engine.protocol.limits import within_of
from engine.protocol.requests import Code, Failed, Lock, Remap, Reply, Request
from engine.protocol.sizes import weight_of
from engine.turn.core import Core
from engine.turn.events import Asked, SessionId
from rebalance.partition import LocalPartition
from rebalance.ports import MS
from wal.ids import TxId
from wal.probe import probe

PARKED_BYTES_MAX = 64 << 20
"""All that may wait for the exchange in one node: when it is over, it fits into one turn."""


class Desk:
    """What one node says to its clients, and which of their requests wait."""

    def __init__(self, core: Core, ask_again: Callable[[Sequence[Asked]], None]) -> None:
        self.core = core
        self.ask_again = ask_again  # take requests that waited like new ones, before those that came later
        self.parked: dict[int, list[Asked]] = {}  # what waits, by partition
        self._weighs: dict[int, int] = {}  # all of it, in bytes
        self.parked_bytes = 0
        self.withholding = False  # answers stay here for now
        self._withheld: list[tuple[SessionId, Reply]] = []
        self._given_up: dict[TxId, None] = {}  # transactions that were, while anything waits

    def reply(self, session: SessionId, reply: Reply) -> None:
        """Answer a client after this turn's log is durable."""
        self.core.effects.reply.append((session, reply))

    def flush(self) -> None:
        """End of the turn: what it answers is withheld, or what was withheld is answered first."""
        effects = self.core.effects
        if self.withholding:
            self._withheld += effects.reply
            effects.reply = []
        elif self._withheld:
            effects.reply[:0] = self._withheld
            self._withheld = []

    def remap(self, session: SessionId, request_id: int, *, begun: bool = False) -> None:
        """This node is not the one to ask. `begun`: what was asked is logged here, and may yet come to count."""
        self.core.effects.reply.append((session, Remap(request_id, self.core.version, begun)))

    def refuse(
        self,
        session: SessionId,
        request_id: int,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        maybe_committed: bool = False,
    ) -> None:
        """Refuse a request, saying why."""
        self.core.effects.reply.append((session, Failed(request_id, code, message, retryable, maybe_committed)))

    def is_full(self, local: LocalPartition) -> bool:
        """Whether too much waits already."""
        waits = len(self.parked.get(local.number, ()))
        return waits >= self.core.settings.parked_max or self.parked_bytes >= PARKED_BYTES_MAX

    def park(self, local: LocalPartition, session: SessionId, request: Request) -> None:
        """Keep a request until the partition serves, here or elsewhere."""
        number, weight = local.number, weight_of(request)
        self.parked_bytes += weight
        self._weighs[number] = self._weighs.get(number, 0) + weight
        self.parked.setdefault(number, []).append(Asked(session, request, self.core.now))

    def unpark(self, local: LocalPartition) -> list[Asked]:
        """What waited for the partition, to be asked again. As it may be very much, whether it is wanted still is seen when
        it is taken; but for what was given up, which nobody knows any more then."""
        parked = self.parked.pop(local.number, [])
        self.parked_bytes -= self._weighs.pop(local.number, 0)
        if self._given_up:
            parked = [asked for asked in parked if not self._was_given_up(asked.request)]
        if not self.parked:
            self._given_up = {}
        return parked

    def give_up(self, owner: TxId) -> None:
        """A transaction is given up: what it asked to lock before, and waits here, must not be locked after."""
        if self.parked:
            self._given_up[owner] = None

    def _was_given_up(self, request: Request) -> bool:
        if not isinstance(request, Lock) or request.owner not in self._given_up:
            return False
        probe("lock.given_up_while_it_waited")
        return True

    def still_wanted(self, waited: Iterable[tuple[SessionId, Request, int]]) -> list[tuple[SessionId, Request]]:
        """Of what has waited since some time, that whose answer somebody waits for, with how long they still do."""
        found: list[tuple[SessionId, Request]] = []
        for session, request, since in waited:
            within = within_of(request)
            left = within - (self.core.now - since) // MS
            if within and left <= 0:
                probe("request.nobody_waits")
                continue
            found.append((session, structs.replace(request, within_ms=left) if within else request))
        return found

    def refuse_lost(self, session: SessionId, request_id: int, partition: int) -> None:
        """The partition has no in-sync copy here."""
        held = ", ".join(self.core.local[partition].placement.in_sync)
        self.refuse(
            session,
            request_id,
            Code.LOST,
            f"partition {partition} is LOST: every in-sync copy ({held}) is away; start one of these nodes again",
            retryable=True,
        )
