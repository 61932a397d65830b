"""What a client asks of the past: a cut, and that it be kept for as long as it reads there."""

from __future__ import annotations

from engine.client.calls import Call, Item, unexpected
from engine.client.places import leading_in
from engine.protocol.requests import Cut, Done, KeepCut, Reply, Request, TakeCut
from rebalance.table import Topology
from wal.ids import NO_ERA, Era


class TakeCutCall(Call):
    """Take a cut, of which `cut` is the name then."""

    def __init__(self, holder: bytes) -> None:
        self.holder = holder
        self.cut: Era = NO_ERA

    def partitions(self, topology: Topology) -> list[int]:
        """The first that is not LOST: its primary numbers the cuts."""
        return [next((number for number, placed in enumerate(topology.placements) if not placed.lost), 0)]

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Ask for it."""
        return TakeCut(request_id, self.holder, self.within_ms)

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note which it is."""
        if not isinstance(reply, Cut):
            raise unexpected(reply)
        self.cut = reply.cut


class KeepCutCall(Call):
    """Whoever reads at a cut lives, or is done (`over`): said to all primaries.

    `others`: of those who read at theirs and are done, too. `leading`: a partition of each primary, by the map when it is
    begun; none: they are looked for among all.
    """

    def __init__(
        self,
        cut: Era,
        holder: bytes,
        *,
        over: bool = False,
        others: list[tuple[Era, bytes]] | None = None,
        leading: list[int] | None = None,
    ) -> None:
        self.cut = cut
        self.holder = holder
        self.over = over
        self.others = others or []
        self.leading = leading

    def partitions(self, topology: Topology) -> list[int]:
        """One of each primary, and the same by a later map: what has moved since cannot be read at the cut."""
        if self.leading is None:
            self.leading = leading_in(topology)
        return self.leading

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Tell the primary of some."""
        return KeepCut(request_id, self.cut, self.holder, self.over, self.others)

    def take(self, items: list[Item], reply: Reply) -> None:
        """Nothing to note."""
        if not isinstance(reply, Done):
            raise unexpected(reply)
