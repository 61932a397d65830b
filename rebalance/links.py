"""What was written live while a copy was filled, linked to the history that the transfer brings, before it is whole.

`FragmentReady` makes such writes follow the transfer's last one, each with the digest of history there, in one step. There
may be very many. But which digest that history comes to is known when the transfer begins, and what follows depends on
the writes alone: so they are linked beforehand, in pieces, and the step takes what was linked and adds what came since.

Nothing rests on it: it is dropped where a write is undone, and without it, as by recovery, the step comes to the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from rebalance.by_fragment import ByFragment
from rebalance.chained import DIGEST_EVERY, DIGESTS_KEPT, digest_of, entries_of
from wal.counters import PartitionCounter
from wal.ids import Fragment
from wal.records import FragmentReady, Write


class Copy(Protocol):
    """What is asked of a copy that is being filled (`rebalance.fragment`)."""

    name: Fragment
    counter: PartitionCounter
    stable: int
    unstable: list[tuple[int, int, Write]] | tuple[()]
    beyond: Mapping[int, Write]
    loading: bool
    digested: dict[int, tuple[Write, list[bytes], int | None, int | None]] | None

    def digest_after(self, digest: int, write: Write, /) -> int:
        """The digest of history after a write."""
        ...

    def ready(
        self, lwm: int, digest: int, epochs: Iterable[tuple[int, int]], *, full: bool, links: Links | None = None
    ) -> int:
        """The transfer is complete; how many keys were still to be linked."""
        ...


class Links:
    """Writes that follow each other above `after`, a counter and the digest of history there, as far as `at`.

    What they say is on every in-sync copy is forgotten again, up to `stable`: it will be when the copy is whole.
    """

    __slots__ = ("after", "at", "begins", "begun", "digest", "digests", "said", "stable", "stable_digest", "writes")

    def __init__(self, lwm: int, digest: int) -> None:
        self.after = (lwm, digest)
        self.at, self.digest = lwm, digest
        self.said = self.stable = lwm
        self.stable_digest = digest
        self.writes: list[tuple[int, int, Write]] = []  # (end, digest there, write), above `stable`
        self.digests: tuple[tuple[int, int], ...] = (self.after,)
        self.begins: list[Write] = []  # the first one of each epoch
        self.begun: tuple[Write, int, int] | None = None  # of a large one so many keys are linked, and the digest there

    def go_on(self, copy: Copy, most: int) -> int:
        """Link the next writes, of about `most` keys; how many keys they had. One that has more is linked in pieces."""
        linked = 0
        while linked < most and (write := _write_at(copy, self.at)) is not None:
            begin, whole = self.at, write.end - self.at
            if whole <= most and self.begun is None:
                linked += whole
                self.digest = copy.digest_after(self.digest, write)
            else:
                linked += self._link_some(copy, write, most - linked)
                if self.begun is not None:
                    break
            self.at = write.end
            self.writes.append((self.at, self.digest, write))
            if self.at // DIGEST_EVERY != begin // DIGEST_EVERY:
                self.digests = (*self.digests[1 - DIGESTS_KEPT :], (self.at, self.digest))
            if not self.begins or self.begins[-1].epoch != write.epoch:
                self.begins.append(write)
            self.said = max(self.said, write.stable)
        self._forget()
        return linked

    def _link_some(self, copy: Copy, write: Write, most: int) -> int:
        """Link the next keys of a large write, which is `begun` as long as some are left; how many they were."""
        _, first, digest = self.begun if self.begun is not None and self.begun[0] is write else (write, 0, self.digest)
        last = min(first + most, write.delta)
        found = copy.digested.get(write.start) if copy.digested else None
        ahead = found[1] if found is not None and found[0] is write else None
        digest = digest_of(entries_of(write, first, last) if ahead is None else ahead[first:last], digest)
        if last < write.delta:
            self.begun = write, last, digest
        else:
            self.begun, self.digest = None, digest
            if copy.digested:
                copy.digested.pop(write.start, None)
        return last - first

    def _forget(self) -> None:
        count = 0
        for end, digest, _ in self.writes:
            if end > self.said:
                break
            self.stable, self.stable_digest = end, digest
            count += 1
        del self.writes[:count]


def _write_at(copy: Copy, start: int) -> Write | None:
    """What of its tail begins there."""
    if (above := copy.beyond.get(start)) is not None or start >= copy.counter.lwm or not copy.unstable:
        return above
    at = bisect_right(copy.unstable, start, key=_end)
    return found if at < len(copy.unstable) and (found := copy.unstable[at][2]).start == start else None


def writes_between(copy: Copy, first: int, end: int) -> Iterator[Write]:
    """Those of its tail that begin from `first` on and below `end`, without a look at the others; nothing is below a gap
    that crosses either of them."""
    spans = ((copy.stable, copy.counter.lwm - copy.stable), *copy.counter.ranges)
    for start, delta in spans:
        at, last = max(start, first), min(start + delta, end)
        while at < last:
            write = _write_at(copy, at)
            assert write is not None, f"{copy}: nothing begins at {at}"
            yield write
            at = write.end


def _end(entry: tuple[int, int, Write]) -> int:
    return entry[0]


class AllLinks:
    """Those of one node, as far as they are made."""

    def __init__(self) -> None:
        self._links: dict[Fragment, Links] = {}
        self._only_live = ByFragment[None]()  # being filled, and what is in doubt there came live, and nothing was undone
        self.made = 0  # keys, since the node started, beforehand or where a transfer ended

    def __len__(self) -> int:
        return len(self._links)

    def make(self, copy: Copy, lwm: int, digest: int, most: int) -> int:
        """Link what came live above a transfer up to `lwm`, for so many keys, before it is whole; how many there were."""
        if not copy.loading:
            return 0
        links = self._links.get(copy.name)
        if links is None or links.after != (lwm, digest):
            links = self._links[copy.name] = Links(lwm, digest)
        made = links.go_on(copy, most)
        self.made += made
        return made

    def end(self, copy: Copy, ready: FragmentReady) -> None:
        """The transfer is complete."""
        links = self._links.pop(copy.name, None)
        self._only_live.pop(copy.name)
        self.made += copy.ready(ready.lwm, ready.digest, ready.epochs, full=ready.full, links=links)

    def begin(self, name: Fragment) -> None:
        """It was emptied, and is filled from now on."""
        self._only_live[name] = None

    def only_live(self, name: Fragment) -> bool:
        """Whether each key in doubt is one of a write in its tail."""
        return name in self._only_live

    def void(self, name: Fragment) -> None:
        """Something of it is undone, or all."""
        self._links.pop(name, None)
        self._only_live.pop(name)
