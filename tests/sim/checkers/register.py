"""Linearizability of registers, key by key: the search of Wing and Gong as Lowe refined it (CCPE 2017).

Linearizability is local, so each key is judged alone. The search walks along the completions. Whatever completes must
have taken effect by then; other pending operations take effect only if that helps, just in time. What was reached
before (the same completion, value and set of effects) is not tried again. Three facts about registers keep it small:

- A read that may take effect and finds its value should: it changes nothing and owes nothing any more.
- An operation of unknown outcome is free: of two ways to one point, the one that used fewer of them is at least as
  good. It is used only if a pending operation asks for the value it leaves, and of equal ones the oldest goes first.
- It never completes, so it is never waited for.

The problem is NP-complete all the same. A search that visits more than `states_max` states is given up and reported as
`undecided`, which accuses nobody: record fewer operations on that key, or fewer at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, assert_never

from tests.sim.checkers.history import (
    Anomaly,
    CompareAndSet,
    Get,
    Key,
    Operation,
    Put,
    RegisterAction,
    Report,
    Value,
    admit,
    shown,
)
from tests.sim.checkers.notation import line

STATES_MAX = 200_000
"""States of one key's search; about ten seconds."""

Entry: TypeAlias = tuple[Operation, RegisterAction]


def check(history: Iterable[Operation], *, initial: Value | None = None, states_max: int = STATES_MAX) -> list[Anomaly]:
    """Judge a history of `Get`, `Put` and `CompareAndSet`; every register holds `initial` at first (None: absent)."""
    entries: list[Entry] = admit(history, Get, Put, CompareAndSet)
    keys: dict[Key, list[Entry]] = {}
    for operation, action in entries:
        if operation.outcome == "info" and isinstance(action, CompareAndSet):
            action = CompareAndSet(action.key, action.expected, action.value)  # noqa: PLW2901 - nobody knows if it swapped
        keys.setdefault(action.key, []).append((operation, action))
    report = Report()
    for key, mine in keys.items():
        if not _report_values(key, mine, initial, report):
            _search_key(key, mine, initial, states_max, report)
    return report.anomalies()


def _report_values(key: Key, entries: list[Entry], initial: Value | None, report: Report) -> bool:
    """Report values that no order can explain; say whether there were any."""
    sources: dict[Value | None, list[Operation]] = {}
    for operation, action in entries:
        if isinstance(action, Put) or (isinstance(action, CompareAndSet) and action.swapped):
            sources.setdefault(action.value, []).append(operation)
    found = False
    for operation, action in entries:
        if operation.outcome != "ok" or isinstance(action, Put):
            continue
        value = action.value if isinstance(action, Get) else action.expected
        if value == initial or (isinstance(action, CompareAndSet) and not action.swapped):
            continue
        writers = sources.get(value, [])
        if not writers:
            found = True
            report.add("garbage-read", f"{line(operation)}: nobody wrote that to {key}", [operation], key)
        elif all(writer.outcome == "fail" for writer in writers):
            found = True
            names = ", ".join(writer.name for writer in writers)
            explanation = f"{line(operation)}: {value} was only written by {names}, which failed"
            report.add("G1a", explanation, [operation, *writers], key)
    return found


def _search_key(key: Key, entries: list[Entry], initial: Value | None, states_max: int, report: Report) -> None:
    search = _Search(entries, initial)
    verdict = search.run(states_max)
    operations = [operation for operation, _ in search.entries]
    if verdict is None:
        explanation = (
            f"{key}: gave up after {states_max} states, {search.reached} of {len(search.returns)} completions in; "
            f"{len(operations)} operations, up to {search.width} at once"
        )
        report.add("undecided", explanation, [], key)
    elif not verdict:
        stuck = search.returns[search.reached]
        held = sorted(search.values, key=lambda value: (value is not None, value))
        values = shown(["-" if value is None else value for value in held])
        around = [i for i in search.windows[search.reached] if i != stuck and operations[i].outcome == "ok"]
        story = "".join(f"\n  meanwhile {line(operations[i])}" for i in around)
        explanation = (
            f"{key}: no order explains {line(operations[stuck])}; the {search.reached} that completed before it have "
            f"one, after which {key} may hold {values}{story}"
        )
        report.add("nonlinearizable", explanation, [operations[stuck], *(operations[i] for i in around)], key)


