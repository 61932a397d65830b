"""Which namespaces there are, and orders about them, as a client gives them.

An order names what it was given on, and is given again until every primary has the map that it brought: so it is carried
out once, however often it has to be said, and whatever was written by whoever waited for it is under the new settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from engine import errors
from engine.client.calls import Call, Item, unexpected
from engine.client.scans import CountCall
from engine.client.session import Session
from engine.client.timing import check_seconds, time_left, time_to_live
from engine.protocol.requests import Admin, Reply, Report, Request
from rebalance.table import Topology
from wal.ids import check_name

LOOK_SECONDS = 0.05
"""An order was given: so often it is looked whether it was carried out."""
AGAIN_SECONDS = 2.0
"""And so often it is given again."""
DROPPED, DROPPING = "dropped", "dropping"


class NamespaceInfo(NamedTuple):
    """A namespace, how many keys it has, and its settings: `ttl`, the seconds for which a value lasts that is written
    without a time to live of its own (None: for good). One that is being `dropped` is not counted."""

    name: str
    rows: int
    ttl: float | None
    dropping: bool


class AskNodes(Call):
    """An operator's command to the primaries of all partitions that are not LOST: `reports` has an answer of each node."""

    def __init__(self, arguments: dict[str, list[str]], topology: Callable[[], Topology | None]) -> None:
        self.arguments = arguments
        self._topology = topology
        self.reports: list[dict[str, Any]] = []
        self._asked: list[int] = []

    def partitions(self, count: int) -> list[int]:
        """One partition of each primary as it was when this was first asked; an order is for one of them."""
        if self._asked:
            return self._asked
        top = self._topology()
        led: dict[str | None, int] = {}
        for number, placed in enumerate(top.placements if top is not None else ()):
            if not placed.lost:
                led.setdefault(placed.primary, number)
        numbers = list(led.values()) or [0]
        self._asked = numbers[:1] if self.arguments else numbers
        return self._asked

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Ask one node."""
        return Admin(request_id, "namespaces", self.arguments)

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note what it says."""
        if not isinstance(reply, Report):
            raise unexpected(reply)
        self.reports.append(msgspec.json.decode(reply.body)["namespaces"])


class _Stands(NamedTuple):
    """What a map says of a namespace."""

    since: str
    ttl_ms: int
    stands: str


async def _looked(session: Session, timeout: float | None) -> list[dict[str, _Stands]]:
    """What each primary says of all namespaces that it knows."""
    call = await session.call(AskNodes({}, lambda: session.router.topology), timeout=timeout)
    return [{name: _Stands(**said) for name, said in report.items()} for report in call.reports]


async def _order(session: Session, name: str, seen: str, ttl_ms: int, timeout: float | None, *, drop: bool) -> None:
    arguments = {"name": [name], "seen": [seen], "ttl_ms": [str(ttl_ms)]} | ({"drop": list[str]()} if drop else {})
    await session.call(AskNodes(arguments, lambda: session.router.topology), timeout=timeout)


def _newest(reports: list[dict[str, _Stands]], name: str) -> _Stands | None:
    """What the newest map says that anybody has; None: nobody knows the name."""
    said = [report[name] for report in reports if name in report]
    return max(said, key=lambda one: tuple(map(int, one.since.split("."))), default=None)


async def listed(session: Session, timeout: float | None) -> list[NamespaceInfo]:
    """All namespaces there are, by name."""
    left = time_left(timeout)
    reports = await _looked(session, left())
    found: list[NamespaceInfo] = []
    for name in sorted({name for report in reports for name in report}):
        said = _newest(reports, name)
        assert said is not None, "somebody has said so"
        rows = 0
        if said.stands != DROPPING:
            try:
                rows = (await session.call(CountCall(name), timeout=left())).counted
            except errors.UsageError:
                said = said._replace(stands=DROPPING)  # since just now
        if said.stands != DROPPED or rows:
            found.append(NamespaceInfo(name, rows, said.ttl_ms / 1000 or None, said.stands == DROPPING))
    return found


