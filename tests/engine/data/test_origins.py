"""What a node says of where transactions come from: once to each set of copies, and again after a checkpoint."""

from __future__ import annotations

from engine.data.origins import Origins
from engine.node.node import Node
from engine.turn.events import ClientSeen
from tests.engine.transactions.test_participant import lone_node
from wal.ids import TxId, tx_of
from wal.records import Origin

TILL = b"till's one"


def _origins() -> tuple[Node, Origins]:
    node = lone_node()
    origins = Origins(node.core)
    origins.on_client_seen(ClientSeen(3, "till", "10.0.0.3:5"))
    return node, origins


def _say(node: Node, origins: Origins, tx: TxId, label: str = "", *, labels_all: bool = False) -> Origin | None:
    """What is logged beside the first record of a transaction in partition 0."""
    local = node.core.local[0]
    origin = origins.of(3, tx, local, label, labels_all=labels_all)
    return origins.log(origin, local) if origin is not None else None


def test_what_all_of_a_session_is_called_is_said_once() -> None:
    node, origins = _origins()
    said = _say(node, origins, tx_of(TILL, 1), "pay", labels_all=True)
    assert said is not None
    assert (said.label, said.labels_all, said.client, said.address) == ("pay", True, "till", "10.0.0.3:5")
    assert [_say(node, origins, tx_of(TILL, at), "pay", labels_all=True) for at in range(2, 9)] == [None] * 7


def test_after_a_checkpoint_it_is_said_again_because_the_log_before_it_may_go() -> None:
    node, origins = _origins()
    said = _say(node, origins, tx_of(TILL, 1), "pay", labels_all=True)
    origins.begin_again()
    again = _say(node, origins, tx_of(TILL, 2), "pay", labels_all=True)
    assert said is not None
    assert again is not None
    assert (again.label, again.labels_all, again.client) == (said.label, True, "till")


def test_a_session_that_was_named_without_a_label_or_with_another_says_the_label_with_its_transaction() -> None:
    """No client of ours asks so."""
    node, origins = _origins()
    _say(node, origins, tx_of(TILL, 1))
    for label in ("pay", "pay", "refund"):
        said = _say(node, origins, tx_of(TILL, 2), label, labels_all=True)
        assert said is not None
        assert (said.label, said.labels_all, said.address) == (label, False, "")
    other = b"another of"
    _say(node, origins, tx_of(other, 1), "pay", labels_all=True)
    said = _say(node, origins, tx_of(other, 2), "refund", labels_all=True)
    assert said is not None
    assert (said.label, said.labels_all) == ("refund", False)


def test_of_a_client_that_has_gone_the_label_is_said_each_time() -> None:
    node, origins = _origins()
    origins.on_client_seen(ClientSeen(3))
    for at in (1, 2):
        said = _say(node, origins, tx_of(TILL, at), "pay", labels_all=True)
        assert said is not None
        assert (said.label, said.labels_all, said.client) == ("pay", False, "")
