"""What a program gives up on, by cancelling it, is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from engine.protocol.requests import CommitTx, Done
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, key
from tests.sim.transactions import SimTransaction


async def _within(seconds: float, doing: Coroutine[Any, Any, object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await doing


def _has_at_once(stage: Stage, *keys: bytes) -> None:
    """Nobody stands in the way of who writes them now."""
    tx = SimTransaction(stage.another(), timeout_ns=ANSWER_NS, lock_timeout_ms=100)
    stage.do(tx.put(NAMESPACE, dict.fromkeys(keys, b"theirs")), tx.client)
    stage.do(tx.commit(), tx.client)


def test_a_lock_that_is_waited_for_no_more_is_not_had_after_the_commit() -> None:
    with Stage(None) as stage:
        x, y = key(0), key(1)
        holder, tx = SimTransaction(stage.another(), timeout_ns=ANSWER_NS), stage.transaction()
        stage.do(holder.put(NAMESPACE, {x: b"1"}), holder.client)

        async def work() -> None:
            await _within(0.1, tx.get(NAMESPACE, [x]))
            await tx.put(NAMESPACE, {y: b"1"})
            await tx.commit()

        stage.do(work())
        stage.do(holder.rollback(), holder.client)
        _has_at_once(stage, x)
        stage.curtain()


def test_who_gives_up_a_commit_that_does_not_arrive_has_no_locks_any_more() -> None:
    with Stage(None) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        lost = Rule("the commit", lambda _src, _dst, said: isinstance(said, CommitTx), drop=True)
        stage.world.network.rules.append(lost)
        stage.do(_within(0.1, tx.commit()))
        stage.end(lost)
        _has_at_once(stage, x, y)
        stage.must(stage.get(x) == stage.get(y) == b"theirs", "nothing of it came")
        stage.curtain()


def test_who_gives_up_when_all_is_prepared_takes_it_back() -> None:
    """Its ranges are to be looked at, and it is not told that all have voted."""
    with Stage(None) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction()
        stage.do(tx.scan(NAMESPACE, b"a", b"z"))
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        to = stage.client.name
        untold = Rule("the votes", lambda _src, dst, said: dst == to and isinstance(said, Done), drop=True, left=1)
        stage.world.network.rules.append(untold)
        committing = stage.begin(_within(0.1, tx.commit()))
        stage.wait(50)
        node = stage["n1"].node
        assert node is not None
        stage.must(bool(node.participant.parts_in_doubt()), "it is prepared")
        stage.wait(100)
        stage.end(untold)
        stage.until(lambda: committing.done, "it is given up")
        _has_at_once(stage, x, y)
        stage.curtain()
