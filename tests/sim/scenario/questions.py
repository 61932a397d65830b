"""What a story can ask: each a question to the world now, whose answer is compared as a number or as words.

Nothing here lets time pass: `settle` or `run` does, before.
"""

from __future__ import annotations

from collections.abc import Callable

from engine import errors
from engine.client.calls import KeysCall
from rebalance.fragment import FragmentState
from rebalance.table import Placement, Standing, Topology
from tests.sim.machine import Machine
from tests.sim.oracles import unsettled
from tests.sim.scenario import operations as do
from tests.sim.scenario.expects import NONE, Answer, expects
from tests.sim.scenario.judge import judge
from tests.sim.scenario.language import Statement
from tests.sim.scenario.stage import Stage, Unmet
from tests.sim.violation import About, Violation
from tests.support.probes import declared
from wal.ids import Fragment, Namespace
from wal.records import KINDS

ERRORS = tuple(name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.Error))

# Counters.


def _copy(stage: Stage, statement: Statement, words: list[str]) -> FragmentState:
    """`NODE FRAGMENT`: the copy that a node has; an empty one if it has none."""
    machine, name = stage.machine(statement, words[0]), stage.fragment(statement, words[1])
    return _state(machine, name)


def _state(machine: Machine, name: Fragment) -> FragmentState:
    if machine.node is None:
        return FragmentState(name)
    return machine.node.core.replica.fragments.get(name) or FragmentState(name)


