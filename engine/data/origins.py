"""Where transactions come from, for whoever reads the log later: what a client calls itself and its transactions.

An id names a session, and a session one client; so a client is named once to each set of copies, beside the first record
of its session there, and again after each checkpoint, because the log before it may be trimmed. A label is said with it if
it is that of all its session, as of one that its client has for the label; else with its transaction. None of this is
folded into any state, and no rule depends on it.
"""

from __future__ import annotations

from engine.protocol.requests import CommitTx
from engine.turn.core import Core
from engine.turn.events import ClientSeen, SessionId
from rebalance.partition import LocalPartition
from wal.ids import SESSION_BYTES, NodeId, TxId
from wal.records import Origin

SAID_MAX = 1 << 16
"""So many sessions are remembered to have been named; beyond that all are named again."""


class Origins:
    """Who the clients of this node are, and where it has said so."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._clients: dict[SessionId, ClientSeen] = {}
        self._said: dict[tuple[bytes, tuple[tuple[NodeId, ...], tuple[NodeId, ...]]], str] = {}  # and as what

    def on_client_seen(self, event: ClientSeen) -> None:
        """A client connected, or went."""
        if event.address:
            self._clients[event.session] = event
        else:
            self._clients.pop(event.session, None)

    def client(self, session: SessionId) -> str:
        """What a client that is connected calls itself, or where it is; empty if it has gone."""
        client = self._clients.get(session)
        return client.name or client.address if client is not None else ""

    def begin_again(self) -> None:
        """A checkpoint is written: what was said before it may be trimmed."""
        self._said = {}

    def of(
        self, session: SessionId, tx: TxId, local: LocalPartition, label: str = "", *, labels_all: bool = False
    ) -> Origin | None:
        """What is to be logged beside the first record of a transaction in this partition; mostly nothing.

        A session that was named with one label keeps it: another one is of its transaction alone.
        """
        said = self._said.get((tx[:SESSION_BYTES], local.receivers))
        client = self._clients.get(session) if said is None else None
        if client is None and (not label or (labels_all and label == said)):
            return None
        return Origin(
            local.number,
            local.epoch,
            tx=tx,
            node=self._core.node,
            label=label,
            client=client.name if client is not None else "",
            address=client.address if client is not None else "",
            labels_all=labels_all and client is not None,
        )

    def of_commit(self, session: SessionId, request: CommitTx, local: LocalPartition) -> Origin | None:
        """The same, of a transaction that its client would commit."""
        return self.of(session, request.tx, local, request.label, labels_all=request.labels_all)

    def log(self, origin: Origin, local: LocalPartition) -> Origin:
        """It is said: log it here, to be shipped beside the record that it is about."""
        if origin.address:
            if len(self._said) >= SAID_MAX:
                self._said = {}
            self._said[origin.tx[:SESSION_BYTES], local.receivers] = origin.label if origin.labels_all else ""
        self._core.log_unapplied(origin)
        return origin
