"""Invariant 5, as clients see it: what a client was told never changes, and what it asked for happens once.

An answer counts when it leaves its node, whether or not it arrives: nobody can take it back. Refusals that promise
nothing (busy, no quorum, a lock that did not come) may be followed by anything.
"""

from __future__ import annotations

from engine.protocol.requests import Code, CommitTx, Done, Failed, GetStatus, Put, Reply, Request, Status, Swap
from rebalance.results import ABORTED as ABORT
from tests.sim.machine import Machine
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import DECISIONS, Fragment, NodeId, TxId, fragment_name

Asked = tuple[NodeId, int, int, int]
"""(node, its life, session, request)"""

COMMITTED, ABORTED = "committed", "aborted"
FOR_GOOD = (Put, Swap, CommitTx, GetStatus)


class Answers(Oracle):
    """Whoever asks again, under the same id or for its status, is told what was told before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked: dict[Asked, Put | Swap | CommitTx | GetStatus] = {}
        self._told: dict[tuple[TxId, str], tuple[str, NodeId]] = {}

    def asked(self, machine: Machine, session: int, request: Request) -> None:
        """Something of which the answer is for good."""
        if isinstance(request, FOR_GOOD):
            self._asked[machine.name, machine.boot, session, request.id] = request

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """It is told."""
        request = self._asked.pop((machine.name, machine.boot, session, reply.id), None)
        if request is not None:
            said = final(request, reply)
            if said is not None:
                self._tell(machine, request.tx, *said)

    def _tell(self, machine: Machine, tx: TxId, what: str, answer: str) -> None:
        before, by = self._told.setdefault((tx, what), (answer, machine.name))
        if before != answer and not self._ledger.given_up:
            raise Violation(
                "answers",
                f"{by} said that {tx.hex()} is {before}; {machine.name} says that it is {answer}",
                About(txs=(tx,)),
            )

    def finish(self, world: World) -> None:
        """In the history that was continued each key of a transaction was written once.

        A counter that no copy has any more belonged to a history that was not. That it is aborted may be written twice:
        when all who took part have said that they are done, it is forgotten, and then one of them may be asked for its vote
        by a message that was late, give it, and ask how it ended. So does one whose partition an operator had begin again
        with a copy that voted and never heard how it ended.
        """
        ends: dict[Fragment, int] = {}
        for machine in world.running:
            assert machine.node is not None
            for name, copy in machine.node.core.replica.fragments.items():
                ends[name] = max(ends.get(name, 0), copy.counter.highest_applied)
        written: dict[tuple[TxId, Fragment, bytes], tuple[int, bool]] = {}
        for name, counters in self._ledger.facts.items():
            if name[1] in self._ledger.given_up:
                continue
            for counter in counters:
                fact = self._ledger.settled(name, counter)
                if fact is None or not fact.tx or fact.key is None or counter > ends.get(name, 0):
                    continue
                if fact.tx in world.meaningless:
                    continue
                aborted = name[0] == DECISIONS and fact.value is not None and fact.value[0] == ABORT
                first, at_first = written.setdefault((fact.tx, name, fact.key), (counter, aborted))
                if first != counter and not (aborted and (at_first or self._gave_up_a_part_of(fact.tx))):
                    raise Violation(
                        "answers",
                        f"{fact.tx.hex()} wrote {fact.key!r} of {fragment_name(name)} at {first}, and again at {counter}",
                        About(txs=(fact.tx,), fragments=(name,), keys=(fact.key,)),
                    )

    def _gave_up_a_part_of(self, tx: TxId) -> bool:
        return any(number in self._ledger.given_up for _, number in self._ledger.spans[tx])


def final(request: Request, reply: Reply) -> tuple[str, str] | None:
    """What this tells for good: of what, and which answer. None: nothing that binds anybody."""
    match request, reply:
        case Swap(), Done(applied=applied, found=found):
            return "swap", f"applied, with {found!r}" if applied else "not applied"
        case CommitTx(prepare_only=False), Done(applied=applied):
            return "end", COMMITTED if applied else ABORTED  # a condition did not hold: who asks again is refused
        case CommitTx(), Failed(code=Code.CONFLICT, maybe_committed=False):
            return "end", ABORTED
        case GetStatus(), Status(outcome=outcome):
            return "end", outcome
        case Put(), Done():
            return "end", COMMITTED
        case _:
            return None
