"""`foreshore wal history`: which missing updates a copy could be supplied with from here, and what that would read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import Annotated, Any

import typer

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import State, read_directory
from tools.terminal import ExitCode, Row, Unreadable, show, word
from tools.wal.absent import absent
from tools.wal.filters import Filter
from tools.wal.options import AsJson, Directories, OfNamespace, OfPartition
from tools.wal.places import Place, place_of
from tools.wal.trouble import Trouble
from wal import indexes
from wal.ids import Fragment, fragment_name
from wal.parts import cost as reading


def history(
    directories: Directories,
    namespace: OfNamespace = None,
    partition: OfPartition = None,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many lines; 0: none is too many.")] = 0,
    as_json: AsJson = False,
) -> None:
    """From which counter each fragment could be supplied from this log, and how many blocks and bytes it would read.

    A copy that has the counters before `from` catches up by history; one that lacks more is taken in full.
    """
    places = [place_of(text) for text in directories]
    found = False
    trouble = Trouble()
    for place in places:
        trouble.meet(place)
        rows = _rows(place, namespace, partition)
        first = next(rows, None)
        if first is not None:
            found = True
            show(islice(chain([first], rows), min(limit, sys.maxsize) or None), as_json=as_json)
    trouble.end(ExitCode.OK if found else absent(places, Filter(namespace=namespace, partition=partition)))


def _rows(place: Place, namespace: str | None, partition: int | None) -> Iterator[Row]:
    if place.directory is None:
        raise Unreadable(f"{place.path} is not a data directory: expected identity.json, store and wal")
    try:
        state = read_directory(
            place.directory,
            namespaces=None if namespace is None else {namespace},
            partitions=None if partition is None else {partition},
        )
    except (UsageError, CorruptionError) as error:
        raise Unreadable(str(error)) from error
    with state:
        cost = _cost(place, state)
        for name, view in sorted(state.fragments.items()):
            row: dict[str, Any] = {"node": place.name}
            row["fragment"] = word(fragment_name(name).encode("utf-8", "surrogatepass"))
            lwm, begins = view.counter.lwm, view.history_from
            served = not view.loading and lwm > begins
            row |= {"from": begins + 1 if served else None, "to": lwm if served else None}
            blocks, size = cost.get(name, (0, 0))
            yield row | {"updates": lwm - begins if served else 0, "blocks": blocks, "bytes": size, "loading": view.loading}


def _cost(place: Place, state: State) -> dict[Fragment, tuple[int, int]]:
    """fragment -> in how many blocks all of its history lies, and how many bytes of them are read for it alone."""
    cost: dict[Fragment, tuple[int, int]] = {}
    for indexed in indexes(place.source):
        for name, view in state.fragments.items():
            blocks, size = reading(indexed.index, indexed.end, {name: (view.history_from, view.counter.lwm)})
            if blocks:
                known = cost.get(name, (0, 0))
                cost[name] = (known[0] + blocks, known[1] + size)
    return cost
