"""The judgement: given what every copy of one fragment has, what differs. Pure: values in, values out.

```
 counters   1 ........ cut ........ lwm of the copy that is ahead
            compared  |  unsettled: on its way, or written while the directories were read
```

The **cut** of a fragment is the lowest LWM over its in-sync copies: up to there every one of them claims to have
everything. A key whose newest entry lies above it on any copy cannot be compared there, because what the others had at the
cut is gone. A log that tells of all later updates says what each copy must have at its own counter; where one has anything
else, or no log tells, the key is counted as unsettled. So directories of a live cluster, read one after another, give no
false alarm. Four rules make that sound:

* A copy that is not in sync is compared as well, up to what it claims itself, its **reach**. One that reaches the cut is
  like the others; another one is held against what they have, and lowers nobody's cut. Where no copy is in sync, the one
  that is ahead stands for them.
* A copy that has not yet taken part in the newest epoch may have to undo what lies beyond that epoch's first counter.
  Up to its `stable` it cannot undo: what differs there is a fork.
* A tombstone at or below the cut equals absence. A copy whose `stable` is above the cut may have dropped a newer tombstone
  already, so there the absence of a key says nothing.
* A gap, or a prepared transaction, is a finding only if nothing was heard of it for a while (`Rules.under_way`), as the
  node's own log tells the time.

Who is right? Where the copies have the same history, the log says it: that is proof, and no vote (`rows`). Elsewhere it is
the version that more than half of the copies have; of equals nobody knows, and what differs from the primary is named,
but for as long as another copy, which was read too late to tell, is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tools.reconcile.copies import Compared, Copy, Rules
from tools.reconcile.findings import Finding, Kind
from tools.reconcile.gaps import gaps
from tools.reconcile.rows import Run, compare_rows
from tools.reconcile.votes import right_one
from wal.ids import Fragment, NodeId


def compare(
    name: Fragment,
    copies: Sequence[Copy],
    primary: NodeId | None,
    rules: Rules,
    runs: Iterable[Run] | None = None,
    only: Sequence[bytes] | None = None,
) -> Compared:
    """Compare the copies of a fragment, which are in the order of their nodes' names, one at least; none is loading.

    `runs` are their rows side by side; without, they are those of the copies. `only`: the rows are of these keys.
    """
    assert copies, "a fragment that nobody has is not compared"
    core = core_of(copies)
    cut = cut_of(core)
    reach = {c.node: cut if c in core else min(cut, cut_of([c, *core])) for c in copies}
    level = [c for c in copies if reach[c.node] == cut]
    compared = Compared(cut=cut)
    findings = _histories(name, level, primary, cut)
    agreed = -1 if findings else agreed_to(level, cut)
    for copy in copies:
        if reach[copy.node] < cut:
            both = sorted([copy, *level], key=_name)
            findings += [f for f in _histories(name, both, primary, reach[copy.node]) if f.on == [copy.node]]
    findings += gaps(name, copies, rules, compared)
    beside = runs if runs is not None else [[list(c.rows) for c in copies]]
    findings += compare_rows(
        name, copies, reach, primary, rules=rules, compared=compared, runs=beside, agreed=agreed, only=only
    )
    if not any(rules.under_way(c.node, c.view.touched_ms) for c in copies):
        compared.stale_keys = compared.unsettled_keys
    compared.findings = [_with_roles(finding, copies) for finding in findings]
    return compared


def _histories(name: Fragment, copies: Sequence[Copy], primary: NodeId | None, cut: int) -> list[Finding]:
    """Where the copies' histories part, up to the cut."""
    forked = list(_forks(name, copies, primary, cut))
    whole = [c for c in copies if not any(c.node in f.on for f in forked)]
    here = next((c.node for c in copies if c.node == primary), "")
    return [msgspec.structs.replace(f, primary=here) for f in (*forked, *_digests(name, whole, primary, cut))]


