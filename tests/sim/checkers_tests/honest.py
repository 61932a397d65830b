"""Histories of an honest engine: clients overlap, replies get lost, transactions abort, and all takes effect in turn.

`schedule` decides when each operation was invoked, took effect and completed, from a seeded generator; each workload
then runs its operations against a plain Python value in the order in which they took effect. Times are small on
purpose, so that ties are common.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, TypeAlias

from tests.sim.checkers.history import (
    Action,
    Add,
    Append,
    Apply,
    CompareAndSet,
    Get,
    Observe,
    Operation,
    Outcome,
    Put,
    Read,
    ReadApplied,
    ReadBalances,
    ReadRing,
    ReadSet,
    Rotate,
    Scan,
    Stamp,
    Transaction,
    Transfer,
    Update,
)

Generator: TypeAlias = Callable[[Random, int, int], list[Operation]]
"""Makes a history of one workload from (generator of random numbers, clients, operations)."""


class Slot(NamedTuple):
    """When one operation happens; `applied` is None if it never takes effect."""

    process: int
    invoked: int
    applied: int | None
    completed: int | None
    outcome: Outcome


def schedule(rng: Random, clients: int, operations: int, *, fail: float = 0.1, info: float = 0.1) -> list[Slot]:
    """Slots in the order in which they take effect. A client goes on under a new number after an `info`."""
    process = list(range(clients))
    clock = [rng.randint(0, 20) for _ in process]
    slots: list[Slot] = []
    for _ in range(operations):
        client = min(range(clients), key=lambda client: clock[client])
        invoked = clock[client] + rng.choice([0, 0, 1, 5])
        completed = invoked + rng.randint(1, 20)
        clock[client] = completed
        drawn = rng.random()
        if drawn < fail:
            slots.append(Slot(process[client], invoked, None, completed, "fail"))
        elif drawn < fail + info:
            applied = rng.choice([None, invoked + rng.randint(0, 5), invoked + rng.randint(0, 200)])
            slots.append(Slot(process[client], invoked, applied, rng.choice([None, completed]), "info"))
            process[client] = max(process) + 1
        else:
            slots.append(Slot(process[client], invoked, rng.randint(invoked, completed), completed, "ok"))
    never = max(slot.invoked for slot in slots) + 1000
    return sorted(slots, key=lambda slot: (never if slot.applied is None else slot.applied, slot.invoked))


def perform(slots: list[Slot], act: Callable[[Slot], Action]) -> list[Operation]:
    """Carry out the slots in turn; `act` chooses an action, and changes the world if the slot takes effect."""
    done = [Operation(slot.process, slot.invoked, slot.completed, slot.outcome, act(slot)) for slot in slots]
    return sorted(done, key=lambda operation: operation.invoked)


def list_append(
    rng: Random, clients: int, operations: int, *, keys: int = 3, width: int = 4, info: float = 0.1
) -> list[Operation]:
    """Transactions of up to `width` appends and reads; keys retire after about 30 appends."""
    lists: dict[str, tuple[int, ...]] = {}
    made = 0

    def act(slot: Slot) -> Action:
        nonlocal made
        world = dict(lists)
        known = slot.outcome == "ok" or (slot.applied is not None and rng.random() < 0.3)
        ops: list[Append | Read] = []
        for _ in range(rng.randint(1, width)):
            key = f"k{made // (30 * keys) * keys + rng.randrange(keys)}"
            if rng.random() < 0.5:
                made += 1
                world[key] = (*world.get(key, ()), made)
                ops.append(Append(key, made))
            else:
                ops.append(Read(key, world.get(key, ()) if known else None))
        if slot.applied is not None:
            lists.update(world)
        return Transaction(tuple(ops))

    return perform(schedule(rng, clients, operations, info=info), act)


def register(
    rng: Random, clients: int, operations: int, *, keys: int = 2, values: int = 4, info: float = 0.1
) -> list[Operation]:
    """Gets, puts, deletes and compare-and-sets of few values, so that values come again."""
    registers: dict[str, int | None] = {}

    def act(slot: Slot) -> Action:
        key = f"r{rng.randrange(keys)}"
        held = registers.get(key)
        value = rng.choice([None, *range(values), *range(values)])
        drawn = rng.random()
        if drawn < 0.4:
            return Get(key, held if slot.applied is not None else value)
        expected = held if rng.random() < 0.7 else rng.randrange(values)
        swapped = drawn >= 0.7 and expected == held
        if slot.applied is not None and (drawn < 0.7 or swapped):
            registers[key] = value
        return Put(key, value) if drawn < 0.7 else CompareAndSet(key, expected, value, swapped)

    return perform(schedule(rng, clients, operations, info=info), act)


def sets(rng: Random, clients: int, operations: int) -> list[Operation]:
    """Adds, and reads in any order of elements."""
    elements: list[int] = []
    made = 0

    def act(slot: Slot) -> Action:
        nonlocal made
        if rng.random() < 0.6:
            made += 1
            if slot.applied is not None:
                elements.append(made)
            return Add(made)
        return ReadSet(tuple(rng.sample(elements, len(elements))))

    return perform(schedule(rng, clients, operations), act)


def bank(rng: Random, clients: int, operations: int) -> list[Operation]:
    """Eight accounts, a total of 100, transfers of up to 5; an account at zero is deleted."""
    balances = {f"a{i}": 16 if i < 4 else 9 for i in range(8)}

    def act(slot: Slot) -> Action:
        if rng.random() < 0.5:
            return ReadBalances({account: balance for account, balance in balances.items() if balance})
        source, target = rng.sample(sorted(balances), 2)
        amount = min(rng.randint(1, 5), balances[source])
        if slot.applied is not None:
            balances[source] -= amount
            balances[target] += amount
        return Transfer(source, target, amount)

    return perform(schedule(rng, clients, operations), act)


def ring(rng: Random, clients: int, operations: int) -> list[Operation]:
    """Six keys; a rotation takes the key behind one out and puts it in behind another."""
    successors = {f"k{i}": f"k{(i + 1) % 6}" for i in range(6)}

    def act(slot: Slot) -> Action:
        if rng.random() < 0.5:
            return ReadRing(dict(successors))
        one = rng.choice(sorted(successors))
        moved = successors[one]
        other = rng.choice([key for key in sorted(successors) if key not in {one, moved}])
        if slot.applied is not None:
            successors[one] = successors[moved]
            successors[moved], successors[other] = successors[other], moved
        return Rotate((one, moved, other))

    return perform(schedule(rng, clients, operations), act)


def monotonic(rng: Random, clients: int, operations: int) -> list[Operation]:
    """Updates and reads of two keys; now and then the primary changes, and the epoch with it."""
    world: dict[str, tuple[Stamp, int]] = {}
    epoch, made = 1, 0

    def act(slot: Slot) -> Action:
        nonlocal epoch, made
        key = f"m{rng.randrange(2)}"
        epoch += rng.random() < 0.05
        if rng.random() < 0.6:
            version, value = world.get(key, (None, None))
            return Observe(key, version, value)
        made += 1
        if slot.applied is None:
            return Update(key, None, made)
        world[key] = (Stamp(epoch, made), made)
        return Update(key, None if slot.outcome == "info" and rng.random() < 0.8 else Stamp(epoch, made), made)

    return perform(schedule(rng, clients, operations), act)


def idempotent(rng: Random, clients: int, operations: int) -> list[Operation]:
    """Every transaction is tried about three times; the first attempt that gets through decides the answer."""
    results: dict[str, str] = {}

    def act(slot: Slot) -> Action:
        if rng.random() < 0.3:
            return ReadApplied(dict.fromkeys(results, 1))
        tx = f"t{rng.randrange(operations // 4 + 1)}"
        if slot.applied is not None:
            results.setdefault(tx, f"done{len(results)}")
        return Apply(tx, results[tx] if slot.outcome == "ok" else None)

    return perform(schedule(rng, clients, operations), act)


def scan(rng: Random, clients: int, operations: int) -> list[Operation]:
    """Scans with gets in the same transaction, single gets, puts and deletes of eight keys."""
    world: dict[str, int] = {}

    def act(slot: Slot) -> Action:
        key = rng.choice("abcdefgh")
        drawn = rng.random()
        if drawn < 0.4:
            value = rng.choice([None, *range(20)])
            if slot.applied is not None:
                world.update({key: value} if value is not None else {})
                if value is None:
                    world.pop(key, None)
            return Put(key, value)
        if drawn < 0.6:
            return Get(key, world.get(key))
        low, high = sorted(rng.sample("abcdefghi", 2))
        rows = tuple((found, world[found]) for found in sorted(world) if low <= found < high)
        return Scan(low, high, rows, tuple((found, world.get(found)) for found in rng.sample("abcdefgh", 3)))

    return perform(schedule(rng, clients, operations), act)
