"""`foreshore wal dump`: the records of a log, all of them or those that are asked for, a line or an object each."""

from __future__ import annotations

import heapq
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeAlias

from engine.errors import UsageError
from tools.pager import paged, painter
from tools.shown import Values
from tools.terminal import ExitCode, Paint, bytes_of, emit, emit_file, emit_objects, line_bytes, object_bytes
from tools.wal.absent import Shown, absent
from tools.wal.filters import Filter, Span, check_range
from tools.wal.objects import Keys, Told
from tools.wal.origins import without_place
from tools.wal.places import Place, place_of
from tools.wal.records import line, lines
from tools.wal.times import time_of
from tools.wal.trouble import Trouble
from wal import Block, Finding, appended, inspect
from wal.ids import COUNTER_MAX
from wal.records import KINDS, Origin, Record

if TYPE_CHECKING:
    import typer

    from tools.wal.jobs import Run
    from tools.wal.options import (
        AsJson,
        Directories,
        FromLsn,
        FromTime,
        Jobs,
        OfNamespace,
        OfPartition,
        ToLsn,
        ToTime,
        WithValues,
    )

FOLLOW_SECONDS = 0.2
TYPES = [str(kind.__struct_config__.tag) for kind in KINDS]

_Render: TypeAlias = Callable[[Place, Block, Filter], Sequence[Any]]
"""What is shown of a block: lines, or objects."""


