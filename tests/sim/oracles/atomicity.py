"""Invariant 5: a transaction is all or nothing on every copy, and every copy agrees which."""

from __future__ import annotations

from collections.abc import Sequence

from rebalance.results import ABORTED, COMMITTED
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.oracles.equality import made
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import Fragment, TxId, piece_number, whole_of
from wal.records import Outcome, Record


class Atomicity(Oracle):
    """One outcome for everybody, in every partition that took part."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def decided(self, machine: Machine, records: Sequence[Record]) -> None:
        """A node learnt an outcome."""
        for record in records:
            if isinstance(record, Outcome) and not self._ledger.given_up and record.tx not in machine.world.meaningless:
                commit, by = self._ledger.outcomes.get(record.tx, (record.commit, machine.name))
                if commit != record.commit:
                    raise Violation(
                        "atomicity",
                        f"{record.tx.hex()} is {_said(commit)} for {by} and {_said(record.commit)} for {machine.name}",
                        About(txs=(record.tx,)),
                    )

    def finish(self, world: World) -> None:
        """Each transaction that was voted for, on all copies, in all its partitions that nobody has let begin again."""
        newest = self._ledger.newest
        assert newest is not None
        votes: dict[TxId, list[tuple[TxId, int]]] = {}  # of all pieces of a transaction
        for tx, parts in self._ledger.votes.items():
            if whole_of(tx) not in world.meaningless:
                here = [(tx, number) for number in parts if number not in self._ledger.given_up]
                votes.setdefault(whole_of(tx), []).extend(here)
        for tx, pieces in votes.items():
            ends = {(piece, number): self._end(world, newest, piece, number) for piece, number in pieces}
            known = {end for end in ends.values() if end is not None}
            if len(known) > 1:
                said = {(piece_number(piece), number): end for (piece, number), end in ends.items()}
                raise Violation("atomicity", f"{tx.hex()} ended in two ways: {said}", About(txs=(tx,)))
            for piece, number in pieces:
                for node in made(newest, number):
                    self._judge_copy(world.machines[node], piece, number, next(iter(known), None))

    def _end(self, world: World, newest: Topology, tx: TxId, number: int) -> bool | None:
        """Whether it took effect in a partition; None: it wrote nothing there.

        What lies above where all copies stand is nobody's: a primary that was alone in sync died before its log had it.
        """
        for write in self._ledger.votes[tx][number].writes:
            counter = self._ledger.spans[tx][write.fragment].start + 1
            stands = [_stands(world.machines[node], write.fragment) for node in newest.placements[number].in_sync]
            if stands and max(stands) < counter:
                return False
            fact = self._ledger.settled(write.fragment, counter)
            return fact is not None and fact.tx == tx
        return None

    def _judge_copy(self, machine: Machine, tx: TxId, number: int, commit: bool | None) -> None:
        assert machine.node is not None
        state = machine.node.core.replica.partition(number)
        if tx in state.prepared:
            raise Violation("atomicity", f"{tx.hex()} is in doubt on {machine.name} for ever", About(txs=(tx,)))
        outcome = state.results.get(tx)
        wanted = {True: COMMITTED, False: ABORTED}
        if commit is not None and outcome is not None and outcome != wanted[commit]:
            raise Violation(
                "atomicity",
                f"{tx.hex()} is {_said(commit)}, but {machine.name} answers {outcome} in partition {number}",
                About(txs=(tx,), partitions=(number,)),
            )


def _stands(machine: Machine, name: Fragment) -> int:
    return machine.node.core.replica.fragment(name).counter.hwm if machine.node is not None else 0


def _said(commit: bool) -> str:
    return "committed" if commit else "aborted"
