"""What was asked for by its name and is nowhere: an empty answer that says so, names what there is, and is no success."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tools.terminal import ExitCode, complain, word
from tools.wal.filters import Filter
from tools.wal.places import Place
from wal import DiskError, LogError, indexes
from wal.ids import CLIENTS, MAPS

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


def absent(places: Sequence[Place], wanted: Filter) -> ExitCode:
    """Nothing was found: say so if it was asked for by a name. Whoever mistyped a namespace learns which there are."""
    asked = _asked(wanted)
    if not asked:
        return ExitCode.OK
    complain(f"no record that was read is of {' and '.join(asked)}")
    if wanted.namespace is not None:
        known: set[str] = set()
        for some in (some for place in places for some in _namespaces(place)):
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


def _namespaces(place: Place) -> Iterator[set[str]]:
    """The namespaces that a log speaks of, by segments, and those of the store beside it; what is damaged was told."""
    try:
        for indexed in indexes(place.source):
            mentioned = {*(indexed.index.mentions or ())} - {CLIENTS, MAPS}  # which no record has
            yield {name for name, _ in (*indexed.index.fragments, *mentioned)}
    except (DiskError, LogError):
        pass
    if place.directory is not None:
        from engine.state.store_errors import StoreError  # noqa: PLC0415  # most answers are not empty
        from engine.state.store_lmdb import LmdbStore  # noqa: PLC0415

        try:
            store = LmdbStore(place.directory / "store", read_only=True)
            try:
                yield {name for name, _ in store.load().fragments}
            finally:
                store.close()
        except (StoreError, ValueError):
            pass