def dump(
    directories: Directories,
    from_lsn: FromLsn = 1,
    to_lsn: ToLsn = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    namespace: OfNamespace = None,
    partition: OfPartition = None,
    key: Annotated[
        str | None, typer.Option(help="Only what names this key; any byte as \\xNN, as a dump prints it.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Only what names a key that begins so.")] = None,
    tx: Annotated[str | None, typer.Option(help="Only this transaction: its id, or how it begins.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Only transactions with this label; `wal tx` has their stories.")
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help=f"Only this type; several times: {', '.join(TYPES)}.")
    ] = None,
    epoch: Annotated[str | None, typer.Option(metavar="N[..N]", help="Only what is of this epoch, or of these.")] = None,
    counter: Annotated[str | None, typer.Option(metavar="N[..N]", help="Only what has one of these counters.")] = None,
    values: WithValues = Values.NONE,
    keys: Annotated[
        Keys, typer.Option(help="How keys and values are written in JSON; text: as in a line, any byte as \\xNN.")
    ] = Keys.TEXT,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many records; 0: none is too many.")] = 0,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many records of each log.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The newest first.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what the node appends, until interrupted.")] = False,
    pager: Annotated[bool, typer.Option("--pager", help="At a terminal, let $PAGER show it.")] = False,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Print the records of a log, one line each. The exit code says whether the log is whole, as that of verify does.

    Filters are a conjunction. It is 1 where nothing is of a namespace, key, prefix, transaction or label that was named.
    With --json each record is an object of docs/wal-dump.schema.json.
    """
    check_range(from_lsn, to_lsn)
    now_ms = time.time_ns() // 1_000_000
    wanted = Filter(
        namespace=namespace,
        partition=partition,
        key=None if key is None else bytes_of(key),
        prefix=None if prefix is None else bytes_of(prefix),
        tx=tx_of(tx),
        label=label,
        kinds=_kinds(kinds or []),
        epochs=span_of("--epoch", epoch),
        counters=span_of("--counter", counter),
        times=_times(from_time, to_time, now_ms),
    )
    if follow and (reverse or last):
        raise UsageError("--follow goes on with what is appended: expected neither --reverse nor --last beside it")
    if jobs > 1 and (follow or reverse or last or limit):
        raise UsageError("--jobs reads all of it: expected none of --follow, --reverse, --last and --limit beside it")
    places = [place_of(text) for text in directories]
    if label is not None:
        _learn(places, wanted)
    render = _renderer(values, keys, several=len(places) > 1, as_json=as_json)
    trouble = Trouble()
    paint = None if as_json else painter()
    shown = Shown()
    with paged(pager):
        if jobs > 1:
            from tools.wal.jobs import written_in_parts  # noqa: PLC0415  # who reads alone does not wait for it

            for place in places:
                trouble.meet(place, from_lsn, to_lsn)
                shows = partial(_shown, place, wanted, from_lsn, to_lsn, render=render, paint=paint, as_json=as_json)
                for findings, file in written_in_parts(place, jobs, list[Finding], shows):
                    for finding in findings:
                        trouble.note(place, finding)
                    shown.count += file.seek(0, os.SEEK_END)
                    file.seek(0)
                    emit_file(file)
        else:
            if follow:
                blocks = _following(places, from_lsn, to_lsn, trouble)
                batches: Iterator[Sequence[Any]] = (render(place, block, wanted) for place, block in blocks)
            else:
                shows_of = partial(_read, from_lsn=from_lsn, to_lsn=to_lsn, reverse=reverse, last=last)
                batches = chain.from_iterable(shows_of(place, wanted, render, trouble) for place in places)
            at_once = follow or not wanted.plain
            _emit(shown.of(_limited(batches, limit) if limit else batches), paint, as_json=as_json, at_once=at_once)
    trouble.end(ExitCode.OK if shown.count else absent(places, wanted, from_lsn, to_lsn))


def _learn(places: Sequence[Place], wanted: Filter) -> None:
    """What has the label, wherever that is said."""
    assert wanted.label is not None
    needle = wanted.label.encode("utf-8", "surrogatepass")
    for place in places:
        for block in Trouble(quiet=True).aside(place, choose=lambda raw: needle in raw.data):
            for record in block.records:
                if isinstance(record, Origin):
                    wanted.note(record)


def _read(
    place: Place,
    wanted: Filter,
    render: _Render,
    trouble: Trouble,
    *,
    from_lsn: int,
    to_lsn: int | None,
    reverse: bool,
    last: int | None,
) -> Iterator[Sequence[Any]]:
    """What is shown of one log, block by block."""
    backwards = reverse or last is not None
    blocks = trouble.aside(place, from_lsn, to_lsn, choose=wanted.chooser(), ask=wanted.asker(), newest_first=backwards)
    shown: Iterator[Sequence[Any]] = (render(place, block, wanted) for block in blocks)
    if backwards:
        shown = (told[::-1] for told in shown)
    if last is not None:
        newest = list(islice(chain.from_iterable(shown), min(last, sys.maxsize)))
        shown = iter([newest if reverse else newest[::-1]])
    yield from shown


def _emit(batches: Iterator[Sequence[Any]], paint: Paint | None, *, as_json: bool, at_once: bool = False) -> None:
    """Print it; `at_once`: nothing waits for what comes next."""
    if at_once:
        for batch in batches:
            _emit(iter([batch]), paint, as_json=as_json)
    elif as_json:
        emit_objects(batches)
    else:
        emit(chain.from_iterable(batches), paint)


def _shown(
    place: Place,
    wanted: Filter,
    from_lsn: int,
    to_lsn: int | None,
    run: Run,
    file: IO[bytes],
    *,
    render: _Render,
    paint: Paint | None,
    as_json: bool,
) -> list[Finding]:
    """Write what is shown of some segments; what is wrong with it."""
    findings: list[Finding] = []

    def batches() -> Iterator[Sequence[Any]]:
        chosen, ask = wanted.chooser(), wanted.asker()
        for found in inspect(place.source, from_lsn, to_lsn, owner=place.owner, choose=chosen, ask=ask, **run._asdict()):
            if isinstance(found, Finding):
                findings.append(found)
            else:
                yield render(place, found, wanted)

    file.writelines(object_bytes(batches()) if as_json else line_bytes(chain.from_iterable(batches()), paint))
    return findings


def _limited(batches: Iterator[Sequence[Any]], limit: int) -> Iterator[Sequence[Any]]:
    """The first so many lines; nothing is read beyond them."""
    for batch in batches:
        yield batch[:limit]
        limit -= len(batch)
        if limit <= 0:
            return


def _renderer(values: Values, keys: Keys, *, several: bool, as_json: bool) -> _Render:
    """How a block's wanted records are shown."""
    told = Told(values, keys)

    def kept(block: Block, wanted: Filter) -> Iterator[tuple[int, Record]]:
        for lsn, record in enumerate(block.records, block.first_lsn):
            narrowed = wanted.narrow(record)
            if narrowed is not None:
                yield lsn, narrowed

    def objects(place: Place, block: Block, wanted: Filter) -> Sequence[Any]:
        node = place.name if several else ""
        records = enumerate(block.records, block.first_lsn) if wanted.plain else kept(block, wanted)
        return told.lines(block, records, node)

    def text(place: Place, block: Block, wanted: Filter) -> Sequence[Any]:
        head = f"node={place.name} " if several else ""
        if wanted.plain:
            return lines(block, values, head)
        return [head + line(lsn, block.time_ms, record, values) for lsn, record in kept(block, wanted)]

    return objects if as_json else text


