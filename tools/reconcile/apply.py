"""A plan is carried out: each action only if the row still is what was seen, each noted before the next one begins.

```
 refetch      the rows are written into the data directories of stopped nodes, all of one fragment at once, at the version
              that the log says; the row is read from the copy, or the record, that the plan names. A node that runs is
              ordered to take the fragment in full from its peers. A whole fragment, a line without a key, is taken so
              only: whatever the copy has by now
 commit       through the API as well, in one transaction: what another one rolled back, as its records have it. What was
              written or deleted since stays as it is
 put, delete  through the API, in a transaction that locks the key and looks whether the primary still has what was seen
```

Whoever is interrupted begins again: what is noted as done is passed over, what was done and not noted is found to be so.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

import engine
from engine.errors import CorruptionError, Error, UsageError
from engine.offline.directory import read_directory
from engine.offline.live import is_live
from engine.offline.repair import Unrepaired, set_right
from engine.state.identity import no_directory, read_identity
from engine.state.store import Entry
from rebalance.contents import row_digest
from tools.cluster_orders import taken_anew
from tools.reconcile.audit import Audit, Became
from tools.reconcile.changes import AT_ONCE, Change, Outcome, perform
from tools.reconcile.findings import Facts, entry_facts, facts_text, raw_key
from tools.reconcile.plans import Act, Action, Header, gone
from tools.reconcile.rows import INTERNAL
from tools.reconcile.saved_plan import SavedPlan, places_of
from tools.shown import Values, printable
from wal import Block, inspect
from wal import records as r
from wal.ids import Fragment, NodeId, fragment_name, tx_name

THROUGH = (Act.PUT, Act.DELETE, Act.COMMIT)
"""What goes through the API."""
ANEW_SECONDS = 600.0
"""So long an application waits for nodes to take fragments in full."""


class Limits(msgspec.Struct, frozen=True):
    """What an application may do. `changes_max` of 0 and `per_second` of 0 are no limit."""

    changes_max: int = 0
    deletes: bool = True
    per_second: float = 0.0


def paths_of(header: Header | None, directories: Sequence[str]) -> dict[NodeId, Path]:
    """The directories by node. Raises UsageError if one is of another cluster than the plan, where that is known."""
    paths: dict[NodeId, Path] = {}
    for given in directories:
        path = Path(given.removeprefix("file://"))
        identity = read_identity(path)
        if identity is None:
            raise UsageError(no_directory(path))
        if header is not None:
            with read_directory(path, partitions=(), tolerant=True) as state:
                cluster_id = state.topology.cluster if state.topology is not None else ""
            if (identity.cluster, cluster_id or header.cluster_id) != (header.cluster, header.cluster_id):
                raise UsageError(
                    f"{path} belongs to cluster {identity.cluster!r}: the plan is of another one, {header.cluster!r}"
                )
        if identity.node in paths:
            raise UsageError(f"{paths[identity.node]} and {path} both belong to node {identity.node!r}")
        paths[identity.node] = path
    return paths


def apply_plan(
    plan: SavedPlan,
    paths: Mapping[NodeId, Path],
    audit: Audit,
    limits: Limits,
    *,
    at: str = "",
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Carry out what is not done yet. Raises UsageError, before anything was changed, if that is more than it may be.

    Of a plan only the actions of one fragment on one node are in memory at once, and the rows that they are about.
    """
    groups: dict[tuple[NodeId, Fragment], array[int]] = {}
    left = 0
    for place, action in plan.placed():
        for node in places_of(action):
            if audit.is_done(action.n, node):
                continue
            left += 1
            if action.action is Act.REFETCH and (limits.deletes or not action.removes):
                groups.setdefault((node, action.fragment), array("Q")).append(place)
    if limits.changes_max and left > limits.changes_max:
        raise UsageError(f"{left} changes are left to do: expected {limits.changes_max} at most, by --max-changes")

    def pace(count: int) -> None:
        if limits.per_second:
            wait(count / limits.per_second)

    if not limits.deletes:
        audit.note(
            Became(action, node, Outcome.SKIPPED, "it removes a row")
            for action in plan
            for node in places_of(action)
            if action.removes and not audit.is_done(action.n, node)
        )
    if at:
        idle = frozenset(node for node, path in paths.items() if not is_live(path))
        ordered = {place: group for place, group in groups.items() if place[0] not in idle}
        _anew(at, ordered, plan, paths, audit, idle=idle)
        groups = {place: group for place, group in groups.items() if place not in ordered}
    for (node, fragment), group in groups.items():
        done = _refetch(node, fragment, list(plan.at(group)), paths)
        audit.note(done)
        pace(len(done))
    through = (
        action
        for action in plan
        if action.action in THROUGH and not audit.is_done(action.n, "") and (limits.deletes or not action.removes)
    )
    if not at:
        why = "it goes through the API: name a node with --at HOST:PORT"
        audit.note(Became(action, "", Outcome.FAILED, why) for action in through)
        return
    _through(at, through, paths, audit, pace)


