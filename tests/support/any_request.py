"""Requests of the right types and nearly any content, for hypothesis: mostly good, to come past the first check."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

from engine.protocol.operations import CONDITIONS, OPERATIONS
from engine.protocol.requests import (
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
from wal.ids import DECISIONS, KEY_BYTES_MAX, NUMBER_MAX

T = TypeVar("T")

NAMES = st.sampled_from(["acc", "bank", "a", "A.b-c_9", "x" * 64, "b", "c", "d"])
BAD_NAMES = st.sampled_from(["", "~tx", "~", "x" * 65, "x" * 100_000, "ä", "a/b", "a b", "\0", "-a", DECISIONS])
TXS = st.sampled_from([bytes([n]) * 16 for n in (0, 1, 2, 127, 255)])
BAD_TXS = st.sampled_from([b"", b"x", bytes(15), bytes(17), bytes(1000)])
KEYS = st.sampled_from([b"a", b"b", b"{a}1", b"{a}2", b"\0", b"\xff" * KEY_BYTES_MAX, b"{}", b"c", b"d"])
BAD_KEYS = st.sampled_from([b"", b"x" * 401, b"x" * 100_000])
VALUES = st.none() | st.sampled_from([b"", b"v", b"w" * 1000])
OPERANDS = VALUES | st.sampled_from([b"0", b"7", b"-1", b"007", b"9223372036854775807", b"9" * 40])
INTS = st.sampled_from([0, 1, 2, 7, 8, -1, 16_384, 1 << 31, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63)])
SMALL = st.integers(0, 12)


def odd(good: st.SearchStrategy[T], bad: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Mostly good: nonsense at every turn would never come past the first check."""
    return st.integers(0, 19).flatmap(lambda n: bad if n == 0 else good)


NAME, TX, KEY = odd(NAMES, BAD_NAMES), odd(TXS, BAD_TXS), odd(KEYS, BAD_KEYS)
NUMBER, COUNT = odd(SMALL, INTS), odd(st.integers(0, 40), INTS)
ERA = st.tuples(*[odd(SMALL, INTS.filter(lambda n: 0 <= n <= NUMBER_MAX))] * 2)  # who says others is hung up on
KEY_LISTS = odd(st.lists(KEY, min_size=1, max_size=5, unique=True), st.lists(KEY, max_size=6))
LOCKED = st.lists(st.tuples(NAME, KEY), max_size=4)
READ = st.lists(st.tuples(NAME, KEY, NUMBER, NUMBER), max_size=4)
WHEN = odd(st.sampled_from(CONDITIONS), st.sampled_from(["", "perhaps"]))
TESTED = st.lists(st.tuples(NAME, KEY, WHEN, VALUES, NUMBER, NUMBER), max_size=4)
MARKS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=4)
SCANNED = st.builds(Scanned, NAME, KEY, st.none() | KEY, MARKS, st.lists(KEY, max_size=3))
BATCH = KEY_LISTS.flatmap(
    lambda keys: st.tuples(
        st.just(keys), odd(st.lists(VALUES, min_size=len(keys), max_size=len(keys)), st.lists(VALUES, max_size=6))
    )
)
ID = odd(st.integers(1, 1000), INTS)
WORDS = st.sampled_from(["cluster", "nodes", "namespace", "", "x" * 500])
ADMIN = st.sampled_from(["status", "counters", "progress", "init", "baseline", "checkpoint", "", "x" * 1000])
WHEN = odd(st.sampled_from(CONDITIONS), st.sampled_from(["", "perhaps", "x" * 1000]))
ARGUMENTS = st.dictionaries(WORDS, st.lists(st.sampled_from(["n1", "n2", "", "x" * 70, "~"]), max_size=3), max_size=3)

KINDS: dict[type[Request], st.SearchStrategy[Request]] = {
    GetTable: st.builds(GetTable, ID),
    Get: st.builds(Get, ID, NAME, KEY_LISTS, st.booleans()),
    Put: st.tuples(ID, TX, NAME, BATCH).map(lambda p: Put(p[0], p[1], p[2], *p[3])),
    Swap: st.builds(
        Swap,
        ID,
        TX,
        NAME,
        KEY,
        WHEN,
        OPERANDS,
        OPERANDS,
        how=odd(st.sampled_from(OPERATIONS), st.sampled_from(["", "multiply", "x" * 1000])),
        epoch=NUMBER,
        counter=NUMBER,
    ),
    Lock: st.builds(
        Lock,
        ID,
        TX,
        NAME,
        KEY_LISTS,
        odd(st.integers(0, 300), INTS),
        NUMBER,
        st.just(""),
        st.booleans(),
        st.booleans(),
        st.just([]) | KEY_LISTS,
    ),
    KeepSessions: st.builds(KeepSessions, ID, st.lists(st.tuples(st.binary(max_size=12), st.integers(-2, 1 << 49)))),
    KeepLocks: st.builds(KeepLocks, ID, st.lists(TX, max_size=4)),
    Unlock: st.builds(Unlock, ID, TX),
    CommitTx: st.builds(
        CommitTx,
        ID,
        TX,
        TX,
        st.booleans(),
        st.lists(st.tuples(NAME, BATCH).map(lambda p: (p[0], *p[1])), max_size=3),
        LOCKED,
        READ,
        odd(st.just(value=False), st.booleans()),
        conditions=st.just([]) | TESTED,
        staged=odd(st.just(0), st.integers(-1, 3)),
    ),
    StageWrites: st.builds(
        StageWrites,
        ID,
        TX,
        TX,
        NUMBER,
        odd(st.integers(1, 3), INTS),
        odd(st.integers(0, 5_000), INTS),
        st.lists(st.tuples(NAME, BATCH).map(lambda p: (p[0], *p[1])), max_size=3),
    ),
    Check: st.builds(Check, ID, TX, LOCKED, READ, NUMBER, READ, st.lists(SCANNED, max_size=2), odd(st.just(b""), TX)),
    GetStatus: st.builds(GetStatus, ID, TX, NUMBER),
    Scan: st.builds(
        Scan,
        ID,
        NAME,
        st.lists(NUMBER, max_size=9),
        KEY,
        st.none() | KEY,
        COUNT,
        NUMBER,
        st.booleans(),
        st.integers(-1, 9),
        st.booleans(),
        count=st.booleans(),
        reverse=st.booleans(),
    ),
    TakeCut: st.builds(TakeCut, ID, TX),
    KeepCut: st.builds(
        KeepCut,
        ID,
        ERA,
        TX,
        st.booleans(),
        st.lists(st.tuples(ERA, TX), max_size=3),
    ),
    Admin: st.builds(Admin, ID, ADMIN, ARGUMENTS),
}
ANY = st.one_of(*KINDS.values())
