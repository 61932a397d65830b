"""A named map of a cluster as its client sees it: keys and values are bytes. `engine.aio.Namespace` is this in a codec.

Before the first read or write it is seen to that the namespace is kept in the codec that was asked for, and before the
first write that this is on record: of two programs that disagree the second is told so, and has written nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Literal, TypeVar

from engine import errors
from engine.client.agreeing import Agreeing
from engine.client.batches import batches_of
from engine.client.calls import GetCall, PutCall, SwapCall
from engine.client.entered import waits_for_us
from engine.client.scans import CountCall, ScanCall
from engine.client.session import Session
from engine.client.timing import milliseconds, time_left
from engine.client.together import Together
from wal.ids import CODECS, NO_ERA, Era
from wal.ids import Namespace as NamespaceName

V = TypeVar("V")
Writer = TypeVar("Writer", PutCall, SwapCall)

PAGE_ROWS, PAGE_ROWS_MAX = 1_000, 16_000
"""Rows of the first page of a scan, and of the last when nobody said how many: each has four times as many as the one
before. A page looks into every partition, so that small ones cost more than their rows."""
CUT_PAGE_ROWS = 2_000
"""Rows of a page at a cut, which goes on where the last one ended."""
FORMS_MAX = 10_000
"""Of so many namespaces it is remembered that their codec is right."""
Form = Literal["", "looked", "agreed"]
"""That a namespace is kept in a codec: nobody looked; none is on record; it is that one."""


class Access:
    """What the namespaces of one database share. `session` is another one in the child of a fork."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.forms: dict[tuple[NamespaceName, str], Form] = {}  # (namespace, form of its codec) -> what is known of it
        self.claims: Together[ScanCall] = Together()
        self.agreeing = Agreeing()


