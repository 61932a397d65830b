"""`foreshore wal counters`: where the copies of nodes stand, side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any

import typer

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import FragmentView, State, read_directory
from engine.offline.live import is_live
from rebalance.table import Standing, Topology
from tools.terminal import ExitCode, Row, Unreadable, complain, show, word
from tools.wal.absent import absent
from tools.wal.filters import Filter
from tools.wal.places import Place, place_of
from tools.wal.trouble import Trouble
from wal.ids import TABLE_MAX, Fragment, NodeId, fragment_name, tx_name

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, one per node.")]
AsJson = Annotated[bool, typer.Option("--json", help="For a program: one JSON object a line.")]


def counters(
    directories: Directories,
    namespace: Annotated[str | None, typer.Option(help="Only fragments of this namespace.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, max=TABLE_MAX - 1, help="Only this partition.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many lines; 0: none is too many.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Where each copy of each fragment stands: LWM, HWM, what is applied between, the gaps, and the digest.

    Of several directories, the copies that should be equal and are not are marked `differs`: then the exit code is 1. A
    live node moves on while another is read; `foreshore reconcile check` allows for that, and compares contents too.
    """
    places = [place_of(text) for text in directories]
    _check_places(places)
    trouble = Trouble()
    for place in places:
        trouble.meet(place)
    with ExitStack() as stack:
        states = [stack.enter_context(_state(place, namespace, partition)) for place in places]
        compared = _Compared(states)
        rows = compared.rows()
        show(islice(rows, min(limit, sys.maxsize)) if limit else rows, as_json=as_json)
        for _ in rows:
            pass  # beyond the limit it is still compared
    if compared.live:
        complain(f"a node runs in {', '.join(compared.live)}: what differs there may be under way")
    if not as_json:
        complain(f"fragments={compared.fragments} copies={compared.copies} differing={compared.differing}")
    nothing = not compared.fragments and absent(places, Filter(namespace=namespace, partition=partition))
    trouble.end(ExitCode.WRONG if compared.differing or nothing else ExitCode.OK)


def _check_places(places: list[Place]) -> None:
    """Raise UsageError unless these can be laid side by side."""
    seen: dict[NodeId, Place] = {}
    for place in places:
        if place.node in seen:
            raise UsageError(
                f"{seen[place.node].path} and {place.path} both belong to node {place.node!r}: name one directory per node"
            )
        seen[place.node] = place
    names = sorted({place.cluster for place in places})
    if len(names) > 1:
        raise UsageError(f"the directories belong to clusters {', '.join(names)}: name those of one cluster")


def _state(place: Place, namespace: str | None, partition: int | None) -> State:
    if place.directory is None:
        raise Unreadable(f"{place.path} is not a data directory: expected identity.json, store and wal")
    try:
        return read_directory(
            place.directory,
            namespaces=None if namespace is None else {namespace},
            partitions=None if partition is None else {partition},
        )
    except (UsageError, CorruptionError) as error:
        raise Unreadable(str(error)) from error


class _Compared:
    """Copies side by side. Those of one fragment must be equal on all nodes that the newest map calls in sync."""

    def __init__(self, states: list[State]) -> None:
        self.states = {state.identity.node: state for state in states}
        self.topology: Topology | None = max(
            (state.topology for state in states if state.topology is not None), key=lambda t: t.version, default=None
        )
        self.live = [str(state.path) for state in states if is_live(state.path)]
        self.fragments = self.copies = self.differing = 0

    def rows(self) -> Iterator[Row]:
        """One row per copy, fragment by fragment."""
        for name in sorted({name for state in self.states.values() for name in state.fragments}):
            views = {node: state.fragments.get(name) for node, state in self.states.items()}
            roles = {node: self._role(name, node) for node in views}
            in_sync = [view for node, view in views.items() if roles[node] in {Standing.OWNING, None}]
            differs = len({_stands(view) for view in in_sync}) > 1
            self.fragments += 1
            self.differing += differs
            for node, view in views.items():
                if view is not None or roles[node] is Standing.OWNING:
                    self.copies += view is not None
                    yield self._row(name, node, view, roles[node], differs=differs)

    def _role(self, name: Fragment, node: NodeId) -> Standing | None:
        if self.topology is None or name[1] >= len(self.topology.placements):
            return None
        return self.topology.placements[name[1]].standing_of(node)

    def _row(self, name: Fragment, node: NodeId, view: FragmentView | None, role: Standing | None, *, differs: bool) -> Row:
        head: dict[str, Any] = {"fragment": word(fragment_name(name).encode("utf-8", "surrogatepass")), "node": node}
        head["copy"] = None if role is None else "not-a-copy" if role is Standing.NONE else str(role)
        if view is None:
            nothing = dict.fromkeys(("lwm", "hwm", "ranges", "gaps", "in_doubt", "epoch", "digest", "loading"))
            return head | nothing | {"missing": True, "differs": differs}
        counter = view.counter
        held = [
            tx_name(tx)
            for tx, prepared in self.states[node].partitions[name[1]].prepared.items()
            if any(write.namespace == name[0] for write in prepared.record.writes)
        ]
        return head | {
            "lwm": counter.lwm,
            "hwm": counter.hwm,
            "ranges": [list(item) for item in counter.ranges],
            "gaps": [list(item) for item in counter.missing(counter.hwm)],
            "in_doubt": held,
            "epoch": view.epochs[-1][0] if view.epochs else 0,
            "digest": f"{view.digests[counter.lwm]:016x}",
            "loading": view.loading,
            "missing": False,
            "differs": differs,
        }


def _stands(view: FragmentView | None) -> tuple[str, int]:
    """What must be equal. A copy of which nothing was ever written stands at zero."""
    if view is None:
        return "lwm=0 hwm=0", 0
    return str(view.counter), view.digests[view.counter.lwm]
