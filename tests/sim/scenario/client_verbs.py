"""What clients do in a story: load, transactions, single writes and reads, retries, streams of writes."""

from __future__ import annotations

from engine.client.calls import SwapCall
from engine.protocol.operations import OPERATIONS
from tests.sim.network import MS
from tests.sim.scenario import operations as do
from tests.sim.scenario.language import Statement
from tests.sim.scenario.operations import Operation
from tests.sim.scenario.registry import verb
from tests.sim.scenario.stage import TIMEOUT_NS, Stage, time_of
from tests.sim.transactions import SimTransaction

BATCH = 100
PLACE = "ns partition key keys n"


@verb("client", "NAME", least=1, options="on wall")
def client(stage: Stage, statement: Statement) -> None:
    """Another client program."""
    name = statement.words[0]
    if name in stage.world.clients or name in stage.world.machines:
        raise statement.error(f"{name} is there already: expected a new name")
    host = stage.machine(statement, statement.options["on"]) if "on" in statement.options else None
    wall = time_of(statement, statement.option("wall", "0ms"), "wall") // MS
    stage.world.add_client(name, host=host, wall_offset_ms=wall)
    stage.breathe()


@verb("load", options=f"{PLACE} from bytes value")
def load(stage: Stage, statement: Statement) -> None:
    """Put keys, a hundred at a time."""
    namespace, _ = stage.place(statement)
    keys = stage.new_keys(statement, "k")
    size, value = statement.number("bytes", 0), statement.option("value")
    for at in range(0, len(keys), BATCH):
        op = stage.begin(statement, "", stage.client_for(statement))
        values = {key: _value(value, op, at + i, size) for i, key in enumerate(keys[at : at + BATCH])}
        stage.perform(statement, op, do.write(op, stage.ledger, namespace, values, TIMEOUT_NS))


@verb("begin", "TX", least=1, options="from optimistic timeout lock-timeout")
def begin(stage: Stage, statement: Statement) -> None:
    """A transaction begins."""
    client = stage.client_for(statement)
    optimistic = statement.option("optimistic", "no")
    if optimistic not in ("yes", "no"):
        raise statement.error(f"optimistic={optimistic}: expected yes or no")
    op = stage.begin(statement, statement.words[0], client)
    op.transaction = SimTransaction(
        client,
        optimistic=optimistic == "yes",
        timeout_ns=_timeout(statement),
        lock_timeout_ms=time_of(statement, statement.option("lock-timeout", "5s"), "lock-timeout") // MS,
    )
    op.transaction.tx = op.tx  # it commits under no other


@verb("put", "[TX]", most=1, options=f"{PLACE} value bytes from as timeout async")
def put(stage: Stage, statement: Statement) -> None:
    """Set keys, in a transaction or at once."""
    _write(stage, statement, delete=False)


@verb("delete", "[TX]", most=1, options=f"{PLACE} from as timeout async")
def delete(stage: Stage, statement: Statement) -> None:
    """Delete keys, in a transaction or at once."""
    _write(stage, statement, delete=True)


def _write(stage: Stage, statement: Statement, *, delete: bool) -> None:
    named = _words(statement)
    op = stage.operation(statement, named[0]) if named else _single(stage, statement)
    namespace, _ = stage.place(statement)
    keys = stage.old_keys(statement) if delete else stage.new_keys(statement, f"{op.name.strip('()')}-" if named else "k")
    text, size = statement.option("value"), statement.number("bytes", 0)
    values = {key: None if delete else _value(text, op, at, size) for at, key in enumerate(keys)}
    if not named:
        stage.perform(statement, op, do.write(op, stage.ledger, namespace, values, _timeout(statement)))
        return
    _open_transaction(statement, op)
    stage.perform(statement, op, do.touch(op, namespace, values))


@verb("get", "[TX]", most=1, options="ns partition key keys from as timeout stale max-age async")
def get(stage: Stage, statement: Statement) -> None:
    """Read keys, in a transaction or at once."""
    named = _words(statement)
    op = stage.operation(statement, named[0]) if named else _single(stage, statement)
    namespace, partition = stage.place(statement)
    stage.namespace(statement, namespace)
    names = (statement.option("keys") or statement.option("key")).split(",")
    if not names[0]:
        raise statement.error("which key? Give key= or keys=")
    keys = [stage.key(name, partition) for name in names]
    if named:
        _open_transaction(statement, op)
        stage.perform(statement, op, do.read_in(op, namespace, keys))
    else:
        stale, age_ms = _age(statement)
        stage.perform(statement, op, do.read(op, namespace, keys, _timeout(statement), stale=stale, age_ms=age_ms))


@verb("swap", options="ns partition key when old value how from as timeout async")
def swap(stage: Stage, statement: Statement) -> None:
    """Set a key if a condition holds, or do more to it than that."""
    when, how = statement.option("when", "absent"), statement.option("how", "set")
    if when not in ("absent", "present", "equals", "always"):
        raise statement.error(f"when={when}: expected absent, present, equals or always")
    if how not in OPERATIONS:
        raise statement.error(f"how={how}: expected one of {', '.join(OPERATIONS)}")
    op = _single(stage, statement)
    namespace, _ = stage.place(statement)
    key = stage.new_keys(statement, "k")[0]
    old = statement.option("old").encode() if when == "equals" else None
    call = SwapCall(op.tx, namespace, key, when, old=old, new=_value(statement.option("value"), op, 0, 0), how=how)
    stage.perform(statement, op, do.swap(op, stage.ledger, call, _timeout(statement)))


