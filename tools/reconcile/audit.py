"""The audit log beside a plan: what became of each of its actions, synced before the next one begins.

A note in memory is a byte: what became last of an action on a node. The words are in the file.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.errors import UsageError
from tools.reconcile.changes import Outcome
from tools.reconcile.plans import Action
from wal.ids import NodeId

OUTCOMES = tuple(Outcome)
DONE = (Outcome.APPLIED, Outcome.ALREADY)
"""Of these nothing is left to do."""
PAGE = 1 << 12
"""So many numbers of actions have their outcomes in one page."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the audit log. `plan` is the plan's digest, `node` empty where the cluster was asked."""

    plan: str
    n: int
    node: NodeId
    outcome: Outcome
    why: str = ""
    time_ms: int = 0
    key: str | None = None


class Became(NamedTuple):
    """What became of an action on a node."""

    action: Action
    node: NodeId
    outcome: Outcome
    why: str = ""


class Audit:
    """The audit log of a plan, by its digest: appended, and read again to go on. Raises UsageError if it is of another."""

    def __init__(self, path: Path, plan: str) -> None:
        self.plan = plan
        self._path = path
        self._pages: dict[tuple[NodeId, int], bytearray] = {}  # of an outcome, its number and one, or 0
        self._begun = 0  # where what is noted from now on begins
        for end, note in self._notes(0):
            self._begun = end
            if note.plan != plan:
                raise UsageError(
                    f"{path} is of another plan, or this one was edited since: name another --audit, or remove it"
                )
            self._enter(note)
        self._torn = path.exists() and path.stat().st_size > self._begun  # by a half line, which goes before the first note

    def outcome(self, n: int, node: NodeId) -> Outcome | None:
        """What became of an action last; None: nothing yet."""
        page = self._pages.get((node, n // PAGE))
        return OUTCOMES[page[n % PAGE] - 1] if page is not None and page[n % PAGE] else None

    def is_done(self, n: int, node: NodeId) -> bool:
        """Whether nothing is left to do."""
        return self.outcome(n, node) in DONE

    def counted(self) -> Counter[Outcome]:
        """How many actions became what, each on each node."""
        counted = Counter[Outcome]()
        for page in self._pages.values():
            counted.update({outcome: page.count(at) for at, outcome in enumerate(OUTCOMES, 1)})
        return +counted

    def note(self, became: Iterable[Became]) -> None:
        """Note what became of some actions. Durable when it returns."""
        now_ms = time.time_ns() // 1_000_000
        with self._path.open("ab") as file:
            if self._torn:
                file.truncate(self._begun)
                self._torn = False
            for action, node, outcome, why in became:
                note = Note(self.plan, action.n, node, outcome, why=why, time_ms=now_ms, key=action.key)
                file.write(msgspec.json.encode(note) + b"\n")
                self._enter(note)
            file.flush()
            os.fsync(file.fileno())

    def noted(self) -> Iterator[Note]:
        """What was noted since this was opened."""
        return (note for _, note in self._notes(self._begun))

    def _enter(self, note: Note) -> None:
        page = self._pages.setdefault((note.node, note.n // PAGE), bytearray(PAGE))
        page[note.n % PAGE] = OUTCOMES.index(note.outcome) + 1

    def _notes(self, start: int) -> Iterator[tuple[int, Note]]:
        """The notes from one place on, each with where it ends; a last line that was half written is no note."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                try:
                    note = msgspec.json.decode(line, type=Note)
                except msgspec.DecodeError as error:
                    expected = "expected an audit log of `foreshore reconcile apply`"
                    raise UsageError(f"{self._path}: {error}: {expected}") from None
                yield start, note
