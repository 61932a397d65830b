"""Each of the six modes, in each of its phases, while the primary of a key moves, dies, or is stopped and comes back.

Several add one to two counters that lie in two partitions, some of them in the other order, and one does not wait for
locks. Whoever was told that it is committed has added one, once, and to both; who read both of them found them alike, in
each mode that promises it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.aio import Transaction
from tests.sim.moving import MODES, MOVES, Doing, Gate, Moving, TheMode, cases
from tests.sim.planted.stage import NAMESPACE, Stage, key

MOVED, STAYS = key(1), key(0)


def _adding(moving: Moving, keys: list[bytes], *, nowait: bool = False) -> Doing:
    """Add one to each of some counters."""
    locks = moving.mode[1] == "READ_COMMITTED" or (nowait and not moving.optimistic)

    async def add(tx: Transaction, gate: Gate) -> None:
        counters = tx.namespace(NAMESPACE)
        found: list[int] = []
        for each in keys:
            read = counters.get_for_update if locks else counters.get
            found.append(int(await read(each, b"", nowait=nowait and not moving.optimistic)))
            if len(found) == 1:
                await gate.at("half")  # whoever goes the other way has the other one, and they wait for each other
        if moving.optimistic and moving.mode[1] != "READ_COMMITTED":
            moving.stage.must(found[0] == found[1], f"it has read one state, and not {found}")
        await gate.at("read")
        for each, value in zip(keys, found, strict=True):
            await counters.put(each, str(value + 1).encode())
        await gate.at("written")

    return add


@pytest.mark.parametrize(("mode", "phase", "moves"), cases(MODES))
def test_what_is_acknowledged_is_done_once_whoever_leads(
    mode: TheMode, phase: str, moves: Callable[[Moving], None]
) -> None:
    first = [MOVED, STAYS] if MOVES.index(moves) % 2 else [STAYS, MOVED]  # decided where it moves, or elsewhere
    with Stage(None) as stage:
        for each in first:
            stage.put(each, b"0")
        moving = Moving(stage, mode, phase)
        rivals = [stage.another() for _ in range(3)]
        moving.begin(_adding(moving, first))
        moving.begin(_adding(moving, first[::-1]), rivals[0])
        moving.begin(_adding(moving, first), rivals[1])
        moving.begin(_adding(moving, first, nowait=True), rivals[2])
        moves(moving)
        moving.begin(_adding(moving, first), rivals[2])
        done = len(moving.end())
        found = [int(stage.get(each, stage.another()) or b"") for each in first]
        stage.must(found[0] == found[1], f"both or none were added to: {found}")
        stage.must(done <= found[0] <= done + moving.unknown, f"{done} were acknowledged, and {found} are there")
        stage.curtain()
