"""Transactions that are said at once: what is to be written in which namespaces, and what must hold for that.

They have no locks to ask for and nothing to read, so each is one request, wherever its keys are; and where one partition
has them all, one record.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from engine import errors
from engine.client.batches import grown
from engine.client.codecs import Codec, key_of, value_of
from engine.client.ends import CommitCall, StatusCall, Tested
from engine.client.expiring import TimesToLive
from engine.client.namespace import Access
from engine.client.namespace import Namespace as RawNamespace
from engine.client.operations import ABSENT, MISSING, Version, condition
from engine.client.outside import CodedNamespace
from engine.client.running import check_attempts, pause
from engine.client.timing import time_left, time_to_live
from engine.protocol.sizes import KEYS_MAX
from wal.ids import Namespace as NamespaceName

K = TypeVar("K")
V = TypeVar("V")


class Within(Protocol[K, V]):
    """A namespace of `engine` or of `engine.aio`."""

    name: str
    codec: Codec[K, V]


@dataclass(frozen=True, slots=True)
class Put(Generic[K, V]):
    """Set a key; only if it has no value, this value, or is the entry of this version, where one of these is said. `ttl`
    (seconds): it expires so long after it is set."""

    namespace: Within[K, V]
    key: K
    value: V
    _: KW_ONLY
    ttl: float | None = None
    if_absent: bool = False
    if_value: V | Any = MISSING
    if_version: Version | None = None


@dataclass(frozen=True, slots=True)
class Delete(Generic[K, V]):
    """Delete a key, whether or not it exists; only if it has this value, or is the entry of this version, where that is
    said."""

    namespace: Within[K, V]
    key: K
    _: KW_ONLY
    if_value: V | Any = MISSING
    if_version: Version | None = None


@dataclass(frozen=True, slots=True)
class Check(Generic[K, V]):
    """A key that is not written must exist; or have no value, this value, or be the entry of this version."""

    namespace: Within[K, V]
    key: K
    _: KW_ONLY
    if_absent: bool = False
    if_value: V | Any = MISSING
    if_version: Version | None = None


Operation: TypeAlias = Put[Any, Any] | Delete[Any, Any] | Check[Any, Any]


async def transact(access: Access, operations: Iterable[Operation], attempts: int, timeout: float | None) -> bool:
    """Do all of it, or nothing: whether all conditions held. See `engine.aio.Database.transact`."""
    check_attempts(attempts)
    asked = _Asked(access, operations)
    session = access.session
    left = time_left(timeout, session.seconds)
    await asked.prepare(left)
    for attempt in itertools.count(1):
        call = asked.call()
        try:
            return (await session.call(call, timeout=left())).applied
        except errors.CommitUnknown as error:
            topology = session.router.topology
            assert topology is not None, "it was sent by it"
            number = call.decided_in(topology)
            error.tx_id = f"{call.tx.hex()}@{number}"
            try:
                if (await session.call(StatusCall(call.tx, number), timeout=left())).outcome == "committed":
                    return True
            except errors.Error as unanswered:
                raise error from unanswered
            if attempt >= attempts:
                raise
        except errors.Conflict:
            if attempt >= attempts:
                raise
        await pause(attempt, session.chance)
    raise AssertionError("the last attempt returns or raises")


class _Asked:
    """What is to be done, in bytes. Raises UsageError for what cannot be meant."""

    def __init__(self, access: Access, operations: Iterable[Operation]) -> None:
        self._access = access
        self._writes: dict[NamespaceName, dict[bytes, bytes | None]] = {}
        self._conditions: list[Tested] = []
        self._ttls = TimesToLive()
        self._namespaces: dict[NamespaceName, RawNamespace] = {}
        size = 0
        if not isinstance(operations, Iterable):
            raise errors.UsageError(f"expected a list of Put, Delete and Check, found {type(operations).__name__}")
        for operation in operations:
            if not isinstance(operation, Put | Delete | Check):
                raise errors.UsageError(f"expected a Put, a Delete or a Check, found {type(operation).__name__}")
            raw, place = self._namespace(operation.namespace)
            key = key_of(place, operation.key)
            self._test(place, key, operation)
            if isinstance(operation, Check):
                continue
            written = self._writes.setdefault(raw.name, {})
            if key in written:
                raise errors.UsageError(f"{raw.name}:{key!r} is written twice: expected one Put or Delete of each key")
            value = value_of(place, operation.value) if isinstance(operation, Put) else None
            size = grown(size, {}, {key: value}, "that is said at once")
            written[key] = value
            if isinstance(operation, Put):
                self._ttls.note(raw.name, [key], time_to_live(operation.ttl))
        if not self._writes:
            raise errors.UsageError(
                "nothing is to be written: expected a Put or a Delete; to only read, there is `db.snapshot`"
            )
        for what, count in (("keys", sum(map(len, self._writes.values()))), ("conditions", len(self._conditions))):
            if count > KEYS_MAX:
                raise errors.UsageError(f"a transaction has {count} {what}: expected at most {KEYS_MAX}")
        self._size = size

    def _namespace(self, given: object) -> tuple[RawNamespace, CodedNamespace[Any, Any]]:
        native = getattr(given, "_native", given)
        if not isinstance(native, CodedNamespace):
            raise errors.UsageError(f"expected a namespace of this database, found {type(given).__name__}")
        raw = native._raw
        if raw._access is not self._access:
            raise errors.UsageError(f"namespace {raw.name!r} is of another database: a transaction is within one")
        known = self._namespaces.setdefault(raw.name, raw)
        if known.form != raw.form:
            raise errors.UsageError(f"namespace {raw.name!r} is named in the codecs {known.form!r} and {raw.form!r}")
        return raw, native

    def _test(self, place: CodedNamespace[Any, Any], key: bytes, operation: Operation) -> None:
        absent = False if isinstance(operation, Delete) else operation.if_absent
        value, version = operation.if_value, operation.if_version
        if not isinstance(absent, bool):
            raise errors.UsageError(f"if_absent is {absent!r}: expected True or False")
        if absent and not (value is MISSING and version is None):
            raise errors.UsageError("a key cannot be absent and have a value or a version: expected one of them")
        when, old, at = ABSENT if absent else condition(place, value, version)
        if when != "present" or isinstance(operation, Check):
            self._conditions.append((place.name, key, when, old, *at))

    async def prepare(self, left: Any) -> None:
        """See that each namespace is kept in its codec, and that nobody's own locks are waited for."""
        for name, raw in self._namespaces.items():
            if name in self._writes and raw.known != "agreed":
                await raw.agree(left())
            elif not raw.known:
                await raw.look(left())
            raw.check_own_locks(self._writes.get(name, {}))

    def call(self) -> CommitCall:
        """It, under a new id."""
        session = self._access.session
        writes = [(name, list(written), list(written.values())) for name, written in self._writes.items()]
        return CommitCall(
            session.new_tx(),
            session.new_owner(),
            optimistic=True,
            writes=writes,
            locks=[],
            reads=[],
            conditions=self._conditions,
            ttls=self._ttls.listed(),
            size=self._size,
        )
