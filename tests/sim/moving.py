"""Transactions that are held in a phase while partition 1 gets another primary, in each mode and by each way there is.

n2 was away, and n3 leads partition 1 when a story begins; n2 is back, and to have it again by a step. The first
transaction of a story comes as far as a phase; then the partition moves, and it goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import pytest

from engine import errors
from engine.aio import Transaction
from engine.client.running import Level, Mode
from engine.messages import Confirmed, Finish, Finished, PrepareParts, Replicated, Vote
from engine.protocol.requests import Check, CommitTx, Lock, Rows, Scan
from tests.sim.clients import Client, Task
from tests.sim.network import MS, Held, Rule
from tests.sim.planted.stage import Stage

TheMode: TypeAlias = tuple[Mode, Level]
MODES: tuple[TheMode, ...] = (
    ("PESSIMISTIC", "READ_COMMITTED"),
    ("PESSIMISTIC", "REPEATABLE_READ"),
    ("PESSIMISTIC", "SERIALIZABLE"),
    ("OPTIMISTIC", "READ_COMMITTED"),
    ("OPTIMISTIC", "REPEATABLE_READ"),
    ("OPTIMISTIC", "SERIALIZABLE"),
)
LOST = {each.__name__: each for each in (PrepareParts, Vote, Finish, Finished, Confirmed)}
LATE = {each.__name__: each for each in (Lock, Scan, Rows, CommitTx, Check)}
PHASES = ("half", "read", "written", "outcome", "Replicated", *LOST, *LATE)
"""The client has read half of what it reads, or all, or has written; or what is said then is lost between nodes (which say
it again), or comes late to one from a client, or to a client. `outcome`: what n1 answers to n3 when all have voted."""

Doing = Callable[[Transaction, "Gate"], Awaitable[Any]]


class Gate:
    """Where the first attempt of the first transaction waits, if its client is to."""

    def __init__(self, client: Client, phase: str) -> None:
        self.client = client
        self.phase = phase
        self.shut = True
        self.owner = ""  # of the locks of the first attempt

    async def at(self, phase: str) -> None:
        """It has come as far as that."""
        while self.shut and self.phase == phase:
            await self.client.pause(MS)


class Moving:
    """A stage, and the transactions on it."""

    def __init__(self, stage: Stage, mode: TheMode, phase: str) -> None:
        self.stage = stage
        self.mode = mode
        self.phase = phase
        self.tasks: list[Task] = []
        stage.power_cut("n2")
        stage.left_out("n2")
        self.asked = stage.lose("hand-over")
        stage.start("n2")
        stage.until(lambda: self.asked.caught > 0, "n3 is to hand partition 1 over")
        self.gate = Gate(stage.client, phase)
        self.rules: list[Rule] = []

    @property
    def optimistic(self) -> bool:
        """Whether it locks nothing before its end."""
        return self.mode[0] == "OPTIMISTIC"

    def begin(self, doing: Doing, client: Client | None = None) -> Task:
        """A transaction of another client; without one the first, which comes as far as the phase."""
        first = client is None
        gate = self.gate if first else Gate(client or self.stage.client, "")
        if first:
            self.rules = self._rules(self.stage.client.name)
            self.stage.world.network.rules += self.rules

        async def once(tx: Transaction) -> Any:
            gate.owner = gate.owner or tx._raw.tx.hex()
            return await doing(tx, gate)

        more: dict[str, Any] = {"concurrency": self.mode[0], "isolation": self.mode[1], "lock_timeout": 3.0}
        task = self.stage.begin(gate.client.database.run(once, attempts=30, **more), gate.client)
        self.tasks.append(task)
        self.stage.wait(10)
        return task

    def _rules(self, client: str) -> list[Rule]:
        phase, voted = self.phase, False
        if lost := LOST.get(phase):
            return [Rule(phase, lambda _src, _dst, said: isinstance(said, lost), drop=True)]
        if late := LATE.get(phase):
            return [Rule(phase, lambda src, dst, said: client in (src, dst) and isinstance(said, late), drop=False)]
        if phase not in ("Replicated", "outcome"):
            return []

        def answers(src: str, dst: str, said: object) -> bool:
            nonlocal voted
            voted = voted or phase == "Replicated" or isinstance(said, Vote)
            return voted and isinstance(said, Replicated) and (src, dst) == ("n1", "n3")

        return [Rule(phase, answers, drop=True)]

    def go_on(self) -> None:
        """The first one goes on."""
        self.gate.shut = False
        network = self.stage.world.network
        held: list[Held] = [held for held in network.held if held.rule in self.rules]
        network.release(self.rules, held)

    def given_up(self) -> None:
        """An operator gives the first attempt of the first one up, wherever it holds something."""
        for machine in self.stage.world.running:
            self.stage.world.command(machine, "give-up", {"tx": [self.gate.owner], "yes": []})
        self.stage.wait(20)

    def end(self) -> list[Task]:
        """All go on, and are told how it ended; those of which that is known, and are not refused for good."""
        self.go_on()
        self.stage.rest()
        self.stage.until(lambda: all(task.done for task in self.tasks), "all are told how it ended")
        for task in self.tasks:
            failure = task.failure
            fine = failure is None or failure.retryable or isinstance(failure, errors.CommitUnknown)
            self.stage.must(fine, f"nobody is refused for good: {failure!r}")
        return [task for task in self.tasks if task.failure is None]

    @property
    def unknown(self) -> int:
        """So many may be committed, and were not told so."""
        return sum(isinstance(task.failure, errors.CommitUnknown) for task in self.tasks)


# How partition 1 moves.


def _another(moving: Moving) -> None:
    stage = moving.stage
    stage.until(lambda: stage.primary(1, "n2") or stage.primary(1, "n1"), "another one leads partition 1")


def handed_over(moving: Moving) -> None:
    """It moves by a step, before which all that is under way ends."""
    moving.stage.end(moving.asked)
    moving.stage.wait(50)
    moving.go_on()
    _another(moving)


def broken(moving: Moving) -> None:
    """It moves by a step, which has waited for long enough."""
    moving.stage.end(moving.asked)
    _another(moving)
    moving.go_on()


def dies(moving: Moving) -> None:
    """Its primary loses its power."""
    moving.stage.power_cut("n3")
    moving.stage.end(moving.asked)
    _another(moving)
    moving.go_on()


def dies_meanwhile(moving: Moving) -> None:
    """Its primary loses its power, and the others go on at once."""
    moving.stage.power_cut("n3")
    moving.stage.end(moving.asked)
    moving.go_on()
    _another(moving)
    moving.stage.start("n3")


def is_stopped(moving: Moving) -> None:
    """Its primary is stopped, and goes on when another one leads."""
    moving.stage["n3"].pause()
    moving.stage.end(moving.asked)
    _another(moving)
    moving.stage["n3"].resume()
    moving.go_on()


def is_given_up(moving: Moving) -> None:
    """The first one is given up by an operator, and then the partition moves."""
    moving.given_up()
    handed_over(moving)


def is_given_up_later(moving: Moving) -> None:
    """The partition moves, and then an operator gives the first one up."""
    moving.stage.end(moving.asked)
    _another(moving)
    moving.given_up()
    moving.go_on()


MOVES: tuple[Callable[[Moving], None], ...] = (
    handed_over,
    broken,
    dies,
    dies_meanwhile,
    is_stopped,
    is_given_up,
    is_given_up_later,
)

EACH = 14
"""Of all cases that there are every so manieth is told: all of them take ten minutes, and are told with a 1 here."""


def cases(modes: Iterable[TheMode]) -> list[Any]:
    """Some cases of a story: which mode, in which phase, and how the partition moves; of every mode as many."""
    chosen = [
        (mode, phase, moves)
        for i, mode in enumerate(modes)
        for j, phase in enumerate(PHASES)
        for k, moves in enumerate(MOVES)
        if (i + j + 2 * k) % EACH == 0
    ]
    return [pytest.param(*case, id=f"{' '.join(case[0])} {case[1]} {case[2].__name__}") for case in chosen]
