"""Keys that could not be compared are looked at again, and nothing else is: for directories of nodes that are written to.

A key is unsettled because a copy was read before it had an update, or a log before it told of one. A moment later other
keys may be; these are settled, one way or the other, as soon as one look finds all copies where the log says they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tools.reconcile.counts import Counts, Tally
from tools.reconcile.findings import Finding, place_of
from tools.reconcile.plan import Share
from tools.reconcile.task import ShareResult, Unsettled
from wal.ids import Fragment

Run = Callable[[Sequence[Share]], Iterable[ShareResult]]
"""`check_share` of each, wherever."""


def look_again(
    run: Run, shares: Sequence[Share], results: Sequence[ShareResult], *, times: int, wait: Callable[[], None]
) -> None:
    """Look up to so many times at what is unsettled, and put what came of it into the results: findings in their order."""
    for _ in range(times):
        left = [at for at, result in enumerate(results) if any(one.keys for one in result.unsettled)]
        if not left:
            return
        wait()
        asked = [msgspec.structs.replace(shares[at], keys=_keys(results[at].unsettled)) for at in left]
        asked = [msgspec.structs.replace(share, partitions=sorted({number for _, number in share.keys})) for share in asked]
        for at, found in zip(left, run(asked), strict=True):
            _merge(results[at], found)


def _keys(unsettled: Sequence[Unsettled]) -> dict[Fragment, list[bytes]]:
    return {(one.namespace, one.partition): one.keys for one in unsettled if one.keys}


def _merge(result: ShareResult, found: ShareResult) -> None:
    """What was settled is compared now; a fragment of which nothing was told stays as it was."""
    counts = result.counts
    after: Mapping[Fragment, Unsettled] = {(one.namespace, one.partition): one for one in found.unsettled}
    for one in result.unsettled:
        now = after.get((one.namespace, one.partition))
        if now is None:
            continue
        counts.unsettled_keys -= len(one.keys) - len(now.keys)
        counts.stale_keys += now.stale * len(now.keys) - one.stale * len(one.keys)
        one.keys, one.stale = now.keys, now.stale
    for namespace, theirs in found.counts.namespaces.items():
        tally = counts.namespaces.setdefault(namespace, Tally())
        tally.keys += theirs.keys
    fresh = [line for line in found.lines() if msgspec.json.decode(line, type=Finding).key is not None]
    if fresh:
        _count(counts, fresh)
        all_of_them = sorted([*result.lines(), *fresh], key=place_of)
        result.packed, result.kept = [], 0
        result.keep(all_of_them)


def _count(counts: Counts, lines: Sequence[bytes]) -> None:
    for line in lines:
        finding = msgspec.json.decode(line, type=Finding)
        counts.kinds[finding.kind] = counts.kinds.get(finding.kind, 0) + 1
        counts.namespaces[finding.namespace].findings += 1
