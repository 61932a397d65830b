"""`foreshore wal segments`: the files of a log, who needs them, and what goes next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.terminal import Row, show
from tools.wal.options import AsJson, Directories
from tools.wal.places import Place, losses_of, place_of
from tools.wal.strangers import ASIDE
from tools.wal.times import time_text
from tools.wal.trouble import Trouble
from wal import DirectoryDisk, SegmentInfo
from wal.kept import Kept, read_kept
from wal.retention import plan

_NOTHING: dict[str, Any] = {"from": None, "to": None, "goes": None, "pinned_by": [], "pinned_since": None}


def segments(directories: Directories, as_json: AsJson = False) -> None:
    """List the segment files of a log, who needs them, what goes next, and what was set aside beside them."""
    trouble = Trouble()
    show(_segment_rows([place_of(text) for text in directories], trouble), as_json=as_json)
    trouble.end()


def _segment_rows(places: list[Place], trouble: Trouble) -> Iterator[Row]:
    for place in places:
        infos = trouble.files(place)
        kept = _kept(place)
        going = set() if kept is None or not place.live else _going(infos, kept)
        for info in infos:
            empty = info.last_lsn < info.first_lsn
            pins = [pin for pin in kept.pins if place.live and pin.lsn <= info.last_lsn] if kept is not None else []
            yield {
                "node": place.name,
                "segment": info.name,
                "first_lsn": info.first_lsn,
                "last_lsn": None if empty else info.last_lsn,
                "bytes": info.bytes,
                "state": "archived" if info.archived else "sealed" if info.sealed else "open",
                "from": time_text(info.first_time_ms) if info.first_time_ms else None,
                "to": time_text(info.last_time_ms) if info.last_time_ms else None,
                "goes": "next" if info.name in going else None,
                "pinned_by": [pin.token for pin in pins],
                "pinned_since": time_text(min(pin.since_ms for pin in pins)) if pins else None,
            }
        if place.log is not None and place.log.is_dir():
            for loss in losses_of(place):
                at = {"first_lsn": loss.first_lsn, "last_lsn": loss.last_lsn, "bytes": None, "state": f"lost-by-{loss.by}"}
                yield {"node": place.name, "segment": None} | at | _NOTHING
            for file in sorted(filter(_is_aside, place.log.iterdir())):
                head: dict[str, Any] = {"node": place.name, "segment": file.name, "first_lsn": None, "last_lsn": None}
                yield head | {"bytes": file.stat().st_size, "state": "set-aside"} | _NOTHING


def _kept(place: Place) -> Kept | None:
    """Why its node keeps the log; None if it is not the log of a directory, or nobody said."""
    if place.log is None or not place.log.is_dir():
        return None
    with DirectoryDisk(place.log, read_only=True) as disk:
        return read_kept(disk)


def _going(infos: list[SegmentInfo], kept: Kept) -> set[str]:
    """What would go if its node finished a checkpoint now."""
    trim = plan(
        [info for info in infos if info.sealed],
        bytes_now=sum(info.bytes for info in infos),
        bytes_max=kept.bytes_max,
        pin_bytes=kept.pin_bytes,
        older_than_ms=time.time_ns() // 1_000_000 - kept.age_ms if kept.age_ms else 0,
        checkpoint_lsn=max((info.last_lsn for info in infos), default=0),
        pins={pin.token: pin.lsn for pin in kept.pins},
    )
    return {info.name for info in infos[: trim.count]} if trim is not None else set()


def _is_aside(file: Path) -> bool:
    return ASIDE.fullmatch(file.name) is not None
