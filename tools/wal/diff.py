"""`foreshore wal diff`: two nodes' logs side by side, fragment by fragment and counter by counter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from xxhash import xxh3_64_intdigest

from engine.errors import UsageError
from tools.terminal import ExitCode, Row, complain, show, word
from tools.wal.absent import absent
from tools.wal.copy_at_rest import map_of_cluster
from tools.wal.filters import Filter
from tools.wal.options import AsJson, OfNamespace, OfPartition
from tools.wal.places import Place, check_names, place_of
from tools.wal.trouble import Trouble
from wal import Block, list_segments
from wal import records as r
from wal.ids import Fragment, NodeId, TxId, fragment_name

if TYPE_CHECKING:
    from rebalance.table import Topology

BYTES_AT_ONCE = 256 << 20
"""Of a log that is larger a share of the partitions is compared at a time, so that what is remembered stays bounded."""
SHOWN = 5


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A node's directory or log.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another node's.")],
    namespace: OfNamespace = None,
    partition: OfPartition = None,
    every: Annotated[bool, typer.Option("--all", help="Also fragments that do not differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare what two logs say of the same counters: equal up to where, the first that differs, what only one has.

    What one of the logs does not reach back to is not compared, nor what one of the nodes has no copy of. Exit codes: 0 no
    difference; 1 there is one; else as those of verify.
    """
    places = [place_of(one), place_of(other)]
    check_names(places)
    if places[0].name == places[1].name:
        raise UsageError(f"{one} was given twice: expected the logs of two nodes")
    trouble = Trouble()
    size = max(sum(info.bytes for info in list_segments(place.source, owner=place.owner)) for place in places)
    passes = 1 if partition is not None else 1 + size // BYTES_AT_ONCE
    rows: list[Row] = []
    fragments = differing = elsewhere = 0
    known: Topology | None = None
    for at in range(passes):
        told = trouble if at == 0 else Trouble(quiet=True)
        logs = [_read(place, told, Share(namespace, partition, at, passes)) for place in places]
        for name in sorted({*logs[0].fragments, *logs[1].fragments}):
            histories = [log.history(name) for log in logs]
            lacking = [place for place, history in zip(places, histories, strict=True) if not history.said]
            fragments += 1
            if lacking:
                known = known or map_of_cluster(places, Trouble(quiet=True))
                if known is not None and any(_has_no_copy(known, place.node, name) for place in lacking):
                    elsewhere += 1
                    continue
            compared = compare(*histories)
            differing += compared.differs
            if compared.differs or every:
                rows.append(_row(name, places, compared))
    show(rows, as_json=as_json)
    if any(place.live for place in places):
        complain("a node runs in one of these: what only the other has may be under way")
    if not as_json:
        beside = f" elsewhere={elsewhere}" if elsewhere else ""
        complain(f"fragments={fragments} differing={differing}{beside}")
    nothing = not fragments and absent(places, Filter(namespace=namespace, partition=partition))
    trouble.end(ExitCode.WRONG if differing or nothing else ExitCode.OK)


class Share(msgspec.Struct, frozen=True):
    """Which fragments are read at a time."""

    namespace: str | None
    partition: int | None
    at: int
    passes: int

    def holds(self, fragment: Fragment) -> bool:
        """Whether a fragment is one of them."""
        return (
            (self.namespace is None or fragment[0] == self.namespace)
            and (self.partition is None or fragment[1] == self.partition)
            and fragment[1] % self.passes == self.at
        )


class History(msgspec.Struct):
    """What one log says of one fragment: counter -> (LSN, a hash of all that is said). It has all above `floor`."""

    said: dict[int, tuple[int, int]] = {}
    floor: int = 0

    def cut(self, above: int) -> None:
        """What lies above was not continued."""
        for counter in [counter for counter in self.said if counter > above]:
            del self.said[counter]


