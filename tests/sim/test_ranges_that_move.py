"""What transactions scan, claim, see expire and lose to an operator, while the primary of some of it moves or dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.aio import Transaction
from engine.client.calls import PutCall
from engine.client.namespaces import AskNodes
from rebalance.namespaces import Stands
from tests.sim.moving import MODES, Doing, Gate, Moving, TheMode, cases
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, key

WHOLE = [mode for mode in MODES if mode[1] == "SERIALIZABLE"]
LOCKING = [mode for mode in MODES if mode[0] == "PESSIMISTIC"]
STEADY = [mode for mode in MODES if mode[1] != "READ_COMMITTED"]
TTL_MS = 1_000
ROWS = 12


@pytest.mark.parametrize(("mode", "phase", "moves"), cases(WHOLE))
@pytest.mark.parametrize("number", [0, 1])
def test_a_room_is_booked_once_whoever_leads(
    mode: TheMode, phase: str, moves: Callable[[Moving], None], number: int
) -> None:
    with Stage(None) as stage:
        moving = Moving(stage, mode, phase)

        def booking(mine: bytes) -> Doing:
            async def book(tx: Transaction, gate: Gate) -> bool:
                rooms = tx.namespace(NAMESPACE)
                free = not [row async for row in rooms.scan()]
                await gate.at("read")
                if free:
                    await rooms.put(mine, b"mine")
                await gate.at("written")
                return free

            return book

        moving.begin(booking(key(number)))
        moving.begin(booking(key(1 - number)), stage.another())
        moving.begin(booking(key(1, 1)), stage.another())
        moves(moving)
        moving.begin(booking(key(2)), stage.another())
        done = sum(bool(task.result) for task in moving.end())
        rows = [each for each in (key(0), key(1), key(1, 1), key(2)) if stage.get(each, stage.another())]
        stage.must(len(rows) == 1, f"one of them has it: {rows}")
        stage.must(done <= 1 <= done + moving.unknown, f"{done} were told that they have it")
        stage.curtain()


@pytest.mark.parametrize(("mode", "phase", "moves"), cases(STEADY))
def test_a_sum_is_of_one_state_whoever_leads(mode: TheMode, phase: str, moves: Callable[[Moving], None]) -> None:
    with Stage(None) as stage:
        accounts = [key(number % 4, number // 4) for number in range(ROWS)]
        for each in accounts:
            stage.put(each, b"10")
        moving = Moving(stage, mode, phase)

        async def summing(tx: Transaction, gate: Gate) -> int:
            rows = tx.namespace(NAMESPACE)
            half = [int(value) async for _, value in rows.scan(limit=ROWS // 2)]
            await gate.at("half")
            whole = [int(value) async for _, value in rows.scan()]
            await gate.at("read")
            return sum(whole) if whole[: len(half)] == half else 0

        def paying(one: bytes, other: bytes) -> Doing:
            async def pay(tx: Transaction, gate: Gate) -> None:
                rows = tx.namespace(NAMESPACE)
                for each, more in ((one, -1), (other, 1)):
                    value = int(await rows.get_for_update(each, b""))
                    await rows.put(each, str(value + more).encode())

            return pay

        summed = [moving.begin(summing)]
        moving.begin(paying(accounts[0], accounts[1]), stage.another())
        summed.append(moving.begin(summing, stage.another()))
        moving.begin(paying(accounts[5], accounts[2]), stage.another())
        moves(moving)
        moving.begin(paying(accounts[1], accounts[3]), stage.another())
        summed.append(moving.begin(summing, stage.another()))
        moving.end()
        totals = [task.result for task in summed if task.failure is None]
        stage.must(totals == [10 * ROWS] * len(totals), f"each has seen one state: {totals}")
        found = [int(stage.get(each, stage.another()) or b"0") for each in accounts]
        stage.must(sum(found) == 10 * ROWS, f"nothing comes or goes: {found}")
        stage.curtain()


@pytest.mark.parametrize(("mode", "phase", "moves"), cases(LOCKING))
def test_a_job_is_done_once_whoever_leads(mode: TheMode, phase: str, moves: Callable[[Moving], None]) -> None:
    with Stage(None) as stage:
        jobs = [key(number % 2, number // 2) for number in range(6)]
        for each in jobs:
            stage.put(each, b"to do")
        moving = Moving(stage, mode, phase)

        async def work(tx: Transaction, gate: Gate) -> list[bytes]:
            queue, book = tx.namespace(NAMESPACE), tx.namespace("done")
            claimed = [row async for row, _ in queue.scan(limit=2, skip_locked=True)]
            await gate.at("read")
            for job in claimed:
                await gate.at("half")
                await book.put(job, (await book.get_for_update(job, b"")) + b"x")
                await queue.delete(job)
            await gate.at("written")
            return claimed

        moving.begin(work)
        others = [stage.another() for _ in range(2)]
        moving.begin(work, others[0])
        moves(moving)
        moving.begin(work, others[1])
        moving.end()
        for _ in range(3):
            stage.do(others[0].database.run(lambda tx: work(tx, Gate(others[0], ""))), others[0])
        results: list[Any] = [task.result for task in moving.tasks if task.failure is None]
        told = [job for result in results for job in result]
        stage.must(len(set(told)) == len(told), f"no job was done by two: {told}")
        done = _read_all(stage, "done")
        stage.must(done == dict.fromkeys(jobs, b"x"), f"each was done once: {done}")
        stage.curtain()


@pytest.mark.parametrize(("mode", "phase", "moves"), cases(MODES))
def test_what_expires_meanwhile_is_there_for_nobody_or_for_all(
    mode: TheMode, phase: str, moves: Callable[[Moving], None]
) -> None:
    """A key's time comes while it is read, and written by some."""
    with Stage(None) as stage:
        moving = Moving(stage, mode, phase)
        short = PutCall(stage.client.new_tx(), NAMESPACE, [key(1)], [b"s"], TTL_MS)
        stage.do(stage.client.call(short, timeout_ns=ANSWER_NS))

        def writing(mine: bytes) -> Doing:
            async def write(tx: Transaction, gate: Gate) -> None:
                rows = tx.namespace(NAMESPACE)
                held = await rows.get_for_update(key(1), b"")
                await gate.at("read")
                await rows.put(key(1), held + mine)
                await gate.at("half")
                await rows.put(key(0), mine)
                await gate.at("written")

            return write

        moving.begin(writing(b"1"))
        moving.begin(writing(b"2"), stage.another())
        stage.wait(TTL_MS)
        moves(moving)
        moving.begin(writing(b"3"), stage.another())
        done = [name for name, task in zip(b"123", moving.tasks, strict=True) if task in moving.end()]
        stage.wait(4 * TTL_MS)
        found = stage.get(key(1), stage.another()) or b""
        marks = sorted(found.removeprefix(b"s"))
        stage.must(set(done) <= set(marks) and len(marks) == len(set(marks)), f"{done} were told, and there is {found!r}")
        stage.must(len(marks) <= len(done) + moving.unknown, f"{done} were told, and there is {found!r}")
        stage.must(stage.get(key(0), stage.another()) == found[-1:], "the last one has written both")
        stage.curtain()