class _Search:
    """One key's search. Operations are numbered by invocation; a set of them is the bits of an integer."""

    def __init__(self, entries: list[Entry], initial: Value | None) -> None:
        self.initial = initial
        self.entries = [(op, action) for op, action in entries if op.outcome == "ok" or _may_write(op, action)]
        operations = [operation for operation, _ in self.entries]
        ends = {i: op.completed for i, op in enumerate(operations) if op.outcome == "ok" and op.completed is not None}
        self.returns = sorted(ends, key=lambda i: (ends[i], i))
        """The operations that completed, in this order."""
        self.windows: list[list[int]] = []
        """By completion: what was invoked by then and had not completed before; the order is how they are tried."""
        self.infos = sum(1 << i for i in range(len(operations)) if i not in ends)
        self.after = [0] * len(operations)
        """By operation: the one that must stand before it, where the times alone do not say so, as a bit."""
        self.twin = [0] * len(operations)
        """By operation of unknown outcome: the next older one that asks the same, as a bit."""
        self._link(operations, ends)
        begun: dict[int, None] = {}
        coming = iter(enumerate(operations))
        following = next(coming, None)
        for stuck in self.returns:
            while following is not None and following[1].invoked <= ends[stuck]:
                begun[following[0]] = None
                following = next(coming, None)
            self.windows.append(sorted(begun, key=lambda i: (i != stuck, i not in ends, ends.get(i, 0), i)))
            del begun[stuck]
        self.width = max((sum(i in ends for i in window) for window in self.windows), default=0)
        self.reached = 0
        """The furthest completion that some order got to, and the values that those orders leave behind."""
        self.values: list[Value | None] = []

    def run(self, states_max: int) -> bool | None:
        """Whether some order explains everything; None if that is not known after `states_max` states."""
        seen: dict[tuple[int, Value | None, int], list[int]] = {}
        stack = [(0, self.initial, 0)]
        visited = 0
        while stack:
            at, value, done = self._settle(*stack.pop())
            if at == len(self.returns):
                return True
            used = done & self.infos
            ways = seen.setdefault((at, value, done & ~self.infos), [])
            if any(way & used == way for way in ways):
                continue
            ways.append(used)
            visited += 1
            if visited > states_max:
                return None
            if at > self.reached:
                self.reached, self.values = at, []
            if at == self.reached and value not in self.values:
                self.values.append(value)
            stack.extend(reversed(self._next(at, value, done)))
        return False

    def _link(self, operations: list[Operation], ends: dict[int, int]) -> None:
        latest: dict[int, int] = {}
        twins: dict[tuple[Value | None, ...], int] = {}
        for i, operation in enumerate(operations):
            before = latest.get(operation.process)
            if before is not None and ends[before] == operation.invoked:
                self.after[i] = 1 << before
            if i in ends:
                latest[operation.process] = i
                continue
            action = self.entries[i][1]
            same = (action.expected, action.value, 0) if isinstance(action, CompareAndSet) else (action.value,)
            self.twin[i] = 1 << twins[same] if same in twins else 0
            if not self.after[i]:
                twins[same] = i

    def _settle(self, at: int, value: Value | None, done: int) -> tuple[int, Value | None, int]:
        """Let every pending read of this value take effect, and go on to the first completion that has not."""
        moved = True
        while moved and at < len(self.returns):
            moved = False
            for i in self.windows[at]:
                if not done >> i & 1 and self._reads(i, value) and done & self.after[i] == self.after[i]:
                    done |= 1 << i
                    moved = True
            while at < len(self.returns) and done >> self.returns[at] & 1:
                at += 1
                moved = True
        return at, value, done

    def _next(self, at: int, value: Value | None, done: int) -> list[tuple[int, Value | None, int]]:
        """The states that one more effect leads to, the likeliest first."""
        stuck = self.entries[self.returns[at]][1]
        wish = stuck.value if isinstance(stuck, Get) else stuck.expected if isinstance(stuck, CompareAndSet) else None
        states: list[tuple[int, Value | None, int]] = []
        for i in self.windows[at]:
            action = self.entries[i][1]
            if done >> i & 1 or isinstance(action, Get) or done & self.after[i] != self.after[i]:
                continue
            if isinstance(action, CompareAndSet) and not (action.swapped and action.expected == value):
                continue
            if self.infos >> i & 1:
                older = self.twin[i]
                if (older and not done & older) or not self._wanted(at, action.value, done, i):
                    continue
            state = (at, action.value, done | 1 << i)
            if not isinstance(stuck, Put) and action.value == wish:
                states.insert(0, state)
            else:
                states.append(state)
        return states

    def _reads(self, i: int, value: Value | None) -> bool:
        """Whether the operation leaves everything as it is, and may find this value."""
        if self.infos >> i & 1:
            return False
        action = self.entries[i][1]
        match action:
            case Get():
                return action.value == value
            case CompareAndSet():
                return not action.swapped and action.expected != value
            case Put():
                return False
            case _:
                assert_never(action)

    def _wanted(self, at: int, value: Value | None, done: int, writer: int) -> bool:
        """Whether some pending operation other than the writer has a use for this value."""
        for i in self.windows[at]:
            if done >> i & 1 or i == writer:
                continue
            action = self.entries[i][1]
            if isinstance(action, Get):
                if action.value == value:
                    return True
            elif isinstance(action, CompareAndSet) and (action.expected == value) == action.swapped:
                return True
        return False


def _may_write(operation: Operation, action: RegisterAction) -> bool:
    """An operation of unknown outcome matters only if it may change something."""
    return operation.outcome == "info" and not isinstance(action, Get)