def _following(
    places: Sequence[Place], from_lsn: int, to_lsn: int | None, trouble: Trouble
) -> Iterator[tuple[Place, Block]]:
    """What is in these logs and what is appended; all that is there at a time comes in the order of time."""
    logs = {number: appended(place.source, from_lsn) for number, place in enumerate(places)}

    def there(number: int) -> Iterator[tuple[int, int, Block]]:
        """What one log has now, and has not given."""
        for found in logs[number]:
            if found is None:
                return
            if isinstance(found, Block):
                yield found.time_ms, number, found
            else:
                trouble.note(places[number], found)

    ended: set[int] = set()
    while len(ended) < len(logs):
        idle = True
        streams = [there(number) for number in logs if number not in ended]
        for _, number, block in heapq.merge(*streams, key=itemgetter(0, 1)):
            idle = False
            if number in ended:
                continue
            yield places[number], block
            if to_lsn is not None and block.last_lsn >= to_lsn:
                ended.add(number)
                if len(ended) == len(logs):
                    return
        if idle:
            time.sleep(FOLLOW_SECONDS)


# Arguments.


def tx_of(text: str | None) -> str:
    """How a transaction's id begins. Raises UsageError."""
    text = text if text is None else without_place(text)
    if text is not None and not re.fullmatch(r"[0-9A-Fa-f]{1,32}", text):
        raise UsageError(f"--tx is {text!r}: expected 1 to 32 hexadecimal digits, as a dump prints a transaction")
    return (text or "").lower()


def span_of(option: str, text: str | None) -> Span | None:
    """`7`, `7..9`, `7..` or `..9`. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{0,19})(\.\.)?(\d{0,19})", text)
    if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
        raise UsageError(f"{option} is {text!r}: expected a number, or a range of them such as 7..9, 7.. or ..9")
    first = int(match[1] or 0)
    end = int(match[3]) if match[3] else COUNTER_MAX if match[2] else first
    if end < first:
        raise UsageError(f"{option} is {text!r}: expected a range that ends where it begins or later")
    return first, end


def _times(from_time: str | None, to_time: str | None, now_ms: int) -> Span | None:
    if from_time is None and to_time is None:
        return None
    first = 0 if from_time is None else time_of(from_time, now_ms)
    end = COUNTER_MAX if to_time is None else time_of(to_time, now_ms)
    if end < first:
        raise UsageError(
            f"--to-time is {to_time} and --from-time is {from_time}: expected a span that ends after it begins"
        )
    return first, end


def _kinds(names: list[str]) -> frozenset[str]:
    for name in names:
        if name not in TYPES:
            raise UsageError(f"--type is {name!r}: expected one of {', '.join(TYPES)}")
    return frozenset(names)
