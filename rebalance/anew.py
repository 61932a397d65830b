"""Copies that are to be taken anew from their peers: an operator, or anti-entropy (`rebalance.entropy`), has seen that
their rows are not what they should be, although their counters say that nothing is missing.

Nothing is emptied before it is sure that nobody relies on it. Heartbeats tell the coordinator, which takes the copy out by
a light step (`rebalance.steps`); where it is a primary's, what it leads moves before. A word in this node's single map
tells a full exchange. Where other in-sync copies are left, a map calls this one MOVING, and only now is the fragment
cleared, in the log, and demanded like any other. Where its rows are what it wrote, and most of them right, they are kept:
they count for nothing, and those that differ come (`docs/differential.md`). A node that ends before that has forgotten the
order, and one that ends later knows it by its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rebalance.partition import Role
from rebalance.ports import MS, Node
from rebalance.rule import NewMap, Rule
from wal import records as r
from wal.ids import Fragment, fragment_name
from wal.probe import probe

REASON = "an operator ordered it anew"


class Anew(Rule):
    """The fragments of one node that are to be taken anew."""

    def __init__(self, core: Node, asks: Callable[[int], bool], lack: Callable[[Iterable[int]], None]) -> None:
        super().__init__()
        self.core = core
        self._asks = asks  # a transfer of this partition to this node is under way
        self._lack = lack  # asynchronous copies of these are to ask for what is not here
        self.wanted: dict[Fragment, bool] = {}  # in sync by the map; True: a single map has told of it
        self._how: dict[Fragment, tuple[str, bool]] = {}  # of these, why, and whether the rows are kept to be compared
        self._followers: dict[Fragment, tuple[str, bool]] = {}  # asynchronous, and not cleared yet
        self.loading: dict[Fragment, None] = {}  # cleared, and not in sync again
        self.kept: dict[Fragment, None] = {}  # nobody else had an in-sync copy when the map was made

    def order(self, names: list[Fragment], reason: str = REASON, *, kept: bool = False) -> str:
        """Take these anew; or why not. `kept`: only the rows that differ, if that is less than all."""
        core = self.core
        if not core.serving:
            return f"{core.node} is in no map now: its copies catch up when it is"
        for name in names:
            if name not in core.replica.fragments:
                return f"{core.node} has no copy of {fragment_name(name)}"
            local, placement = core.local[name[1]], core.local[name[1]].placement
            if local.role is Role.ASYNC and placement.primary is not None:
                continue
            if not local.in_sync:
                return f"{core.node}'s copy of {fragment_name(name)} is not in sync: it is catching up, or waits to"
            if len(placement.in_sync) < 2:
                return f"no other copy of {fragment_name(name)} is in sync: there is nobody to take it from"
        for name in names:
            if core.local[name[1]].role is Role.ASYNC:
                self._followers[name] = (reason, kept)
                continue
            self.kept.pop(name, None)
            self.wanted.setdefault(name, False)
            self._how[name] = (reason, kept)
        self.tick()
        return ""

    def tick(self) -> None:
        """Asynchronous copies that are in the midst of no transfer are cleared, and ask for everything."""
        core = self.core
        self.alarm.off()
        for name, (reason, kept) in list(self._followers.items()):
            if self._asks(name[1]):
                self.alarm.by(core.now + core.settings.retransmit_ms * MS)
                continue
            del self._followers[name]
            if core.local[name[1]].role is Role.ASYNC and not core.replica.fragment(name).loading:
                probe("anew.follower_cleared")
                core.log(r.FragmentClear(*name, reason, kept=kept))
                self._lack([name[1]])

    def told(self) -> None:
        """A single map tells of all that is wanted."""
        self.wanted = dict.fromkeys(self.wanted, True)

    def switch(self, _: NewMap) -> None:
        """A new map: what nobody relies on any more is cleared. Before anything is demanded."""
        core = self.core
        for name in [name for name in self._followers if core.local[name[1]].role is not Role.ASYNC]:
            self.wanted[name] = True  # it moves, or is not here
            self._how[name] = self._followers.pop(name)
        for name, told in list(self.wanted.items()):
            local = core.local[name[1]]
            if local.role is Role.MOVING and name in core.replica.fragments:
                probe("anew.cleared")
                reason, kept = self._how[name]
                core.log(r.FragmentClear(*name, reason, kept=kept))
                self.loading[name] = None
            elif local.in_sync and not told:
                continue  # that map was on its way before the order came
            elif local.in_sync:
                core.note(f"{fragment_name(name)} is not taken anew: no other copy of it was in sync")
                self.kept[name] = None
            del self.wanted[name], self._how[name]
        self.step()

    def step(self, _: NewMap | None = None) -> None:
        """Copies that are in sync by now do not load any more."""
        core = self.core
        self.loading = {n: None for n in self.loading if core.local[n[1]].role is Role.MOVING}

    def as_object(self) -> dict[str, list[str]]:
        """How the orders stand."""
        return {
            "wanted": [fragment_name(name) for name in (*self.wanted, *self._followers)],
            "loading": [fragment_name(name) for name in self.loading],
            "kept": [fragment_name(name) for name in self.kept],
        }
