"""Faults in what is executed together because it waits for one key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.data.chains import Chain
from engine.data.holdings import Key
from engine.data.parts import Job, Part
from engine.protocol.operations import Made
from engine.protocol.requests import Put, Swap
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, replace, swapped
from wal.records import Update

CHAINS = Faults()


@CHAINS.fault("1")
def who_waits_for_a_key_writes_by_itself(machine: Machine) -> None:
    """Each of those who are executed one on another is a record and a batch of its own."""
    assert machine.node is not None
    writes = machine.node.writes

    def write(job: Job, request: Put | Swap, key: Key, local: LocalPartition, made: Made) -> None:
        first, before = writes._begin(local, job, request, [key[1]], [made.value], locked=True, answer=made.answer)
        chain, new = Chain(writes, first), [first]
        while new:
            for part in new:
                update = Update(part.writes)
                part.records = (*before, update)
                writes.core.log_unapplied(update)
                writes.replication.ship(part, local)
                writes.replication.flush()
            known, single = len(chain.parts), writes.locks.take_along(key)
            before = writes._join_chain(chain, *single, key, local) if single is not None else ()
            new = chain.parts[known:]

    replace(writes, "_write", write)


@CHAINS.fault("5")
def who_waits_for_a_key_writes_on_what_stands(machine: Machine) -> None:
    """Whoever is executed together with others is executed on what the copies have, as if it were the first of them."""
    assert machine.node is not None
    writes = machine.node.writes

    def join(original: Callable[..., Any], chain: Chain, *about: Any) -> Any:
        first = chain.parts[0].write
        held = writes.core.replica.store.get(first.fragment, first.keys[0])
        chain.stands = chain.stands._replace(value=held.value if held is not None else None)
        return original(chain, *about)

    around(writes, "_join_chain", join)


@CHAINS.fault("1")
def a_condition_is_told_before_what_it_met_counts(machine: Machine) -> None:
    """Whose condition does not hold of what the one before it wrote is told so at once."""
    assert machine.node is not None
    writes = machine.node.writes

    def join(original: Callable[..., Any], chain: Chain, session: SessionId, *about: Any) -> Any:
        before = original(chain, session, *about)
        while chain.unmade:
            writes.desk.reply(*chain.unmade.pop())
        return before

    around(writes, "_join_chain", join)


@CHAINS.fault("5")
def who_appends_behind_others_is_told_what_the_one_before_was_told(machine: Machine) -> None:
    """Whoever appends together with others is told how long the value was before."""
    assert machine.node is not None
    writes = machine.node.writes

    def join(original: Callable[..., Any], chain: Chain, session: SessionId, request: Put | Swap, *about: Any) -> Any:
        known, told = len(chain.parts), chain.parts[-1].write.answer
        before = original(chain, session, request, *about)
        if isinstance(request, Swap) and request.how == "append":
            for part in chain.parts[known:]:
                part.write = msgspec.structs.replace(part.write, answer=told)
        return before

    around(writes, "_join_chain", join)


@CHAINS.fault("1")
def half_of_a_record_counts(machine: Machine) -> None:
    """Of many who are executed together the primary applies the first half, and answers all."""
    assert machine.node is not None
    writes = machine.node.writes

    def counted(original: Callable[..., Any], chain: Chain) -> None:
        left = len(chain.parts) - len(chain.parts) // 2

        def apply(applied: Callable[..., Any], part: Part) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                applied(part)

        kept = writes._apply
        with swapped(writes, "_apply", lambda part: apply(kept, part)):
            original(chain)

    around(writes, "on_chain_counted", counted)