def _through(
    at: str, actions: Iterator[Action], paths: Mapping[NodeId, Path], audit: Audit, pace: Callable[[int], None]
) -> None:
    """What goes through the API, one transaction each. The rows that many are about are looked for at once."""
    first = next(actions, None)
    if first is None:
        return
    with engine.connect(at) as database:
        for _, group in groupby(chain([first], actions), attrgetter("fragment", "source")):
            while some := list(islice(group, AT_ONCE)):
                sources = Sources(paths, some)
                for action in some:
                    try:
                        if action.action is Act.COMMIT:
                            outcome, why = _completed(database, action, paths)
                        else:
                            outcome, why = _written(database, action, sources)
                    except Error as error:
                        outcome, why = Outcome.FAILED, str(error)
                    audit.note([Became(action, "", outcome, why)])
                    pace(1)


# By nodes that run.


def _anew(
    at: str,
    groups: Mapping[tuple[NodeId, Fragment], Sequence[int]],
    plan: SavedPlan,
    paths: Mapping[NodeId, Path],
    audit: Audit,
    *,
    idle: Container[NodeId],
) -> None:
    """Order the nodes to take these fragments in full from their peers, of those of which a peer is right.

    A peer brings all of its rows, those of other findings, too. So there has to be one that nothing is said against in any
    row of the fragment, and that is not `idle`: it stays as it is, and whatever the others bring each other no row is lost.
    """
    wanted: dict[NodeId, list[str]] = {}
    taken: list[tuple[NodeId, array[int]]] = []
    wrong: dict[Fragment, list[NodeId]] = {}
    for node, fragment in groups:
        wrong.setdefault(fragment, []).append(node)
    for (node, fragment), places in groups.items():
        group = list(plan.at(places))
        peers = [{peer for peer in a.seen if peer not in a.on and peer not in idle} for a in group if a.key is not None]
        if not all(peers) or any(some.issubset(wrong[fragment]) for some in peers):
            why = (
                "each copy is wrong in some row, and a peer would bring its own: stop the nodes, and apply again"
                if all(peers)
                else "every copy is wrong, so no peer has the row: stop the nodes, and apply again"
            )
            audit.note(Became(a, node, Outcome.FAILED, why) for a in group)
            continue
        changed = _changed(node, fragment, group, paths)
        audit.note(changed)
        odd = {one.action.n for one in changed}
        left = array("Q", (place for place, a in zip(places, group, strict=True) if a.n not in odd))
        if left:
            wanted.setdefault(node, []).append(fragment_name(fragment))
            taken.append((node, left))
    if not wanted:
        return
    outcome, why = Outcome.APPLIED, "taken in full from its peers"
    try:
        asyncio.run(taken_anew(at.partition(",")[0], wanted, ANEW_SECONDS))
    except Error as error:
        outcome, why = Outcome.FAILED, str(error)
    audit.note(Became(action, node, outcome, why) for node, left in taken for action in plan.at(left))


def _changed(node: NodeId, fragment: Fragment, group: Sequence[Action], paths: Mapping[NodeId, Path]) -> list[Became]:
    """What is right already, or is not what was seen any more, where the directory of the node can be looked at."""
    rows = [action for action in group if action.key is not None]
    if node not in paths or not rows:
        return []
    held = held_of(paths[node], fragment, keys_of(rows))
    found: list[Became] = []
    for action in rows:
        facts = held.facts(raw_key(action.key or ""))
        if not _seen(facts, action.seen.get(node)):
            found.append(Became(action, node, Outcome.CHANGED, f"expected what was seen, found {facts_text(facts)}"))
    return found


