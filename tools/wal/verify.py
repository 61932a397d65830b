"""`foreshore wal verify`: whether a directory is whole, as far as it can tell, and what only its peers could.

A verdict is never better than what was checked: what was, what was not, and what nobody can tell from this disk alone
are said each. With `--against` the peers' directories answer the last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.offline.live import is_live
from engine.state.store_errors import StoreDamaged, StoreError, StoreFailed, StoreInUse, StoreTooNew
from tools.pager import Progress
from tools.terminal import Ended, ExitCode, Unreadable, code_of, emit, exit_code_of, to_json
from tools.wal.places import Place, empty_text, loss_text, losses_of, place_of
from tools.wal.strangers import strangers_text
from wal import Finding, Report, joined, verify_part
from wal import verify as verify_log

if TYPE_CHECKING:
    import typer

    from engine.offline.directory import State
    from tools.reconcile.logs import LogTold
    from tools.wal.against import Owed
    from tools.wal.beside import Blocks
    from tools.wal.options import Jobs

SHOWN = 5
"""So many damages of a store are told one by one; it is to be replaced as a whole anyway."""
ATTEMPTS = 3
AGAIN_SECONDS = 0.2


def verify(
    directories: Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, logs, or segment files.")],
    against: Annotated[
        bool, typer.Option("--against", help="Check the first directory; the others are its peers', and tell what it lost.")
    ] = False,
    logic: Annotated[
        bool,
        typer.Option("--logic", help="Also look for what a log says that cannot be, record by record, its indexes too."),
    ] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Also hold each row of the store against the log.")] = False,
    log_only: Annotated[bool, typer.Option("--log-only", help="Check the log by itself, and not the store.")] = False,
    store_only: Annotated[bool, typer.Option("--store-only", help="Check the store by itself, and not the log.")] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Compute checksums by crcmod instead of the hardware: slow, independent.")
    ] = False,
    jobs: Jobs = 1,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: one JSON object a line.")] = False,
) -> None:
    """Check all that can be checked: the log's chain, the store's pages and rows, and that one folds onto the other.

    Exit codes: 0 whole; 1 something wrong that costs nothing; 3 cannot be read, or is newer; 4 a tail is gone that may
    have been promised; 5 damage; 6 missing or foreign segments; 7 it contradicts itself. The largest wins.
    """
    if against and len(directories) < 2:
        raise UsageError("--against was given one directory: expected that one, and those of its peers")
    if log_only + store_only + (against or logic or audit) > 1:
        raise UsageError(
            "--log-only and --store-only check one of the two by itself: expected neither the other, nor --against, "
            "--logic or --audit beside it"
        )
    places = [place_of(text) for text in directories]
    if store_only and (bare := [str(place.path) for place in places if place.directory is None]):
        raise Unreadable(f"{', '.join(bare)}: no data directory, so there is no store that --store-only could check")
    if against:
        from tools.wal.against import check_peers  # noqa: PLC0415  # who checks a log does not wait for what checks more

        check_peers(places[0], places[1:])
    code = ExitCode.OK
    told: dict[str, LogTold] = {}
    for place in places[:1] if against else places:
        peers = places[1:] if against else []
        wanted = Wanted(
            reference=reference, logic=logic, audit=audit, peers=peers, jobs=jobs, log=not store_only, store=not log_only
        )
        checked = Checked(place, wanted)
        emit(map(to_json, checked.objects()) if as_json else checked.lines())
        code = max(code, checked.code)
        if checked.told is not None:
            told[place.name] = checked.told
    code = max(code, _together(told, as_json=as_json)) if told else code
    if code:
        raise Ended(code)


def _together(told: dict[str, LogTold], *, as_json: bool) -> ExitCode:
    """Tell what no log says by itself, and all of them together do."""
    from tools.wal.logic import torn  # noqa: PLC0415  # see above

    code = ExitCode.OK
    alone = {tx for name, log in told.items() for tx in torn({name: log})}
    for tx, broken in torn(told).items():
        if tx not in alone:
            emit([to_json({"together": str(broken)}) if as_json else f"together: contradiction {broken}"])
            code = ExitCode.LOGIC
    return code


class Problem(msgspec.Struct, frozen=True):
    """Something wrong that is no finding of the log's: in one word, how bad it is, and in a sentence."""

    kind: str
    code: ExitCode
    what: str


