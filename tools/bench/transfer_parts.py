"""What each stage of a full transfer takes of the processor for a row, in one process and with nothing beside it.

The rows go the way that they go between two nodes: read from a store, put into batches, framed, opened, logged, applied,
and written to the other store, in parts as the writer of a checkpoint gets them. What nodes do besides (planning, the
comparison of contents, heartbeats) is in the figures of `tools.bench.transfer`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from engine.protocol.wire import PEER_FRAME_BYTES_MAX, FrameReader, decode_messages, frames
from engine.state.replica import Replica
from engine.state.store import CheckpointImage, Entry, LayeredStore, Page
from engine.state.store_lmdb import LmdbStore
from engine.state.store_parts import Part, frame, next_part, parts_of
from rebalance.messages import ROW_BYTES, Supply
from rebalance.supplying import BATCH_WORK, preload_of
from tools.bench.figures import Measured, Setting, count_is
from tools.bench.log import SETTINGS, open_log
from wal import Log
from wal import records as r
from wal.ids import NO_VERSION, Fragment, partition_of

PARTITIONS = 1024
NAMESPACE = "bench"
READ_BYTES = 256 << 10
"""What comes out of a socket at a time."""
LARGE_BYTES, LARGE_LESS = 10_000, 20
SIDES = {
    "supplier": ("read", "batch", "frame"),
    "demander": ("unframe", "decode", "log", "apply", "hand over"),
    "writer": ("take over", "write"),
}

P = ParamSpec("P")
T = TypeVar("T")


class Stages:
    """Processor time by stage."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()

    def time(self, stage: str, do: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do it, and note what it took."""
        began = time.process_time_ns()
        done = do(*args, **options)
        self.spent[stage] += time.process_time_ns() - began
        return done


async def transfer_parts(setting: Setting, figure: str) -> list[Measured]:
    """Rows of 100 bytes, and fewer of 10 KB."""
    found: list[Measured] = []
    for size, rows in ((100, setting.updates), (LARGE_BYTES, max(1, setting.updates // LARGE_LESS))):
        setting.say(f"{figure}: {rows:,} rows of {size:,} bytes")
        path = setting.directory / f"{figure}-{size}"
        path.mkdir()
        began = time.perf_counter()
        spent = _transfer(path, rows, b"v" * size).spent
        seconds = round(time.perf_counter() - began, 3)
        for side, stages in SIDES.items():
            each = {stage: round(spent[stage] / 1000 / rows, 2) for stage in stages}
            found.append(
                Measured(
                    figure=figure,
                    what=f"processor time of the {side} for a row of {size:,} bytes that is transferred in full",
                    value=round(sum(each.values()), 2),
                    unit="us/row",
                    counted=rows,
                    seconds=seconds,
                    parts=each,
                )
            )
    return found


def _transfer(path: Path, rows: int, value: bytes) -> Stages:
    """Take all rows from one store to another."""
    stages, changes = Stages(), dict[Fragment, dict[bytes, Entry | None]]()
    for n in range(rows):
        key = b"key-%09d" % n
        changes.setdefault((NAMESPACE, partition_of(key, PARTITIONS)), {})[key] = Entry(1, n + 1, value)
    names = sorted(changes)
    with (
        closing(LmdbStore(path / "from")) as source,
        closing(LmdbStore(path / "to")) as base,
        closing(open_log(path / "wal")) as log,
    ):
        source.write(
            CheckpointImage(1, node={}, fragments=dict.fromkeys(names, b"s"), partitions={}, cleared=[], rows=changes)
        )
        replica, reader = Replica(LayeredStore(base)), FrameReader()
        reader.limit = PEER_FRAME_BYTES_MAX
        for name in names:
            replica.apply(r.FragmentClear(*name, "it is empty"))
        for batch in _batches(stages, LayeredStore(source), names):
            ((framed,), _) = stages.time("frame", frames, [batch])
            data = b"".join(framed)
            for at in range(0, len(data), READ_BYTES):
                for payload in stages.time("unframe", _payloads, reader, data[at : at + READ_BYTES]):
                    _take(stages, replica, log, payload)
        image = replica.freeze(log.next_lsn - 1, [])
        for _ in replica.changes.pieces():
            pass
        handed = BytesIO(b"".join(stages.time("hand over", _handed, image)))
        parts = stages.time("take over", _parts, handed)
        stages.time("write", base.write_parts, parts)
        base.renew()
        count_is("rows", rows, sum(base.live(name) or 0 for name in names))
    return stages


def _batches(stages: Stages, store: LayeredStore, names: Sequence[Fragment]) -> Iterator[Supply]:
    """The batches that a supplier would send."""
    rows: list[r.Preload] = []
    size = work = 0
    for name in names:
        at: bytes | None = b""
        while at is not None:
            page = stages.time("read", store.page, name, at, BATCH_WORK - work)
            at = page.next
            if page.rows:
                size += stages.time("batch", _weight, page)
                rows.append(stages.time("batch", preload_of, name, page.rows))
                work += len(page.rows)
            if work >= BATCH_WORK or size >= SETTINGS.supply_batch_bytes:
                yield Supply(NO_VERSION, 1, 1, rows=rows)
                rows, size, work = [], 0, 0
    if rows:
        yield Supply(NO_VERSION, 1, 1, rows=rows)


def _weight(page: Page) -> int:
    return sum(len(key) + len(entry.value or b"") + ROW_BYTES for key, entry in page.rows)


def _payloads(reader: FrameReader, data: bytes) -> list[bytes]:
    return list(reader.feed(data))


def _take(stages: Stages, replica: Replica, log: Log, payload: bytes) -> None:
    """What a demander does with a batch."""
    (batch,) = stages.time("decode", decode_messages, payload)
    assert isinstance(batch, Supply)
    if log.wants_next:
        log.prepare_next()
    stages.time("log", log.append, batch.rows, now_ms=1, durable=False)
    for rows in batch.rows:
        stages.time("apply", replica.apply, rows)


def _handed(image: CheckpointImage) -> list[bytes]:
    return [frame(part) for part in parts_of(image)]


def _parts(handed: BytesIO) -> list[Part]:
    parts: list[Part] = []
    while (part := next_part(handed.read)) is not None:
        parts.append(part)
    return parts
