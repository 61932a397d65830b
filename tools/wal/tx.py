"""`foreshore wal tx`: the whole story of a transaction over the logs of all nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from engine.errors import UsageError
from tools.terminal import ExitCode, complain, emit, to_json
from tools.wal.origins import Origins, origin_text, without_place
from tools.wal.places import Place, check_names, place_of
from tools.wal.times import opened_text, session_text, time_text
from tools.wal.trouble import Trouble
from tools.wal.tx_story import End, Finder, TxReading, TxStory
from wal import Block, RawBlock, asked
from wal import records as r
from wal.footer import speaking_of
from wal.ids import MAPS, TX_ID_BYTES, TxId, tx_name

if TYPE_CHECKING:
    import typer

    from tools.wal.options import AsJson, Jobs

LAST = 10
_CODES = {End.TORN: ExitCode.LOGIC, End.IN_DOUBT: ExitCode.WRONG, End.UNKNOWN: ExitCode.WRONG}


def tx(
    words: Annotated[
        list[str], typer.Argument(metavar="[ID] DIR...", help="Its id or how that begins, then directories or logs.")
    ],
    label: Annotated[str | None, typer.Option(help="In place of an id: the transactions with this label.")] = None,
    last: Annotated[int, typer.Option(min=0, help="In place of an id: the last so many transactions.")] = 0,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Tell the story of a transaction: votes, decision and outcomes over time, per participant and node, and its end.

    Sealed segments are read only where their footers say that it may be named; what was not read was not verified.
    Exit codes: 0 committed or aborted everywhere; 1 in doubt, or nothing is known of it; 7 it is torn; else as those of
    verify.
    """
    by_id = label is None and not last
    prefix = without_place(words[0]).lower() if by_id else ""
    paths = words[1:] if by_id else words
    if by_id and not re.fullmatch(r"[0-9a-f]{4,32}", prefix):
        raise UsageError(f"{words[0]!r} is no transaction: expected 4 to 32 hexadecimal digits, as a dump prints them")
    if not paths:
        raise UsageError("no directory was named: expected those of the nodes, after the id")
    places = [place_of(text) for text in paths]
    check_names(places)
    trouble = Trouble()
    ids = [bytes.fromhex(prefix)] if len(prefix) == 2 * TX_ID_BYTES else _found(places, prefix, label, last)
    stories = {found: TxStory(found) for found in ids}
    origins = Origins()
    readings = [TxReading(stories, place.name, origins, apart=jobs > 1) for place in places]
    for place, reading in zip(places, readings, strict=True):
        for block in trouble.aside(place, choose=reading.choose, ask=reading.ask, jobs=jobs):
            reading.take(block)
    partitions = {partition for story in stories.values() for partition in story.partitions}
    for place, reading in zip(places, readings, strict=True):
        since = reading.first_lsn or 1  # what concerns it without naming it comes after that
        beside = asked(
            place.source,
            lambda footer: footer.about(partitions),
            since,
            but=reading.silent(partitions),
            choose=reading.choose_about,
        )
        for found in beside:
            if isinstance(found, Block):
                reading.take_about(found)
            else:
                trouble.note(place, found)
    code = ExitCode.OK if stories else ExitCode.WRONG
    if not stories:
        named = label if label is not None else prefix
        complain(f"no log here tells of {f'such a transaction: {named}' if named else 'any transaction'}")
    told = sorted(stories.values(), key=lambda one: (one.began_ms, one.tx))
    whence = {story.tx: origins.of(story.tx, *story.decided) for story in told}
    if any(origin is not None and not origin.node for origin in whence.values()):
        _note_maps(places, origins, trouble)
        whence = {story.tx: origins.of(story.tx, *story.decided) for story in told}
    for story in told:
        origin = whence[story.tx]
        emit([to_json(_object(story, origin))] if as_json else _lines(story, origin))
        code = max(code, _CODES.get(story.end()[0], ExitCode.OK))
    trouble.end(code)


def _found(places: list[Place], prefix: str, label: str | None, last: int) -> list[TxId]:
    """The transactions that are meant: the newest of them."""
    keep = last or LAST
    found: dict[TxId, int] = {}
    more = False
    for place in places:
        finder = Finder(prefix, label, keep)
        for block in Trouble(quiet=True).aside(place, choose=finder.choose):
            finder.take(block)
        more = more or finder.more
        found |= finder.found
    newest = sorted(found, key=lambda tx: (found[tx], tx))[-keep:]
    if not last and (more or len(found) > keep):
        complain(f"there are more: these are the last {keep}; --last says how many")
    return newest


def _note_maps(places: list[Place], origins: Origins, trouble: Trouble) -> None:
    """The maps tell who coordinated what nothing else does."""
    from tools.wal.copy_at_rest import at_rest  # noqa: PLC0415  # mostly it is said
    from tools.wal.maps import Maps  # noqa: PLC0415

    for place in places:
        maps = Maps(origins, at_rest(place, MAPS, b"", trouble).topology)
        for block in Trouble(quiet=True).aside(place, choose=_has_map, ask=speaking_of([MAPS])):
            for record in block.records:
                if isinstance(record, r.Committed):
                    maps.take(record)
        _ = maps.newest


def _has_map(raw: RawBlock) -> bool:
    return b"\xa9committed" in raw.data


def _lines(story: TxStory, origin: r.Origin | None) -> Iterator[str]:
    name = f"tx={tx_name(story.tx)}"
    opened = session_text(story.tx, story.began_ms) if story.steps else ""
    whence = f"{origin_text(origin) if origin is not None else ''}{opened}"
    if whence:
        yield f"{name} {whence.lstrip()}"
    for step in story.steps:
        yield f"{name} {time_text(step.time_ms)} {step.node}:{step.lsn} {step.what} p{step.partition} {step.about}".rstrip()
    end, where = story.end()
    joined = {End.TORN: ": ", End.IN_DOUBT: " on "}.get(end, " ")
    yield f"{name}: {end}{joined}{where}"


def _object(story: TxStory, origin: r.Origin | None) -> dict[str, Any]:
    end, where = story.end()
    told: dict[str, Any] = {"tx": story.tx.hex(), "end": str(end), "where": where, "participants": story.participants}
    if origin is not None:
        told |= {"by": origin.node, "label": origin.label, "client": origin.client, "address": origin.address}
    told["session_opened"] = opened_text(story.tx, story.began_ms) if story.steps else ""
    told["steps"] = [
        {
            "time": time_text(step.time_ms),
            "time_ms": step.time_ms,
            "node": step.node,
            "lsn": step.lsn,
            "what": step.what,
            "partition": step.partition,
            "about": step.about,
        }
        for step in story.steps
    ]
    return told
