"""A client says that it lives as often as the nodes' own settings ask for, whatever these are."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

from engine import errors
from engine.client.timing import Renewals
from engine.protocol.requests import KeepSessions
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, key
from tests.sim.transactions import SimTransaction
from tests.sim.world import SECOND


@pytest.mark.parametrize("lease_ms", [100, 1_000, 10_000])
def test_the_locks_of_who_lives_are_kept_whatever_their_lease(lease_ms: int) -> None:
    with Stage(None, settings=msgspec.structs.replace(SETTINGS, lock_lease_ms=lease_ms)) as stage:
        x, y = key(0), key(1)
        tx = stage.transaction()

        async def work() -> None:
            await tx.get(NAMESPACE, [x])
            await asyncio.sleep(5.0)
            await tx.put(NAMESPACE, {x: b"mine", y: b"mine"})
            await tx.commit()

        working = stage.begin(work())
        stage.world.run_for(SECOND)
        rival = SimTransaction(stage.another(), timeout_ns=ANSWER_NS, lock_timeout_ms=3_000)
        waiting = stage.begin(rival.put(NAMESPACE, {x: b"theirs"}), rival.client)
        stage.world.run_while(lambda: not (working.done and waiting.done), at_most=ANSWER_NS)
        stage.must(
            isinstance(waiting.failure, errors.LockTimeout),
            f"the key is locked for as long as its owner lives, and its rival was told {waiting.failure!r}",
        )
        stage.must(working.failure is None, f"what it had locked it has when it commits, and not {working.failure!r}")
        stage.must(stage.get(x) == stage.get(y) == b"mine", "it is there")
        stage.curtain()


def test_who_is_idle_says_that_it_lives_well_within_the_time_for_which_answers_are_kept() -> None:
    with Stage(None, settings=msgspec.structs.replace(SETTINGS, result_retention_ms=1_000)) as stage:
        said: list[int] = []

        def at_once(_src: str, dst: str, message: object) -> bool:
            if dst == "n1" and isinstance(message, KeepSessions):
                said.append(stage.world.now)
            return False

        stage.put(key(0), b"1")
        stage.world.network.rules.append(Rule("who lives", at_once, drop=True))
        stage.world.run_for(10 * SECOND)
        longest = max(later - earlier for earlier, later in pairwise(said))
        stage.must(len(said) > 20, f"it says so again and again, and not {len(said)} times")
        stage.must(longest < SECOND // 2, f"it is not silent for {longest / SECOND} s")
        stage.curtain()


def test_of_what_nodes_say_the_least_counts_and_only_as_long_as_it_is_said() -> None:
    renewals = Renewals()
    assert (renewals.of_locks, renewals.of_sessions) == (2.0, 60.0)
    renewals.hear("n1:1", 10_000, 600_000)
    assert (renewals.of_locks, renewals.of_sessions) == (2.0, 60.0)
    renewals.hear("n2:1", 1_000, 20_000)
    assert (renewals.of_locks, renewals.of_sessions) == (0.2, 2.0)
    renewals.hear("n2:1", 5_000, 700_000)
    assert (renewals.of_locks, renewals.of_sessions) == (1.0, 60.0)
    renewals.hear("n2:1", 0, 0)  # an older node says nothing
    assert (renewals.of_locks, renewals.of_sessions) == (2.0, 60.0)
    renewals.hear("n2:1", 1, -5)  # and what means nothing makes nobody ask without end
    assert (renewals.of_locks, renewals.of_sessions) == (0.02, 60.0)
