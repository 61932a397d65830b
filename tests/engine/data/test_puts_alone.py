"""A put of one key that nothing is in the way of is issued in a quick way: it must say and leave what any other does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.parts import Job, Part
from engine.node.node import Node
from engine.protocol.requests import CommitTx, Done, Lock, Put, Request, Unlock
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.events import Asked, Event, SessionId
from engine.turn.settings import Settings
from rebalance.partition import LocalPartition
from wal.ids import tx_of

SESSIONS = (b"ann-------", b"bob-------")
KEYS = (b"a", b"b", b"c")


class Story:
    """A node by itself. `general`: its puts are all issued as those of several keys are."""

    def __init__(self, *, general: bool) -> None:
        replica = Replica(LayeredStore(MemoryStore()))
        asked = Settings(cluster="test", partitions=2, backups=0, answers_kept=4)
        self.node = Node(asked, replica, node="n1", allocation="d1", address="n1:1", durable_lsn=0)
        self.turn([])
        assert self.node.formation.form(1, 0, "c1", ["n1"]) == ""
        self.turn([])
        self.alone = 0
        self._quick = self.node.writes._issue_alone
        self.node.writes._issue_alone = self._general if general else self._counted  # type: ignore[method-assign]

    def _counted(self, session: SessionId, request: Put, local: LocalPartition) -> None:
        self.alone += 1
        self._quick(session, request, local)

    def _general(self, session: SessionId, request: Put, local: LocalPartition) -> None:
        job = Job(session, request.id)
        self.node.writes._issue(local, job, request, request.keys, request.values, locked=False)

    def turn(self, events: Sequence[Event]) -> list[object]:
        """What one turn owes, and what it leaves."""
        node = self.node
        effects = node.turn(node.core.now + 1, events)
        core = node.core
        rows = [core.replica.store.scan(("acc", number), b"", 100) for number in range(2)]
        counters = [(name, str(state.counter), state.digest) for name, state in core.replica.fragments.items()]
        answers = [state.results.items() for state in core.replica.partitions.values()]
        held = [key for key in KEYS if core.topology is not None and node.locks.is_pending(("acc", key))]
        return [effects.log, effects.send, effects.reply, rows, counters, answers, held, list(node.writes.under_way)]


def _put(session: int, number: int, keys: Sequence[bytes], value: bytes | None, ttl_ms: int) -> Request:
    values = [value for _ in keys]
    tx = tx_of(SESSIONS[session], number)
    return Put(7, tx, "acc", list(keys), values, acked=0, ttl_ms=ttl_ms if value is not None else 0)


def _commit(session: int, number: int, key: bytes) -> Request:
    tx = tx_of(SESSIONS[session], number)
    return CommitTx(10, tx, tx, optimistic=True, writes=[("acc", [key], [b"t"])], locks=[], reads=[])


ids = {"session": st.integers(0, 1), "number": st.integers(1, 6)}
puts = st.builds(
    _put,
    **ids,
    keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True),
    value=st.sampled_from([b"v", b"w", None]),
    ttl_ms=st.sampled_from([0, 0, 0, 1]),
)
locks = st.builds(
    lambda session, number, key: Lock(8, tx_of(SESSIONS[session], number), "acc", [key], 1_000),
    **ids,
    key=st.sampled_from(KEYS),
)
unlocks = st.builds(lambda session, number: Unlock(9, tx_of(SESSIONS[session], number)), **ids)
commits = st.builds(_commit, **ids, key=st.sampled_from(KEYS))


@settings(max_examples=200, deadline=None)
@given(turns=st.lists(st.lists(puts | puts | puts | locks | unlocks | commits, max_size=5), max_size=6))
def test_the_quick_way_says_and_leaves_what_the_general_one_does(turns: list[list[Request]]) -> None:
    quick, general = Story(general=False), Story(general=True)
    for requests in turns:
        events = [Asked(1, request) for request in requests]
        assert quick.turn(events) == general.turn(events)


def test_a_put_of_one_key_is_alone_unless_its_key_is_held_or_it_expires() -> None:
    story = Story(general=False)
    story.turn([Asked(1, _put(0, 1, [b"a"], b"v", 0))])
    assert story.alone == 1
    story.turn([Asked(1, Lock(8, tx_of(SESSIONS[1], 1), "acc", [b"a"], 1_000))])
    story.turn([Asked(1, _put(0, 2, [b"b"], b"v", 0)), Asked(1, _put(0, 3, [b"a"], b"v", 0))])
    assert story.alone == 2, "the one that waits for the lock is not"
    story.turn([Asked(1, _put(0, 4, [b"b"], b"v", 500)), Asked(1, _put(0, 5, [b"a", b"b"], b"v", 0))])
    assert story.alone == 2


@pytest.mark.parametrize("again", [1, 2])
def test_who_asks_again_while_it_is_under_way_is_answered_with_the_first(again: int) -> None:
    story = Story(general=False)
    put = Asked(1, _put(0, 1, [b"a"], b"v", 0))
    told = story.turn([put] * (again + 1))[2]
    assert told == [(1, Done(7, True, None, story.node.core.version_number))] * (again + 1)
    assert not any(isinstance(part, Part) for part in story.node.writes.under_way.values())
