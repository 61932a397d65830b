"""From findings to a plan: one action a line, that a person can read, edit and diff. Pure.

```
 proof of it: log, checksum ---> refetch: the copies that are wrong get the very version that the log says, from a copy
                                 that has it, or from the record; never a new version
 a copy is wrong as a whole --->  refetch, without a key: its node takes it anew from its peers, and all lines about its
                                 rows are done with that one
 a transaction of which the --->  commit: what one half of it would have written is written, in one new transaction, but
 deciding half is committed       for keys that were written since
 majority, none -------------->  what the strategy says of the rows: put or delete, a new write that all copies get
 nothing that a row can mend -->  none, and why
```

A proof goes before every strategy. Who knows better edits the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from engine.errors import UsageError
from tools.reconcile.findings import RECORD, Facts, Finding, Kind, Proof
from wal.ids import Fragment, Namespace, NodeId

FORMAT = 1

BY_ITSELF: dict[Kind, str] = {
    Kind.TX_UNRESOLVED: "the transaction has no outcome: its participants decide when they run",
    Kind.MISPLACED: "no client reaches a key in a partition that it does not hash to",
}


class Strategy(StrEnum):
    """What is done about rows of which nothing is proven."""

    PROOF = "proof"  # nothing
    PRIMARY = "primary"  # what the primary has
    LATEST = "latest"  # the greatest version
    LATEST_TRUST_MISSING_PRIMARY = "latest-trust-missing-primary"  # the same, unless the primary has none: then none
    LATEST_SKIP_MISSING_PRIMARY = "latest-skip-missing-primary"  # the same, unless the primary has none: then nothing
    MAJORITY = "majority"  # what more than half have
    REMOVE = "remove"  # the key goes


class Act(StrEnum):
    """What a line does."""

    REFETCH = "refetch"
    PUT = "put"
    DELETE = "delete"
    COMMIT = "commit"
    WITH = "with"  # nothing by itself: another line does it as well
    NONE = "none"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A strategy for findings of one kind, of one namespace, or both."""

    strategy: Strategy
    kind: Kind | None = None
    namespace: Namespace | None = None


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rules: the first that fits counts, else `strategy`."""

    rule: list[Rule] = []
    strategy: Strategy = Strategy.PROOF

    def of(self, finding: Finding) -> Strategy:
        """The strategy for a finding."""
        for rule in self.rule:
            if rule.kind in (None, finding.kind) and rule.namespace in (None, finding.namespace):
                return rule.strategy
        return self.strategy


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a plan: whose it is, and from what."""

    plan: int = FORMAT
    cluster: str
    cluster_id: str
    topology: str
    findings: int
    actions: dict[str, int]