def _with_roles(finding: Finding, copies: Sequence[Copy]) -> Finding:
    """The finding, with what its copies are that are not in sync."""
    roles = {c.node: c.role for c in copies if c.node in finding.on and not c.in_sync}
    return msgspec.structs.replace(finding, roles=roles) if roles else finding


def _ahead(copy: Copy) -> tuple[int, int]:
    return copy.epoch, copy.view.counter.lwm


def _name(copy: Copy) -> NodeId:
    return copy.node


def core_of(copies: Sequence[Copy]) -> list[Copy]:
    """The copies that decide where the cut is: those in sync, or the one that stands for them."""
    return [c for c in copies if c.in_sync] or [max(copies, key=_ahead)]


def cut_of(copies: Sequence[Copy]) -> int:
    """The highest counter up to which every copy claims to have everything, and none may have to undo anything."""
    newest = max(c.epoch for c in copies)
    cut = min(c.view.counter.lwm for c in copies)
    for copy in copies:
        if copy.epoch < newest:
            later = [first for c in copies for epoch, first in c.view.epochs if epoch > copy.epoch]
            if later:
                cut = min(cut, max(copy.view.stable, min(later) - 1))
    return cut


# Histories.


def _forks(name: Fragment, copies: Sequence[Copy], primary: NodeId | None, cut: int) -> Iterator[Finding]:
    tables = [(c.node, _table(c.view.epochs, cut)) for c in copies]
    right = right_one(tables, primary)
    for other in dict.fromkeys(table for _, table in tables if table != right):
        counter = min(first for _, first in set(right) ^ set(other))
        here, there = _epoch_at(other, counter), _epoch_at(right, counter)
        yield Finding(
            Kind.EPOCH_FORK,
            name[1],
            name[0],
            on=[node for node, table in tables if table == other],
            counters=[counter, cut],
            copies={node: {"epochs": [list(run) for run in table]} for node, table in tables},
            detail=f"histories part at counter {counter}: epoch {here} issued it here, epoch {there} elsewhere",
        )


def agreed_to(copies: Sequence[Copy], cut: int) -> int:
    """Up to which counter these copies, whose histories do not part, are known to have the same."""
    known = set.intersection(*(set(c.view.digests) for c in copies))
    return max((counter for counter in known if counter <= cut), default=0)


def _table(epochs: Sequence[tuple[int, int]], cut: int) -> tuple[tuple[int, int], ...]:
    """The runs up to the cut; where two begin at the same counter, the older one issued nothing."""
    return tuple((epoch, first) for first, epoch in {first: epoch for epoch, first in epochs if first <= cut}.items())


def _epoch_at(table: Sequence[tuple[int, int]], counter: int) -> int:
    return next((epoch for epoch, first in reversed(table) if first <= counter), 0)


def _digests(name: Fragment, copies: Sequence[Copy], primary: NodeId | None, cut: int) -> Iterator[Finding]:
    if len(copies) < 2:
        return
    known = set.intersection(*(set(c.view.digests) for c in copies))
    common = sorted(counter for counter in known if counter <= cut)
    if not common:
        return
    last = common[-1]
    found = [(c.node, c.view.digests[last]) for c in copies]
    right = right_one(found, primary)
    model = next(c for c in copies if c.view.digests[last] == right)
    for other in dict.fromkeys(digest for _, digest in found if digest != right):
        on = [node for node, digest in found if digest == other]
        odd = next(c for c in copies if c.node in on)
        agreed = max((c for c in common if odd.view.digests[c] == model.view.digests[c]), default=0)
        parted = next(c for c in common if odd.view.digests[c] != model.view.digests[c])
        yield Finding(
            Kind.DIGEST_MISMATCH,
            name[1],
            name[0],
            on=on,
            counters=[agreed + 1, parted],
            copies={node: {"counter": last, "digest": f"{digest:016x}"} for node, digest in found},
            detail=f"equal up to counter {agreed}, different at {parted}",
        )
