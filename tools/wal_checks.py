"""`foreshore wal verify` and `counters`: whether a directory is whole, and where the copies of its node stand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any

import typer

from engine.errors import CorruptionError, UsageError
from engine.offline import FragmentView, State, is_live, read_directory
from engine.store_errors import StoreDamaged, StoreError, StoreTooNew
from engine.store_file import structure_problems
from engine.store_lmdb import LmdbStore
from engine.topology import CopyState, Topology
from tools.terminal import ExitCode, Row, Unreadable, complain, emit, show, to_json, word
from tools.wal_places import Place, place_of
from wal import Finding
from wal import verify as verify_log
from wal.ids import PARTITIONS_MAX, Fragment, NodeId, fragment_name, tx_name

SHOWN = 5
"""So many damages of a store are told one by one; it is to be replaced as a whole anyway."""
ATTEMPTS = 3
AGAIN_SECONDS = 0.2

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, one per node.")]
AsJson = Annotated[bool, typer.Option("--json", help="For a program: one JSON object a line.")]


# Verify.


def verify(
    directories: Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, logs, or segment files.")],
    reference: Annotated[
        bool, typer.Option("--reference", help="Compute checksums by crcmod instead of the hardware: slow, independent.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check all that can be checked: the log's chain, the store's pages and rows, and that one folds onto the other.

    Exit code 1 if something is damaged; each finding says where, what it costs, and what to do. A torn tail is no damage:
    nothing of it was promised, and the next start sets it aside.
    """
    code = ExitCode.OK
    for place in [place_of(text) for text in directories]:
        checked = _Checked(place, reference=reference)
        emit(map(to_json, checked.objects()) if as_json else checked.lines())
        code = max(code, checked.code)
    if code:
        raise typer.Exit(code)


class _Checked:
    """What was found out about one directory."""

    def __init__(self, place: Place, *, reference: bool) -> None:
        self.place = place
        self.facts: list[dict[str, Any]] = []
        self.findings: list[Finding] = []
        self.problems: list[str] = [place.problem] if place.problem else []
        self.notes: list[str] = []
        if place.log is not None:
            self._check_log(reference=reference)
        elif place.directory is not None:
            self.problems.append(f"{place.directory} has no log: expected its directory wal")
        if place.directory is not None:
            self._check_store()
            self._check_fold()

    @property
    def code(self) -> ExitCode:
        """How bad it is."""
        if any(finding.kind == "newer" for finding in self.findings):
            return ExitCode.UNREADABLE
        damaged = self.problems or any(finding.damage for finding in self.findings)
        return ExitCode.WRONG if damaged else ExitCode.OK

    def lines(self) -> Iterator[str]:
        """For a person."""
        name = self.place.path
        for facts in self.facts:
            yield f"{name}: " + " ".join(f"{key}={value}" for key, value in facts.items())
        for finding in self.findings:
            yield f"{name}: {finding}"
        for problem in self.problems:
            yield f"{name}: damaged {problem}"
        for note in self.notes:
            yield f"{name}: {note}"
        yield f"{name}: {self._verdict()}"

    def objects(self) -> Iterator[dict[str, Any]]:
        """For a program."""
        head = {"path": str(self.place.path), "node": self.place.node}
        for finding in self.findings:
            told = {name: getattr(finding, name) for name in finding.__struct_fields__}
            yield head | {"finding": told | {"damage": finding.damage}}
        for problem in self.problems:
            yield head | {"finding": {"kind": "damaged", "what": problem, "damage": True}}
        yield head | {"checked": self.facts, "notes": self.notes, "exit_code": self.code, "verdict": self._verdict()}

    def _verdict(self) -> str:
        where = self.place.directory or self.place.path
        match self.code:
            case ExitCode.OK:
                return "whole"
            case ExitCode.UNREADABLE:
                return "written by a newer version: look at it with that one"
            case _:
                return (
                    f"DAMAGED. Stop the node, move {where} away and start it with an empty directory, so that it gets its "
                    "copies from its peers. If it has no peers and the log is what is damaged: `foreshore node start "
                    f"--data {where} --accept-loss` sets the log aside from there on, and goes on without it"
                )

    def _check_log(self, *, reference: bool) -> None:
        report = verify_log(self.place.source, reference=reference)
        for _ in range(ATTEMPTS):  # a live node may have rotated or trimmed its log while it was read
            if not (report.damaged and self.place.live):
                break
            time.sleep(AGAIN_SECONDS)
            report = verify_log(self.place.source, reference=reference)
        self.findings = report.findings
        lsns = f"{report.first_lsn}..{report.last_lsn}"
        counted = {"log": lsns, "segments": len(report.segments), "blocks": report.blocks, "records": report.records}
        self.facts.append(counted | {"bytes": report.bytes})

    def _check_store(self) -> None:
        directory = self.place.directory
        assert directory is not None, "a store is looked for in a data directory only"
        path = directory / "store"
        try:
            if is_live(directory):
                self.notes.append("a node runs here, so the pages of its store were not walked; its rows were read")
            else:
                broken = structure_problems(path)
                if broken:
                    self._tell_store(broken)
                    return  # LMDB may not survive such a file
            store = LmdbStore(path, read_only=True)
            try:
                lsn = store.load().lsn
                damages: list[StoreDamaged] = []
                rows = sum(1 for _ in store.rows(on_damage=damages.append))
            finally:
                store.close()
            self._tell_store(map(str, damages))
            self.facts.append({"store_lsn": lsn, "rows": rows})
        except StoreTooNew as error:
            raise Unreadable(str(error)) from error
        except (StoreError, ValueError) as error:
            self.problems.append(str(error))

    def _tell_store(self, damages: Iterable[str]) -> None:
        found = list(damages)
        self.problems += [f"store {self.place.path}: {what}" if "store" not in what else what for what in found[:SHOWN]]
        if len(found) > SHOWN:
            self.problems.append(f"and {len(found) - SHOWN} more in the store")

    def _check_fold(self) -> None:
        """The log onto the checkpoint, as the next start would do it; pointless where one of them is broken."""
        assert self.place.directory is not None, "a directory is folded as a whole"
        if self.code is not ExitCode.OK:
            return
        try:
            with read_directory(self.place.directory) as state:
                self.facts.append({"folded_lsn": state.lsn, "fragments": len(state.fragments)})
        except CorruptionError as error:
            self.problems.append(str(error))


