"""`foreshore wal key`: the whole story of one key, over the logs of all nodes, and who has what in the end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from engine.errors import UsageError
from tools.shown import Values
from tools.terminal import ExitCode, bytes_of, complain, emit, to_json, word
from tools.wal.absent import absent
from tools.wal.copy_at_rest import at_rest, map_of_cluster
from tools.wal.filters import Filter
from tools.wal.key_blocks import deciding
from tools.wal.origins import origin_text
from tools.wal.places import check_names, place_of
from tools.wal.story import Change, Event, Seen, Story, Verdict
from tools.wal.times import opened_text, session_text, time_of, time_text
from tools.wal.trouble import Trouble
from wal import RawBlock
from wal.ids import NAME_MAX, TABLE_MAX, NodeId, fragment_name, tx_name

if TYPE_CHECKING:
    import typer

    from tools.wal.options import AsJson, Jobs, WithValues

Standing = Callable[[Change, Seen], bool]


def key(
    namespace: Annotated[str, typer.Argument(help="The namespace.")],
    key: Annotated[str, typer.Argument(help="The key; any byte as \\xNN, as a dump prints it.")],
    directories: Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, logs, or segment files.")],
    at: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="The value then: a time, an LSN of the first DIR, or EPOCH.COUNTER."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, max=TABLE_MAX - 1, help="Its partition, where no DIR tells how many there are."),
    ] = None,
    values: WithValues = Values.NONE,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Tell the story of a key, the oldest first, and on which directories it differs.

    Segments are read only where footers and notes say that the key is named, or something happened to all that is with it;
    what was not read was not verified.
    Exit codes: 0 told, and all copies in sync agree; 1 they do not, or nothing tells of it; else as those of verify.
    """
    if not 0 < len(namespace.encode("utf-8", "surrogatepass")) <= NAME_MAX:
        raise UsageError(f"{namespace[:NAME_MAX]!r} is no namespace: expected a name of 1 to {NAME_MAX} bytes")
    places = [place_of(text) for text in directories]
    check_names(places)
    data = bytes_of(key)
    said = partition
    trouble = Trouble()
    if partition is None:
        known = map_of_cluster(places, trouble)
        if known is None:
            raise UsageError("no DIR tells how many partitions the cluster has: name a data directory, or the --partition")
        partition = known.place(namespace, data)
    story = Story((namespace, partition), data, keep=values is Values.FULL)
    for place in places:
        reading = story.reading(place.name, at_rest(place, story.fragment, data, trouble), apart=jobs > 1)
        for block in trouble.aside(place, choose=reading.choose, ask=reading.ask, jobs=jobs):
            reading.take(block)
        reading.end()
    story.put_together()
    decided = story.undecided()

    def names_one(raw: RawBlock) -> bool:
        return any(tx in raw.data for tx in decided)

    for place in places if decided else ():
        for block in Trouble(quiet=True).aside(place, choose=names_one, ask=deciding(decided)):
            story.readings[place.name].take_decision(block)
    shown = Shown(story, values)
    if at is not None:
        moment = _moment(at, places[0].name)
        emit(shown.then(moment, at, as_json=as_json))
        trouble.end()
        return
    verdict = story.verdict()
    emit(map(to_json, shown.objects(verdict)) if as_json else shown.lines(verdict))
    nothing = absent(places, Filter(namespace=namespace, key=data)) if verdict.last is None else ExitCode.OK
    if verdict.last is None and said is not None:
        known = map_of_cluster(places, trouble)
        if known is not None and (there := known.place(namespace, data)) != said:
            complain(f"by the map here this key is in partition {there}: without --partition it is looked for there")
    if verdict.differ and any(place.live for place in places):
        complain("a node runs in one of these: what differs there may be under way")
    trouble.end(ExitCode.WRONG if verdict.differ else nothing)


