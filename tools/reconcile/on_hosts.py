"""`foreshore://NODE/PATH`: directories that lie on the hosts of Spark's executors, each compared without being moved.

Spark places tasks as it likes, and who writes Python cannot tell it where. But in a barrier stage all tasks run at once:
with one on each processor that Spark has, there is one beside every directory. So each looks which of them it can see, all
tell each other, and of those who see a directory one does the work: first a sketch of it, and then, if sketches differ, the
rows of the buckets that do. Nothing else leaves a host. The sketches are laid side by side in the driver.

```
 driver        places ---> | task: what do I see? -- allGather -- mine: sketch_of | ---> sketches ---> compare
               asking ---> | task: what do I see? -- allGather -- mine: slice_of  | ---> slices   ---> compare
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.state.identity import read_identity
from tools.reconcile.copies import Rules
from tools.reconcile.report import Report
from tools.reconcile.sketch import Asking, Sketch, Slice, decoded, encoded, sketch_of, slice_of
from tools.reconcile.sketched import compare_sketches
from tools.reconcile.spark_errors import spark_errors
from wal.ids import NodeId

if TYPE_CHECKING:
    from pyspark import SparkContext

SCHEME = "foreshore://"
LOOKS = 3
"""So often at most rows are fetched: a live node may have written where they were looked for."""
WAITS = 10
WAIT_SECONDS = 1.0
"""So often, and so far apart, executors that have not come yet are waited for."""


class Place(msgspec.Struct, frozen=True):
    """The directory of a node, at a path of whichever host has it."""

    node: NodeId
    path: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.node}{self.path}"

    def is_here(self) -> bool:
        """Whether this process sees it."""
        try:
            identity = read_identity(Path(self.path))
        except (CorruptionError, OSError):
            return False
        return identity is not None and identity.node == self.node


def places_of(given: Sequence[str]) -> list[Place]:
    """What is named so. Raises UsageError."""
    found: list[Place] = []
    for url in given:
        node, slash, path = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not node or not path:
            raise UsageError(f"{url}: expected {SCHEME}NODE/PATH, like the others: name all directories that way, or none")
        found.append(Place(node, slash + path))
    doubled = next((place for at, place in enumerate(found) if place.node in [p.node for p in found[:at]]), None)
    if doubled is not None:
        raise UsageError(f"{doubled} is the second directory of {doubled.node!r}: name one directory per node")
    return found


def check_hosts(context: SparkContext, given: Sequence[str], *, rules: Rules, limit: int, waits: int = WAITS) -> Report:
    """Compare directories where they lie. Raises UsageError, also where no executor sees one of them; JobFailed."""
    places = places_of(given)
    sketches: list[Sketch] = []
    slices: dict[NodeId, Slice] = {}
    for place, data in zip(places, _beside(context, places, b"", waits), strict=True):
        found = decoded(data, str(place))
        assert isinstance(found, Sketch), "a host was asked for a sketch"
        sketches.append(msgspec.structs.replace(found, survey=msgspec.structs.replace(found.survey, path=str(place))))
    report, asking = compare_sketches(sketches, slices, rules=rules, limit=limit)
    usable = [place for place, sketch in zip(places, sketches, strict=True) if not sketch.survey.problem]
    for _ in range(LOOKS):
        if asking is None:
            break
        for place, data in zip(usable, _beside(context, usable, encoded(asking), waits), strict=True):
            part = decoded(data, str(place))
            assert isinstance(part, Slice), "a host was asked for rows"
            slices[part.node] = part
        report, asking = compare_sketches(sketches, slices, rules=rules, limit=limit)
    return report


def _beside(context: SparkContext, places: Sequence[Place], asking: bytes, waits: int) -> list[bytes]:
    """What a task beside each of these says of it."""
    said: dict[int, bytes] = {}
    for attempt in range(waits):
        if attempt:
            time.sleep(WAIT_SECONDS)
        tasks = max(1, context.defaultParallelism)
        with spark_errors():
            told = context.parallelize(range(tasks), tasks).barrier().mapPartitions(_of_what_is_here(places, asking))
            said |= dict(told.collect())
        if len(said) == len(places):
            return [said[at] for at in range(len(places))]
    unseen = ", ".join(str(place) for at, place in enumerate(places) if at not in said)
    raise UsageError(
        f"no executor sees {unseen}: expected a data directory of that node at that path on the host of one; "
        "does every host have an executor, and may it read the directory?"
    )


def _of_what_is_here(places: Sequence[Place], asking: bytes) -> Callable[[Iterable[int]], Iterator[tuple[int, bytes]]]:
    """A task of the stage: its share of the directories that it sees."""

    def task(_: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        from pyspark import BarrierTaskContext  # noqa: PLC0415  # there where Spark is

        beside = BarrierTaskContext.get()
        mine = [at for at, place in enumerate(places) if place.is_here()]
        seen = [msgspec.json.decode(line, type=list[int]) for line in beside.allGather(msgspec.json.encode(mine).decode())]
        for at in shared_out(seen)[beside.partitionId()]:
            if asking:
                asked = decoded(asking, "what was asked for")
                assert isinstance(asked, Asking), "rows are asked for by buckets"
                yield at, encoded(slice_of(places[at].path, asked))
            else:
                yield at, encoded(sketch_of(places[at].path))

    return task


def shared_out(seen: Sequence[Sequence[int]]) -> list[list[int]]:
    """Who does what, of those who see it: whoever has least to do, and of these the first.

    >>> shared_out([[0, 1], [0, 1], [2], []])
    [[0], [1], [2], []]
    """
    shares: list[list[int]] = [[] for _ in seen]
    for thing in sorted({one for mine in seen for one in mine}):
        able = [at for at, mine in enumerate(seen) if thing in mine]
        shares[min(able, key=lambda at: len(shares[at]))].append(thing)
    return shares
