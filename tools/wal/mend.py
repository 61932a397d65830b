"""`foreshore wal cut` and `repair`: a copy of a log up to an LSN, or without what is damaged.

The log itself is left as it is. With `--in-place` the copy takes its place, and the log becomes a backup beside it; that is
refused while a node runs there, and where the store would then be ahead of its log.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from engine.errors import UsageError
from engine.host.data_directory import held
from engine.state.store_errors import StoreError
from engine.state.store_lmdb import LmdbStore
from tools.outputs import new_directory
from tools.terminal import ExitCode, Unreadable, complain, show
from tools.wal.in_place import copy_of, go_on, put_in_place
from tools.wal.options import AsJson
from tools.wal.places import Place, empty_text, place_of
from wal import DirectoryDisk, Finding, Report, list_segments
from wal import verify as verify_log
from wal.cut import Loss, copy_part, write_loss

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A data directory, or a log.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Where the copy goes: a new directory with the log in it.")]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Let the copy take the log's place; the log is kept as wal.before-*.")
]


def cut(
    directory: Directory,
    to_lsn: Annotated[int, typer.Option(min=0, help="The last LSN of the copy, or the last before it that ends a block.")],
    out: Out = None,
    in_place: InPlace = False,
    as_json: AsJson = False,
) -> None:
    """Copy a log up to an LSN. What is left out is noted in the copy, and `verify` tells of it.

    Exit codes: 0 done; 2 usage; 3 it cannot be read or written; 5 or 6 it is damaged: see to it with repair.
    """
    if in_place and _goes_on(directory):
        return
    place, log = _log_of(directory)
    report = verify_log(place.source, owner=place.owner)
    before = [finding for finding in report.findings if finding.damage and finding.costs(1) and finding.lsn <= to_lsn]
    if before:
        raise Unreadable(f"{place.path} is damaged before LSN {to_lsn}: {before[0]}; `foreshore wal repair` first")
    _make("cut", place, log, report, from_lsn=report.first_lsn, to_lsn=to_lsn, out=out, in_place=in_place, as_json=as_json)


def repair(directory: Directory, out: Out = None, in_place: InPlace = False, as_json: AsJson = False) -> None:
    """Copy what of a log can be believed: up to the damage, or, if the store has all before it, from behind it on.

    Exit codes: 0 done, or nothing is wrong; 2 usage; 3 it cannot be read or written; 6 nothing is wrong with what is there,
    and its beginning, or all of it, is gone: no copy of it has more.
    """
    if in_place and _goes_on(directory):
        return
    place, log = _log_of(directory)
    if gone := empty_text(place):
        complain(f"{gone}: nothing is left to be copied; take this node's copies from its peers")
        raise typer.Exit(ExitCode.MISSING)
    report = verify_log(place.source, owner=place.owner)
    wrong = [finding for finding in report.findings if finding.damage or finding.kind == "torn"]
    if beginning := [finding for finding in wrong if finding.kind == "missing" and finding.lsn < report.first_lsn]:
        wrong = [finding for finding in wrong if finding not in beginning]
        if not wrong:
            complain(f"{place.path}: {beginning[0]}. What is there is whole, and a copy of it would have no more")
            raise typer.Exit(ExitCode.MISSING)
    if not wrong:
        complain(f"{place.path}: nothing is lost, so there is nothing to repair")
        return
    if any(finding.kind in {"foreign", "newer"} for finding in wrong):
        raise Unreadable(f"{place.path}: {wrong[0]}; that is for the version, or the node, that it belongs to")
    behind = _behind(place, report, wrong)
    first, end = (behind, report.last_lsn) if behind else (report.first_lsn, min(f.lsn for f in wrong) - 1)
    _make("repair", place, log, report, from_lsn=first, to_lsn=end, out=out, in_place=in_place, as_json=as_json)


def _behind(place: Place, report: Report, wrong: list[Finding]) -> int:
    """The first segment behind all damage, if the store has everything before it; 0 if not."""
    stored = _store_lsn(place)
    last = max(finding.until or report.last_lsn + 1 for finding in wrong)
    segments = [info.first_lsn for info in list_segments(place.source, owner=place.owner) if info.first_lsn >= last]
    return segments[0] if stored and segments and segments[0] <= stored + 1 else 0


def _make(
    by: str,
    place: Place,
    log: Path,
    report: Report,
    *,
    from_lsn: int,
    to_lsn: int,
    out: Path | None,
    in_place: bool,
    as_json: bool,
) -> None:
    if (out is None) == (not in_place):
        raise UsageError("say where the copy goes: --out DIRECTORY, or --in-place, which keeps a backup")
    stored = _store_lsn(place) if in_place else 0
    if stored > to_lsn:
        raise UsageError(
            f"{place.directory} has a store that holds everything up to LSN {stored}, and its log would end at {to_lsn}: "
            "expected a log that reaches so far. Make a copy with --out; take this node's copies from its peers, or, if "
            "it is alone, `foreshore node start --accept-loss`"
        )
    with held(place.directory) if in_place and place.directory is not None else nullcontext():
        target = out if out is not None else copy_of(log, by)
        otherwise = "name another --out" if out is not None else "say --out with a directory elsewhere"
        new = new_directory(target, otherwise=otherwise)
        with new as aside, DirectoryDisk(log, read_only=True) as source, DirectoryDisk(aside) as disk:
            last = copy_part(source, disk, from_lsn=from_lsn, to_lsn=to_lsn)
            lost = _lost(report, from_lsn, last)
            findings = [finding for finding in report.findings if finding.damage or finding.kind == "torn"]
            loss = Loss(
                by=by,
                source=str(log),
                time_ms=time.time_ns() // 1_000_000,
                first_lsn=lost[0],
                last_lsn=lost[1],
                findings=findings,
            )
            noted = write_loss(disk, loss)
        backup = put_in_place(log, by) if in_place else None
    show(
        [
            {
                "log": str(log if in_place else target),
                "first_lsn": from_lsn,
                "last_lsn": last,
                "lost_from": lost[0] if lost[1] >= lost[0] else None,
                "lost_to": lost[1] if lost[1] >= lost[0] else None,
                "noted_in": noted,
                "backup": str(backup) if backup is not None else None,
            }
        ],
        as_json=as_json,
    )


def _goes_on(directory: str) -> bool:
    """Whether one that was killed had set the log aside, and not put its copy in its place; it is there now."""
    path = Path(directory)
    with held(path) if (path / "identity.json").exists() else nullcontext():
        by = go_on(path)
    if by:
        complain(
            f"{path}: a `foreshore wal {by}` was cut short when it had set the log aside: its copy is the log now; look at "
            "it with verify"
        )
    return bool(by)


def _lost(report: Report, from_lsn: int, last: int) -> tuple[int, int]:
    """The first and the last LSN that a copy from `from_lsn` to `last` lacks; none if the one is above the other."""
    if from_lsn > report.first_lsn:
        return report.first_lsn, from_lsn - 1
    return last + 1, max(report.last_lsn, *(finding.lsn for finding in report.findings), last)


def _log_of(text: str) -> tuple[Place, Path]:
    place = place_of(text)
    if place.log is None or not place.log.is_dir():
        raise UsageError(f"{place.path} is no log: expected a data directory, or the directory with its segments")
    return place, place.log


def _store_lsn(place: Place) -> int:
    """What the store has of the log; 0 where there is none that can be read."""
    if place.directory is None:
        return 0
    try:
        store = LmdbStore(place.directory / "store", read_only=True)
        try:
            return store.load().lsn
        finally:
            store.close()
    except (StoreError, ValueError):
        return 0
