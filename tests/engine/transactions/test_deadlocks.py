"""A circle is found if there is one; and over the whole engine one of two transactions that cross gives way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine.cluster.detector import Detector
from engine.data.holdings import Who
from engine.data.locks import LockTable
from engine.transactions.deadlocks import IN_VAIN_MAX, LEFT_MAX, WAITS_MAX, Deadlocks, circles_in, youngest
from wal.ids import NO_VERSION

TX = st.integers(0, 9).map(lambda number: number.to_bytes(16, "big"))


@given(st.dictionaries(TX, st.lists(TX, max_size=4)))
def test_circles_are_found_until_there_is_none(blockers: dict[bytes, list[bytes]]) -> None:
    graph: networkx.DiGraph[bytes] = networkx.DiGraph(
        [(waiter, holder) for waiter, holders in blockers.items() for holder in holders]
    )
    for found in circles_in(blockers, {}):
        assert not networkx.is_directed_acyclic_graph(graph)
        assert len(dict.fromkeys(found)) == len(found)
        following = [*found[1:], found[0]]
        assert all(graph.has_edge(waiter, holder) for waiter, holder in zip(found, following, strict=True))
        graph.remove_edges_from(list(graph.out_edges(found[0])))
    assert networkx.is_directed_acyclic_graph(graph)


def test_a_long_line_is_no_circle() -> None:
    line = [number.to_bytes(16, "big") for number in range(20_000)]
    blockers = {one: [following] for one, following in pairwise(line)}
    assert list(circles_in(blockers, {})) == []
    blockers[line[-1]] = [line[0]]
    (found,) = circles_in(blockers, {})
    assert found[0] == line[-1]
    assert sorted(found) == line


def test_the_youngest_that_holds_something_gives_way() -> None:
    old, young, other, waiting = (number.to_bytes(16, "big") for number in (9, 3, 5, 8))
    ages = {old: 900, young: 20, other: 30, waiting: -1}
    assert youngest([old, young, other], ages) == young
    assert youngest([other, young, old], ages) == young
    assert youngest([old, waiting], ages) == old, "who holds nothing would only make room in the line"
    assert youngest([waiting, young], {}) == waiting, "where nothing is known, the greatest id"


class Crowd:
    """Hundreds who read one key wait to write another, which hundreds read, and so on: more ways than can be followed."""

    def __init__(self) -> None:
        self.resumed: list[Callable[[], None]] = []
        core: Any = SimpleNamespace(now=1, work=0, resume=self.resumed.append, fence=NO_VERSION, node="n1", serving=True)
        self.core, self.locks = core, LockTable(lambda _, __: 0)
        self.rule = Deadlocks(core, Detector(core), self.locks)
        for layer in range(4):
            for number in range(WAITS_MAX):
                self.wait(layer, number, layer, shared=True)

    def wait(self, layer: int, number: int, key: int, *, shared: bool, told: Callable[..., None] = lambda *_: None) -> None:
        """Somebody has a key, or waits for it; `told` if it gives way."""
        owner, who = bytes([layer]) * 8 + number.to_bytes(8, "big"), Who("", 1)
        self.locks.wait_all(owner, [("n", bytes([key]))], 1 << 60, lambda: None, told, shared=shared, who=who)

    def gather(self) -> None:
        """They begin to wait."""
        for layer in range(3):
            for number in range(WAITS_MAX):
                self.wait(layer, number, layer + 1, shared=False)

    def look(self) -> int:
        """Turns until nobody is looked at any more."""
        turns, asked = 0, -1
        while asked < len(self.resumed):
            asked, self.core.work = len(self.resumed), 0
            self.rule.flush()
            turns += 1
            assert self.core.work <= WAITS_MAX
        return turns


def test_who_waits_for_very_many_who_wait_for_very_many_is_not_followed_for_ever() -> None:
    """Each turn asked for another one, at once."""
    crowd = Crowd()
    crowd.gather()
    turns = crowd.look()
    assert turns == IN_VAIN_MAX + 1, "that in which they begin to wait, too"


def test_two_who_wait_for_each_other_are_found_beside_one_who_waits_for_very_many() -> None:
    """Also where very many were looked at in vain before."""
    crowd, gave_way = Crowd(), list[object]()
    crowd.gather()
    crowd.look()
    for number in (1, 2):
        crowd.wait(9, number, 10 + number, shared=False)
    for number in (1, 2):
        crowd.wait(9, number, 13 - number, shared=False, told=lambda *said: gave_way.append(said))
    crowd.wait(8, 0, 1, shared=False)
    crowd.look()
    assert len(gave_way) == 1


def test_who_is_left_over_does_not_pile_up_while_more_and_more_begin_to_wait() -> None:
    crowd = Crowd()
    crowd.gather()
    for number in range(2 * IN_VAIN_MAX):
        crowd.wait(8, number, 1, shared=False)
        crowd.core.work = 0
        crowd.rule.flush()
        assert crowd.rule.left_over <= LEFT_MAX


def test_of_two_transactions_that_cross_one_gives_way_and_is_run_again(tmp_path: Path) -> None:
    with engine.open(tmp_path / "data") as db:
        accounts = db.namespace("accounts", codec=int)
        accounts.put_many({"ann": 100, "bob": 100})
        both, refused, again = threading.Barrier(2), list[engine.Error](), list[list[str]]()

        def transfer(source: str, target: str) -> None:
            first = True

            def once(tx: engine.Transaction) -> None:
                nonlocal first
                inside = tx.namespace(accounts)
                left = inside.get_for_update(source, 0)
                if first:
                    first = False
                    both.wait(30)
                else:
                    held = tx._native._raw.holds
                    again.append([name for name in ("ann", "bob") if held("accounts", [name.encode()], shared=True)])
                try:
                    other = inside.get_for_update(target, 0)
                except engine.LockTimeout as error:
                    refused.append(error)
                    raise
                inside.put_many({source: left - 10, target: other + 10})

            db.run(once, lock_timeout=60, label=f"from {source}")

        threads = [threading.Thread(target=transfer, args=names) for names in (("ann", "bob"), ("bob", "ann"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [type(error) for error in refused] == [engine.Deadlock]
        assert isinstance(refused[0], engine.Deadlock)
        told = [(link.label, link.namespace, link.key, link.mode) for link in refused[0].ring]
        crossed = [("from ann", "accounts", b"bob", "exclusive"), ("from bob", "accounts", b"ann", "exclusive")]
        assert sorted(told) == crossed, "the ring is told as fields"
        assert len({link.transaction for link in refused[0].ring}) == 2
        assert len(again) == 1
        assert again == [["ann", "bob"]], "what it had wanted to write is locked first, in the order of keys"
        assert refused[0].retryable
        assert not refused[0].maybe_committed
        with pytest.raises(engine.LockTimeout, match="gave way in a deadlock") as caught:
            raise refused[0]
        for named in ("accounts:b'ann'", "accounts:b'bob'", "'from ann'", "'from bob'"):
            assert named in str(caught.value), f"the ring is named: {caught.value}"
        assert dict(accounts) == {"ann": 100, "bob": 100}