class Sense(msgspec.Struct, frozen=True):
    """What a log says of transactions, if that was asked for, and in sentences what cannot be."""

    told: LogTold | None
    broken: list[str]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be checked beyond what always is."""

    reference: bool = False
    logic: bool = False
    audit: bool = False
    peers: list[Place] = []
    jobs: int = 1
    log: bool = True
    store: bool = True


class Checked:
    """What was found out about one directory."""

    def __init__(self, place: Place, wanted: Wanted) -> None:
        self.place = place
        self.told: LogTold | None = None
        self.facts: list[dict[str, Any]] = []
        self.findings: list[Finding] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.owed: Owed | None = None
        self._wanted = wanted
        self._report: Report | None = None
        self._stored = 0  # up to which LSN there is a store that was read
        self._lost_to = 0  # up to which one something was left out
        if place.problem:
            self._problem("damaged", ExitCode.DAMAGED, place.problem)
        if wanted.log and place.log is not None:
            self._check_log()
        elif wanted.log and place.directory is not None:
            self._problem("missing", ExitCode.MISSING, f"{place.directory} has no log: expected its directory wal")
        if wanted.store and place.directory is not None and self._check_store() and wanted.log:
            self._check_fold(wanted.peers)
        self._say_what_was_not_checked()

    # What it comes to.

    @property
    def codes(self) -> list[ExitCode]:
        """All that is wrong, as exit codes, the worst last."""
        found = {code_of(finding) for finding in self.findings if not self._excused(finding)}
        found |= {problem.code for problem in self.problems}
        if self.owed is not None and self.owed.code:
            found.add(self.owed.code)
        return sorted(found)

    @property
    def code(self) -> ExitCode:
        """How bad it is."""
        return max(self.codes, default=ExitCode.OK)

    def _excused(self, finding: Finding) -> bool:
        """Whether a finding is none: a live node is just writing there, or its peers say that nothing of it is owed."""
        asked = self.owed is not None and self.owed.code is ExitCode.OK
        return code_of(finding) is ExitCode.SHORT and (self.place.live or asked)

    def lines(self) -> Iterator[str]:
        """For a person."""
        name = self.place.path
        for facts in self.facts:
            yield f"{name}: " + " ".join(f"{key}={value}" for key, value in facts.items())
        for finding in self.findings:
            yield f"{name}: {finding}"
        for problem in self.problems:
            yield f"{name}: {problem.kind} {problem.what}"
        for line in self.owed.lines() if self.owed is not None else ():
            yield f"{name}: {line}"
        for note in self.notes:
            yield f"{name}: {note}"
        yield f"{name}: {self._verdict()}"

    def objects(self) -> Iterator[dict[str, Any]]:
        """For a program."""
        head = {"path": str(self.place.path), "node": self.place.node}
        for finding in self.findings:
            told = {name: getattr(finding, name) for name in finding.__struct_fields__}
            yield head | {"finding": told | {"damage": finding.damage, "exit_code": code_of(finding)}}
        for problem in self.problems:
            told = {"kind": problem.kind, "what": problem.what, "damage": True, "exit_code": problem.code}
            yield head | {"finding": told}
        for owes in self.owed.objects() if self.owed is not None else ():
            yield head | owes
        last = {"checked": self.facts, "notes": self.notes, "exit_code": self.code, "exit_codes": self.codes}
        yield head | last | {"verdict": self._verdict()}

    def _verdict(self) -> str:
        where = self.place.directory or self.place.path
        match self.code:
            case ExitCode.OK:
                return f"{self._alone} by itself is whole" if self._alone else "whole"
            case ExitCode.WRONG:
                return "WRONG, and nothing is lost: bytes that say nothing of their own are not what was written"
            case ExitCode.UNREADABLE:
                return "written by a newer version, or cannot be read: look at it with that one, or see to the disk"
            case ExitCode.SHORT:
                return (
                    "whole up to its end, and the end is gone; whether that was promised its peers know: `foreshore wal "
                    f"verify {where} --against` and their directories. If it is alone, the next start sets it aside"
                )
            case ExitCode.MISSING if self._is_in_the_store():
                return (
                    "the beginning of the log is gone, and the store has all of it: a node starts here as it is, and "
                    "nothing need be done. Older history can be neither read nor supplied from here"
                )
            case ExitCode.LOGIC:
                return f"CONTRADICTS ITSELF. Stop the node, keep {where}, and start it with an empty directory"
            case _:
                return (
                    f"DAMAGED. Stop the node, move {where} away and start it with an empty directory, so that it gets its "
                    "copies from its peers. If it has no peers and the log is what is damaged: `foreshore node start "
                    f"--data {where} --accept-loss` sets the log aside from there on, and goes on without it; and if it is "
                    "the store: move only that away, and a log that begins with LSN 1 makes it anew"
                )

    def _is_in_the_store(self) -> bool:
        """Whether what is missing is history alone, as behind a repair: the store has what the records made."""
        behind = all(problem.kind == "lost" for problem in self.problems) and self._stored >= self._lost_to
        return behind and not any(finding.costs(self._stored + 1) for finding in self.findings)

    @property
    def _alone(self) -> str:
        """What alone was checked of a data directory; nothing if it was all of it."""
        return "" if self._wanted.log and self._wanted.store else "the log" if self._wanted.log else "the store"

    def _problem(self, kind: str, code: ExitCode, what: str) -> None:
        self.problems.append(Problem(kind, code, what))

    def _say_what_was_not_checked(self) -> None:
        wanted, bare = self._wanted, self.place.directory is None
        if bare:
            self.notes.append("not checked: whose log this is, and the store beside it; name the data directory for that")
        elif self._alone:
            self.notes.append("not checked: what is beside it, and whether the log folds onto the store")
        elif self.place.path != self.place.directory:
            only = "--store-only" if self.place.path.name == "store" else "--log-only"
            self.notes.append(f"this is all of {self.place.directory}, of which a part was named: {only} checks that alone")
        if not self._alone:
            left = ["--logic"] * (not wanted.logic) + ["--audit"] * (not wanted.audit and not bare)
            says = "whether what it says can be" + ", and its footers tell of all that is in it" * (not wanted.logic)
            if left:
                self.notes.append(f"not checked: {says}, with {' and '.join(left)}")
        if self.owed is None and self._report is not None and not self.place.live:
            ends = self._report.last_lsn
            self.notes.append(
                f"nobody can tell from this disk alone: whether a last group of records followed LSN {ends}; ask the "
                "peers with --against"
            )

    # How it is found out.

    def _check_log(self) -> None:
        place = self.place
        report = self._read_log(place)
        for _ in range(ATTEMPTS):  # a live node may have rotated or trimmed its log while it was read
            if not (report.damaged and place.live):
                break
            time.sleep(AGAIN_SECONDS)
            report = self._read_log(place)
        self._report = report
        self.findings = report.findings
        lsns = f"{report.first_lsn}..{report.last_lsn}"
        counted = {"log": lsns, "segments": len(report.segments), "blocks": report.blocks, "records": report.records}
        self.facts.append(counted | {"bytes": report.bytes})
        for loss in losses_of(place):
            if loss.last_lsn >= loss.first_lsn:
                code = ExitCode.SHORT if loss.last_lsn >= report.last_lsn else ExitCode.MISSING
                self._problem("lost", code, loss_text(loss))
                self._lost_to = max(self._lost_to, loss.last_lsn)
        if empty := empty_text(place):
            self._problem("missing", ExitCode.MISSING, empty)
        if strangers := strangers_text(place):
            self.notes.append(strangers)

    def _read_log(self, place: Place) -> Report:
        wanted = self._wanted
        if wanted.jobs > 1:
            from tools.wal.jobs import Run, in_parts  # noqa: PLC0415  # who reads alone does not wait for it

            def checked(run: Run) -> Report:
                return verify_part(
                    place.source,
                    run.segment,
                    until=run.until,
                    reference=wanted.reference,
                    indexes=wanted.logic,
                    owner=place.owner,
                )

            return joined(place.source, in_parts(place, wanted.jobs, Report, checked))
        progress = Progress(place.log_bytes)
        report = verify_log(
            place.source, reference=wanted.reference, indexes=wanted.logic, owner=place.owner, look=progress.step
        )
        progress.close()
        return report

    def _check_store(self) -> bool:
        """Whether the store can be folded onto."""
        directory = self.place.directory
        assert directory is not None, "a store is looked for in a data directory only"
        from engine.state.store_file import structure_problems  # noqa: PLC0415  # see above
        from engine.state.store_lmdb import LmdbStore  # noqa: PLC0415

        path = directory / "store"
        try:
            if (path / "data.mdb").is_file():
                with (path / "data.mdb").open("rb"):
                    pass
        except PermissionError as error:
            what = f"store {path}: {error.strerror}, so nothing is known of it; may you read it?"
            self._problem("unreadable", ExitCode.UNREADABLE, what)
            return False
        except OSError:
            pass  # what is wrong is said below
        try:
            if is_live(directory):
                self.notes.append("a node runs here, so the pages of its store were not walked; its rows were read")
            else:
                broken = structure_problems(path)
                if broken:
                    self._tell_store(broken)
                    return False  # LMDB may not survive such a file
            store = LmdbStore(path, read_only=True)
            try:
                lsn = store.load().lsn
                damages: list[StoreDamaged] = []
                rows = sum(1 for _ in store.rows(on_damage=damages.append))
            finally:
                store.close()
        except (StoreError, ValueError) as error:
            match error:
                case StoreTooNew():
                    self._problem("newer", ExitCode.UNREADABLE, str(error))
                case StoreFailed() | StoreInUse():  # nothing is known of what is in it
                    self._problem("unreadable", ExitCode.UNREADABLE, str(error))
                case _:
                    self._problem("damaged", ExitCode.DAMAGED, str(error))
            return False
        self._tell_store([str(damage) for damage in damages])
        self.facts.append({"store_lsn": lsn, "rows": rows})
        self._stored = lsn
        return True

    def _tell_store(self, found: list[str]) -> None:
        for what in found[:SHOWN]:
            self._problem("damaged", ExitCode.DAMAGED, what if "store" in what else f"store {self.place.path}: {what}")
        if len(found) > SHOWN:
            self._problem("damaged", ExitCode.DAMAGED, f"and {len(found) - SHOWN} more in the store")

    def _check_fold(self, peers: list[Place]) -> None:
        """The log onto the checkpoint, as the next start would do it; then who is asked about its end."""
        assert self.place.directory is not None, "a directory is folded as a whole"
        from tools.wal.against import owed_by, read_peers  # noqa: PLC0415  # see above
        from tools.wal.beside import folded_beside  # noqa: PLC0415

        try:
            with ExitStack() as stack:
                others = read_peers(peers, stack)
                state, sense = folded_beside(self.place, self._sense_of, stack)
                self.facts.append({"folded_lsn": state.lsn, "fragments": len(state.fragments)})
                self._check_member(state)
                self._tell_sense(sense)
                if peers:
                    live = any(place.live for place in (self.place, *peers))
                    self.owed = owed_by(state, others, live=live)
        except CorruptionError as error:
            code = exit_code_of(error)
            if code not in self.codes:  # else it is said already, and better
                self._problem(_KINDS.get(code, "damaged"), code, str(error))

    def _check_member(self, state: State) -> None:
        """A node that was ever started has a Boot, and one that ever held data a Committed."""
        where = "neither the log nor the checkpoint has"
        if not state.incarnation:
            what = f"{where} a Boot record: a node that was ever started has one; the log that had it is gone"
            self._problem("missing", ExitCode.MISSING, what)
        if state.topology is None and (state.fragments or state.partitions):
            what = f"{where} a Committed map: expected the one that placed the {len(state.fragments)} fragments here"
            self._problem("missing", ExitCode.MISSING, what)

    def _sense_of(self, state: State, blocks: Blocks) -> Sense:
        """What the log says that cannot be, and where the store is another. Pointless where records are missing."""
        place, report, broken = self.place, self._report, list[str]()
        if report is None or report.damaged or not report.blocks:
            return Sense(None, broken)
        told: LogTold | None = None
        if self._wanted.logic:
            from tools.wal.logic import Logic, torn  # noqa: PLC0415  # see above

            logic = Logic(state.topology.partitions if state.topology is not None else 0)
            for block in blocks:
                logic.take(block)
            told = logic.told()
            broken += map(str, logic.broken(state))
            broken += map(str, torn({place.name: told}).values())
        if self._wanted.audit:
            from tools.wal.audit import audit as audit_store  # noqa: PLC0415  # see above

            broken += [f"store {what}" for what in audit_store(blocks, state, log_bytes=report.bytes)]
        return Sense(told, broken)

    def _tell_sense(self, sense: Sense | None) -> None:
        if sense is None:
            self.notes.append("not checked: whether what it says can be; the node that runs here trims it while it is read")
            return
        self.told = sense.told
        for what in sense.broken:
            self._problem("contradiction", ExitCode.LOGIC, what)


_KINDS = {ExitCode.MISSING: "missing", ExitCode.LOGIC: "contradiction", ExitCode.UNREADABLE: "unreadable"}
