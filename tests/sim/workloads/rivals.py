"""Who is refused has a rival: a transaction that meets nobody commits.

An optimistic transaction may be told `Conflict` because somebody else changes what it touches, or has changed it since it
read that. Whoever was told that his transaction is committed does not change anything any more. So among those that touch
the same keys there is one that was not over when the refused one began, or that came to no good end, and holds what it
holds until that is found out. Where the map has changed meanwhile nothing is said: an exchange may cost a transaction.

Who meets the keys of one that is over, where its outcome does not count yet, waits for that, and for `in_doubt_ms` at
most: a copy may be slow to say that it has it. So whoever has waited for so long, from when it asked to be committed and by
the clock of the node that holds its keys, may be told `Conflict`; whoever is told so before has been wronged.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.machine import Machine
from tests.sim.network import MS
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import TxId, Version

LEFT_BEHIND_NS = 60_000 * MS
"""For so long after its end a transaction that failed may still hold something: leases and recovery end it."""


class Attempt:
    """A transaction, from its first call to its last answer."""

    __slots__ = ("committed", "keys", "since", "tx", "until", "version", "waits")

    def __init__(self, tx: TxId, keys: Iterable[str], since: int, version: Version | None) -> None:
        self.tx = tx
        self.keys = frozenset(keys)
        self.since = since
        self.version = version
        self.until: int | None = None  # it goes on, or its client does not know
        self.committed = False
        self.waits: list[tuple[Machine, int]] = []  # who held its keys when it asked to be committed, and its clock then


class Rivals:
    """The transactions of one workload, of which each is judged when it is refused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._all: list[Attempt] = []

    def begin(self, tx: TxId, keys: Iterable[str]) -> Attempt:
        """Somebody is about to touch these keys, and no others."""
        attempt = Attempt(tx, keys, self._world.now, self._version())
        self._all.append(attempt)
        return attempt

    def asks(self, attempt: Attempt) -> None:
        """It is about to ask to be committed."""
        now = self._world.now
        attempt.waits = [(machine, machine.local(now)) for machine in self._world.running if _holds(machine, attempt)]

    def committed(self, attempt: Attempt) -> None:
        """Its client was told so."""
        attempt.committed, attempt.until = True, self._world.now

    def failed(self, attempt: Attempt) -> None:
        """Its client knows that it will not commit; what it has locked may stay so for a while."""
        attempt.until = self._world.now

    def refused(self, attempt: Attempt) -> None:
        """It was told `Conflict`. Raises Violation if nobody can have been in its way."""
        self.failed(attempt)
        if attempt.version is None or attempt.version != self._version() or self._waited(attempt):
            return
        if not any(other is not attempt and self._meet(other, attempt) for other in reversed(self._all)):
            about = f"{', '.join(sorted(attempt.keys))} since {attempt.since / 1e9:.6f}"
            raise Violation("rivals", f"it was refused, and nobody else touched {about}", About(txs=(attempt.tx,)))

    def _waited(self, attempt: Attempt) -> bool:
        now = self._world.now
        return any(machine.local(now) - then >= machine.settings.in_doubt_ms * MS for machine, then in attempt.waits)

    @staticmethod
    def _meet(other: Attempt, attempt: Attempt) -> bool:
        if not other.keys & attempt.keys:
            return False
        until = other.until
        return until is None or until + (0 if other.committed else LEFT_BEHIND_NS) >= attempt.since

    def _version(self) -> Version | None:
        newest = self._world.newest()
        return newest.version if newest is not None else None


def _holds(machine: Machine, attempt: Attempt) -> bool:
    """Whether a node holds a key of it for a transaction that voted there and whose outcome does not count yet."""
    assert machine.node is not None
    participant = machine.node.participant
    for tx, number in participant.parts_in_doubt():
        if (part := participant.prepared(tx, number)) is not None:
            prepare, _ = part
            held = [*(key for write in prepare.writes for key in write.keys), *(key for _, key in prepare.locks)]
            if any(key.decode(errors="replace") in attempt.keys for key in held):
                return True
    return False