# Counters.


def counters(
    directories: Directories,
    namespace: Annotated[str | None, typer.Option(help="Only fragments of this namespace.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, max=PARTITIONS_MAX - 1, help="Only this partition.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many lines; 0: none is too many.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Where each copy of each fragment stands: LWM, HWM, what is applied between, the gaps, and the digest.

    Of several directories, the copies that should be equal and are not are marked `differs`: then the exit code is 1. A
    live node moves on while another is read; `foreshore reconcile check` allows for that, and compares contents too.
    """
    places = [place_of(text) for text in directories]
    _check_places(places)
    with ExitStack() as stack:
        states = [stack.enter_context(_state(place, namespace, partition)) for place in places]
        compared = _Compared(states)
        rows = compared.rows()
        show(islice(rows, limit) if limit else rows, as_json=as_json)
        for _ in rows:
            pass  # beyond the limit it is still compared
    if compared.live:
        complain(f"a node runs in {', '.join(compared.live)}: what differs there may be under way")
    if not as_json:
        complain(f"fragments={compared.fragments} copies={compared.copies} differing={compared.differing}")
    if compared.differing:
        raise typer.Exit(ExitCode.WRONG)


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
            in_sync = [view for node, view in views.items() if roles[node] in {CopyState.OWNING, None}]
            differs = len({_stands(view) for view in in_sync}) > 1
            self.fragments += 1
            self.differing += differs
            for node, view in views.items():
                if view is not None or roles[node] is CopyState.OWNING:
                    self.copies += view is not None
                    yield self._row(name, node, view, roles[node], differs=differs)

    def _role(self, name: Fragment, node: NodeId) -> CopyState | None:
        if self.topology is None or name[1] >= len(self.topology.placements):
            return None
        return self.topology.placements[name[1]].state_of(node)

    def _row(
        self, name: Fragment, node: NodeId, view: FragmentView | None, role: CopyState | None, *, differs: bool
    ) -> Row:
        head: dict[str, Any] = {"fragment": word(fragment_name(name).encode("utf-8", "surrogatepass")), "node": node}
        head["copy"] = None if role is None else "not-a-copy" if role is CopyState.NONE else str(role)
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