# In the directories of stopped nodes.


def _refetch(node: NodeId, fragment: Fragment, group: Sequence[Action], paths: Mapping[NodeId, Path]) -> list[Became]:
    """All refetches of one fragment on one node."""
    wholes = [a for a in group if a.is_whole]
    if wholes:
        why = "a whole fragment is taken anew by a node that runs: start it, and apply again with --at HOST:PORT"
        rest = [a for a in group if not a.is_whole]
        failed = [Became(a, node, Outcome.FAILED, why) for a in wholes]
        return failed + (_refetch(node, fragment, rest, paths) if rest else [])
    if node not in paths:
        return [Became(a, node, Outcome.FAILED, f"no directory of node {node} was given") for a in group]
    done: list[Became] = []
    rows: dict[bytes, Entry | None] = {}
    written: list[Action] = []
    sources = Sources(paths, group)
    try:
        held = held_of(paths[node], fragment, keys_of(group))
        for action in group:
            key = raw_key(action.key or "")
            facts = held.facts(key)
            changed = Became(action, node, Outcome.CHANGED, f"expected what was seen, found {facts_text(facts)}")
            as_seen = _seen(facts, action.seen.get(node))
            try:
                right = sources.right(action)
            except Error as error:  # written since, on all copies: then it is no failure
                done.append(Became(action, node, Outcome.FAILED, str(error)) if as_seen else changed)
                continue
            if _same(facts, entry_facts(right, Values.HASH)):
                done.append(Became(action, node, Outcome.ALREADY))
            elif not as_seen:
                done.append(changed)
            else:
                rows[key] = right
                written.append(action)
        if rows:
            set_right(paths[node], fragment, rows, held.partitions)
            done += [Became(a, node, Outcome.APPLIED) for a in written]
    except (Unrepaired, CorruptionError) as error:
        told = {one.action.n for one in done}
        done += [Became(a, node, Outcome.FAILED, str(error)) for a in group if a.n not in told]
    return done


class Held(NamedTuple):
    """What a copy has of some keys, which of its rows cannot be read, and into how many partitions keys hash."""

    rows: dict[bytes, Entry]
    damaged: set[bytes | None]
    partitions: int

    def facts(self, key: bytes) -> Facts:
        """What a report would say of this row."""
        return {"unreadable": True} if key in self.damaged else entry_facts(self.rows.get(key), Values.HASH)


def keys_of(actions: Iterable[Action]) -> set[bytes]:
    """The keys that actions are about."""
    return {raw_key(action.key) for action in actions if action.key is not None}


def held_of(path: Path, fragment: Fragment, keys: Container[bytes]) -> Held:
    """The rows of these keys. A walk over all of the fragment, of which no more is kept."""
    damaged: set[bytes | None] = set()
    with read_directory(path, partitions=[fragment[1]], tolerant=True) as state:
        rows = {key: entry for key, entry in state.rows(fragment, lambda key, _what: damaged.add(key)) if key in keys}
        partitions = state.topology.partitions if state.topology is not None else 0
    return Held(rows, damaged, partitions)


class Sources:
    """Where the right rows of some actions come from: copies and logs that a plan names. A fragment is read once."""

    def __init__(self, paths: Mapping[NodeId, Path], actions: Iterable[Action]) -> None:
        self._paths = paths
        self._keys = keys_of(action for action in actions if not action.lsn)
        self._rows: dict[tuple[NodeId, Fragment], dict[bytes, Entry]] = {}

    def right(self, action: Action) -> Entry | None:
        """What the key shall be; None: nothing. Raises Error where it is not there any more."""
        if gone(action.right):
            return None
        path, key = self._paths.get(action.source), raw_key(action.key or "")
        if path is None:
            raise Unrepaired(f"the row is in the directory of node {action.source}: name that as well")
        if action.lsn:
            found = _in_record(path, action, key)
        else:
            at = (action.source, (action.namespace, action.partition))
            if at not in self._rows:
                self._rows[at] = held_of(path, at[1], self._keys).rows
            found = self._rows[at].get(key)
        if found is None or not _is(key, found, action.right):
            raise Unrepaired(f"node {action.source} does not have the row any more: check again, and make a new plan")
        return found


