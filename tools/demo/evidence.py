"""What the demo checks, and how it knows: from the clients' ledger, the nodes' counters, and the files they leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.host.data_directory import open_data_directory
from engine.state.store import Entry
from engine.turn.settings import Settings
from tools.demo.flights import Hour
from wal import PartitionCounter, read
from wal import records as r
from wal.ids import Fragment, TxId, fragment_name, partition_of

SHOWN = 5


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold."""

    name: str
    held: bool
    expected: str
    found: str

    def __str__(self) -> str:
        return f"ok: {self.name}" if self.held else f"FAILED: {self.name}: expected {self.expected}, found {self.found}"


def equal(name: str, expected: object, found: object) -> Check:
    """Two things must be equal; of large maps, the entries that differ are shown."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        held = expected == found
        wrong = {k: None for k in (*expected, *found) if expected.get(k) != found.get(k)} if not held else {}
        return Check(name, held, _some(expected, wrong), _some(found, wrong))
    if isinstance(expected, set) and isinstance(found, set):
        return equal(name, sorted(expected), sorted(found))
    if isinstance(expected, list) and isinstance(found, list):
        missing, more = _without(expected, found), _without(found, expected)
        return Check(name, expected == found, _few(expected, missing), _few(found, more))
    return Check(name, expected == found, str(expected), str(found))


def _without(things: list[Any], others: list[Any]) -> list[Any]:
    known = dict.fromkeys(map(repr, others))  # whatever they are
    return [thing for thing in things if repr(thing) not in known]


def _few(things: list[Any], differ: list[Any]) -> str:
    """A list as it is told: whole if it is short, or how long it is and what of it is not in the other."""
    if len(things) <= SHOWN:
        return str(things)
    return f"{len(things)} entries" + (f", among them {_shortened(differ)}" if differ else "")


def _shortened(things: list[Any]) -> str:
    shown = ", ".join(map(str, things[:SHOWN]))
    return shown if len(things) <= SHOWN else f"{shown} and {len(things) - SHOWN} more"


def _some(values: Mapping[Any, Any], wrong: Iterable[Any]) -> str:
    keys = list(wrong)
    if not keys:
        return f"{len(values)} entries"
    shown = ", ".join(f"{key}: {values.get(key, 'nothing')}" for key in keys[:SHOWN])
    return shown if len(keys) <= SHOWN else f"{shown} and {len(keys) - SHOWN} more that differ"


# Counters.


def same_counters(counters: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Check]:
    """LWM, digest and gaps of every fragment, over all nodes; `counters` is node -> what it reports."""
    checks: list[Check] = []
    first, *others = counters
    for fact in ("lwm", "digest"):
        expected = {name: fragment[fact] for name, fragment in counters[first].items()}
        for node in others:
            found = {name: fragment[fact] for name, fragment in counters[node].items()}
            checks.append(equal(f"{fact} of every fragment on {node} and {first}", expected, found))
    gaps = {f"{node} {name}": f["ranges"] for node, told in counters.items() for name, f in told.items() if f["ranges"]}
    checks.append(equal("no fragment has a gap", {}, gaps))
    return checks


# How a node came back, from its own log.


class Return(msgspec.Struct):
    """What a node's log says of its second life. Numbers of updates; each counter of a fragment is one."""

    before: int = 0  # applied in its first life
    undone: int = 0  # of these, not continued by the others
    supplied: int = 0  # came as history
    live: int = 0  # came as they happened
    twice: int = 0  # came as history although they were there
    ends: dict[str, int] = {}  # fragment -> the highest counter without a gap


