"""What the clients were told, kept outside the cluster: in this process, and line by line in a file.

An operation's line is written before anything else learns of its answer, so a crash of the test itself leaves the
evidence, too. The records are those that the checkers of the simulator judge.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from engine import errors
from tests.sim.checkers.history import Action, Operation, Outcome


class Line(msgspec.Struct, frozen=True):
    """A line of the file."""

    workload: str
    operation: Operation


class Journal:
    """Operations as they begin and end. What never ended may have happened: it is `info`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: Counter[str] = Counter()  # by outcome
        self.errors: Counter[str] = Counter()  # what clients were told, by name
        self._processes = 0
        self._open: dict[int, tuple[str, Operation]] = {}
        self._ended: dict[str, list[Operation]] = {}
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def process(self) -> int:
        """A number for a process that begins: after an `info` a client goes on under a new one."""
        self._processes += 1
        return self._processes

    def begin(self, workload: str, process: int, action: Action) -> None:
        """A process asks; `action` is all that is known of it if no answer ever comes."""
        assert process not in self._open, f"process {process} does two things at a time"
        self._open[process] = (workload, Operation(process, time.monotonic_ns(), None, "info", action))

    def end(self, process: int, outcome: Outcome, action: Action | None = None) -> Operation:
        """A process was answered, or gave up. `action` is what it was told; None: what it asked."""
        workload, asked = self._open.pop(process)
        operation = Operation(process, asked.invoked, time.monotonic_ns(), outcome, action or asked.action)
        self._write(workload, operation)
        self.answers[outcome] += 1
        return operation

    def failed(self, process: int, error: errors.Error) -> int:
        """A process was told an error; the process to go on as."""
        self.errors[type(error).__name__] += 1
        self.end(process, "info" if error.maybe_committed else "fail")
        return self.process() if error.maybe_committed else process

    def also(self, workload: str, operation: Operation, action: Action) -> None:
        """The same answer says something to another history, too."""
        self._write(workload, msgspec.structs.replace(operation, action=action))

    def is_open(self, process: int) -> bool:
        """Whether a process waits for an answer."""
        return process in self._open

    def history(self, workload: str) -> list[Operation]:
        """All operations of a workload, those without an answer last."""
        return [*self._ended.get(workload, []), *(o for w, o in self._open.values() if w == workload)]

    def forget(self) -> None:
        """What was recorded so far has been judged."""
        assert not self._open, "operations are under way"
        self._ended = {}

    def _write(self, workload: str, operation: Operation) -> None:
        self._file.write(msgspec.json.encode(Line(workload, operation)) + b"\n")
        self._ended.setdefault(workload, []).append(operation)