@pytest.mark.parametrize(("mode", "phase", "moves"), cases(MODES))
def test_a_namespace_goes_while_it_is_written_to(mode: TheMode, phase: str, moves: Callable[[Moving], None]) -> None:
    """What a transaction has written beside is there if it was told so. Of the namespace nothing is left but what was
    written after it had gone."""
    with Stage(None) as stage:
        stage.put(key(1), b"0")
        moving = Moving(stage, mode, phase)

        def writing(mine: bytes) -> Doing:
            async def write(tx: Transaction, gate: Gate) -> None:
                rows, beside = tx.namespace(NAMESPACE), tx.namespace("beside")
                await rows.get_for_update(key(1))
                await gate.at("read")
                await rows.put(key(1), mine)
                await gate.at("half")
                await beside.put(mine, mine)
                await gate.at("written")

            return write

        moving.begin(writing(b"1"))
        moving.begin(writing(b"2"), stage.another())
        order, operator = AskNodes({"name": [NAMESPACE], "seen": ["0.0"], "ttl_ms": ["0"], "drop": []}), stage.another()
        dropping = stage.begin(operator.call(order, timeout_ns=ANSWER_NS), operator)
        stage.wait(100)
        moves(moving)
        moving.go_on()
        stage.rest()
        stage.until(lambda: all(task.done for task in (dropping, *moving.tasks)), "all are told how it ended")
        if dropping.failure is None:
            stage.until(lambda: all(_dropped(stage, name) for name in ("n1", "n2", "n3")), "it is dropped")
        there = _read_all(stage, "beside")
        for mine, task in zip((b"1", b"2"), moving.tasks, strict=True):
            if task.failure is None or not task.failure.maybe_committed:
                stage.must((mine in there) == (task.failure is None), f"{mine!r}: {task.failure!r}, and there is {there}")
        left = stage.get(key(1), stage.another())
        stage.must(dropping.failure is not None or left is None or left in there, f"what is left is of nobody: {left!r}")
        stage.curtain()


def _dropped(stage: Stage, name: str) -> bool:
    node = stage[name].node
    assert node is not None
    said = node.core.namespaces.get(NAMESPACE)
    return said is not None and said.stands is Stands.DROPPED


def _read_all(stage: Stage, namespace: str) -> dict[bytes, bytes]:
    """All rows of a namespace."""
    reader = stage.another()

    async def rows() -> list[tuple[bytes, bytes]]:
        return [row async for row in reader.database.namespace(namespace).scan()]

    return dict(stage.do(rows(), reader))