class Namespace:
    """One namespace. `form` is that of the codec in which it was asked for; `known`: what is known of that."""

    def __init__(self, access: Access, name: NamespaceName, form: str) -> None:
        self._access = access
        self.name = name
        self.form = form
        self.known: Form = access.forms.get((name, form), "")

    @property
    def session(self) -> Session:
        """Whoever makes its calls."""
        return self._access.session

    async def look(self, timeout: float | None) -> None:
        """See that it is this codec in which the namespace is kept, if any is on record."""
        self._compare(await self._access.agreeing.agree(self.session, (self.name, None), timeout, self._find) or None)

    async def _find(self, seconds: float) -> bytes:
        """What is on record, or nothing."""
        read = await self.session.call(GetCall(CODECS, [self.name.encode()], stale=True), timeout=seconds)
        return read.values[0][2] or b""

    async def agree(self, timeout: float | None) -> None:
        """The same, and put it on record before the first write."""
        what = self.name, self.form
        self._compare(await self._access.agreeing.agree(self.session, what, timeout, self._put_on_record))

    async def _put_on_record(self, seconds: float) -> bytes | None:
        tx, ours = self.session.new_tx(), self.form.encode()
        try:
            made = await self.session.call(SwapCall(tx, CODECS, self.name.encode(), "absent", new=ours), timeout=seconds)
        except errors.CommitUnknown as error:
            raise errors.Unavailable(f"the codec of namespace {self.name!r} could not be put on record: {error}") from error
        return ours if made.applied else made.found

    async def seen(self, *, writing: bool = False) -> None:
        """What a transaction needs to know before it reads or writes here."""
        if self.known != "agreed" and writing:
            await self.agree(None)
        elif not self.known:
            await self.look(None)

    def _compare(self, recorded: bytes | None) -> None:
        form = self.form
        if recorded is not None and recorded != form.encode():
            raise errors.UsageError(
                f"namespace {self.name!r} is kept in {recorded.decode(errors='replace')!r}, and was asked for in {form!r}: "
                "ask for it in that codec, or use another namespace"
            )
        self.known = "agreed" if recorded is not None else "looked"
        if len(self._access.forms) < FORMS_MAX:
            self._access.forms[(self.name, form)] = self.known

    async def write_many(self, writes: Mapping[bytes, bytes | None], timeout: float | None, ttl_ms: int = 0) -> None:
        """Set or delete keys, in batches that are not too large for a partition."""
        topology = self.session.router.topology
        assert topology is not None, "a database is open when its client has a table"
        left = time_left(timeout, self.session.seconds)
        for keys in batches_of(self.name, writes, topology):
            values = [writes[key] for key in keys]
            await self.write(PutCall(self.session.new_tx(), self.name, keys, values, ttl_ms), left())

    async def swap(
        self,
        key: bytes,
        when: str,
        timeout: float | None,
        *,
        old: bytes | None = None,
        new: bytes | None = None,
        how: str = "set",
        at: tuple[int, int] = (0, 0),
        ttl_ms: int = 0,
    ) -> SwapCall:
        """Set one key under a condition, or have its value computed."""
        tx = self.session.new_tx()
        call = SwapCall(tx, self.name, key, when, old=old, new=new, how=how, at=at, ttl_ms=ttl_ms)
        return await self.write(call, timeout)

    async def exchange(self, key: bytes, when: str, new: bytes | None, timeout: float | None) -> bytes | None:
        """Set one key, or delete it, under a condition, and tell what was there.

        A value that is too large to be told twice is told first: it is replaced if it is there still.
        """
        left = time_left(timeout, self.session.seconds)
        made = await self.swap(key, when, left(), new=new, how="exchange")
        while not made.applied and made.found is not None:
            found = made.found
            if (await self.swap(key, "equals", left(), old=found, new=new)).applied:
                return found
            made = await self.swap(key, when, left(), new=new, how="exchange")
        return made.found

    async def exchange_if_read(
        self, key: bytes, new: bytes | None, timeout: float | None, read: Callable[[bytes], V]
    ) -> tuple[V] | None:
        """The same, for whoever may be unable to `read` what is there: what this raises is raised, and nothing is done.
        What it was read as is told."""
        left = time_left(timeout, self.session.seconds)
        while True:
            if self.known != "agreed":
                await self.agree(left())
            found = (await self.session.call(GetCall(self.name, [key]), timeout=left())).values[0][2]
            held = (read(found),) if found is not None else None
            if held is None and new is None:
                return None
            when = "absent" if found is None else "equals"
            if (await self.swap(key, when, left(), old=found, new=new)).applied:
                return held

    async def write(self, call: Writer, timeout: float | None) -> Writer:
        """Do a write. If its answer is lost, the error names whom to ask, as far as that is one partition."""
        if self.known != "agreed":
            await self.agree(timeout)
        self.check_own_locks(call.keys)
        try:
            return await self.session.call(call, timeout=timeout)
        except errors.CommitUnknown as error:
            topology = self.session.router.topology
            assert topology is not None, "a write was sent by it"
            numbers = set(topology.places(self.name, call.keys))
            if len(numbers) == 1:
                error.tx_id = f"{call.tx.hex()}@{numbers.pop()}"
            raise

    def check_own_locks(self, keys: Iterable[bytes]) -> None:
        """Refuse a write that would wait for a transaction which waits for it."""
        if found := waits_for_us(self.session, self.name, keys, shared=False):
            raw, key = found
            raise errors.UsageError(
                f"{self.name}:{key!r} is locked by transaction {raw.name}, in whose `with` this is: a write "
                "outside it would wait for its end, in vain; write with tx.namespace(...), or after it"
            )

    async def count(self, timeout: float | None = None, *, stale: bool = False, age_ms: int = -1, cut: Era = NO_ERA) -> int:
        """How many rows there are; `stale`, `age_ms`, `cut` as with `GetCall`."""
        if not self.known:
            await self.look(timeout)
        call = CountCall(self.name, stale=stale, age_ms=age_ms, cut=cut)
        return (await self.session.call(call, timeout=timeout)).counted

    async def unlocked(self, low: bytes, high: bytes | None, limit: int, *, reverse: bool) -> tuple[ScanCall, int]:
        """Up to `limit` rows with low <= key < high that nobody has locked, as far as one page goes; and how many others
        are told of them before."""
        if not self.known:
            await self.look(None)
        session, name = self.session, self.name

        async def ask() -> ScanCall:
            return await session.call(ScanCall(name, low, high, limit, reverse=reverse, unlocked=True), timeout=None)

        return await self._access.claims.ask((name, low, high, limit, reverse), ask)

    async def pages(
        self,
        low: bytes,
        high: bytes | None,
        limit: int | None = None,
        timeout: float | None = None,
        *,
        stale: bool = False,
        age_ms: int = -1,
        marked: bool = False,
        cut: Era = NO_ERA,
        reverse: bool = False,
    ) -> AsyncIterator[ScanCall]:
        """The rows with low <= key < high, a page at a time; `stale`, `age_ms`, `cut` as with `GetCall`. `marked`: the
        first page says where the fragments stood before it. `reverse`: descending, the last page first. `limit`: so many
        rows are thought to do; who wants more is told of them as if it had said nothing."""
        if not self.known:
            await self.look(timeout)
        at: tuple[bytes, bytes | None] | None = (low, high) if limit != 0 and (high is None or low < high) else None
        rows, left = PAGE_ROWS if cut == NO_ERA else CUT_PAGE_ROWS, limit
        while at is not None:
            page = rows if left is None or left <= 0 else min(rows, left)
            rows = min(4 * rows, PAGE_ROWS_MAX if cut == NO_ERA else CUT_PAGE_ROWS)
            asked = ScanCall(self.name, *at, page, stale=stale, age_ms=age_ms, marked=marked, cut=cut, reverse=reverse)
            call = await self.session.call(asked, timeout=timeout)
            yield call
            at, marked = call.following, False
            left = left - len(call.rows) if left is not None else None


def get_call(name: str, keys: list[bytes], stale: bool, max_age: float | None) -> GetCall:
    """The values of keys, as old as they may be."""
    anywhere, age_ms = age_of(stale, max_age)
    return GetCall(name, keys, stale=anywhere, age_ms=age_ms)


def expiry_call(name: str, key: bytes) -> GetCall:
    """When a key expires."""
    call = GetCall(name, [key])
    call.expiry = True
    return call


def expiry_in(call: GetCall) -> float | None:
    """What was answered to that, in seconds; None: it stays, or there is none."""
    when = call.values[0][2]
    return int(when) / 1000 if when else None


def age_of(stale: bool, max_age: float | None) -> tuple[bool, int]:
    """Whether any copy may answer, and how many ms old its answer may be (-1: however old it is). Raises UsageError."""
    if not isinstance(stale, bool):
        raise errors.UsageError(f"stale is {stale!r}: expected True or False")
    return (stale, -1) if max_age is None else (True, milliseconds("max_age", max_age))