def read_return(directory: Path) -> Return:
    """Fold a log, counting; everything after the first `Boot` but one is the second life. Raises LogError."""
    found = Return()
    counters: dict[Fragment, PartitionCounter] = {}
    prepared: dict[tuple[TxId, int], r.Prepare] = {}
    lives = 0

    def applied(ranges: Iterable[tuple[Fragment, int, int]], *, history: bool) -> None:
        for name, start, delta in ranges:
            counter = counters.get(name)
            if counter is None:
                counter = counters[name] = PartitionCounter()
            new = counter.update(start, delta)
            if lives < 2:
                found.before += delta if new else 0
            elif history:
                found.supplied += delta
                found.twice += 0 if new else delta
            else:
                found.live += delta if new else 0

    for block in read(directory / "wal"):
        for record in block.records:
            match record:
                case r.Boot():
                    lives += 1
                case r.Update(writes):
                    applied(((w.fragment, w.start, w.delta) for w in writes), history=False)
                case r.History(writes):
                    applied(((w.fragment, w.start, w.delta) for w in writes), history=True)
                case r.Prepare():
                    prepared[record.tx, record.partition] = record
                case r.Outcome(tx, partition, _, commit, ranges):
                    prepare = prepared.pop((tx, partition), None)
                    if not commit:
                        applied((((ns, partition), start, delta) for ns, start, delta in ranges), history=False)
                    elif prepare is not None:
                        applied(((w.fragment, w.start, w.delta) for w in prepare.writes), history=False)
                case r.NoOp(partition, _, gaps):
                    applied((((ns, partition), start, delta) for ns, start, delta in gaps), history=False)
                case r.Undo(namespace, partition, above):
                    counter = counters.setdefault((namespace, partition), PartitionCounter())
                    had = _applied(counter)
                    counter.cut(above)
                    found.undone += had - _applied(counter)
                case _:
                    pass
    found.ends = {fragment_name(name): counter.lwm for name, counter in counters.items()}
    return found


def _applied(counter: PartitionCounter) -> int:
    return counter.lwm + sum(delta for _, delta in counter.ranges)


def check_return(
    node: str, told: Return, survivors: Mapping[str, Mapping[str, Any]], supplied: int, fetched: int
) -> list[Check]:
    """Exactly the missing updates were moved: by the survivors' counters, by the suppliers, and by the node's log.

    `fetched` is what the node asked its copies for when it became primary again: what was under way just then.
    """
    end = {name: fragment["lwm"] for name, fragment in survivors.items() if fragment["lwm"]}
    since = sum(end.values()) - (told.before - told.undone)
    return [
        equal(f"{node}'s log ends where the survivors' counters stand", end, {k: v for k, v in told.ends.items() if v}),
        equal(f"what the survivors applied since {node} died, less what it got live, was supplied", since - told.live,
              told.supplied),
        Check(f"the suppliers sent {node} all that its log has beside what it fetched as primary (an exchange breaks a "
              "transfer off, and its rest is sent again)", supplied + fetched >= told.supplied,
              f"at least {told.supplied - fetched}", str(supplied)),
        equal(f"{node} was sent nothing that it had", 0, told.twice),
    ]  # fmt: skip


# Contents.


def lost_hours(acknowledged: Iterable[str], hours: Sequence[Hour], stored: Mapping[bytes, bytes]) -> dict[str, str]:
    """Acknowledged hours whose flights are not all there as they were written."""
    by_name = {hour.name: hour for hour in hours}
    lost: dict[str, str] = {}
    for name in acknowledged:
        wrong = [key for key, value in by_name[name].flights.items() if stored.get(key) != value]
        if wrong:
            lost[name] = f"{len(wrong)} of {len(by_name[name].flights)} flights"
    return lost


def damage(directory: Path, *, cluster: str, settings: Settings, namespace: str, key: bytes) -> str:
    """Change one value in the directory of a stopped node, with its counter and a right checksum; return where it is.

    This is the damage that no checksum finds: as if the node had once applied something else.
    """
    opened = open_data_directory(directory, cluster=cluster, node=None, settings=settings)
    try:
        name = (namespace, partition_of(key, settings.partitions))
        entry = opened.replica.store.get(name, key)
        assert entry is not None, f"{key.decode()} is in {fragment_name(name)}"
        assert entry.value is not None, f"{key.decode()} was not deleted"
        opened.replica.store.set(name, key, Entry(entry.epoch, entry.counter, entry.value[:-1] + b" }"))
        opened.store.write(opened.replica.begin_checkpoint(opened.log.durable_lsn, []))
    finally:
        opened.close()
    return fragment_name(name)
