"""Which namespaces there are, and orders about them, as a client gives them.

An order names what it was given on, and is given again until every primary has the map that it brought: so it is carried
out once, however often it has to be said, and whatever was written by whoever waited for it is under the new settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from engine import errors
from engine.client.calls import Call, Item, unexpected
from engine.client.entered import waits_for_us
from engine.client.scans import CountCall
from engine.client.session import Session
from engine.client.timing import check_seconds, time_left, time_to_live
from engine.protocol.requests import Admin, Reply, Report, Request
from rebalance.namespaces import LossPolicy
from rebalance.table import BACKUPS_MAX, Group, Topology
from wal.ids import Version, check_name

LOOK_SECONDS = 0.05
"""An order was given: so often it is looked whether it was carried out."""
AGAIN_SECONDS = 2.0
"""And so often it is given again."""
DROPPED, DROPPING, MAKING = "dropped", "dropping", "making"


Policy: TypeAlias = LossPolicy | Literal["READ_WRITE_SAFE", "READ_ONLY_SAFE"]


class NamespaceInfo(NamedTuple):
    """A namespace, how many keys it has, and its settings: `ttl`, the seconds for which a value lasts that is written
    without a time to live of its own (None: for good); `backups`, how many copies of each key there are to be beside the
    first, and `async_backups` beside these; `loss_policy`, what may be done where a partition is LOST. One that is being
    `dropped` is not counted."""

    name: str
    rows: int
    ttl: float | None
    dropping: bool
    backups: int
    async_backups: int
    loss_policy: str


class AskNodes(Call):
    """An operator's command to the primaries of all partitions that are not LOST: `reports` has an answer of each node."""

    def __init__(self, arguments: dict[str, list[str]]) -> None:
        self.arguments = arguments
        self.reports: list[dict[str, Any]] = []
        self._asked: list[int] = []

    def partitions(self, topology: Topology) -> list[int]:
        """One partition of each primary as it was when this was first asked; an order is for one of them."""
        if self._asked:
            return self._asked
        led: dict[str | None, int] = {}
        for number, placed in enumerate(topology.placements):
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
    backups: int
    async_backups: int
    loss: str
    written: bool

    @property
    def copies(self) -> Group:
        """How many backups it has, of either kind."""
        return Group(self.backups, self.async_backups)


class _Wanted(NamedTuple):
    """What a namespace is to be like. `copies`, `loss`: None if that may be as it is."""

    ttl_ms: int = 0
    copies: Group | None = None
    loss: str | None = None

    def is_so(self, said: _Stands | None) -> bool:
        """Whether a map says just this."""
        if said is None or said.stands != "there" or said.ttl_ms != self.ttl_ms or said.since == "0.0":
            return False
        return self.copies in {None, said.copies} and self.loss in {None, said.loss}

    def arguments(self) -> dict[str, list[str]]:
        """It as a node takes it."""
        asked = {"ttl_ms": [str(self.ttl_ms)]}
        if self.copies is not None:
            asked |= {"backups": [str(self.copies.backups)], "async_backups": [str(self.copies.async_backups)]}
        return asked | ({"loss": [self.loss]} if self.loss is not None else {})


async def _looked(session: Session, timeout: float | None) -> list[dict[str, _Stands]]:
    """What each primary says of all namespaces that it knows."""
    call = await session.call(AskNodes({}), timeout=timeout)
    return [{name: _Stands(**said) for name, said in report.items()} for report in call.reports]


async def _order(session: Session, name: str, seen: str, wanted: _Wanted, timeout: float | None, *, drop: bool) -> None:
    arguments = {"name": [name], "seen": [seen]} | wanted.arguments() | ({"drop": list[str]()} if drop else {})
    await session.call(AskNodes(arguments), timeout=timeout)


def _newest(reports: list[dict[str, _Stands]], name: str) -> _Stands | None:
    """What the newest map says that anybody has; None: nobody knows the name."""
    said = [report[name] for report in reports if name in report]
    return max(said, key=lambda one: tuple(map(int, one.since.split("."))), default=None)


async def listed(session: Session, timeout: float | None) -> list[NamespaceInfo]:
    """All namespaces there are, by name."""
    left = time_left(timeout, session.seconds)
    reports = await _looked(session, left())
    found: list[NamespaceInfo] = []
    for name in sorted({name for report in reports for name in report}):
        said = _newest(reports, name)
        assert said is not None, "somebody has said so"
        rows = 0
        if said.stands not in {DROPPING, MAKING}:
            try:
                rows = (await session.call(CountCall(name), timeout=left())).counted
            except errors.UsageError:
                said = said._replace(stands=DROPPING)  # since just now
        if said.stands != DROPPED or rows:
            ttl, dropping = said.ttl_ms / 1000 or None, said.stands == DROPPING
            found.append(
                NamespaceInfo(
                    name, rows, ttl, dropping, backups=said.backups, async_backups=said.async_backups, loss_policy=said.loss
                )
            )
    return found


async def create(session: Session, name: str, wanted: _Wanted, timeout: float | None) -> None:
    """See to it that there is such a namespace, with these settings."""
    check_name_of(name)
    left = time_left(timeout, session.seconds)
    reports = await _looked(session, left())
    said = _newest(reports, name)
    if said is not None and wanted.is_so(said) and all(wanted.is_so(report.get(name)) for report in reports):
        await _known(session, said.since, left())
        return
    if said is not None and said.stands != MAKING and wanted.copies not in {None, said.copies}:
        written = any(report[name].written for report in reports if name in report)
        if written or (said.stands == DROPPED and (await session.call(CountCall(name), timeout=left())).counted):
            raise errors.UsageError(
                f"namespace {name!r} was written, and {_told(said)}: expected the backups that it has; create another one "
                "and copy what is in it, or drop this one first"
            )
    seen = said.since if said is not None else "0.0"
    await _carried_out(session, name, seen, wanted, left(), drop=False, done=wanted.is_so)


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

    await _carried_out(session, name, said.since, _Wanted(), timeout, drop=True, done=is_gone)


