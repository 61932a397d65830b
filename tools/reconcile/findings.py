"""What a reconciliation finds, as values: one `Finding` is one inconsistency, and one line of the report.

A finding names the copies that are concerned (`on`) and says what every compared copy has (`copies`), so that a reader
can judge the judgement. Keys and values are users' data: keys are shown, escaped to printable ASCII; values are hashed
unless they are asked for.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from tools.shown import Values, printable, value_hash
from wal.ids import NodeId, fragment_name

if TYPE_CHECKING:
    from engine.state.store import Entry

RECORD = "lsn_p"
"""In the evidence, the LSN of what a transaction prepared in a partition: the name goes on with the partition's number."""
AGREED, PARTED = "agreed", "parted"
"""What a finding says of the history of copies, up to what it is about."""

Fact: TypeAlias = int | str | bool | list[list[int]]
Facts: TypeAlias = dict[str, Fact]
"""What one copy has: `epoch=2 counter=57 size=5 value=...`, or `absent`, or `lwm=5 hwm=9`."""


class Kind(StrEnum):
    """What can be wrong. The order is that of the findings about one thing."""

    UNREADABLE = "UNREADABLE"  # bytes on this copy's disk are not what was written
    EPOCH_FORK = "EPOCH_FORK"  # the same counters were issued in different epochs
    DIGEST_MISMATCH = "DIGEST_MISMATCH"  # the same counters of the same epochs are different updates
    COUNTER_GAP = "COUNTER_GAP"  # counters that this copy owes, and nobody is about to bring
    BEHIND = "BEHIND"  # counters that another in-sync copy has, and that may have been acknowledged
    TX_UNRESOLVED = "TX_UNRESOLVED"  # prepared, and no outcome
    TX_PARTIAL = "TX_PARTIAL"  # ended one way here and another way there
    CONTENTS_MISMATCH = "CONTENTS_MISMATCH"  # the rows of this copy are not those that its last checkpoint wrote
    MISSING_ON = "MISSING_ON"  # the key is not here
    EXTRA_ON = "EXTRA_ON"  # the key is here only
    RESURRECTED = "RESURRECTED"  # the key is here only, and the log has its delete
    VALUE_MISMATCH = "VALUE_MISMATCH"  # the same version, another value
    VERSION_MISMATCH = "VERSION_MISMATCH"  # another version
    TOMBSTONE_MISMATCH = "TOMBSTONE_MISMATCH"  # deleted here and not there
    STORE_DIFFERS_FROM_LOG = "STORE_DIFFERS_FROM_LOG"  # all copies have it alike, and the log says otherwise
    MISPLACED = "MISPLACED"  # the key hashes to another partition


KINDS = list(Kind)


