"""Which messages a story means when it says `prepare t1 to=n2`.

Every message has the name by which it prints (its tag in `engine.messages`: `announce`, `replicate`, `supply`, ...).
Beside these there are the words in which people speak of a transaction or an exchange:

* `prepare` the vote on its way to a copy: the `replicate` that carries the prepare record, or the one record of a
  transaction that needs no second phase; and `prepare-parts` to another participant. `prepare-reply` is its answer.
* `finish` the outcome on its way: `finish` to a participant, and the `replicate` that carries the outcome record, or the
  one record of a transaction that needs no second phase. `finish-reply` is its answer.
* `decision` the `replicate` that carries the decision record, and `decision-reply`.
* `promotion` the `replicate` by which a new primary begins its epoch. What it issues again in it is nothing else: a held
  `prepare t1` is the vote that the old primary asked for, and not this.

Between a client and a node there are `request` and `reply`, and each by its own tag in `engine.protocol.requests`.

An answer says only which batches, or which request, it is about, so what was sent is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine import messages as m
from engine.messages import kind_of
from engine.protocol.requests import REPLIES, REQUESTS, Reply, Request, request_kind
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from wal import records as r
from wal.ids import DECISIONS, NodeId, TxId

GROUPS: dict[str, tuple[str, ...]] = {
    "exchange": (
        *("announce", "promise", "single-map", "ask-copies", "copies"),
        *("full-map", "accept", "refuse", "commit", "ask-map"),
    ),
    "rebalance": ("demand", "supply", "more", "settled", "all-settled", "settle", "caught-up"),
    "settled": ("all-settled",),
    "replication": ("replicate", "replicated"),
    "read": ("confirm", "confirmed"),
    "cuts": ("enter-era", "entered", "seal-cut", "sealed"),
    "recovery": ("resolve", "inquire", "inquired", "ask-tail", "tail"),
    "propose": ("full-map",),
    "vote": ("vote",),
}
FRIENDLY = (
    "prepare",
    "prepare-reply",
    "finish",
    "finish-reply",
    "decision",
    "decision-reply",
    "update",
    "update-reply",
    "outcome",
    "outcome-reply",
    "promotion",
    "promotion-reply",
    "request",
    "reply",
    "any",
)
TAGS = tuple(kind.__struct_config__.tag for kind in m.KINDS)
REQUEST_TAGS = tuple(kind.__struct_config__.tag for kind in REQUESTS)
REPLY_TAGS = tuple(kind.__struct_config__.tag for kind in REPLIES)
KINDS = tuple(dict.fromkeys([*FRIENDLY, *map(str, TAGS), *GROUPS, *map(str, REQUEST_TAGS), *map(str, REPLY_TAGS)]))


@dataclass(frozen=True)
class Wanted:
    """What a `hold` is about; an empty field matches everything."""

    kind: str
    tx: TxId | None = None
    sender: str = ""
    receiver: str = ""
    namespace: str = ""
    partition: int | None = None


class Batches(Observer):
    """What answers are about: the batches that primaries sent, by sequence, and the requests that clients made."""

    def __init__(self) -> None:
        self._records: dict[tuple[NodeId, int], list[r.Record]] = {}
        self._asked: dict[tuple[NodeId, int, int], Request] = {}
        self._request_of: dict[int, Request | None] = {}  # by the identity of the reply: it names no transaction

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: m.Message, needed_lsn: int) -> None:
        """Remember what is in a batch."""
        if isinstance(message, m.Replicate):
            self._records[(machine.name, message.sequence)] = message.records

    def asked(self, machine: Machine, session: int, request: Request) -> None:
        """Remember what was asked."""
        self._asked[(machine.name, session, request.id)] = request

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """A reply leaves: remember what it is about as long as somebody may hold it back."""
        self._request_of[id(reply)] = self._asked.pop((machine.name, session, reply.id), None)

    def request_of(self, reply: object) -> Request | None:
        """The request that a reply answers."""
        return self._request_of.get(id(reply))

    def answered(self, primary: NodeId, message: m.Replicated) -> list[r.Record]:
        """The records that an answer says are durable."""
        return [record for s in message.sequences for record in self._records.get((primary, s), [])]


def matches(wanted: Wanted, batches: Batches, sender: str, receiver: str, said: object) -> bool:
    """Whether a message, request or reply is one that is meant."""
    if wanted.sender and wanted.sender != sender:
        return False
    if wanted.receiver and wanted.receiver != receiver:
        return False
    if type(said) in REQUESTS:
        return _client_side(wanted, "request", request_kind(said), said)  # type: ignore[arg-type]  # just looked
    if type(said) in REPLIES:
        return _client_side(wanted, "reply", str(said.__struct_config__.tag), batches.request_of(said))  # type: ignore[attr-defined]  # a struct
    return _matches_message(wanted, batches, receiver, said)  # type: ignore[arg-type]  # nothing else is sent


def _client_side(wanted: Wanted, group: str, tag: str, request: Request | None) -> bool:
    """Whether a request, or the reply to it, is meant."""
    if wanted.kind not in (group, tag):
        return False
    if wanted.tx is None:
        return True
    return wanted.tx in (getattr(request, "tx", None), getattr(request, "owner", None))


def _matches_message(wanted: Wanted, batches: Batches, receiver: NodeId, message: m.Message) -> bool:
    kind, tag = wanted.kind, kind_of(message)
    records: list[r.Record] = []
    if isinstance(message, m.Replicate):
        records = message.records
    elif isinstance(message, m.Replicated):
        records = batches.answered(receiver, message)
    if not _is_about(wanted, message, records):
        return False
    if kind in ("any", tag) or tag in GROUPS.get(kind, ()):
        return True
    if kind == "commit" and wanted.tx is not None:
        kind = "finish"
    answer = kind.endswith("-reply")
    plain = kind.removesuffix("-reply")
    match message:
        case m.PrepareParts():
            return kind == "prepare"
        case m.Vote():
            return kind == "prepare-reply"
        case m.Finish():
            return kind == "finish"
        case m.Finished():
            return kind == "finish-reply"
        case m.Replicate() | m.Replicated():
            return answer == isinstance(message, m.Replicated) and any(_is(plain, record, wanted.tx) for record in records)
        case _:
            return False


def _is(kind: str, record: r.Record, tx: TxId | None) -> bool:
    """Whether a record is what the friendly word means."""
    match record:
        case r.EpochStart():
            return kind == "promotion"
        case r.Prepare():
            return kind == "prepare" and not record.origin and tx in (None, record.tx)
        case r.Outcome():
            return kind in ("finish", "outcome") and tx in (None, record.tx)
        case r.Update(writes):
            if any(w.namespace == DECISIONS for w in writes):
                return kind == "decision" and (tx is None or any(tx in w.keys for w in writes))
            return kind in ("update", "prepare", "finish") and any(not w.origin and tx in (None, w.tx) for w in writes)
        case _:
            return False


def _is_about(wanted: Wanted, message: m.Message, records: Iterable[r.Record]) -> bool:
    """Whether a message concerns the transaction, namespace and partition that are wanted."""
    if wanted.tx is not None and wanted.tx not in (
        *_txs(message),
        *(tx for record in records for tx in record_txs(record)),
    ):
        return False
    if wanted.partition is None and not wanted.namespace:
        return True
    places = [*_places(message), *(place for record in records for place in _record_places(record))]
    return any((not wanted.namespace or ns in ("", wanted.namespace)) and wanted.partition in (None, p) for ns, p in places)


def _txs(message: m.Message) -> list[TxId]:
    tx = getattr(message, "tx", None)
    return [tx] if isinstance(tx, bytes) else []


def record_txs(record: r.Record) -> list[TxId]:
    """The transactions that a record mentions."""
    match record:
        case r.Update(writes) | r.History(writes):
            found = [w.tx for w in writes if w.tx]
            found += [key for w in writes if w.namespace == DECISIONS for key in w.keys]
            return found
        case r.Prepare() | r.Outcome():
            return [record.tx]
        case _:
            return []


def _record_places(record: r.Record) -> list[tuple[str, int]]:
    found = [(ns, p) for ns, p, _, _ in r.spans(record)]
    partition = getattr(record, "partition", None)
    if isinstance(partition, int):
        found.append((getattr(record, "namespace", ""), partition))
    return found


def _places(message: m.Message) -> list[tuple[str, int]]:
    match message:
        case m.Supply():
            found = [(w.namespace, w.partition) for w in message.transfers]
            found += [(w.namespace, w.partition) for w in message.writes]
            return found + [(row.namespace, row.partition) for row in message.rows]
        case m.Demand():
            return [("", p) for p in message.partitions]
        case m.PrepareParts():
            return [("", part.partition) for part in message.parts]
        case m.Finish() | m.Finished():
            return [("", p) for p in message.partitions]
        case m.AskTail() | m.Tail():
            return [("", copy.partition) for copy in message.copies]
        case _:
            partition = getattr(message, "partition", None)
            return [("", partition)] if isinstance(partition, int) else []
