"""What a record of the log looks like to a program: one JSON object a line, of one of the types below.

The types are the schema: `docs/wal-dump.schema.json` is made from them (`python -m tools.wal.schema`), and fields are only
added to it. What changes anything else is another `SCHEMA`. An object says all that a line of text does, and more: where
the record stands, each entry by itself with its counter, ranges as their first and last counter.
"""

from __future__ import annotations

import sys
from typing import Literal, TypeAlias

import msgspec

SCHEMA = 1


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key. A `decide` is the outcome of the transaction that is the key, a `forget` its end.

    `absent`: the supplier of a transfer has no such key. `epoch` is told where it is not that of the write.
    """

    key: str
    op: Literal["put", "delete", "decide", "forget", "absent"]
    counter: int
    epoch: int = 0
    size: int = -1
    hash: str = ""
    value: str | None = None
    decision: Literal["", "commit", "abort"] = ""


class Counters(msgspec.Struct, frozen=True):
    """The counters `first` to `last` of one fragment."""

    namespace: str
    partition: int
    first: int
    last: int


class Point(msgspec.Struct, frozen=True):
    """One counter of one fragment."""

    namespace: str
    partition: int
    counter: int


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client was told of its request, beside that it was done: shown as values are."""

    size: int
    hash: str = ""
    value: str | None = None


class Write(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counters of one fragment, and what was written under them; nothing if they are a `closed` gap."""

    namespace: str
    partition: int
    epoch: int
    first: int
    last: int
    entries: list[Entry]
    stable: int = 0
    tx: str = ""
    issued_in: int = 0
    closed: bool = False
    answer: Answer | None = None


class LockedKey(msgspec.Struct, frozen=True):
    """A key that was read under a lock, and not written."""

    namespace: str
    key: str


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a transaction ended, and what its client was told of it."""

    tx: str
    outcome: Literal["commit", "abort"]
    answer: Answer | None = None


class Answered(msgspec.Struct, frozen=True):
    """Up to which number a session has its answers."""

    session: str
    up_to: int


class Reign(msgspec.Struct, frozen=True):
    """An epoch, and the first counter that it issued."""

    epoch: int
    first: int


class Life(msgspec.Struct, frozen=True):
    """An earlier start of a node, and the LSN at which its log ended then."""

    incarnation: int
    at: int


class Claim(msgspec.Struct, frozen=True):
    """What one life of a node said of its log."""

    node: str
    allocation: str
    incarnation: int
    durable_lsn: int


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    schema: int
    lsn: int
    time: str
    time_ms: int
    segment: str
    offset: int
    node: str = ""  # whose log it is, where there are several


class Update(_Record, kw_only=True, tag="update"):
    writes: list[Write]


class Prepare(_Record, kw_only=True, tag="prepare"):
    tx: str
    partition: int
    epoch: int
    writes: list[Write]
    locks: list[LockedKey]
    participants: list[int]
    decided_in: int
    issued_in: int = 0
    held: bool = False


class Outcome(_Record, kw_only=True, tag="outcome"):
    tx: str
    partition: int
    epoch: int
    outcome: Literal["commit", "rollback"]
    counters: list[Counters]


class NoOp(_Record, kw_only=True, tag="noop"):
    partition: int
    epoch: int
    counters: list[Counters]


class EpochStart(_Record, kw_only=True, tag="epoch"):
    partition: int
    epoch: int
    firsts: list[Point]
    ended: list[str]


class History(_Record, kw_only=True, tag="history"):
    writes: list[Write]


class Preload(_Record, kw_only=True, tag="preload"):
    namespace: str
    partition: int
    entries: list[Entry]


class Results(_Record, kw_only=True, tag="results"):
    partition: int
    results: list[Result]
    floor: str


class Forget(_Record, kw_only=True, tag="forget"):
    partition: int
    epoch: int
    sessions: list[Answered]


class FragmentClear(_Record, kw_only=True, tag="clear"):
    namespace: str
    partition: int
    reason: str
    gone: bool
    kept: bool


class FragmentReady(_Record, kw_only=True, tag="ready"):
    namespace: str
    partition: int
    lwm: int
    digest: str
    epochs: list[Reign]
    full: bool


class Undo(_Record, kw_only=True, tag="undo"):
    namespace: str
    partition: int
    above: int
    keys: list[str]


class Promised(_Record, kw_only=True, tag="promised"):
    after: str
    ballot: str


class Accepted(_Record, kw_only=True, tag="accepted"):
    """`step`: the log has only what the map changes of the one before it, in so many bytes."""

    after: str
    ballot: str
    version: str
    bytes: int
    step: bool = False


class Committed(_Record, kw_only=True, tag="committed"):
    """`step`: as in `accepted`."""

    version: str
    bytes: int
    step: bool = False


class Boot(_Record, kw_only=True, tag="boot"):
    incarnation: int
    start: int
    at: int
    before: list[Life]


class Claimed(_Record, kw_only=True, tag="claimed"):
    version: str
    claims: list[Claim]


class Checkpoint(_Record, kw_only=True, tag="checkpoint"):
    up_to: int


class Trimmed(_Record, kw_only=True, tag="trimmed"):
    first_lsn: int
    dropped: list[Point]


class Stable(_Record, kw_only=True, tag="stable"):
    partition: int
    epoch: int
    counters: list[Point]


class Compare(_Record, kw_only=True, tag="compare"):
    partition: int
    epoch: int
    copy_on: str
    round: int


class Origin(_Record, kw_only=True, tag="origin"):
    tx: str
    partition: int
    epoch: int
    by: str
    label: str = ""
    client: str = ""
    address: str = ""
    labels_all: bool = False
    session_opened: str = ""


Object: TypeAlias = (
    Update
    | Prepare
    | Outcome
    | NoOp
    | EpochStart
    | History
    | Preload
    | Results
    | Forget
    | FragmentClear
    | FragmentReady
    | Undo
    | Promised
    | Accepted
    | Committed
    | Boot
    | Claimed
    | Checkpoint
    | Trimmed
    | Stable
    | Compare
    | Origin
)


def schema() -> bytes:
    """The JSON schema of all objects, as `docs/wal-dump.schema.json` has it."""
    import inspect  # noqa: PLC0415  # no dump needs it

    found = msgspec.json.schema(Object)
    for kind in found["$defs"].values():
        if "description" in kind:
            kind["description"] = inspect.cleandoc(kind["description"])  # as Python 3.13 and later keep it by themselves
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(schema())
