"""A count beside a transaction in doubt, told with one node that is its own cluster."""

from __future__ import annotations

from engine.data.counting import Counting, GoOn
from engine.protocol.requests import CommitTx, Done, Put, Rows, Scan, Unlock
from engine.state.store import Page
from rebalance.ports import WORK_MAX
from tests.engine.node.test_inquiry import ask
from tests.engine.transactions.test_participant import lone_node
from wal.ids import Fragment, tx_of

MANY = 2 * WORK_MAX


def test_a_count_of_many_turns_waits_for_who_was_in_doubt_in_its_first_one() -> None:
    node = lone_node()
    topology = node.core.topology
    assert topology is not None
    of: dict[int, list[bytes]] = {0: [], 1: []}
    for at in range(3 * MANY):
        of[topology.place("acc", key := b"%d" % at)].append(key)
    values = list[bytes | None]([b"v"] * MANY)
    for number, first in enumerate(range(0, MANY, 10_000), 1):
        some = of[1][first : min(first + 10_000, MANY)]
        (put,) = ask(node, Put(number, tx_of(b"another s.", number), "acc", some, values[: len(some)]))
        assert isinstance(put, Done)
    doubt = tx_of(b"a session.", 1)
    assert ask(node, CommitTx(1, doubt, doubt, True, [("acc", of[0][:1], [b"v"])], [], [], prepare_only=True)) == [Done(1)]
    assert ask(node, Scan(2, "acc", [0, 1], b"", None, 1, count=True)) == [], "it waits for the outcome"
    told = ask(node, Unlock(3, doubt))
    (rows,) = [reply for reply in told if isinstance(reply, Rows)]
    assert rows.count == MANY


def test_a_count_of_many_partitions_is_as_much_work_as_rows_are() -> None:
    """A store on disk is asked for each of them; who is in doubt is looked at, too."""
    request = Scan(1, "acc", list(range(1_000)), b"", None, 1, count=True)

    def page(*_: object, **__: object) -> Page:
        raise AssertionError("nothing is walked")

    asked: list[int] = []

    def begin(name: Fragment) -> tuple[GoOn, int]:
        asked.append(name[1])
        return lambda _: (1, 0), 0

    counting = Counting(request, begin, page)
    turns = 0
    while not counting.done:
        before = len(asked)
        assert counting.go_on(100, lambda *_: False) == 100
        assert len(asked) == before + 100
        turns += 1
    assert (turns, counting.reply().count) == (10, 1_000)
    waits = Counting(request, begin, page)
    assert waits.go_on(100, lambda *_: True) == 100, "who is in doubt is looked at, too"
    assert not waits.waits