def _in_record(path: Path, action: Action, key: bytes) -> Entry | None:
    for block in inspect(path / "wal", action.lsn, action.lsn):
        for record in block.records if isinstance(block, Block) else ():
            for write in record.writes if isinstance(record, r.Update | r.History | r.Prepare) else ():
                if write.fragment == (action.namespace, action.partition):
                    for counter, (name, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
                        if name == key and counter == action.right.get("counter"):
                            return Entry(write.epoch, counter, value)
    return None


# Through the API.


def _written(database: engine.Database, action: Action, sources: Sources) -> tuple[Outcome, str]:
    """A put or a delete, if the primary still has what was seen."""
    right = sources.right(action)
    seen = action.seen.get(action.primary)
    if seen is None:
        return Outcome.CHANGED, "the plan does not say what the primary had"
    value = right.value if right is not None else None
    (done,) = perform(database, [Change(action.namespace, raw_key(action.key or ""), value, seen)])
    return done.outcome, done.why


def _completed(database: engine.Database, action: Action, paths: Mapping[NodeId, Path]) -> tuple[Outcome, str]:
    """What a transaction would have written, but for keys that were written since; all of it, or nothing."""
    path = paths.get(action.source)
    if path is None:
        raise Unrepaired(f"the record is in the log of node {action.source}: name its directory as well")
    prepared = [write for lsn in action.records for write in prepared_writes(path, lsn, action.tx)]
    changes: list[Change] = []
    with read_directory(path, partitions={write.partition for write in prepared}, tolerant=True) as state:
        for write in prepared:
            for counter, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
                newest = state.row(write.fragment, key, lambda _key, _what: None)
                if newest is None or newest.counter < counter:
                    alive = newest if newest is not None and newest.value is not None else None
                    changes.append(Change(write.namespace, key, value, entry_facts(alive, Values.HASH)))
    if not changes:
        return Outcome.ALREADY, "all of it was written since"
    done = perform(database, changes, whole=True)
    odd = next((one for one in done if one.outcome is Outcome.CHANGED), None)
    if odd is not None:
        return Outcome.CHANGED, f"key {printable(odd.change.key)}: {odd.why}"
    applied = sum(one.outcome is Outcome.APPLIED for one in done)
    return (Outcome.APPLIED if applied else Outcome.ALREADY), f"{applied} of {sum(len(w.keys) for w in prepared)} keys"


def prepared_writes(path: Path, lsn: int, tx: str) -> list[r.Write]:
    """What a transaction prepared there. Raises Unrepaired where the log does not have it any more, or where rows of the
    engine's own belong to it, as those of times to live do: without them a value would never go."""
    for block in inspect(path / "wal", lsn, lsn):
        for record in block.records if isinstance(block, Block) else ():
            if isinstance(record, r.Prepare) and tx_name(record.tx) == tx:
                own = next((write.namespace for write in record.writes if write.namespace.startswith(INTERNAL)), "")
                if own:
                    raise Unrepaired(
                        f"rows of {own} belong to {tx}, which no client writes: whoever ran it must write the other half"
                    )
                return record.writes
    raise Unrepaired(f"{path}: the log does not have what {tx} prepared at LSN {lsn} any more: check again")


# Facts against facts.


def _same(facts: Facts, right: Facts) -> bool:
    """Whether a row is what it shall be, as far as that is told."""
    if gone(right):
        return gone(facts)
    return not gone(facts) and all(facts.get(name) == what for name, what in right.items())


def _is(key: bytes, entry: Entry, right: Facts) -> bool:
    """Whether a row is the one that a plan means: by its digest, or by the hash of its value."""
    return _same(entry_facts(entry, Values.HASH) | {"share": f"{row_digest(key, entry):016x}"}, right)


def _seen(facts: Facts, seen: Facts | None) -> bool:
    return seen is not None and (facts == seen or (gone(facts) and gone(seen)))
