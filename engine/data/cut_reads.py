"""Reads at a cut of the whole database, at the primary of what is read.

What a partition holds at a cut does not change any more, once all that was prepared when its primary entered the era has
its outcome: that is waited for. Whether this node is still primary need not be asked, as for a read of what is there now:
it was when the cut was taken, and what came before the cut has come to be here; or, where the next primary is to end it, is
waited for in vain, until this node knows of that one and says that the snapshot is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.data.counting import Counting, count_at
from engine.data.cuts import Cuts, Lease
from engine.data.kept import STEPS_MAX, STEPS_OF_WORK
from engine.data.scans import Scanning
from engine.data.values import VALUES_BYTES_MAX
from engine.protocol.requests import KEYS_AT_ONCE, Code, Get, Scan, Values
from engine.state.store import Page
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import SessionId
from rebalance.ports import WORK_MAX
from wal.ids import Fragment
from wal.probe import probe

SCANS_MAX = 4
"""So many scans of one cut may be gone on with where they were."""


class CutReads:
    """What one node answers of the past."""

    def __init__(self, core: Core, desk: Desk, cuts: Cuts) -> None:
        self.core = core
        self.desk = desk
        self.cuts = cuts

    def on_get(self, session: SessionId, request: Get) -> None:
        """The values that keys had."""
        core, namespace = self.core, request.namespace
        assert core.topology is not None
        keys = request.keys[:KEYS_AT_ONCE]
        places = list(zip(core.topology.places(namespace, keys), keys, strict=True))
        lease = self._readable(session, request, dict.fromkeys(number for number, _ in places))
        if lease is None:
            return
        values: list[tuple[int, int, bytes | None]] = []
        kept = self.cuts.kept
        size, steps, read = 0, 0, kept.reader(lease.cut)
        for number, key in places:
            steps += kept.depth(lease.cut, (namespace, number))
            if steps > STEPS_MAX and values:
                probe("cut.answered_in_part")
                break
            held = read((namespace, number), key)
            if held is None or held.value is None:
                values.append((core.local[number].epoch, self._absent_since((namespace, number), key), None))
                continue
            size += len(held.value)
            if size > VALUES_BYTES_MAX and values:
                break
            values.append((held.epoch, held.counter, held.value))
        core.work += len(values) + steps // STEPS_OF_WORK
        self.desk.reply(session, Values(request.id, values, core.version_number))

    def _absent_since(self, name: Fragment, key: bytes) -> int:
        """Up to which counter a key that was absent at a cut, and is so now, is known to be; 0: it has come since."""
        now, fragment = self.core.replica.store.get(name, key), self.core.replica.fragments.get(name)
        return fragment.counter.lwm if fragment is not None and (now is None or now.value is None) else 0

    def on_scan(self, session: SessionId, request: Scan) -> None:
        """The rows that partitions had."""
        lease = self._readable(session, request, request.partitions)
        if lease is None:
            return
        place = _place(request)
        before = lease.scans.pop(place, None) if not request.count else None
        if before is not None and before.again(request):
            probe("cut.scan_gone_on_with")
            before.marks = self._marks(request)
            self._go_on(session, request, before)
            return
        cut, kept, store = lease.cut, self.cuts.kept, self.core.replica.store

        def page(fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
            limit = max(1, min(limit, STEPS_MAX // max(1, kept.depth(cut, fragment))))
            return kept.page(cut, fragment, store.page(fragment, start, limit, down=down))

        scan = Counting(request, count_at(cut, kept, store), page) if request.count else Scanning(request, page)
        if isinstance(scan, Scanning):
            scan.marks = self._marks(request)
        self._go_on(session, request, scan)

    def _marks(self, request: Scan) -> list[tuple[int, int]]:
        """Where the fragments stood at the cut, or before it, if that is to be told."""
        core, kept = self.core, self.cuts.kept
        if not request.marks:
            return []
        core.work += len(request.partitions) // 4
        return [(core.local[n].epoch, kept.mark(request.cut, (request.namespace, n))) for n in request.partitions]

    def _go_on(self, session: SessionId, request: Scan, scan: Scanning | Counting) -> None:
        core = self.core
        lease = self._readable(session, request, request.partitions)
        if lease is None:
            return
        core.work += scan.go_on(max(WORK_MAX - core.work, WORK_MAX // 10), _never)
        if scan.done:
            self.desk.reply(session, scan.reply())
            if isinstance(scan, Scanning) and scan.more and scan.is_small:
                lease.scans[_place(request)] = scan
                while len(lease.scans) > SCANS_MAX:
                    del lease.scans[next(iter(lease.scans))]
        else:
            core.resume(lambda: self._go_on(session, request, scan))

    def _readable(self, session: SessionId, request: Get | Scan, numbers: Iterable[int]) -> Lease | None:
        """The lease, if all of these partitions can be read at it now; if not, it was answered, or waits."""
        core = self.core
        lease = self.cuts.leases.get(request.cut)
        said = core.namespaces.get(request.namespace)
        if said is not None and said.placed.number > request.cut[0]:
            told = f"namespace {request.namespace!r} was created anew since this snapshot began: begin another one"
            self.desk.refuse(session, request.id, Code.SNAPSHOT_LOST, told, retryable=True)
            return None
        for number in numbers:
            local = core.local[number]
            if not local.mine:
                if local.placement.lost:
                    self.desk.refuse_lost(session, request.id, number)
                else:
                    self.desk.remap(session, request.id)
                return None
            if lease is None or not lease.sealed or self.cuts.is_lost(lease, number):
                self.cuts.refuse(session, request.id, request.cut)
                return None
        assert lease is not None, "whoever asks asks for something"
        self.cuts.renew(lease)
        if lease.open:
            for number in numbers:
                if number in lease.open:
                    probe("cut.waited_for_what_was_under_way")
                    lease.waiting.setdefault(number, []).append(lambda: self._ask_again(session, request))
                    return None
        return lease

    def _ask_again(self, session: SessionId, request: Get | Scan) -> None:
        for still, wanted in self.desk.still_wanted([(session, request, self.core.now)]):
            if isinstance(wanted, Get):
                self.on_get(still, wanted)
            elif isinstance(wanted, Scan):
                self.on_scan(still, wanted)


def _place(request: Scan) -> object:
    """The end of a scan at which it does not move."""
    return request.namespace, tuple(request.partitions), request.start if request.reverse else request.end, request.reverse


def _never(_: int, __: bytes, ___: bytes | None) -> bool:
    return False