class Shown:
    """A story for people and for programs."""

    def __init__(self, story: Story, values: Values) -> None:
        self._story = story
        self._values = values

    # For a person.

    def lines(self, verdict: Verdict) -> Iterator[str]:
        """A line for each change and event, and then the verdict."""
        for row in self._story.rows():
            yield self._event(row) if isinstance(row, Event) else self._change(row)
        yield from self._verdict(verdict)

    def _change(self, change: Change) -> str:
        words = [change.name, time_text(change.time_ms) if change.time_ms else "-", self._what(change)]
        if change.tx:
            words.append(f"tx={tx_name(change.tx)}")
        origin = self._story.origin(change)
        if origin is not None:
            words.append(origin_text(origin))
        words.append("on=" + ",".join(_where(change, seen) for seen in change.seen))
        return " ".join(words)

    def _what(self, change: Change) -> str:
        if change.deleted:
            return "delete"
        shown = f"put {change.size}B"
        if self._values is Values.HASH:
            return f"{shown}#{change.hash}"
        return f"{shown}:{word(change.value)}" if change.value is not None else shown

    def _event(self, event: Event) -> str:
        return f"- {time_text(event.time_ms)} {event.what} on={event.node}:{event.lsn}"

    def _verdict(self, verdict: Verdict) -> Iterator[str]:
        name = f"{fragment_name(self._story.fragment)} key {word(self._story.key)}"
        if verdict.last is None:
            yield f"{name}: nothing here tells of it"
            return
        origin = self._story.origin(verdict.last)
        by = f" {origin_text(origin)}" if origin is not None else ""
        by += session_text(verdict.last.tx, verdict.last.time_ms)
        who = (
            f"tx={tx_name(verdict.last.tx)}{by}"
            if verdict.last.tx
            else "whoever wrote it: the log has no record of it any more"
        )
        yield f"{name}: last written at {verdict.last.name} ({self._what(verdict.last)}) by {who}"
        alike = [node for node, stands in verdict.stands.items() if stands is verdict.last]
        yield f"{name}: {verdict.last.name} stands on {', '.join(alike)}"
        for node in verdict.differ:
            yield f"{name}: DIFFERS on {node}: {self._standing(verdict, node)} stands there"
        for node in verdict.behind:
            stands = self._standing(verdict, node)
            yield f"{name}: {stands} stands on {node}, which may be behind: not in sync by map {verdict.version}"
        if verdict.parts_at is not None:
            first = next(seen for seen in verdict.parts_at.seen if seen.since_lsn)
            yield (
                f"{name}: parts at {verdict.parts_at.name}, which {first.node} has in LSN {first.lsn} and "
                f"{', '.join(verdict.lacking)} has not"
            )

    def _standing(self, verdict: Verdict, node: NodeId) -> str:
        there = verdict.stands[node]
        return f"{there.name} ({self._what(there)})" if there is not None else "nothing"

    # For a program.

    def objects(self, verdict: Verdict) -> Iterator[dict[str, Any]]:
        """One object for each change and event, and then one for the verdict."""
        for row in self._story.rows():
            if isinstance(row, Event):
                told = {"node": row.node, "lsn": row.lsn, "time": time_text(row.time_ms), "time_ms": row.time_ms}
                yield {"event": told | {"what": row.what}}
            else:
                yield {"change": self.object(row)}
        last, parts = verdict.last, verdict.parts_at
        stands = {node: change.name if change is not None else None for node, change in verdict.stands.items()}
        yield {
            "verdict": {
                "fragment": fragment_name(self._story.fragment),
                "key": word(self._story.key),
                "last": self.object(last) if last is not None else None,
                "stands": stands,
                "differ": verdict.differ,
                "behind": verdict.behind,
                "parts_at": parts.name if parts is not None else None,
                "lacking": verdict.lacking,
            }
        }

    def object(self, change: Change) -> dict[str, Any]:
        """One change."""
        told: dict[str, Any] = {"epoch": change.epoch, "counter": change.counter}
        told |= {"op": "delete"} if change.deleted else {"op": "put", "size": change.size, "hash": change.hash}
        if change.value is not None:
            told["value"] = word(change.value)
        opened = opened_text(change.tx, change.time_ms) if change.tx else ""
        told |= {"tx": change.tx.hex(), "prepared": change.prepared, "session_opened": opened}
        origin = self._story.origin(change)
        if origin is not None:
            told |= {"by": origin.node, "label": origin.label, "client": origin.client, "address": origin.address}
        told["seen"] = [
            {
                "node": seen.node,
                "lsn": seen.lsn,
                "time": time_text(seen.time_ms),
                "how": seen.how,
                "epoch": seen.epoch,
                "stands_from": seen.since_lsn,
                "stands_until": seen.until_lsn,
                "rolled_back": seen.rolled_back,
            }
            for seen in change.seen
        ]
        return told

    def then(self, stood: Standing, at: str, *, as_json: bool) -> Iterator[str]:
        """What the key was at a moment."""
        held = [
            (seen.epoch, change.counter, change)
            for change in self._story.changes
            for seen in change.seen
            if seen.since_lsn and stood(change, seen)
        ]
        newest = max(held, key=lambda one: one[:2])[2] if held else None
        if as_json:
            yield to_json({"at": at, "change": self.object(newest) if newest is not None else None})
        elif newest is None:
            yield f"at {at}: nothing here tells that there was such a key"
        else:
            yield f"at {at}: {self._change(newest)}"


def _where(change: Change, seen: Seen) -> str:
    """`n1:12` for what is as it nearly always is; else with what is special."""
    special = [] if seen.how == "live" else [seen.how if seen.how != "reissued" else f"issued again in e{seen.epoch}"]
    if change.prepared and seen.rolled_back:
        special.append("rolled back")
    elif change.prepared and not seen.since_lsn:
        special.append("prepared, undecided")
    elif change.prepared and seen.since_lsn != seen.lsn:
        special.append(f"committed:{seen.since_lsn}")
    if seen.until_lsn:
        special.append(f"gone:{seen.until_lsn}")
    return f"{seen.node}:{seen.lsn}" + (f"({' '.join(special)})" if special else "")


def _moment(at: str, first: str) -> Standing:
    """Whether a change stood at a moment on a node."""
    version = re.fullmatch(r"(\d{1,19})\.(\d{1,19})", at)
    if version is not None:
        epoch, counter = int(version[1]), int(version[2])
        return lambda change, seen: change.counter <= counter and change.epoch <= epoch and not seen.until_lsn
    if re.fullmatch(r"\d{1,19}", at):
        lsn = int(at)
        return lambda _, seen: seen.node == first and seen.since_lsn <= lsn and not 0 < seen.until_lsn <= lsn
    until = time_of(at, time.time_ns() // 1_000_000)
    return lambda _, seen: seen.since_ms <= until and not 0 < seen.until_ms <= until