async def _carried_out(
    session: Session,
    name: str,
    seen: str,
    wanted: _Wanted,
    timeout: float | None,
    *,
    drop: bool,
    done: Callable[[_Stands | None], bool],
) -> None:
    """Give an order until it is carried out everywhere."""
    seconds = session.timeout if timeout is None else check_seconds("timeout", timeout)
    left, now = time_left(seconds, session.seconds), session.seconds
    until, again = now() + seconds, now()
    while True:
        reports = await _looked(session, left())
        said = _newest(reports, name)
        if said is not None and said.stands == MAKING and not drop:
            pass  # by us, or by somebody who asked for it at the same time: it is seen what comes of it
        elif said is not None and said.since != seen:
            if all(done(report.get(name)) for report in reports):
                await _known(session, said.since, left())
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
            try:
                await _order(session, name, seen, wanted, left(), drop=drop)
            except errors.UsageError:
                said = _newest(await _looked(session, left()), name)
                if (said.since if said is not None else "0.0") == seen:
                    raise  # else it was carried out just then, or another one was
                continue
        if now() >= until:
            raise errors.Unavailable(
                f"namespace {name!r} was not {'dropped' if drop else 'changed'} within {seconds:g} s: the order stands, "
                "and may be carried out yet; `foreshore cluster namespaces` says how it stands"
            )
        await asyncio.sleep(LOOK_SECONDS)


async def _known(session: Session, since: str, seconds: float | None) -> None:
    """See that this client has the map that said so, too, or will be told of it."""
    major, minor = since.split(".")
    await session.wait_for_table(session.timeout if seconds is None else seconds, Version(int(major), int(minor)))


def _told(said: _Stands) -> str:
    if said.stands == "there":
        lasts = f"has a ttl of {said.ttl_ms / 1000:g} s" if said.ttl_ms else "keeps what is written for good"
        return f"{lasts}, with {said.copies.told} and {said.loss}"
    return f"is {'being dropped' if said.stands == DROPPING else said.stands}"


def wanted(
    session: Session, ttl: float | None, backups: int | None, async_backups: int | None, loss_policy: str | None
) -> _Wanted:
    """The settings of a namespace; raises UsageError for what can be none."""
    for name, number in (("backups", backups), ("async_backups", async_backups)):
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= BACKUPS_MAX
        ):
            raise errors.UsageError(f"{name} is {number!r}: expected 0 to {BACKUPS_MAX}")
    if loss_policy is not None and loss_policy not in list(LossPolicy):
        raise errors.UsageError(f"loss_policy is {loss_policy!r}: expected {' or '.join(LossPolicy)}")
    topology = session.router.topology
    assert topology is not None, "a database is open when its client has a table"
    copies = _copies_of(backups, async_backups, topology.all_groups[0])
    return _Wanted(max(0, time_to_live(ttl)), copies, loss_policy)


def _copies_of(backups: int | None, async_backups: int | None, cluster: Group) -> Group | None:
    """How many copies are meant: of what is not said as many as the cluster has; None if nothing is."""
    if backups is None and async_backups is None:
        return None
    copies = Group(
        cluster.backups if backups is None else backups, cluster.async_backups if async_backups is None else async_backups
    )
    if copies.backups + copies.async_backups > BACKUPS_MAX:
        raise errors.UsageError(
            f"backups is {copies.backups}{_whose(backups)} and async_backups is {copies.async_backups}"
            f"{_whose(async_backups)}: expected {BACKUPS_MAX} at most in all"
        )
    return copies


def _whose(said: int | None) -> str:
    return " (the cluster's)" if said is None else ""


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

    async def create_namespace(
        self,
        name: str,
        *,
        ttl: float | None = None,
        backups: int | None = None,
        async_backups: int | None = None,
        loss_policy: Policy | None = None,
        timeout: float | None = None,
    ) -> None:
        """Give a namespace settings of its own.

        `ttl`, seconds for which a value lasts that is written without one of its own (None: for good), holds for what is
        written from then on. `backups` is how many copies there are to be of what is in it, beside the first one, and
        `async_backups` how many beside these that nobody waits for; 6 of both together at most. Where only one of the two
        is given, the other one is the cluster's; where neither is, both are as they are, which is the cluster's numbers at
        first. Of what was written they cannot be changed. `loss_policy`: READ_WRITE_SAFE, which is so at first, refuses
        what is in a LOST partition; READ_ONLY_SAFE every write of the namespace while there is one.

        Raises UsageError where somebody else changes it at the same time.
        """
        settings = wanted(self.session, ttl, backups, async_backups, loss_policy)
        await create(self.session, name, settings, timeout)

    async def drop_namespace(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a namespace with all that is in it; it is gone on every copy when this returns, and may be begun anew.

        Meanwhile nobody reads or writes it: that is refused as a UsageError. A transaction that holds something of it is
        waited for. Raises UsageError if there is none of that name, or if this is in the `with` of such a transaction.
        """
        if found := waits_for_us(self.session, name, None, shared=False):
            raise errors.UsageError(
                f"{name}:{found[1]!r} is locked by transaction {found[0].name}, in whose `with` this is: to drop the "
                "namespace is to wait for its end, in vain; do it after that"
            )
        await drop(self.session, name, timeout)
