"""What the clients of a run asked and were told, as histories for the checkers: one history for each workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from engine import errors
from tests.sim.checkers.history import Action, Operation, Outcome

if TYPE_CHECKING:
    from tests.sim.world import World


class Recorder:
    """Operations as they begin and end. What never ended may have happened: it is `info`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._processes = 0
        self._ended: dict[str, list[Operation]] = {}
        self._open: dict[int, tuple[str, Operation]] = {}
        self.errors: dict[str, int] = {}  # what clients were told, by name
        self.served = 0  # operations that ended well

    def process(self) -> int:
        """A number for a process that begins: after an `info` a client goes on under a new one."""
        self._processes += 1
        return self._processes

    def begin(self, workload: str, process: int, action: Action) -> None:
        """A process asks; `action` is all that is known of it if no answer ever comes."""
        self._open[process] = (workload, Operation(process, self.world.now, None, "info", action))

    def end(self, process: int, outcome: Outcome, action: Action | None = None) -> Operation:
        """A process was answered, or gave up. `action` is what it was told; None: what it asked."""
        workload, asked = self._open.pop(process)
        operation = Operation(process, asked.invoked, self.world.now, outcome, action or asked.action)
        self._ended.setdefault(workload, []).append(operation)
        self.served += outcome == "ok"
        return operation

    def also(self, workload: str, operation: Operation, action: Action) -> None:
        """The same answer says something to another history, too."""
        self._ended.setdefault(workload, []).append(msgspec.structs.replace(operation, action=action))

    def read(self, workload: str, since: int, until: int, action: Action) -> None:
        """Something was read by somebody who came to no good end: it must have been true all the same."""
        self._ended.setdefault(workload, []).append(Operation(self.process(), since, until, "ok", action))

    def failed(self, process: int, error: errors.Error) -> int:
        """A process was told an error; the process to go on as."""
        self.told(error)
        self.end(process, "info" if error.maybe_committed else "fail")
        return self.process() if error.maybe_committed else process

    def told(self, error: errors.Error) -> None:
        """Count an error by its name."""
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    def history(self, workload: str, keep: Callable[[Operation], bool] = lambda _: True) -> list[Operation]:
        """All operations of a workload, those without an answer last."""
        ended = self._ended.get(workload, [])
        return [o for o in (*ended, *(o for w, o in self._open.values() if w == workload)) if keep(o)]

    def workloads(self) -> list[str]:
        """All workloads of which something was asked."""
        return list(dict.fromkeys([*self._ended, *(workload for workload, _ in self._open.values())]))

    def count(self, outcome: Outcome) -> int:
        """How many operations ended so."""
        return sum(o.outcome == outcome for operations in self._ended.values() for o in operations)

    def done(self) -> Counter[str]:
        """How many operations of each workload ended well; of one that keeps several histories, all together."""
        found: Counter[str] = Counter()
        for workload, operations in self._ended.items():
            found[workload.partition(" ")[0]] += sum(o.outcome == "ok" for o in operations)
        return found

    def is_open(self, process: int) -> bool:
        """Whether a process waits for an answer."""
        return process in self._open
