"""What the data source `foreshore` writes: rows of a table, or the lines of a plan, through the transactional API.

```python
rows.write.format("foreshore").mode("append").option("at", "n1:7000,n2:7000").option("mode", "apply").save()
spark.read.text("plan.jsonl").write.format("foreshore")...option("mode", "apply").save("data/n1,data/n2")
```

Options: `at`, where nodes listen that executors can reach; `mode`, `dry-run` (the default: say what would be done) or
`apply`; `namespace`, for a table without such a column; `no_deletes`; `rate`, changes a second of each task; `audit`, a
file on the driver's host that gets what was not done, a line each, and last the counts. A table with versions, as `state`
has them, is written only where rows still have these; one without is loaded whatever is there. Tasks that Spark runs
again do no harm: what is as it shall be is told so. If something was not done the write fails, after all that could be
was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import engine
from engine.errors import Error, UsageError
from tools.reconcile.apply import Sources, paths_of
from tools.reconcile.changes import Change, Columns, Done, Outcome, in_runs, perform
from tools.reconcile.findings import raw_key
from tools.reconcile.plans import Act, Action, Header
from tools.shown import printable

UNDONE_TOLD = 1_000
"""So many changes that were not made are told of each task; all are counted."""
PLAN = "value"
"""The only column of a table that is the text of a plan."""
HEADER = '{"plan":'
"""How the first line of a plan begins; the task that has it checks whose plan it is."""
MODES = ("dry-run", "apply")


class NotAllWritten(Error):
    """Some of what was to be written was not; what could be was."""


class Undone(msgspec.Struct, frozen=True):
    """One line of the audit file: a change that was not made, and why."""

    namespace: str
    key: str
    outcome: Outcome
    why: str


class Written(msgspec.Struct, frozen=True):
    """The last line of the audit file: how many changes came to what."""

    mode: str
    counts: dict[Outcome, int]


@dataclass
class Told(WriterCommitMessage):
    """What a task did."""

    counts: dict[Outcome, int] = field(default_factory=dict)
    undone: list[bytes] = field(default_factory=list)

    def take(self, done: Done) -> None:
        """One change more."""
        self.counts[done.outcome] = self.counts.get(done.outcome, 0) + 1
        if done.outcome not in (Outcome.APPLIED, Outcome.ALREADY) and len(self.undone) < UNDONE_TOLD:
            change = done.change
            self.undone.append(msgspec.json.encode(Undone(change.namespace, printable(change.key), done.outcome, done.why)))


class Writer(DataSourceArrowWriter):
    """Writes one table. Raises UsageError for one that cannot be, before any row of it is read."""

    def __init__(self, schema: StructType, options: Mapping[str, str], directories: Sequence[str]) -> None:
        self._at = options.get("at", "")
        self._mode = options.get("mode", MODES[0])
        self._deletes = options.get("no_deletes", "false").lower() != "true"
        self._rate = float(options.get("rate", 0))
        self._audit = options.get("audit", "")
        self._directories = list(directories)
        names = [name for name in schema.names if isinstance(name, str)]
        self._columns = None if names == [PLAN] else Columns(names, options.get("namespace", ""))
        if not self._at:
            raise UsageError("option at is missing: expected HOST:PORT,... of nodes that every executor can reach")
        if self._mode not in MODES:
            raise UsageError(f"option mode is {self._mode!r}: expected one of {', '.join(MODES)}")

    def write(self, iterator: Iterator[Any]) -> Told:
        """The rows of a task, in transactions of a few hundred."""
        told = Told()
        with closing(engine.connect(self._at)) as database:
            for changes in in_runs(self._kept(self._changes(iterator, told), told)):
                for done in perform(database, changes, write=self._mode == "apply"):
                    told.take(done)
                if self._rate:
                    time.sleep(len(changes) / self._rate)
        return told

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note what all tasks did. Raises NotAllWritten."""
        counts: dict[Outcome, int] = {}
        undone: list[bytes] = []
        for told in messages:
            assert isinstance(told, Told), "a message of another source"
            undone += told.undone
            for outcome, count in told.counts.items():
                counts[outcome] = counts.get(outcome, 0) + count
        if self._audit:
            lines = [*undone, msgspec.json.encode(Written(self._mode, counts))]
            Path(self._audit).write_bytes(b"".join(line + b"\n" for line in lines))
        left = {str(o): n for o, n in sorted(counts.items()) if o not in (Outcome.APPLIED, Outcome.ALREADY)}
        if left:
            where = f"{self._audit} says which" if self._audit else "the option audit names a file that gets them"
            raise NotAllWritten(f"{' '.join(f'{o}={n}' for o, n in left.items())}: {where}; all else was done")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was written stays: writing the table again does what is left."""

    def _kept(self, changes: Iterable[Change], told: Told) -> Iterator[Change]:
        for change in changes:
            if change.value is None and not self._deletes:
                told.take(Done(change, Outcome.SKIPPED, "it removes a row"))
            else:
                yield change

    def _changes(self, iterator: Iterator[Any], told: Told) -> Iterator[Change]:
        for batch in iterator:
            rows: list[dict[str, object]] = batch.to_pylist()
            if self._columns is not None:
                yield from map(self._columns.change, rows)
            else:
                yield from self._planned([str(row[PLAN]) for row in rows], told)

    def _planned(self, lines: Sequence[str], told: Told) -> Iterator[Change]:
        """What lines of a plan say; the rows that they put are in the directories, which are of the plan's cluster."""
        header = next((line for line in lines if line.startswith(HEADER)), None)
        told_of = msgspec.json.decode(header, type=Header) if header is not None else None
        actions = [_action(line) for line in lines if line is not header and line.strip()]
        sources = Sources(paths_of(told_of, self._directories), actions)
        for action in actions:
            key = raw_key(action.key or "")
            seen = action.seen.get(action.primary)
            match action.action:
                case Act.PUT | Act.DELETE if seen is not None:
                    try:
                        right = sources.right(action)
                    except Error as error:
                        told.take(Done(Change(action.namespace, key, None), Outcome.FAILED, str(error)))
                        continue
                    yield Change(action.namespace, key, right.value if right is not None else None, seen)
                case Act.REFETCH | Act.COMMIT:
                    why = "it is written into a directory, by a node, or as a whole: `foreshore reconcile apply` does it"
                    told.take(Done(Change(action.namespace, key, None), Outcome.SKIPPED, why))
                case _:
                    pass


def _action(line: str) -> Action:
    """One line of a plan. Raises UsageError."""
    try:
        return msgspec.json.decode(line, type=Action)
    except msgspec.DecodeError as error:
        raise UsageError(f"{line[:80]!r}: {error}: expected a line of `foreshore reconcile plan`") from None
