"""What was asked for by its name and is nowhere: an empty answer that says so, names what there is, and is no success."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tools.terminal import ExitCode, complain, word
from tools.wal.filters import Filter
from tools.wal.places import Place
from tools.wal.times import time_text
from wal import DiskError, LogError, indexes, list_segments
from wal.ids import CLIENTS, MAPS, Fragment

SHOWN = 20
T = TypeVar("T")


class Shown:
    """Whether there was an answer: so much of it."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, batches: Iterable[Sequence[T]]) -> Iterator[Sequence[T]]:
        """Its parts as they are shown."""
        for batch in batches:
            self.count += len(batch)
            yield batch


def absent(places: Sequence[Place], wanted: Filter, from_lsn: int = 1, to_lsn: int | None = None) -> ExitCode:
    """Nothing was found: say so if it was asked for by a name. Whoever mistyped a namespace or a partition learns which
    there are, and who asked for what is before a log's beginning or behind its end where these are."""
    for place in places:
        _outside(place, wanted, from_lsn, to_lsn)
    asked = _asked(wanted)
    if not asked:
        return ExitCode.OK
    complain(f"no record that was read is of {' and '.join(asked)}")
    if wanted.partition is not None:
        partitions = {number for place in places for some in _fragments(place) for _, number in some}
        if wanted.partition not in partitions:
            named = f"expected one of {min(partitions)} to {max(partitions)}" if partitions else "nor of any other"
            complain(f"nothing here is of a partition {wanted.partition}: {named}")
    if wanted.namespace is not None:
        known: set[str] = set()
        for some in ({name for name, _ in found} for place in places for found in _fragments(place)):
            if wanted.namespace in some:
                break
            known |= some
        else:
            there = [_shown(name) for name in sorted(known)]
            more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
            named = f"expected one of {', '.join(there[:SHOWN])}{more}" if there else "nor any other"
            complain(f"nothing here knows a namespace {_shown(wanted.namespace)}: {named}")
    return ExitCode.WRONG


def _asked(wanted: Filter) -> list[str]:
    """What is asked for by its name, in words."""
    found = []
    if wanted.namespace is not None:
        found.append(f"namespace {_shown(wanted.namespace)}")
    if wanted.partition is not None:
        found.append(f"partition {wanted.partition}")
    if wanted.key is not None:
        found.append(f"key {word(wanted.key)}")
    if wanted.prefix is not None:
        found.append(f"a key that begins with {word(wanted.prefix)}")
    if wanted.tx:
        found.append(f"transaction {wanted.tx}")
    if wanted.label is not None:
        found.append(f"label {_shown(wanted.label)}")
    return found


def _shown(name: str) -> str:
    return word(name.encode("utf-8", "surrogatepass"))


def _outside(place: Place, wanted: Filter, from_lsn: int, to_lsn: int | None) -> None:
    """Say where a log begins and ends if nothing of it is within the LSNs or times that were asked for."""
    try:
        segments = [one for one in list_segments(place.source) if one.last_lsn >= one.first_lsn]
    except (DiskError, LogError):
        return
    if not segments:
        return
    first, last = segments[0], segments[-1]
    earliest = min(one.first_time_ms for one in segments)  # a clock may have been set back meanwhile
    latest = max(one.last_time_ms for one in segments)
    since, until = wanted.times or (earliest, latest)
    lsns_fit = from_lsn <= last.last_lsn and (to_lsn is None or first.first_lsn <= to_lsn)
    if not (lsns_fit and since <= latest and earliest <= until):
        complain(
            f"the log of {place.name} is of LSN {first.first_lsn} to {last.last_lsn}, from "
            f"{time_text(earliest)} to {time_text(latest)}: nothing of it is in what was asked for"
        )


def _fragments(place: Place) -> Iterator[set[Fragment]]:
    """The fragments that a log speaks of, by segments, and those of the store beside it; what is damaged was told."""
    try:
        for indexed in indexes(place.source):
            mentioned = {*(indexed.index.mentions or ())} - {CLIENTS, MAPS}  # which no record has
            yield {*indexed.index.fragments, *mentioned}
    except (DiskError, LogError):
        pass
    if place.directory is not None:
        from engine.state.store_errors import StoreError  # noqa: PLC0415  # most answers are not empty
        from engine.state.store_lmdb import LmdbStore  # noqa: PLC0415

        try:
            store = LmdbStore(place.directory / "store", read_only=True)
            try:
                yield {*store.load().fragments}
            finally:
                store.close()
        except (StoreError, ValueError):
            pass
