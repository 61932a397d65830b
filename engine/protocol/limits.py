"""What a client may ask for: every field of every request is checked here, and nowhere else, before anything sees it.

A request is somebody else's bytes. It may be of the right types and still be nonsense: a transaction id of a thousand
bytes, a namespace without a name, a partition that does not exist. A node refuses such a request and says what it
expected; it never asserts, and it never keeps or logs any of it. What depends on the state of the node (who is primary,
how many namespaces there are) is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import assert_never

from engine.protocol.operations import problem_of
from engine.protocol.requests import (
    LET_GO_MAX,
    Admin,
    Check,
    CommitTx,
    Get,
    GetStatus,
    GetTable,
    KeepCut,
    KeepLocks,
    KeepSessions,
    Lock,
    Put,
    Request,
    Scan,
    Scanned,
    StageWrites,
    Swap,
    TakeCut,
    Unlock,
)
from engine.protocol.sizes import KEYS_MAX, REQUEST_BYTES_MAX, TRANSACTION_BYTES_MAX, bytes_of, weight_of
from rebalance.migrations import BYTES_PER_SECOND_MAX, BYTES_PER_SECOND_MIN, Paused
from rebalance.namespaces import LossPolicy
from rebalance.table import BACKUPS_MAX
from wal.ids import (
    CODECS,
    KEY_BYTES_MAX,
    NAME,
    NAME_MAX,
    NO_ERA,
    PARTITION_DIGITS_MAX,
    SEQUENCE_MAX,
    SESSION_BYTES,
    TX_ID_BYTES,
    VALUE_BYTES_MAX,
    Namespace,
    TxId,
)

TIMEOUT_MS_MAX = 3_600_000
COUNTER_MAX = 1 << 62
TTL_MS_MAX = 10 * 365 * 86_400_000
"""Whatever is to last longer is kept for good."""
FOR_GOOD_MS = -1
"""A time to live that never ends, whatever its namespace says."""
NODES_MAX = 1_000
SESSIONS_MAX = 1_000
LABEL_MAX = 200
PIECES_MAX = 10_000
"""Into so many pieces a transaction may be cut that is staged."""
CODEC_BYTES_MAX = 64


def problem_with(request: Request, partitions: int) -> str:
    """What is wrong with a request in a cluster of `partitions` (0: there is none yet), or nothing."""
    within_ms: int = getattr(request, "within_ms", 0)
    if not 0 <= within_ms <= TIMEOUT_MS_MAX:
        return f"an answer is waited for {within_ms} ms: expected 0 to {TIMEOUT_MS_MAX}"
    match request:
        case Put():  # what is asked most comes first, and takes out only what it needs
            problem = _tx(request.tx) or _namespace(request.namespace) or _writes(request.keys, request.values)
            return problem or (_ttl(request.ttl_ms, request.values) if request.ttl_ms else "")
        case Get():
            known = "" if request.namespace == CODECS else _namespace(request.namespace)
            return known or _keys(request.keys) or _age(request.age_ms) or _expiry(request)
        case CommitTx():
            return _commit(request)
        case StageWrites():
            return _stage(request, partitions)
        case GetTable():
            return ""
        case Swap(_, tx, namespace, key, when, old, new):
            known = _codec(key, when, new) if namespace == CODECS and request.how == "set" else _namespace(namespace)
            problem = _tx(tx) or known or _keys([key]) or problem_of(request.how, when, old, new) or _values([old, new])
            problem = problem or _position(request.epoch, request.counter)
            return problem or (_ttl(request.ttl_ms, [new]) if request.ttl_ms else "")
        case Lock(_, owner, namespace, keys, timeout_ms):
            problem = _tx(owner) or _namespace(namespace) or _keys(keys) or _unique(keys) or _timeout(timeout_ms)
            return problem or label_problem(request.label) or (_keys(request.held) if request.held else "")
        case KeepLocks(_, owners):
            return _count(owners) or _first(map(_tx, owners))
        case Unlock(_, owner) | TakeCut(_, owner):
            return _tx(owner)
        case KeepSessions(_, sessions):
            return _sessions(sessions)
        case Check(_, owner, locks, reads):
            problem = _tx(owner) or _touched(locks, reads) or _touched([], request.absent)
            return problem or (_tx(request.tx) if request.tx else "") or _scanned(request.scanned, partitions)
        case GetStatus(_, tx, partition):
            return _tx(tx) or _partitions([partition], partitions)
        case Scan(_, namespace, numbers, start, end, limit):
            problem = _namespace(namespace) or _partitions(numbers, partitions) or _range(start, end, limit)
            problem = problem or ("" if numbers else "no partition was given")
            bounded = "a count has bounds: expected one of all rows" if request.count and (start or end is not None) else ""
            now = not (request.count or request.stale or request.cut != NO_ERA)
            unlocked = "" if now or not request.unlocked else "unlocked: expected only for rows that are there now"
            return problem or _age(request.age_ms) or bounded or unlocked
        case KeepCut(_, _, holder):
            many = f"others: expected {LET_GO_MAX} at most" if len(request.others) > LET_GO_MAX else ""
            return _tx(holder) or many or next(filter(None, (_tx(other) for _, other in request.others)), "")
        case Admin(_, command, arguments):
            return _admin(command, arguments)
        case _:
            assert_never(request)


def within_of(request: Request) -> int:
    """For how many ms somebody waits for the answer; 0: always."""
    within_ms: int = getattr(request, "within_ms", 0)
    return within_ms


# Requests of several parts.


def _commit(request: CommitTx) -> str:
    if not request.writes:
        return "the transaction writes nothing: end it with a check"
    problem = _tx(request.tx) or _tx(request.owner) or _touched(request.locks, request.reads)
    problem = problem or label_problem(request.label) or _conditions(request)
    if request.staged and not problem:
        problem = _pieces(request.staged)
    problem = problem or _written(request.writes) or (_ttls(request) if request.ttls else "")
    if not problem and weight_of(request) > REQUEST_BYTES_MAX:
        return f"the transaction has {weight_of(request)} bytes: expected at most {REQUEST_BYTES_MAX}"
    return problem


def _stage(request: StageWrites, partitions: int) -> str:
    if not request.writes:
        return "nothing was to be staged"
    problem = _tx(request.tx) or _tx(request.owner) or _partitions([request.partition], partitions)
    problem = problem or _pieces(request.number - 1) or _written(request.writes)
    problem = problem or (_ttls(request) if request.ttls else "")
    if not problem and not weight_of(request) <= request.size <= TRANSACTION_BYTES_MAX:
        told = f"{weight_of(request)} bytes of {request.size} were to be staged"
        return f"{told}: expected at most {TRANSACTION_BYTES_MAX} in all"
    return problem


def _written(writes: list[tuple[Namespace, list[bytes], list[bytes | None]]]) -> str:
    if problem := _count(writes):
        return problem
    seen: dict[Namespace, None] = {}
    left = KEYS_MAX
    for namespace, keys, values in writes:
        if namespace in seen:
            return f"namespace {namespace!r} was given twice in one transaction"
        seen[namespace] = None
        left -= len(keys)
        problem = _namespace(namespace) or _writes(keys, values)
        if problem:
            return problem
    return f"the transaction writes {KEYS_MAX - left} keys: expected at most {KEYS_MAX}" if left < 0 else ""


def _pieces(count: int) -> str:
    return "" if 0 <= count < PIECES_MAX else f"a transaction has {count} pieces: expected at most {PIECES_MAX}"


def _conditions(request: CommitTx) -> str:
    if not request.conditions:
        return ""
    if not request.optimistic or request.prepare_only:
        return "conditions came with locks, or with a decision that is held back: expected a commit at once"
    problem = _count(request.conditions)
    for namespace, key, when, old, epoch, counter in () if problem else request.conditions:
        problem = problem or _namespace(namespace) or _sizes([key]) or problem_of("set", when, old, None)
        problem = problem or _values([old]) or _position(epoch, counter)
    return problem


def _touched(locks: list[tuple[Namespace, bytes]], reads: list[tuple[Namespace, bytes, int, int]]) -> str:
    if not (locks or reads):
        return ""
    problem = _count(locks) or _count(reads)
    if problem:
        return problem
    for namespace in dict.fromkeys([ns for ns, _ in locks] + [ns for ns, _, _, _ in reads]):
        problem = _namespace(namespace)
        if problem:
            return problem
    problem = _sizes([key for _, key in locks]) or _sizes([key for _, key, _, _ in reads])
    if problem:
        return problem
    for _, _, epoch, counter in reads:
        if not (0 <= epoch <= COUNTER_MAX and 0 <= counter <= COUNTER_MAX):
            return _position(epoch, counter)
    return ""


def _scanned(ranges: list[Scanned], partitions: int) -> str:
    left = KEYS_MAX
    for scanned in ranges:
        problem = _namespace(scanned.namespace) or _range(scanned.start, scanned.end, 1) or _sizes(scanned.known)
        problem = problem or _partitions([number for number, _, _ in scanned.marks], partitions)
        problem = problem or _first(_position(epoch, counter) for _, epoch, counter in scanned.marks)
        left -= 1 + len(scanned.marks) + len(scanned.known)
        if problem:
            return problem
    return f"the ranges have {KEYS_MAX - left} marks and keys: expected at most {KEYS_MAX}" if left < 0 else ""


def _admin(command: str, arguments: dict[str, list[str]]) -> str:
    for name, values in arguments.items():
        if len(values) > NODES_MAX:
            return f"{name[:20]!r} has {len(values)} values: expected at most {NODES_MAX}"
    if command == "init" and len(arguments.get("cluster", ())) != 1:
        return "`init` needs the id of the new cluster: one value of `cluster`"
    if command == "counters" and not _are_partitions(arguments.get("partitions", ["0", "1"])):
        return "`partitions` names those from a first one to before another one: expected two numbers, the second larger"
    named = [("node", node) for node in arguments.get("nodes", ())]
    if command == "init":
        named.append(("cluster", arguments["cluster"][0]))
    if command == "namespaces" and arguments:
        return _namespace_order(arguments)
    if command == "migrations":
        return _migrations_order(arguments)
    if command in {"init", "baseline"}:
        for kind, name in named:
            if not NAME.fullmatch(name):
                return f"{kind} {name[:80]!r} is not a legal name: {_RULE}"
    nodes = arguments.get("nodes", [])
    return "a node was named twice: expected each once" if len(set(nodes)) != len(nodes) else ""


def _are_partitions(words: list[str]) -> bool:
    numbers = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= PARTITION_DIGITS_MAX]
    return len(words) == len(numbers) == 2 and numbers[0] < numbers[1]


def _namespace_order(arguments: dict[str, list[str]]) -> str:
    if problem := _one_of_each(arguments, "a namespace", ("name", "seen", "ttl_ms")):
        return problem
    if problem := _namespace(arguments["name"][0]):
        return problem
    if problem := _seen(arguments["seen"][0]):
        return problem
    ttl_ms = arguments["ttl_ms"][0]
    if not _NUMBER.fullmatch(ttl_ms) or int(ttl_ms) > TTL_MS_MAX:
        return f"a time to live is {ttl_ms[:80]!r} ms: expected 0 (for good) to {TTL_MS_MAX}"
    return _copies_of(arguments)


def _copies_of(arguments: dict[str, list[str]]) -> str:
    if wrong := next((name for name in ("backups", "async_backups", "loss") if len(arguments.get(name, ("",))) != 1), ""):
        return f"an order about a namespace needs one value of {wrong!r} at most"
    told = [arguments.get(name, ["0"])[0] for name in ("backups", "async_backups")]
    if not all(map(_NUMBER.fullmatch, told)) or sum(map(int, told)) > BACKUPS_MAX:
        return f"backups are {told[0][:80]!r} and {told[1][:80]!r}: expected 0 to {BACKUPS_MAX} together"
    if "async_backups" in arguments and "backups" not in arguments:
        return "asynchronous backups came without backups: expected both"
    loss = arguments.get("loss", [LossPolicy.READ_WRITE_SAFE])[0]
    return "" if loss in list(LossPolicy) else f"{loss[:80]!r} is no loss policy: expected {', '.join(LossPolicy)}"


def _migrations_order(arguments: dict[str, list[str]]) -> str:
    if problem := _one_of_each(arguments, "migrations", ("seen", "paused", "bytes_per_second")):
        return problem
    if problem := _seen(arguments["seen"][0]):
        return problem
    paused, most = arguments["paused"][0], arguments["bytes_per_second"][0]
    if paused not in list(Paused):
        return f"{paused[:80]!r} cannot be paused: expected {', '.join(Paused)}"
    legal = _NUMBER.fullmatch(most) and (not int(most) or BYTES_PER_SECOND_MIN <= int(most) <= BYTES_PER_SECOND_MAX)
    if not legal:
        return (
            f"a limit is {most[:80]!r} bytes a second: expected {BYTES_PER_SECOND_MIN} to {BYTES_PER_SECOND_MAX}, "
            "or 0 for none; a pause is what stops migrations"
        )
    return ""


def _one_of_each(arguments: dict[str, list[str]], about: str, names: tuple[str, ...]) -> str:
    missing = (name for name in names if len(arguments.get(name, ())) != 1)
    return _first(f"an order about {about} needs one value of {name!r}" for name in missing)


def _seen(text: str) -> str:
    return "" if _SEEN.fullmatch(text) else f"{text[:80]!r} is no version: expected such as 5.3"


# Fields.

_NUMBER = re.compile(r"[0-9]{1,15}")
_SEEN = re.compile(r"[0-9]{1,12}\.[0-9]{1,8}")
"""A version as text."""
_RULE = "expected 1 to 64 letters, digits, '.', '_' or '-'"


def _tx(tx: TxId) -> str:
    return "" if len(tx) == TX_ID_BYTES else f"a transaction id has {len(tx)} bytes: expected {TX_ID_BYTES}"


def _sessions(sessions: list[tuple[bytes, int]]) -> str:
    if len(sessions) > SESSIONS_MAX:
        return f"{len(sessions)} sessions were named: expected at most {SESSIONS_MAX}"
    for session, acked in sessions:
        if len(session) != SESSION_BYTES:
            return f"a session has {len(session)} bytes: expected {SESSION_BYTES}"
        if not -1 <= acked <= SEQUENCE_MAX:
            return f"a session has answers up to {acked}: expected at most {SEQUENCE_MAX}"
    return ""


def _namespace(namespace: Namespace) -> str:
    if len(namespace) <= NAME_MAX and _legal(namespace):  # what is kept for the next time is short
        return ""
    return f"namespace {namespace[:80]!r} is not a legal name: {_RULE}"


@lru_cache(maxsize=1024)
def _legal(namespace: Namespace) -> bool:
    return NAME.fullmatch(namespace) is not None


def _codec(namespace: bytes, when: str, codec: bytes | None) -> str:
    """What is wrong with the record of a codec, or nothing: it is made once, for a namespace that there can be."""
    legal = NAME.fullmatch(namespace.decode("latin-1")) is not None
    if legal and when == "absent" and codec is not None and len(codec) <= CODEC_BYTES_MAX:
        return ""
    return f"the codec of a namespace is set once, to a name of at most {CODEC_BYTES_MAX} bytes"


def _keys(keys: list[bytes]) -> str:
    if not keys:
        return "no key was given"
    if len(keys) > KEYS_MAX:
        return f"{len(keys)} keys were given: expected at most {KEYS_MAX} at once"
    return _sizes(keys)


def _sizes(keys: list[bytes]) -> str:
    for size in map(len, keys):
        if not 0 < size <= KEY_BYTES_MAX:
            return f"a key has {size} bytes: expected 1 to {KEY_BYTES_MAX}"
    return ""


def _unique(keys: list[bytes]) -> str:
    return "a key was given twice in one batch" if len(keys) > 1 and len(set(keys)) != len(keys) else ""


def _values(values: Iterable[bytes | None]) -> str:
    for value in values:
        if value is not None and len(value) > VALUE_BYTES_MAX:
            return f"a value has {len(value)} bytes: expected at most {VALUE_BYTES_MAX}"
    return ""


def _writes(keys: list[bytes], values: list[bytes | None]) -> str:
    if len(keys) != len(values):
        return f"{len(keys)} keys came with {len(values)} values"
    if len(keys) == 1:
        fits = 0 < len(keys[0]) <= KEY_BYTES_MAX and len(values[0] or b"") <= VALUE_BYTES_MAX
        return "" if fits else _sizes(keys) or _values(values)
    problem = _keys(keys) or _unique(keys) or _values(values)
    if not problem and (size := bytes_of(keys) + bytes_of(values)) > REQUEST_BYTES_MAX:
        return f"a batch has {size} bytes: expected at most {REQUEST_BYTES_MAX}"
    return problem


def _position(epoch: int, counter: int) -> str:
    if 0 <= epoch <= COUNTER_MAX and 0 <= counter <= COUNTER_MAX:
        return ""
    return f"something was read at {epoch}.{counter}: expected an epoch and a counter from 0 to {COUNTER_MAX}"


def _timeout(timeout_ms: int) -> str:
    if 0 <= timeout_ms <= TIMEOUT_MS_MAX:
        return ""
    return f"a lock is to be waited for {timeout_ms} ms: expected 0 to {TIMEOUT_MS_MAX}"


def label_problem(label: str) -> str:
    """What is wrong with the label of a transaction, or nothing."""
    return "" if len(label) <= LABEL_MAX else f"a label has {len(label)} characters: expected at most {LABEL_MAX}"


def _ttl(ttl_ms: int, values: list[bytes | None]) -> str:
    if ttl_ms != FOR_GOOD_MS and not 0 < ttl_ms <= TTL_MS_MAX:
        return f"a time to live is {ttl_ms} ms: expected 1 to {TTL_MS_MAX}, or {FOR_GOOD_MS}"
    return "a delete has no time to live" if None in values else ""


def _ttls(request: CommitTx | StageWrites) -> str:
    values = {(ns, key): value for ns, keys, values in request.writes for key, value in zip(keys, values, strict=True)}
    for namespace, key, ttl_ms in request.ttls:
        if (namespace, key) not in values:
            return "what has a time to live is not among what is written"
        if problem := _ttl(ttl_ms, [values[namespace, key]]):
            return problem
    return ""


def _expiry(request: Get) -> str:
    if request.expiry and (request.stale or request.cut != NO_ERA):
        return "when something expires is asked of its primary, and of what is there now"
    return ""


def _age(age_ms: int) -> str:
    return "" if -1 <= age_ms <= TIMEOUT_MS_MAX else f"age_ms is {age_ms}: expected -1 (however old) to {TIMEOUT_MS_MAX}"


def _partitions(numbers: list[int], partitions: int) -> str:
    if len(numbers) > max(1, partitions):
        return f"{len(numbers)} partitions were given: expected each once, and there are {partitions}"
    for number in numbers:
        if not 0 <= number < partitions:
            return f"partition {number} does not exist: expected 0 to {partitions - 1}"
    return "a partition was given twice" if len(set(numbers)) != len(numbers) else ""


def _range(start: bytes, end: bytes | None, limit: int) -> str:
    for edge in (start, end or b""):
        if len(edge) > KEY_BYTES_MAX + 1:  # the key after a key is one byte longer
            return f"an end of the range has {len(edge)} bytes: expected at most {KEY_BYTES_MAX + 1}"
    return "" if limit > 0 else f"limit is {limit}: expected 1 or more"


def _count(things: Sequence[object]) -> str:
    return "" if len(things) <= KEYS_MAX else f"{len(things)} things were given in one list: expected at most {KEYS_MAX}"


def _first(problems: Iterable[str]) -> str:
    return next(filter(None, problems), "")