class LogHistories:
    """All histories of one log."""

    def __init__(self, share: Share) -> None:
        self.fragments: dict[Fragment, History] = {}
        self._share = share
        self._prepared: dict[tuple[TxId, int], tuple[int, list[r.Write]]] = {}
        self._first_lsn = 0

    def history(self, name: Fragment) -> History:
        """One fragment's; empty if the log says nothing of it. A log that does not begin at 1 lacks what was before."""
        found = self.fragments.get(name) or History()
        if self._first_lsn > 1 and found.said:
            found.floor = max(found.floor, min(found.said) - 1)
        return found

    def take(self, block: Block) -> None:
        """Read on."""
        self._first_lsn = self._first_lsn or block.first_lsn
        for lsn, record in enumerate(block.records, block.first_lsn):
            match record:
                case r.Update(writes) | r.History(writes):
                    for write in writes:
                        self._write(lsn, write)
                case r.Prepare(tx, partition, epoch, writes):
                    known = self._prepared.get((tx, partition))
                    if known is None or known[0] <= epoch:
                        self._prepared[tx, partition] = (epoch, writes)
                case r.Outcome(tx, partition, epoch, commit, ranges):
                    _, writes = self._prepared.pop((tx, partition), (0, []))
                    for write in writes if commit else ():
                        self._write(lsn, write)
                    self._close(lsn, partition, epoch, [] if commit else ranges)
                case r.NoOp(partition, epoch, gaps):
                    self._close(lsn, partition, epoch, gaps)
                case r.EpochStart(partition, _, firsts):
                    for namespace, first in firsts:
                        self._of((namespace, partition)).cut(first - 1)
                case r.Undo(namespace, partition, above):
                    self._of((namespace, partition)).cut(above)
                case r.FragmentClear(namespace, partition):
                    self._of((namespace, partition)).cut(0)
                case r.FragmentReady(namespace, partition, lwm, full=True):
                    history = self._of((namespace, partition))
                    history.floor = max(lwm, history.floor)
                case _:
                    pass

    def _of(self, name: Fragment) -> History:
        if not self._share.holds(name):
            return History()
        found = self.fragments.get(name)
        if found is None:
            found = self.fragments[name] = History()
        return found

    def _write(self, lsn: int, write: r.Write) -> None:
        if not self._share.holds(write.fragment):
            return
        said, counter = self._of(write.fragment).said, write.start
        if write.closed:
            for at in range(counter + 1, write.end + 1):
                said[at] = (lsn, 0)
            return
        issued = b"%d|" % write.issued
        for key, value in zip(write.keys, write.values, strict=True):
            counter += 1
            told = b"-" if value is None else b"=" + value
            said[counter] = (lsn, xxh3_64_intdigest(b"%s%d|%s%s" % (issued, len(key), key, told)) | 1)

    def _close(self, lsn: int, partition: int, epoch: int, ranges: list[r.Range]) -> None:
        for namespace, start, delta in ranges:
            self._write(lsn, r.Write(namespace, partition, epoch, start, keys=[], values=[], closed=delta))


class Compared(msgspec.Struct, frozen=True):
    """Two histories. `equal_to`: up to here nothing differs of what both reach; `first`: (counter, LSN here, LSN there)."""

    equal_from: int
    equal_to: int
    first: tuple[int, int, int] | None
    only: tuple[list[tuple[int, int]], list[tuple[int, int]]]

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return self.first is not None or any(self.only)


def compare(mine: History, theirs: History) -> Compared:
    """Lay two histories of a fragment side by side, above what either does not reach back to."""
    floor = max(mine.floor, theirs.floor)
    every = sorted(counter for counter in {*mine.said, *theirs.said} if counter > floor)
    first: tuple[int, int, int] | None = None
    alone: tuple[list[int], list[int]] = ([], [])
    for counter in every:
        here, there = mine.said.get(counter), theirs.said.get(counter)
        if here is not None and there is not None:
            if here[1] != there[1] and first is None:
                first = (counter, here[0], there[0])
        else:
            alone[here is None].append(counter)
    odd = [*([first[0]] if first is not None else []), *alone[0][:1], *alone[1][:1]]
    equal_to = min(odd) - 1 if odd else (every[-1] if every else floor)
    return Compared(floor + 1, max(equal_to, floor), first, (_runs(alone[0]), _runs(alone[1])))


def _runs(counters: list[int]) -> list[tuple[int, int]]:
    """Ascending counters as (first, last) of each run.

    >>> _runs([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    if not counters:
        return []
    breaks = [at for at, (before, after) in enumerate(pairwise(counters), 1) if after != before + 1]
    edges = [0, *breaks, len(counters)]
    return [(counters[begin], counters[end - 1]) for begin, end in pairwise(edges)]


def _read(place: Place, trouble: Trouble, share: Share) -> LogHistories:
    log = LogHistories(share)
    for block in trouble.aside(place):
        log.take(block)
    return log


def _has_no_copy(known: Topology, node: NodeId, name: Fragment) -> bool:
    """Whether a node that the map knows is to have nothing of a fragment."""
    from rebalance.table import Standing  # noqa: PLC0415  # maps are seldom, and their hashes come with OpenSSL

    if name[1] >= len(known.placements) or known.member(node) is None:
        return False
    return known.placements[name[1]].standing_of(node) is Standing.NONE


def _row(name: Fragment, places: list[Place], compared: Compared) -> Row:
    row: dict[str, Any] = {"fragment": word(fragment_name(name).encode("utf-8", "surrogatepass"))}
    row |= {"compared_from": compared.equal_from, "equal_to": compared.equal_to}
    counter, here, there = compared.first or (None, None, None)
    row |= {"differs_at": counter, "lsn_a": here, "lsn_b": there}
    for place, letter, only in zip(places, "ab", compared.only, strict=True):
        row[f"{letter}"] = place.name
        row[f"only_{letter}"] = list(_shown(only))
    return row


def _shown(runs: list[tuple[int, int]]) -> Iterator[str]:
    yield from (f"{first}..{last}" for first, last in runs[:SHOWN])
    if len(runs) > SHOWN:
        yield f"and {len(runs) - SHOWN} more"
