"""What a node says of its locks and transactions, and whom it gives up; told with one node that is its own cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.node.inquiry import PIECE
from engine.node.node import Node
from engine.protocol.requests import Admin, CommitTx, Failed, Lock, Reply, Report, Request, Values
from engine.turn.effects import Effects
from engine.turn.events import Asked, ClientSeen
from rebalance.ports import WORK_MAX
from tests.engine.transactions.test_participant import lone_node
from wal.ids import partition_of, tx_of

ANN, BOB, EVE = (tx_of(b"a session.", number) for number in (1, 2, 3))


def _until_still(node: Node, events: list[Asked | ClientSeen]) -> list[Effects]:
    effects = [node.turn(node.core.now + 1, list(events))]
    while node.core.to_self or node.core.resumed or node.untaken:
        effects.append(node.turn(node.core.now + 1, []))
    return effects


def ask(node: Node, request: Request, session: int = 1) -> list[Reply]:
    """What a client is told."""
    return [reply for one in _until_still(node, [Asked(session, request)]) for _, reply in one.reply]


def _ask(node: Node, command: str, **arguments: list[str]) -> dict[str, Any]:
    effects = _until_still(node, [Asked(1, Admin(9, command, arguments))])
    ((_, reply),) = [reply for one in effects for reply in one.reply]
    assert isinstance(reply, Report), reply
    answer = msgspec.json.decode(reply.body)
    assert isinstance(answer, dict)
    return answer


def _lock(node: Node, session: int, owner: bytes, *keys: bytes, label: str = "", shared: bool = False) -> list[object]:
    request = Lock(7, owner, "acc", list(keys), 5_000, label=label, shared=shared)
    return [reply for one in _until_still(node, [Asked(session, request)]) for _, reply in one.reply]


def _all_pages(node: Node, command: str) -> list[dict[str, Any]]:
    pages = [_ask(node, command)]
    while pages[-1]["next"] is not None:
        pages.append(_ask(node, command, after=pages[-1]["next"]))
    return pages


def test_who_holds_and_who_waits_is_told_with_label_client_age_and_mode() -> None:
    node = lone_node()
    node.turn(node.core.now + 1, [ClientSeen(3, "web-3", "10.0.0.3:5"), ClientSeen(4, "", "10.0.0.4:6")])
    _lock(node, 3, ANN, b"a", label="salary", shared=True)
    node.turn(node.core.now + 2_000_000_000, [])
    _lock(node, 4, BOB, b"a", label="bonus")
    node.turn(node.core.now + 1_000_000_000, [])
    told = _ask(node, "locks")
    (held,), (wait,) = told["locks"], told["waits"]
    assert (held["key"], held["mode"], held["voted"]) == (b"a".hex(), "read", False)
    assert (held["tx"], held["label"], held["client"], held["age_ms"]) == (ANN.hex(), "salary", "web-3", 3_000)
    assert (wait["tx"], wait["label"], wait["client"], wait["age_ms"]) == (BOB.hex(), "bonus", "10.0.0.4:6", 1_000)
    assert (wait["for"], wait["mode"], wait["key"], told["waiting"]) == (ANN.hex(), "write", b"a".hex(), 1)
    rows = {page["kind"]: page["rows"] for page in _all_pages(node, "transactions")}
    assert [(row["tx"], row["keys"], row["partitions"]) for row in rows["holds"]] == [(ANN.hex(), 1, 1)]
    assert [row["tx"] for row in rows["waits"]] == [BOB.hex()]
    assert rows["prepared"] == rows["coordinated"] == []


def test_many_locks_are_told_in_pages_and_no_turn_is_long() -> None:
    node = lone_node()
    keys = [b"k%05d" % number for number in range(10_000)]
    for at in range(0, len(keys), 1_000):
        _lock(node, 3, ANN, *keys[at : at + 1_000])
    assert len(node.locks) == len(keys)
    seen: dict[str, None] = {}
    after: list[str] | None = ["0", "0"]
    pages = 0
    while after is not None:
        pages += 1
        effects = _until_still(node, [Asked(1, Admin(9, "locks", {"after": after}))])
        assert node.core.work <= WORK_MAX + PIECE
        (reply,) = [reply for one in effects for _, reply in one.reply]
        assert isinstance(reply, Report)
        told = msgspec.json.decode(reply.body)
        assert len(told["locks"]) <= 1_000
        seen |= dict.fromkeys(row["key"] for row in told["locks"])
        after = told["next"]
    assert (len(seen), pages <= 12) == (len(keys), True)
    one = _ask(node, "transactions")
    assert [(row["keys"], row["partitions"]) for row in one["rows"]] == [(len(keys), 2)]


def test_locks_of_one_transaction_are_told_alone() -> None:
    node = lone_node()
    _lock(node, 3, ANN, b"a", b"b")
    _lock(node, 4, BOB, b"c")
    _lock(node, 5, EVE, b"c")
    told = _ask(node, "locks", tx=[BOB.hex()])
    assert [row["key"] for row in told["locks"]] == [b"c".hex()]
    assert [(row["tx"], row["for"]) for row in told["waits"]] == [(EVE.hex(), BOB.hex())]
    assert _ask(node, "locks", tx=[ANN.hex()])["waits"] == []


def test_one_that_is_given_up_loses_its_locks_and_its_place_in_line() -> None:
    node = lone_node()
    _lock(node, 3, ANN, b"a")
    assert _lock(node, 4, BOB, b"a") == []
    looked = _ask(node, "give-up", tx=[BOB.hex()])
    assert (looked["known"], looked["waits"], looked["given_up"], len(node.locks)) == (True, True, False, 1)
    effects = _until_still(node, [Asked(1, Admin(9, "give-up", {"tx": [ANN.hex()], "yes": []}))])
    replies = [reply for one in effects for _, reply in one.reply]
    assert any(isinstance(reply, Values) for reply in replies), "who waited for it has the key"
    assert node.locks.owned(("acc", b"a")) == BOB
    effects = _until_still(node, [Asked(3, CommitTx(8, ANN, ANN, False, [("acc", [b"a"], [b"v"])], [], []))])
    (refused,) = [reply for one in effects for _, reply in one.reply]
    assert isinstance(refused, Failed)
    assert (refused.code, "the lock on acc:b'a' was lost" in refused.message) == ("Conflict", True)


def test_one_that_waits_and_is_given_up_is_told_so() -> None:
    node = lone_node()
    _lock(node, 3, ANN, b"a")
    _lock(node, 4, BOB, b"a")
    effects = _until_still(node, [Asked(1, Admin(9, "give-up", {"tx": [BOB.hex()], "yes": []}))])
    refused = [reply for one in effects for _, reply in one.reply if isinstance(reply, Failed)]
    assert [("the transaction was given up" in r.message, r.retryable) for r in refused] == [(True, True)]
    assert _ask(node, "locks")["waits"] == []


def test_one_that_voted_is_never_given_up_under_any_of_its_names() -> None:
    node = lone_node()
    keys = [b"a", b"b"]
    assert sorted(partition_of(key, 2) for key in keys) == [0, 1]
    _lock(node, 3, ANN, *keys)
    _until_still(node, [Asked(3, CommitTx(8, EVE, ANN, False, [("acc", keys, [b"v", b"v"])], [], [], prepare_only=True))])
    for name in (ANN, EVE):
        told = _ask(node, "give-up", tx=[name.hex()], yes=[])
        assert (told["tx"], told["voted"], told["given_up"], told["phase"]) == (ANN.hex(), 2, False, "prepared")
    assert len(node.locks) == 2
    assert [row["voted"] for row in _ask(node, "locks")["locks"]] == [True, True]
    rows = {page["kind"]: page["rows"] for page in _all_pages(node, "transactions")}
    decision = partition_of(keys[0], 2)
    assert [(r["tx"], r["id"], r["decision"], r["held"]) for r in rows["prepared"]] == [
        (ANN.hex(), EVE.hex(), decision, True)
    ] * 2
    assert [(r["tx"], r["phase"], r["participants"], r["named"]) for r in rows["coordinated"]] == [
        (ANN.hex(), "prepared", 2, [0, 1])
    ]


def test_the_age_of_one_in_doubt_is_not_forgotten_when_its_outcome_is_asked_for() -> None:
    node = lone_node()
    _until_still(
        node, [Asked(3, CommitTx(8, EVE, EVE, True, [("acc", [b"a", b"b"], [b"v", b"v"])], [], [], prepare_only=True))]
    )
    for _ in range(5):
        node.turn(node.core.now + node.core.settings.in_doubt_ms * 1_000_000, [])
    prepared = _ask(node, "transactions", after=["2", "0"])["rows"]
    assert [row["age_ms"] for row in prepared] == [5 * node.core.settings.in_doubt_ms] * len(prepared)
    assert prepared


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("give-up", {}, "'' is no id of a transaction: expected 32 hexadecimal digits"),
        ("give-up", {"tx": ["AB" * 16]}, "is no id of a transaction"),
        ("give-up", {"tx": [ANN.hex(), BOB.hex()]}, "is no id of a transaction"),
        ("locks", {"tx": ["x" * 32]}, "is no id of a transaction"),
        ("locks", {"after": ["0"]}, "expected the `next` of an answer"),
        ("transactions", {"after": ["0", "-1"]}, "expected the `next` of an answer"),
        ("transactions", {"after": ["0", "1" * 30]}, "expected the `next` of an answer"),
    ],
)
def test_what_cannot_be_meant_is_refused(command: str, arguments: dict[str, list[str]], says: str) -> None:
    effects = _until_still(lone_node(), [Asked(1, Admin(9, command, arguments))])
    (refused,) = [reply for one in effects for _, reply in one.reply]
    assert isinstance(refused, Failed)
    assert (refused.code, says in refused.message) == ("UsageError", True), refused.message


def test_what_nobody_knows_and_what_is_far_beyond_the_end_is_nothing() -> None:
    node = lone_node()
    assert _ask(node, "give-up", tx=[ANN.hex()], yes=[])["known"] is False
    for command in ("locks", "transactions"):
        assert _ask(node, command, after=["999999", "7"])["next"] is None