class Action(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line: what is done, where, why. `seen` is what each copy had, and must still have; `right` what the key will be.

    `source` is the node whose copy has it, or, with `lsn`, whose log. A refetch without a key is of a whole fragment, and
    `by` is the line that does what this one says. A commit writes what the transaction `tx` prepared in `records` of the
    log of `source`.
    """

    n: int
    action: Act
    kind: Kind
    partition: int
    namespace: Namespace = ""
    key: str | None = None
    on: list[NodeId] = []
    right: Facts = {}
    source: NodeId = ""
    lsn: int = 0
    seen: dict[NodeId, Facts] = {}
    primary: NodeId = ""
    proof: Proof | None = None
    strategy: Strategy | None = None
    reason: str = ""
    by: int = 0
    tx: str = ""
    records: list[int] = []

    @property
    def fragment(self) -> Fragment:
        """What it is about."""
        return self.namespace, self.partition

    @property
    def is_whole(self) -> bool:
        """Whether a node takes a fragment anew."""
        return self.action is Act.REFETCH and self.key is None

    @property
    def removes(self) -> bool:
        """Whether a row goes."""
        return self.action in (Act.REFETCH, Act.DELETE) and not self.is_whole and gone(self.right)


def gone(facts: Facts) -> bool:
    """Whether these facts are of a key that is not there."""
    return "absent" in facts or "tombstone" in facts


def make_plan(findings: Callable[[], Iterable[Finding]], rules: Rules) -> Iterator[Action]:
    """An action for each finding, in their order, however many there are: they are asked for twice, and only what concerns
    whole copies is held. Raises UsageError, before the first action, for a report that does not say which values it saw."""
    copies = _Copies()
    for at, finding in enumerate(findings(), 1):
        if any("size" in facts and "hash" not in facts for facts in finding.copies.values()):
            raise UsageError("the report has no hashes of values, which a plan compares: check with --values hash")
        copies.note(at, finding, rules)
    first = copies.taken_anew()
    return (
        _with_another(copies.judged(action_for(at, finding, rules.of(finding))), first)
        for at, finding in enumerate(findings(), 1)
    )


class _Copies:
    """What is found of whole copies, and whether of their rows as well: as much as there are copies, not findings."""

    def __init__(self) -> None:
        self._with_rows: set[tuple[Fragment, NodeId]] = set()  # of some row of theirs there is a finding
        self._unequal = Counter[Fragment]()  # how many copies of a fragment do not add up
        self._wholes: list[Action] = []

    def note(self, n: int, finding: Finding, rules: Rules) -> None:
        """A finding, which will be line `n`."""
        fragment = finding.namespace, finding.partition
        if finding.key is not None:
            self._with_rows.update((fragment, node) for node in finding.on)
            return
        if finding.kind is Kind.CONTENTS_MISMATCH:
            self._unequal[fragment] += 1
        action = action_for(n, finding, rules.of(finding))
        if action.is_whole:
            self._wholes.append(action)

    def judged(self, action: Action) -> Action:
        """The action, or none, where rows do not add up and that alone does not say which copy to take anew."""
        if not action.is_whole or action.kind is not Kind.CONTENTS_MISMATCH:
            return action
        if any((action.fragment, node) in self._with_rows for node in action.on):
            return _unplanned(action, "the rows that differ have lines of their own")
        if self._unequal[action.fragment] > 1:
            return _unplanned(action, "more than one copy is so: nothing says whose peers have what was written")
        return action

    def taken_anew(self) -> dict[tuple[Fragment, NodeId], int]:
        """The first line that takes a copy anew; what else is wrong with it, or with its rows, is done with that."""
        first: dict[tuple[Fragment, NodeId], int] = {}
        for action in map(self.judged, self._wholes):
            for node in action.on if action.is_whole else ():
                first.setdefault((action.fragment, node), action.n)
        return first


def _unplanned(action: Action, why: str) -> Action:
    return msgspec.structs.replace(action, action=Act.NONE, reason=why)


def _with_another(action: Action, first: Mapping[tuple[Fragment, NodeId], int]) -> Action:
    """The action, or `with` a line that takes all its copies anew, if those that stay have the row alike."""
    by = {first.get((action.fragment, node), 0) for node in action.on}
    stay = [{"absent": True} if gone(facts) else facts for node, facts in action.seen.items() if node not in action.on]
    right = action.is_whole or (action.key is not None and stay and all(facts == stay[0] for facts in stay))
    if len(by) != 1 or not right or (n := by.pop()) in (0, action.n):
        return action
    return msgspec.structs.replace(action, action=Act.WITH, by=n, reason=f"line {n} takes the fragment anew")


def action_for(n: int, finding: Finding, strategy: Strategy) -> Action:
    """What is to be done about one finding."""
    told = Action(
        n=n,
        action=Act.NONE,
        kind=finding.kind,
        partition=finding.partition,
        namespace=finding.namespace,
        key=finding.key,
        on=finding.on,
        seen=finding.copies,
        primary=finding.primary,
        proof=finding.proof,
    )
    changed = msgspec.structs.replace
    if finding.kind in BY_ITSELF:
        return changed(told, reason=BY_ITSELF[finding.kind])
    if finding.kind is Kind.TX_PARTIAL:
        return _of_a_transaction(finding, told)
    if finding.key is None:
        return _of_a_copy(finding, told, strategy)
    if finding.proof in (Proof.LOG, Proof.CHECKSUM) and finding.right:
        return _refetched(finding, told)
    if finding.kind is Kind.STORE_DIFFERS_FROM_LOG:
        return changed(told, reason="all copies have it alike, and that the log is right is not proven")
    readable = {node: facts for node, facts in finding.copies.items() if "unreadable" not in facts}
    right, why = chosen(strategy, readable, finding.primary)
    told = changed(told, strategy=strategy)
    if right is None:
        return changed(told, reason=why)
    if gone(right):
        return changed(told, action=Act.DELETE, right={"absent": True}, reason=why)
    source = next(node for node, facts in readable.items() if facts == right)
    return changed(told, action=Act.PUT, right=right, source=source, reason=why)


def _of_a_transaction(finding: Finding, told: Action) -> Action:
    """A transaction that ended in two ways: what was rolled back of it is written, where a log proves that it should be."""
    if finding.proof is not Proof.LOG:
        if any("prepared" in facts for facts in finding.copies.values()):
            return _unplanned(told, "a participant waits for the outcome: it asks when its nodes run; check again then")
        why = "no log has both the commit of the partition that decides and all that was rolled back: "
        return _unplanned(told, why + "whoever ran the transaction must write the other half")
    for node, facts in finding.evidence.items():
        records = sorted({lsn for name, lsn in facts.items() if name.startswith(RECORD) and isinstance(lsn, int)})
        if records:
            why = f"the partition that decides has committed, and the log of {node} has what was rolled back"
            return msgspec.structs.replace(
                told, action=Act.COMMIT, right=finding.right, source=node, tx=finding.tx, records=records, reason=why
            )
    return _unplanned(told, "no log that was read has what was rolled back")


def _of_a_copy(finding: Finding, told: Action, strategy: Strategy) -> Action:
    """What is done about copies that are wrong as a whole: those that are proven to be, or that a strategy says."""
    anew, reason = list(finding.on), ""
    match finding.kind:
        case Kind.COUNTER_GAP | Kind.BEHIND:
            if any(finding.copies[node].get("hwm") for node in anew):
                return _unplanned(told, "the copy lacks some counters: its node fetches them when it runs")
            reason = "nothing of the fragment is left here"
        case Kind.CONTENTS_MISMATCH:
            reason = "its rows are not what its own checkpoint wrote"
        case Kind.UNREADABLE if finding.namespace:
            reason = "a part of the fragment cannot be read"
        case Kind.EPOCH_FORK | Kind.DIGEST_MISMATCH:
            told = msgspec.structs.replace(told, strategy=strategy)
            anew, reason = _parted(finding, strategy)
        case _:
            return _unplanned(told, "a part of the store, or all of it, cannot be read: restore the directory, or empty it")
    return msgspec.structs.replace(told, action=Act.REFETCH if anew else Act.NONE, on=anew or finding.on, reason=reason)


def _parted(finding: Finding, strategy: Strategy) -> tuple[list[NodeId], str]:
    """Which copies, whose histories part, are taken anew; none where the strategy decides nothing."""
    copies = finding.copies
    match strategy:
        case Strategy.PRIMARY if finding.primary in copies:
            anew = [node for node, facts in copies.items() if facts != copies[finding.primary]]
            return anew, "the primary has another history"
        case Strategy.MAJORITY:
            same = Counter(msgspec.json.encode(facts, order="sorted") for facts in copies.values()).most_common(1)
            for facts, count in same:
                if 2 * count > len(copies):
                    odd = [n for n, f in copies.items() if msgspec.json.encode(f, order="sorted") != facts]
                    return odd, f"{count} of {len(copies)} copies have another history"
            return [], "no majority: a tie is never decided"
        case _:
            return [], "histories part, and no log proves which one counts: choose the strategy primary or majority"


def _refetched(finding: Finding, told: Action) -> Action:
    """The copies that are wrong get what the log says: from one that has it, or from a record."""
    changed = msgspec.structs.replace
    if gone(finding.right):
        return changed(told, action=Act.REFETCH, right=finding.right, reason="the log has its delete, or never had it")
    told = changed(told, action=Act.REFETCH, right=finding.right)
    for node in finding.holders:
        return changed(told, source=node, reason=f"the log has this version, and {node} has the row")
    for node, trace in finding.evidence.items():
        lsn = trace.get("lsn")
        if _version(trace) == _version(finding.right) and isinstance(lsn, int):
            return changed(told, source=node, lsn=lsn, reason=f"the log of {node} has the row at LSN {lsn}")
    reason = "the log says which version is right, and no copy and no log that was read has it"
    return changed(told, action=Act.NONE, reason=reason)


def chosen(strategy: Strategy, copies: Mapping[NodeId, Facts], primary: NodeId) -> tuple[Facts | None, str]:
    """What a key shall be by a strategy, and why; None where that decides nothing."""
    here = copies.get(primary)
    if not copies:
        return None, "no copy of the row can be read"
    match strategy:
        case Strategy.PROOF:
            return None, "nothing is proven: choose a strategy"
        case Strategy.REMOVE:
            return {"absent": True}, "the key goes"
        case Strategy.PRIMARY:
            return (here, "the primary has it so") if here is not None else (None, "the primary's row is not known")
        case Strategy.MAJORITY:
            return _majority(copies)
        case Strategy.LATEST:
            return _latest(copies)
        case Strategy.LATEST_TRUST_MISSING_PRIMARY:
            if here is not None and gone(here):
                return {"absent": True}, "the primary has none"
            return _latest(copies)
        case Strategy.LATEST_SKIP_MISSING_PRIMARY:
            if here is not None and gone(here):
                return None, "the primary has none: skipped"
            return _latest(copies)


def _majority(copies: Mapping[NodeId, Facts]) -> tuple[Facts | None, str]:
    for facts in copies.values():
        same = sum(other == facts or (gone(other) and gone(facts)) for other in copies.values())
        if 2 * same > len(copies):
            return facts, f"{same} of {len(copies)} copies have it so"
    return None, "no majority: a tie is never decided"


def _latest(copies: Mapping[NodeId, Facts]) -> tuple[Facts | None, str]:
    best = max(_version(facts) for facts in copies.values())
    found = [facts for facts in copies.values() if _version(facts) == best]
    if any(facts != found[0] for facts in found):
        return None, "the newest version has two values: a tie is never decided"
    return found[0], "it is the newest version"


def _version(facts: Facts) -> tuple[int, int]:
    epoch, counter = facts.get("epoch", 0), facts.get("counter", 0)
    return (epoch, counter) if isinstance(epoch, int) and isinstance(counter, int) else (0, 0)
