"""Counters that a copy lacks and should have: who holds them, and what that is called. Pure.

An in-sync copy owes what any copy knows to be stable (`stable`: durable on every in-sync copy), and what lies below a
counter that it has itself: that is a COUNTER_GAP. What another in-sync copy has beyond that may or may not have been
acknowledged: the copy is BEHIND. A copy that the map does not call in sync owes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from engine.offline.directory import Claim, PartitionView
from tools.reconcile.copies import Compared, Copy, Rules
from tools.reconcile.findings import Facts, Finding, Kind
from wal.ids import Fragment, tx_name


def gaps(name: Fragment, copies: Sequence[Copy], rules: Rules, compared: Compared) -> Iterator[Finding]:
    """What the in-sync ones of these copies lack."""
    expected = [c for c in copies if c.in_sync]
    stable = max(c.view.stable for c in copies)
    if rules.grace_ms and len({c.version for c in expected}) > 1:
        stable = 0  # read one after another while a node joined: a copy that was in sync for one is not yet for another
    top = max((c.view.counter.lwm for c in expected), default=0)
    tell = [c for c in copies if c.in_sync or c.view.stable > top]  # also what was read later and is not in sync
    moving = any(rules.under_way(c.node, c.view.touched_ms) for c in tell)
    found: dict[tuple[Kind, int, int, bytes], list[str]] = {}
    why: dict[tuple[Kind, int, int, bytes], str] = {}
    for copy in expected:
        owed = max(stable, copy.view.counter.highest_applied)
        for kind, start, delta in _parts(copy, owed, top):
            own = _claims(name, copy.partition)
            others = [x for c in copies if c is not copy for x in (*_claims(name, c.partition), *c.view.tail)]
            for piece in _owned(start, start + delta, [*own, *others]):
                prepared = copy.partition.prepared.get(piece.tx)
                under_way = rules.under_way(copy.node, prepared.since_ms) if prepared is not None else moving
                if under_way:
                    compared.unsettled_gaps += 1
                    continue
                gap = (kind, piece.start, piece.delta, piece.tx)
                found.setdefault(gap, []).append(copy.node)
                why[gap] = _why(piece, copy, copies)
    counters = {c.node: _counter_facts(c) for c in copies} if found else {}
    for (kind, start, delta, tx), on in sorted(found.items(), key=lambda gap: gap[0][1:]):
        yield Finding(
            kind,
            name[1],
            name[0],
            on=on,
            counters=[start + 1, start + delta],
            tx=tx_name(tx) if tx else "",
            copies=counters,
            detail=why[kind, start, delta, tx],
        )


def _parts(copy: Copy, owed: int, top: int) -> Iterator[tuple[Kind, int, int]]:
    """What a copy lacks up to `owed`, and from there to `top`."""
    for start, delta in copy.view.counter.missing(max(owed, top)):
        end = start + delta
        if start < owed:
            yield Kind.COUNTER_GAP, start, min(end, owed) - start
        if end > owed:
            yield Kind.BEHIND, max(start, owed), end - max(start, owed)


def _why(piece: Claim, copy: Copy, copies: Sequence[Copy]) -> str:
    if piece.tx in copy.partition.prepared:
        return "a prepared transaction without an outcome holds these counters"
    have = [c.node for c in copies if c.view.counter.covers(piece.start, piece.delta)]
    if have:
        return f"{','.join(have)} applied what is missing here"
    return "no copy has these counters, and no prepared transaction holds them"


def _claims(name: Fragment, partition: PartitionView) -> list[Claim]:
    """The counters of a fragment that prepared transactions hold."""
    return [
        Claim(write.start, write.delta, tx)
        for tx, prepared in partition.prepared.items()
        for write in prepared.record.writes
        if write.fragment == name
    ]


def _owned(start: int, end: int, claims: Iterable[Claim]) -> Iterator[Claim]:
    """The gap in pieces, each with the transaction that it belongs to, where one is known; earlier claims go first."""
    claimed = [c for c in claims if c.tx and start <= c.start and c.start + c.delta <= end]
    owners = {(c.start, c.delta): c.tx for c in reversed(claimed)}
    at = start
    for (first, delta), tx in sorted(owners.items()):
        if first < at:
            continue
        if first > at:
            yield Claim(at, first - at, b"")
        yield Claim(first, delta, tx)
        at = first + delta
    if at < end:
        yield Claim(at, end - at, b"")


def _counter_facts(copy: Copy) -> Facts:
    counter = copy.view.counter
    facts: Facts = {"lwm": counter.lwm, "hwm": counter.hwm}
    if counter.ranges:
        facts["ranges"] = [list(pair) for pair in counter.ranges]
    return facts