@verb("scan", options="ns from as timeout stale max-age async")
def scan(stage: Stage, statement: Statement) -> None:
    """Count rows, as a client finds them."""
    op = _single(stage, statement)
    namespace = stage.namespace(statement, statement.option("ns"))
    stale, age_ms = _age(statement)
    stage.perform(statement, op, do.scan(op, namespace, _timeout(statement), stale=stale, age_ms=age_ms))


@verb("prepare", "TX", least=1, options="async")
def prepare(stage: Stage, statement: Statement) -> None:
    """Ask for the votes of a transaction, and stop before the decision."""
    op = _transaction(stage, statement)
    stage.perform(statement, op, do.prepare(op, stage.ledger))


@verb("commit", "TX", least=1, options="async")
def commit(stage: Stage, statement: Statement) -> None:
    """Commit a transaction, prepared before or not."""
    op = _transaction(stage, statement)
    stage.perform(statement, op, do.commit(op, stage.ledger))


@verb("rollback", "TX", least=1, options="async")
def rollback(stage: Stage, statement: Statement) -> None:
    """Give a transaction up."""
    op = stage.operation(statement, _words(statement)[0])
    if op.transaction is None or (op.written and op.answer not in (do.PREPARED, do.ABORTED)):
        raise statement.error(f"{op.name} cannot be rolled back: it is {op.answer}")
    stage.perform(statement, op, do.roll_back(op))


@verb("retry", "NAME", least=1, options="timeout async")
def retry(stage: Stage, statement: Statement) -> None:
    """The same request once more, under the same transaction id."""
    op = stage.operation(statement, _words(statement)[0])
    if op.again is None and (op.transaction is None or op.transaction.commit_call is None):
        raise statement.error(f"{op.name} was not asked for yet: there is nothing to retry")
    stage.perform(statement, op, do.again(op, _timeout(statement)))


@verb("status", "NAME", least=1, options="timeout async")
def status(stage: Stage, statement: Statement) -> None:
    """Ask the cluster how a transaction ended; what has not ended is aborted."""
    op = stage.operation(statement, _words(statement)[0])
    if op.again is None and (op.transaction is None or not op.transaction.written):
        raise statement.error(f"{op.name} wrote nothing: there is nothing to ask")
    stage.perform(statement, op, do.ask_status(op, _timeout(statement)))


@verb("stream", "NAME", least=1, options="ns partition keys n every bytes from")
def stream(stage: Stage, statement: Statement) -> None:
    """Write one key after the other, round and round, until `stop`."""
    op = stage.begin(statement, statement.words[0], stage.client_for(statement))
    namespace, _ = stage.place(statement)
    keys = stage.new_keys(statement, f"{op.name}-")
    every = time_of(statement, statement.option("every", "10ms"), "every")
    op.run(do.stream(op, stage.ledger, namespace, keys, max(every, MS), statement.number("bytes", 0)))
    stage.breathe()


@verb("stop", "NAME", least=1)
def stop(stage: Stage, statement: Statement) -> None:
    """End a stream."""
    op = stage.operation(statement, statement.words[0])
    op.stopping = True
    stage.world.run_while(lambda: op.busy, at_most=TIMEOUT_NS)
    stage.breathe()


def _words(statement: Statement) -> list[str]:
    return [word for word in statement.words if word != "async"]


def _age(statement: Statement) -> tuple[bool, int]:
    """Whether any copy may answer, and how many ms old its answer may be at most (-1: however old it is)."""
    age_ms = time_of(statement, statement.options["max-age"], "max-age") // MS if "max-age" in statement.options else -1
    return statement.option("stale", "no") == "yes" or age_ms >= 0, age_ms


def _timeout(statement: Statement) -> int:
    return time_of(statement, statement.option("timeout", "10s"), "timeout")


def _single(stage: Stage, statement: Statement) -> Operation:
    return stage.begin(statement, statement.option("as"), stage.client_for(statement))


def _transaction(stage: Stage, statement: Statement) -> Operation:
    op = stage.operation(statement, _words(statement)[0])
    if op.transaction is None:
        raise statement.error(f"{op.name} is no transaction: expected a name that `begin` gave")
    if not op.transaction.written and statement.verb == "prepare":
        raise statement.error(f"{op.name} writes nothing: there is nothing to prepare")
    return op


def _open_transaction(statement: Statement, op: Operation) -> None:
    if op.transaction is None:
        raise statement.error(f"{op.name} is no transaction: expected a name that `begin` gave")
    if op.written:
        raise statement.error(f"{op.name} was asked to commit already: nothing can be added to it")


def _value(text: str, op: Operation, at: int, size: int) -> bytes:
    """What is written: what the story says, or something that nobody else writes."""
    return (text or f"{op.name}:{at}").encode().ljust(size, b".")
