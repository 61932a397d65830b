"""Stories of transactions that wait for each other, or no longer do."""

from __future__ import annotations

from engine.errors import Deadlock, LockTimeout
from engine.protocol.requests import Lock
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, Stories, key, told
from tests.sim.transactions import SimTransaction
from tests.sim.world import Plant
from wal.ids import NodeId, TxId

CIRCLES = Stories()
story = CIRCLES.story


@story
def who_has_given_up_waits_for_nobody(plant: Plant | None) -> None:
    """t1 waits for t2 in vain, and goes on without; a moment later t2 waits for t1, which is no circle."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        first = SimTransaction(stage.client, timeout_ns=ANSWER_NS, lock_timeout_ms=200)
        second = SimTransaction(stage.client, timeout_ns=ANSWER_NS, lock_timeout_ms=5_000)
        stage.do(first.put(NAMESPACE, {x: b"1"}))
        stage.wait(20)
        stage.do(second.put(NAMESPACE, {y: b"2"}))
        in_vain = stage.begin(first.get(NAMESPACE, [y]))
        stage.until(lambda: in_vain.done, "t1 has waited long enough")
        lost = type(in_vain.failure) is LockTimeout
        stage.must(lost, f"t1 waited in vain, and was told {in_vain.failure!r}")
        waiting = stage.begin(second.get(NAMESPACE, [x]))
        stage.wait(300)
        stage.must(not waiting.done, f"t2 waits for t1, which waits for nobody: it was told {waiting.failure!r}")
        stage.do(first.rollback())
        stage.until(lambda: waiting.done, "t2 has its turn")
        stage.must(told(waiting), f"t2 has its turn, and was told {waiting.failure!r}")
        stage.do(second.rollback())
        stage.curtain()


@story
def two_transactions_cross(plant: Plant | None) -> None:
    """Each has what the other wants, on two nodes; almost at once the younger one gives way."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        old, young = stage.transaction(), stage.transaction()
        stage.do(old.put(NAMESPACE, {x: b"1"}))
        stage.wait(20)
        stage.do(young.put(NAMESPACE, {y: b"2"}))
        going, giving = stage.begin(old.get(NAMESPACE, [y])), stage.begin(young.get(NAMESPACE, [x]))
        stage.wait(25)
        stage.must(giving.done and isinstance(giving.failure, Deadlock), f"the younger was told {giving.failure!r}")
        stage.must(not going.done, f"the older waits for the end of the younger; it was told {going.failure!r}")
        stage.do(young.rollback())
        stage.until(lambda: told(going), "the older goes on")
        stage.do(old.rollback())
        stage.curtain()


def _asked(node: NodeId, owner: TxId) -> Rule:
    """What a transaction asks a node comes late."""
    return Rule("late", lambda _, to, said: to == node and isinstance(said, Lock) and said.owner == owner, drop=False)


@story
def two_ask_for_both_keys_at_once(plant: Plant | None) -> None:
    """Each asks two nodes for a key each, and has nothing before; what one asks n2 comes late, and so does what the other
    asks n1. Almost at once one gives way."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        old, young = stage.transaction(), stage.transaction()
        late = [_asked("n2", old.owner), _asked("n1", young.owner)]
        network = stage.world.network
        network.rules += late
        going = stage.begin(old.get_many(NAMESPACE, [x, y], update=True))
        stage.wait(20)
        giving = stage.begin(young.get_many(NAMESPACE, [x, y], update=True))
        stage.wait(20)
        network.release(late, [held for held in network.held if held.rule in late])
        stage.wait(100)
        stage.must(giving.done and isinstance(giving.failure, Deadlock), f"the younger was told {giving.failure!r}")
        stage.must(not going.done, f"the older waits for the end of the younger; it was told {going.failure!r}")
        stage.do(young.rollback())
        stage.until(lambda: told(going), "the older goes on")
        stage.do(old.rollback())
        stage.curtain()
