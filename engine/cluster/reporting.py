"""What a node tells an exchange: its promise, and what it has, once it has stopped for it.

Of that first what its copies add up to (`rebalance.sums`), or all of it, where the coordinator knows of no sums; then, of
those partitions whose copies are not alike, what each fragment has. As the node has stopped, all of that is of one moment,
in however many pieces it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized

from engine.cluster.claims import Claims
from engine.messages import Announce, AskCopies, Copies, CopyReport, Promise, SingleMap
from engine.turn.core import Core
from rebalance.anew import Anew
from rebalance.sums import reports_in, sums_of
from rebalance.telling import reports_of
from wal.ids import Ballot, NodeId


class Reporting:
    """The report of one node to the ballot that it has promised last."""

    def __init__(self, core: Core, claims: Claims, anew: Anew, vouched: Callable[[], list[tuple[int, NodeId]]]) -> None:
        self._core = core
        self._claims = claims
        self._anew = anew
        self._vouched = vouched
        self.single: SingleMap | None = None  # that was sent
        self._under_way: Announce | None = None  # stopped, and not sent yet

    def promise(self, message: Announce, accepted_ballot: Ballot, accepted: bytes) -> Promise:
        """What this node promises, with what it had accepted before."""
        core = self._core
        return Promise(
            message.after,
            message.ballot,
            accepted_ballot=accepted_ballot,
            accepted=accepted,
            life=core.life,
            voted_lsn=core.voted_lsn,
            claims=self._claims.sure(),
            lasts=True,
            hands_over=True,
            admits=True,
            keeps=True,
            tells_apart=True,
        )

    def begin(self, message: Announce, to: NodeId) -> None:
        """This node has stopped: it tells the coordinator what it has."""
        self._under_way = message
        self._core.in_pieces(self._report(message, to))

    def forget(self) -> None:
        """Another ballot, or the next map."""
        self._under_way = self.single = None

    @property
    def held(self) -> list[Sized]:
        """The long list that it holds."""
        return [self.single.copies or self.single.sums or []] if self.single is not None else []

    def _report(self, message: Announce, to: NodeId) -> Iterator[int]:
        copies, sums = list[CopyReport](), list[tuple[int, int]]()
        for work in self._sums(sums) if message.sums else self.copies(copies):
            yield work
            if self._under_way is not message:
                return
        core, self._under_way = self._core, None
        self.single = SingleMap(
            message.after,
            message.ballot,
            life=core.life,
            claims=self._claims.known(),
            copies=copies,
            vouched=self._vouched() if core.serving else [],
            sums=sums if message.sums else None,
        )
        core.send(to, self.single)

    def _sums(self, into: list[tuple[int, int]]) -> Iterator[int]:
        self._anew.told()
        return sums_of(self._core.replica.partitions, self._anew.wanted, into)

    def copies(self, into: list[CopyReport]) -> Iterator[int]:
        """What every copy here has, in pieces; yields how much work each was."""
        self._anew.told()
        return reports_of(self._core.replica.fragments, self._anew.wanted, into)

    def on_ask_copies(self, sender: NodeId, message: AskCopies) -> None:
        """Tell what is here of some partitions."""
        single = self.single
        if single is not None and (single.after, single.ballot) == (message.after, message.ballot):
            self._core.in_pieces(self._tell(sender, message, single))

    def _tell(self, to: NodeId, message: AskCopies, single: SingleMap) -> Iterator[int]:
        copies: list[CopyReport] = []
        for work in reports_in(self._core.replica.partitions, message.partitions, self._anew.wanted, copies):
            yield work
            if self.single is not single:
                return
        told = Copies(single.after, single.ballot, message.number, single.life, copies)
        if to == self._core.node:
            self._core.send(to, told)
        else:  # the report left when all that it sums up was durable
            self._core.send_early((to,), told)
