"""What only the peers know: whether a log ends where it ended, or has lost what it had acknowledged.

A copy that the newest map calls in sync must have whatever any other copy knows to be *stable*: durable on every in-sync
copy, as the primary said. What a peer has above that may have been acknowledged too, or may never have been: it is owed,
unless it was just on its way. Histories are compared by their digests, where both know one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import FragmentView, State, read_directory
from tools.terminal import ExitCode, Unreadable
from tools.wal.places import Place
from wal import PartitionCounter
from wal.ids import NO_VERSION, Fragment, NodeId, Version, fragment_name

SHOWN = 20


class Debt(msgspec.Struct, frozen=True):
    """Counters of one fragment that this copy lacks and a peer has. `stable`: they were on every in-sync copy."""

    fragment: Fragment
    counters: tuple[int, int]
    peer: NodeId
    stable: bool


class Owed(msgspec.Struct):
    """What the peers say."""

    peers: list[NodeId] = []
    debts: list[Debt] = []
    parted: list[tuple[Fragment, int, NodeId]] = []  # at this counter the peer's history has another digest
    compared: int = 0
    apart: int = 0  # copies of fragments of which nothing is owed: the newest map, `version`, does not call them in sync
    version: Version = NO_VERSION

    @property
    def code(self) -> ExitCode:
        """How bad it is."""
        return ExitCode.LOGIC if self.parted else ExitCode.SHORT if self.debts else ExitCode.OK

    def lines(self) -> Iterator[str]:
        """For a person."""
        for debt in self.debts[:SHOWN]:
            why = "it is stable: every in-sync copy had it" if debt.stable else "it may have been acknowledged"
            first, last = debt.counters
            where = f"{fragment_name(debt.fragment)} counters={first}..{last}"
            yield f"owes {where}: {debt.peer} has what is missing here; {why}"
        if len(self.debts) > SHOWN:
            yield f"owes {len(self.debts) - SHOWN} more stretches of counters"
        for fragment, counter, peer in self.parted[:SHOWN]:
            yield f"parted {fragment_name(fragment)} counter={counter}: the history here is another than that of {peer}"
        said = "nothing lost" if not (self.debts or self.parted) else f"{len(self.debts)} stretches of counters are owed"
        peers, apart = ", ".join(self.peers), f"by map {self.version} not in sync here, and nothing of them is owed"
        if self.apart and not self.compared:
            yield f"against {peers}: nothing could be compared: all {self.apart} copies of fragments are {apart}"
            return
        more = f"; {self.apart} more are {apart}" if self.apart else ""
        yield f"against {peers}: {said}, in {self.compared} copies of fragments{more}"

    def objects(self) -> Iterator[dict[str, Any]]:
        """For a program."""
        for debt in self.debts:
            told = {"fragment": fragment_name(debt.fragment), "counters": list(debt.counters)}
            yield {"owes": told | {"peer": debt.peer, "settled": debt.stable}}
        for fragment, counter, peer in self.parted:
            yield {"parted": {"fragment": fragment_name(fragment), "counter": counter, "peer": peer}}
        yield {
            "against": self.peers,
            "compared": self.compared,
            "not_in_sync": self.apart,
            "nothing_lost": not (self.debts or self.parted),
        }


def owed_by(state: State, others: list[State], *, live: bool) -> Owed:
    """What a directory owes, by those of its peers (`read_peers`), which were read before it.

    Where nodes run (`live`), what is not stable yet may be on its way, and is not asked for.
    """
    owed = Owed()
    owed.peers = [other.identity.node for other in others]
    known = [s for s in (state, *others) if s.topology is not None]
    newest = max(known, key=lambda s: s.version).topology if known else None
    for other in others:
        for name, theirs in sorted(other.fragments.items()):
            placed = newest is not None and name[1] < len(newest.placements)
            if newest is None or not placed or theirs.loading:
                continue
            if state.identity.node in newest.placements[name[1]].in_sync:
                owed.compared += 1
                _ask(owed, name, state.fragments.get(name), other, theirs)
            else:
                owed.apart, owed.version = owed.apart + 1, newest.version
    if live:
        owed.debts = [debt for debt in owed.debts if debt.stable]
    return owed


def check_peers(asking: Place, peers: list[Place]) -> None:
    """Raise UsageError unless these are data directories of other nodes of one cluster."""
    seen = {asking.node: asking}
    for place in [asking, *peers]:
        if place.directory is None:
            raise UsageError(f"{place.path} is not a data directory: expected one, with identity.json, store and wal")
    for place in peers:
        if place.cluster != asking.cluster or place.node in seen:
            raise UsageError(
                f"{place.path} belongs to node {place.node!r} of cluster {place.cluster!r}: expected a peer of "
                f"{asking.node!r} in {asking.cluster!r}, and each of them once"
            )
        seen[place.node] = place


def read_peers(peers: list[Place], stack: ExitStack) -> list[State]:
    """The peers' directories (`check_peers`), until the stack closes. Raises Unreadable for one that cannot be read."""
    states: list[State] = []
    for place in peers:
        assert place.directory is not None, "it was checked that these are data directories"
        try:
            states.append(stack.enter_context(read_directory(place.directory)))
        except CorruptionError as error:
            raise Unreadable(str(error)) from error
    return states


def _ask(owed: Owed, name: Fragment, mine: FragmentView | None, peer: State, theirs: FragmentView) -> None:
    had = mine.counter if mine is not None and not mine.loading else PartitionCounter()
    for start, delta in had.missing(theirs.counter.highest_applied):
        for first, last, stable in _cut(start + 1, start + delta, theirs.stable):
            for lower, n in _has(theirs.counter, first - 1, last):
                owed.debts.append(Debt(name, (lower + 1, lower + n), peer.identity.node, stable))
    common = sorted(set(theirs.digests) & set(mine.digests)) if mine is not None else []
    parted = next((c for c in common if mine is not None and mine.digests[c] != theirs.digests[c]), None)
    if parted is not None:
        owed.parted.append((name, parted, peer.identity.node))


def _cut(first: int, last: int, stable: int) -> Iterator[tuple[int, int, bool]]:
    """A stretch of counters, cut at what the peer knows to be stable: up to there every in-sync copy has all."""
    if first <= stable:
        yield first, min(last, stable), True
    if last > stable:
        yield max(first, stable + 1), last, False


def _has(counter: PartitionCounter, start: int, end: int) -> Iterator[tuple[int, int]]:
    """What of the counters after `start` up to `end` is applied there."""
    at = start
    for gap, delta in counter.missing(end):
        if gap + delta <= start:
            continue
        if gap > at:
            yield at, gap - at
        at = max(at, gap + delta)
    if at < end:
        yield at, end - at