@expects("lwm", "NODE FRAGMENT = COUNTER", least=2)
def lwm(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """All counters up to here are applied."""
    return _copy(stage, statement, words).counter.lwm


@expects("hwm", "NODE FRAGMENT = COUNTER", least=2)
def hwm(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The highest counter that was promised or applied."""
    return _copy(stage, statement, words).counter.hwm


@expects("highest", "NODE FRAGMENT = COUNTER", least=2)
def highest(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The highest counter that was applied."""
    return _copy(stage, statement, words).counter.highest_applied


@expects("gaps", "NODE FRAGMENT = 14-16, 20", least=2)
def gaps(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Counters below the highest applied one that are not applied."""
    counter = _copy(stage, statement, words).counter
    missing = counter.missing(counter.highest_applied)
    return ", ".join(f"{s + 1}-{s + d}" if d > 1 else str(s + 1) for s, d in missing) or NONE


@expects("sequential", "NODE FRAGMENT", least=2)
def sequential(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Nothing is missing and nothing is promised: lwm and hwm are one."""
    counter = _copy(stage, statement, words).counter
    return counter.lwm == counter.hwm and not counter.ranges


@expects("counters", "FRAGMENT", least=1, values="equal")
def counters(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """`equal`, or what each owner that runs has."""
    return _same(stage, statement, words[0], lambda copy: str(copy.counter))


@expects("digests", "FRAGMENT", least=1, values="equal")
def digests(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """`equal`, or what each owner that runs has."""
    return _same(stage, statement, words[0], lambda copy: f"{copy.digest:016x}")


def _same(stage: Stage, statement: Statement, text: str, what: Callable[[FragmentState], str]) -> str:
    name = stage.fragment(statement, text)
    owners = [stage.world.machines[n] for n in _placement(stage, statement, text).owners]
    found = {m.name: what(_state(m, name)) for m in owners if m.up}
    if len(set(found.values())) <= 1:
        return "equal"
    return "; ".join(f"{node} {value}" for node, value in found.items())


@expects("epochs", "NODE FRAGMENT = 1@1 2@15", least=2)
def epochs(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Which epoch begins at which counter, on one copy."""
    return " ".join(f"{epoch}@{first}" for epoch, first in _copy(stage, statement, words).history) or NONE


# Data.


@expects("rows", "NAMESPACE|FRAGMENT [NODE] = N", least=1, most=2)
def rows(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Rows at the primaries, or at one node."""
    namespace, slash, number = words[0].rpartition("/")
    name = stage.namespace(statement, namespace if slash else words[0])
    newest = _topology(stage, statement)
    partitions = [stage.partition(statement, number)] if slash else list(newest.partitions_of(name))
    only = stage.machine(statement, words[1]) if len(words) > 1 else None
    count = 0
    for partition in partitions:
        machine = only or _primary(stage, partition)
        if machine is not None and machine.node is not None:
            found = machine.node.core.replica.store.scan((name, partition), b"", 1_000_000)
            count += sum(entry.value is not None for _, entry in found)
    return count


@expects("value", "NAMESPACE|FRAGMENT KEY [NODE] = VALUE", least=2, most=3)
def value(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The value of a key at its primary, or at one node; `none` if there is no such key."""
    namespace, slash, number = words[0].rpartition("/")
    name = stage.namespace(statement, namespace if slash else words[0])
    key = stage.key(words[1], stage.partition(statement, number) if slash else None)
    partition = stage.place_of(name, key)
    machine = stage.machine(statement, words[2]) if len(words) > 2 else _primary(stage, partition)
    if machine is None or machine.node is None:
        return "nobody"
    held = machine.node.core.replica.store.get((name, partition), key)
    return do.text_of([held.value if held is not None else None])


# Transactions.


@expects("outcome", "TX = committed|aborted|prepared|pending", least=1, values="committed aborted prepared pending")
def outcome(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """How a transaction stands in the cluster."""
    op = stage.operation(statement, words[0])
    keys = list(op.transaction.written) if op.transaction is not None else _keys(op)
    partition = stage.place_of(*keys[0]) if keys else 0
    machine = _primary(stage, partition) if keys else None
    if machine is not None and machine.node is not None:
        state = machine.node.core.replica.partition(partition)
        known = state.results.get(op.tx)
        if known is not None:
            return do.COMMITTED if known == 1 else do.ABORTED
        if op.tx in state.prepared:
            return do.PREPARED
    return do.ABORTED if op.answer == do.ABORTED else do.PENDING


def _keys(op: do.Operation) -> list[tuple[Namespace, bytes]]:
    return [(op.again.namespace, key) for key in op.again.keys] if isinstance(op.again, KeysCall) else []


@expects("answer", "NAME = committed|aborted|prepared|unknown|pending|VALUE", least=1)
def answer(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """What a client was told."""
    return stage.operation(statement, words[0]).answer


@expects("error", "NAME = Conflict", least=1, values=f"{NONE} {' '.join(ERRORS)}")
def error(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The class of the error that a client was told last; `none` if there was none."""
    op = stage.operation(statement, words[0])
    return type(op.error).__name__ if op.error is not None else NONE


@expects("in-doubt", "NODE = t1", least=1)
def in_doubt(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Transactions that are prepared at a primary and have no outcome there."""
    node = stage.machine(statement, words[0]).node
    names = stage.world.trace.names
    return " ".join(names.tx_name(tx) or tx.hex() for tx in (node.participant.in_doubt() if node else [])) or NONE


@expects("prepared", "NODE TX", least=2)
def prepared(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Whether any copy of a node holds the transaction prepared."""
    node, op = stage.machine(statement, words[0]).node, stage.operation(statement, words[1])
    return node is not None and any(op.tx in p.prepared for p in node.core.replica.partitions.values())


@expects("locks", "NODE = N", least=1)
def locks(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """How many keys are locked at a node."""
    node = stage.machine(statement, words[0]).node
    return len(node.locks) if node is not None else 0


@expects("took", "NAME < 500ms", least=1, timed=True)
def took(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """How long a client waited for the last answer of an operation; until now, if there is none."""
    op = stage.operation(statement, words[0])
    return (op.ended if op.ended is not None else stage.world.now) - op.began


@expects("blocked", "STREAM < 2s", least=1, timed=True)
def blocked(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The longest time in which nothing of a stream was acknowledged, up to now or to its end."""
    op = stage.operation(statement, words[0])
    return max(op.blocked, (op.ended if op.ended is not None else stage.world.now) - op.acked)


@expects("written", "STREAM >= N", least=1)
def written(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """How many writes of a stream were acknowledged."""
    return stage.operation(statement, words[0]).count


# Catching up.


@expects(
    "rebalance",
    "NODE FRAGMENT = historical|mutations|differential|full|nothing|none",
    least=2,
    values="historical mutations differential full nothing none",
)
def rebalance(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The way that a copy caught up since its node started."""
    machine, name = stage.machine(statement, words[0]), stage.fragment(statement, words[1])
    return machine.node.demander.progress.kinds.get(name, NONE) if machine.node is not None else NONE


@expects("supplied", "NODE [FRAGMENT] <= N", least=1, most=2)
def supplied(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Updates and rows that suppliers sent to a node since it started."""
    machine = stage.machine(statement, words[0])
    name = stage.fragment(statement, words[1]) if len(words) > 1 else None
    return stage.supplies.supplied(machine.name, name)


@expects("supplier", "NODE FRAGMENT = NODE|none", least=2)
def supplier(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Who sent a node anything of a fragment since it started, the last one; `none` if nobody did."""
    machine, name = stage.machine(statement, words[0]), stage.fragment(statement, words[1])
    return stage.supplies.suppliers.get((machine.name, name), NONE)


@expects("no-supply", "NODE", least=1)
def no_supply(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Nothing was supplied to a node since it started."""
    return stage.supplies.supplied(stage.machine(statement, words[0]).name, None) == 0


@expects("logged", "NODE RECORD [PARTITION] = N", least=2, most=3)
def logged(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Records of a kind that a node wrote to its log."""
    kinds = [str(kind.__struct_config__.tag) for kind in KINDS]
    kind = stage.known(statement, words[1], "kind of record", kinds)
    partition = stage.partition(statement, words[2]) if len(words) > 2 else None
    return stage.records.count(stage.machine(statement, words[0]).name, kind, partition)


@expects("reached", "PATH", least=1)
def reached(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Whether a rare path of the engine was taken in this story."""
    return stage.reached[stage.known(statement, words[0], "rare path", list(declared()))] > 0


# The map.


def _topology(stage: Stage, statement: Statement) -> Topology:
    newest = stage.world.newest()
    if newest is None:
        raise Unmet(statement, "a map", "no node runs that has one")
    return newest


def _placement(stage: Stage, statement: Statement, text: str) -> Placement:
    number = text.rpartition("/")[2]
    return _topology(stage, statement).placements[stage.partition(statement, number)]


def _primary(stage: Stage, partition: int) -> Machine | None:
    newest = stage.world.newest()
    name = newest.placements[partition].primary if newest is not None else None
    machine = stage.world.machines[name] if name is not None else None
    return machine if machine is not None and machine.up else None


@expects(
    "state", "NODE FRAGMENT|PARTITION = OWNING|MOVING|ASYNC|LOST|NONE", least=2, values="OWNING MOVING ASYNC LOST NONE"
)
def state(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """What a node's copy is, by the newest map."""
    node = stage.machine(statement, words[0]).name
    found = _placement(stage, statement, words[1]).standing_of(node)
    return "NONE" if found is Standing.NONE else str(found)


@expects("primary", "PARTITION = NODE|none", least=1)
def primary(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The primary by the newest map; `none` while the partition is LOST."""
    return _placement(stage, statement, words[0]).primary or NONE


@expects("owners", "PARTITION = n1 n2 n3", least=1)
def owners(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """All copies, the primary first."""
    return " ".join(_placement(stage, statement, words[0]).owners)


@expects("in-sync", "PARTITION = n1 n2", least=1)
def in_sync(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The copies that an acknowledgement waits for."""
    return " ".join(_placement(stage, statement, words[0]).in_sync)


@expects("epoch", "PARTITION = N", least=1)
def epoch(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The epoch by the newest map."""
    return _placement(stage, statement, words[0]).epoch


@expects("lost", "= 0 1 2")
def lost(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Partitions that are LOST."""
    placements = _topology(stage, statement).placements
    return " ".join(str(number) for number, placement in enumerate(placements) if placement.lost) or NONE


@expects("members", "= n1 n2 n3")
def members(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The members of the newest map, the oldest first."""
    return " ".join(member.node for member in _topology(stage, statement).members)


@expects("baseline", "= n1 n2 n3")
def baseline(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The nodes that are meant to hold data."""
    return " ".join(_topology(stage, statement).baseline)


@expects("version", "[NODE] = 2.0", least=0, most=1)
def version(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """The version of the newest map, or of one node's."""
    if not words:
        return str(_topology(stage, statement).version)
    node = stage.machine(statement, words[0]).node
    return str(node.core.version) if node is not None else NONE


@expects("coordinator", "NODE = n1", least=1)
def coordinator(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Who leads, in a node's opinion."""
    node = stage.machine(statement, words[0]).node
    return (node.detector.coordinator() if node is not None else None) or NONE


# Nodes.


@expects("up", "NODE", least=1)
def up(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Its process runs."""
    return stage.machine(statement, words[0]).up


@expects("serving", "NODE [PARTITION]", least=1, most=2)
def serving(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """It is a member; with a partition: it is its primary, and would take a write now."""
    machine = stage.machine(statement, words[0])
    node = machine.node
    if node is None or not machine.up or not node.core.serving:
        return False
    if len(words) == 1:
        return True
    hold = node.core.local[stage.partition(statement, words[1].rpartition("/")[2])]
    return hold.active and node.core.quorum and not node.core.frozen


@expects("quorum", "NODE", least=1)
def quorum(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """It hears of a majority."""
    machine = stage.machine(statement, words[0])
    return machine.up and machine.node is not None and machine.node.core.quorum


@expects("held", "= N")
def held(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """How many messages wait for their release."""
    return len(stage.world.network.held)


# Everything.


@expects("settled")
def settled(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Every node serves, at one map; nothing is behind, in doubt, locked, lost or short of copies."""
    why = unsettled(stage.world)
    if why:
        raise Violation("settled", why, About())
    return True


@expects("consistent")
def consistent(stage: Stage, statement: Statement, words: list[str]) -> Answer:
    """Every oracle: see `judge`."""
    judge(stage)
    return True