class Proof(StrEnum):
    """Why the copies of `on` are said to be the wrong ones. A tie is never decided."""

    LOG = "log"  # all have the same history, and the log says what the row must be
    CHECKSUM = "checksum"  # what lies there is not what was written
    MAJORITY = "majority"  # more than half of the copies have something else
    NONE = "none"  # nobody can tell which copies are wrong: named are those that differ from the primary


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One inconsistency. `partition` is -1 where a whole directory is concerned, `namespace` empty for a partition's.

    `counters` are the first and the last one concerned. `detail` is one sentence for a person. `roles` is what copies of
    `on` are that are not in sync. `proof` says why it is these copies that are wrong, where that is a question; `right`
    what the key must be, where a log says so. `history` is whether the copies have the same history up to this key, or
    it `parted`. `evidence` is by node: the last record of the key, or the place, in its log, or up to which counter
    that log cannot say. `primary` is the primary, where it has a copy here; `holders`
    are the copies that have what is `right`.

    `sought` is for who asks the logs, and in no report: all copies here have this counter, of which the right update is,
    and `evidence` says how far each log reaches back.
    """

    kind: Kind
    partition: int = -1
    namespace: str = ""
    key: str | None = None
    on: list[NodeId] = []
    counters: list[int] = []
    tx: str = ""
    copies: dict[NodeId, Facts] = {}
    detail: str = ""
    roles: dict[NodeId, str] = {}
    proof: Proof | None = None
    right: Facts = {}
    history: str = ""
    evidence: dict[NodeId, Facts] = {}
    primary: NodeId = ""
    holders: list[NodeId] = []
    sought: int = 0

    @property
    def incomplete(self) -> bool:
        """Whether it says that something could not be checked, rather than that it differs."""
        return self.kind is Kind.UNREADABLE and self.key is None

    @property
    def where(self) -> str:
        """What it is about: `acc/7`, `partition 7`, `-`."""
        if self.partition < 0:
            return "-"
        return fragment_name((self.namespace, self.partition)) if self.namespace else f"partition {self.partition}"

    @property
    def account(self) -> str:
        """Which counters and which transaction, what the copies have, why these are wrong, and the sentence."""
        parts: list[str] = []
        if self.counters:
            parts.append(f"counters={self.counters[0]}..{self.counters[-1]}")
        if self.tx:
            parts.append(f"tx={self.tx}")
        parts.extend(f"{node}({facts_text(facts)})" for node, facts in self.copies.items())
        if self.proof is not None:
            parts.append(f"proof={self.proof}")
        text = " ".join(parts)
        return f"{text}: {self.detail}" if text and self.detail else text or self.detail

    def __str__(self) -> str:
        key = f" key={self.key}" if self.key is not None else ""
        on = ",".join(f"{node}({self.roles[node]})" if node in self.roles else node for node in self.on)
        return f"{self.kind} {self.where}{key} on={on} {self.account}".rstrip()


def facts_text(facts: Facts) -> str:
    """What one copy has, in words: `epoch=2 counter=57`; a fact that is just true is its name."""
    return " ".join(name if fact is True else f"{name}={fact}" for name, fact in facts.items())


_ESCAPE = re.compile(r"\\\\|\\x([0-9a-f]{2})")


def raw_key(text: str) -> bytes:
    r"""The bytes that `printable` shows. Raises ValueError for what it never shows.

    >>> raw_key("k1"), raw_key(r"a\x00\\")
    (b'k1', b'a\x00\\')
    """
    shown = _ESCAPE.sub(lambda m: "\\" if m[0] == "\\\\" else chr(int(m[1], 16)), text)
    found = shown.encode("latin-1", "replace")
    if printable(found) != text:
        raise ValueError(f"{text!r} is not how a key is shown: expected printable ASCII, and other bytes as \\xNN")
    return found


class _Place(msgspec.Struct):
    """Of a finding, what says where it stands."""

    partition: int = -1
    namespace: str = ""
    key: str | None = None


_place = msgspec.json.Decoder(_Place).decode


def place_of(line: bytes) -> tuple[int, str, bool, bytes]:
    """Where a finding, as JSON, stands in a report; those about one key stay in their order."""
    f = _place(line)
    return f.partition, f.namespace, f.key is not None, raw_key(f.key) if f.key is not None else b""


def entry_facts(entry: Entry | None, values: Values) -> Facts:
    """What a copy has of a key.

    >>> from engine.state.store import Entry
    >>> entry_facts(Entry(1, 7, None), Values.HASH), entry_facts(Entry(1, 7, b"v"), Values.FULL)
    ({'tombstone': True, 'epoch': 1, 'counter': 7}, {'epoch': 1, 'counter': 7, 'size': 1, 'value': 'v'})
    """
    if entry is None:
        return {"absent": True}
    if entry.value is None:
        return {"tombstone": True, "epoch": entry.epoch, "counter": entry.counter}
    facts: Facts = {"epoch": entry.epoch, "counter": entry.counter, "size": len(entry.value)}
    match values:
        case Values.HASH:
            facts["hash"] = value_hash(entry.value)
        case Values.FULL:
            facts["value"] = printable(entry.value)
        case Values.NONE:
            pass
    return facts