async def create(session: Session, name: str, ttl: float | None, timeout: float | None) -> None:
    """See to it that there is such a namespace, with these settings."""
    ttl_ms = max(0, time_to_live(ttl))
    check_name_of(name)
    reports = await _looked(session, timeout)
    said = _newest(reports, name)

    def is_so(one: _Stands | None) -> bool:
        return one is not None and one.stands == "there" and one.ttl_ms == ttl_ms and one.since != "0.0"

    if is_so(said) and all(is_so(report.get(name)) for report in reports):
        return
    seen = said.since if said is not None else "0.0"
    await _carried_out(session, name, seen, ttl_ms, timeout, drop=False, done=is_so)


async def drop(session: Session, name: str, timeout: float | None) -> None:
    """Delete a namespace with all that is in it."""
    check_name_of(name)
    reports = await _looked(session, timeout)
    said = _newest(reports, name)
    if said is None or said.stands == DROPPED:
        there = [info.name for info in await listed(session, timeout)]
        if name not in there:
            raise errors.UsageError(f"there is no namespace {name!r} to be dropped: there are {', '.join(there) or 'none'}")
    assert said is not None, "it is there, so somebody knows it"

    def is_gone(one: _Stands | None) -> bool:
        return one is None or (one.stands != DROPPING and one.since != said.since)

    await _carried_out(session, name, said.since, 0, timeout, drop=True, done=is_gone)


async def _carried_out(
    session: Session,
    name: str,
    seen: str,
    ttl_ms: int,
    timeout: float | None,
    *,
    drop: bool,
    done: Callable[[_Stands | None], bool],
) -> None:
    """Give an order until it is carried out everywhere."""
    seconds = session.timeout if timeout is None else check_seconds("timeout", timeout)
    left, now = time_left(seconds), session.loop.time
    until, again = now() + seconds, now()
    while True:
        reports = await _looked(session, left())
        said = _newest(reports, name)
        if said is not None and said.since != seen:
            if all(done(report.get(name)) for report in reports):
                return
            if not drop and not done(said):
                raise errors.UsageError(
                    f"namespace {name!r} was changed by somebody else meanwhile: it {_told(said)} since version "
                    f"{said.since}; look at it, and say again what it is to be"
                )
        elif said is not None and said.stands == DROPPING and drop:
            pass  # somebody else dropped it, and we wait for the end of that
        elif now() >= again:
            again = now() + AGAIN_SECONDS
            await _order(session, name, seen, ttl_ms, left(), drop=drop)
        if now() >= until:
            raise errors.Unavailable(
                f"namespace {name!r} was not {'dropped' if drop else 'changed'} within {seconds:g} s: the order stands, "
                "and may be carried out yet; `foreshore cluster namespaces` says how it stands"
            )
        await asyncio.sleep(LOOK_SECONDS)


def _told(said: _Stands) -> str:
    if said.stands == "there":
        return f"has a ttl of {said.ttl_ms / 1000:g} s" if said.ttl_ms else "keeps what is written for good"
    return f"is {'being dropped' if said.stands == DROPPING else 'dropped'}"


def check_name_of(name: str) -> None:
    """Raise UsageError if that is no name of a namespace."""
    if not isinstance(name, str):
        raise errors.UsageError(f"the name of a namespace is {name!r}: expected a str")
    try:
        check_name("namespace", name)
    except ValueError as error:
        raise errors.UsageError(str(error)) from None


class WithNamespaces:
    """The namespaces of a database, in asyncio."""

    session: Session

    async def namespaces(self, *, timeout: float | None = None) -> list[NamespaceInfo]:
        """All namespaces that anybody has written to or created, by name; not a snapshot."""
        return await listed(self.session, timeout)

    async def create_namespace(self, name: str, *, ttl: float | None = None, timeout: float | None = None) -> None:
        """Give a namespace settings of its own, whether or not it was written to before: they hold for what is written
        from then on. `ttl`: seconds for which a value lasts that is written without one of its own; None: for good.

        Raises UsageError where somebody else changes it at the same time.
        """
        await create(self.session, name, ttl, timeout)

    async def drop_namespace(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a namespace with all that is in it; it is gone on every copy when this returns, and may be begun anew.

        Meanwhile nobody reads or writes it: that is refused as a UsageError. A transaction that holds something of it is
        waited for. Raises UsageError if there is none of that name.
        """
        await drop(self.session, name, timeout)
