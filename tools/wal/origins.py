"""Where transactions come from, as logs say it: each says it once, of a transaction or of all that a session asks.

A session's client and label are said to each set of copies, and by any of them; of the node that coordinates a transaction
the map tells: it is the primary of the partition that decides, in the epoch of the decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from tools.terminal import word
from wal import records as r
from wal.ids import SESSION_BYTES, NodeId, TxId

if TYPE_CHECKING:
    from rebalance.table import Topology

OR = " or "
"""Between the labels of a session that was given several: no client of ours does so, and nobody can tell whose is whose."""


class Origins:
    """What all logs that were read say of it."""

    def __init__(self) -> None:
        self._said: dict[bytes, r.Origin] = {}  # of a transaction, and of a session
        self._maps: dict[str, Topology] = {}

    def note(self, record: r.Origin) -> None:
        """A log says it."""
        tx, session = record.tx, record.tx[:SESSION_BYTES]
        if record.label and not record.labels_all:
            self._said[tx] = record
        if not (record.address or record.labels_all):
            return
        known = self._said.get(session)
        if known is not None and known.labels_all:
            labels = dict.fromkeys([*known.label.split(OR), *([record.label] if record.labels_all else [])])
            record = structs.replace(record, label=OR.join(labels), labels_all=True)
        self._said[session] = record

    def note_map(self, topology: Topology | None) -> None:
        """A committed map: an epoch has one primary, in every map that has it."""
        if topology is not None:
            self._maps[str(topology.version)] = topology

    def of(self, tx: TxId, partition: int, epoch: int) -> r.Origin | None:
        """All that is known of a transaction that was decided there in that epoch (0: nobody knows when)."""
        own, session = self._said.get(tx), self._said.get(tx[:SESSION_BYTES])
        if own is not None and (own.address or session is None):
            return own
        if session is None or (own is None and session.tx == tx):
            return session
        label = own.label if own is not None else session.label if session.labels_all else ""
        if own is not None:
            by = own.node
        elif (partition, epoch) == (session.partition, session.epoch):
            by = session.node
        else:
            by = self._primary(partition, epoch)
        return r.Origin(partition, epoch, tx, by, label=label, client=session.client, address=session.address)

    def _primary(self, partition: int, epoch: int) -> NodeId:
        for topology in self._maps.values():
            if epoch and partition < len(topology.placements):
                placement = topology.placements[partition]
                if placement.epoch == epoch and placement.primary is not None:
                    return placement.primary
        return ""


def without_place(text: str) -> str:
    """An id as an application has it, `<id>@<partition>`, says which partition decides: logs know that.

    >>> without_place("6b076b9fd9bc0d564553000000000001@7")
    '6b076b9fd9bc0d564553000000000001'
    """
    name, _, place = text.partition("@")
    return name if place.isdecimal() else text


def origin_text(origin: r.Origin) -> str:
    """Where a transaction comes from: what is known of it."""
    named = {"by": origin.node, "label": origin.label, "client": origin.client, "address": origin.address}
    return " ".join(f"{name}={word(said.encode())}" for name, said in named.items() if said)
