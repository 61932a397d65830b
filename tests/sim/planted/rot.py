"""Faults in how live copies find what is wrong in them, and in who is believed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rebalance import entropy, proving, verdict
from rebalance.messages import Contents
from rebalance.rule import NewMap
from rebalance.verdict import Evidence, Verdict
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace, swapped
from wal.ids import Fragment, NodeId

ROT = Faults()


def _judged_by(machine: Machine, judge: Callable[[NodeId, dict[NodeId, Evidence]], Verdict]) -> None:
    assert machine.node is not None
    during(machine, machine.node.entropy, "_weigh", entropy, "judge", judge)


@ROT.fault("4")
def digests_alone_are_compared(machine: Machine) -> None:
    """Nobody reads what he wrote: copies tell each other the digests that they keep, and these are right."""
    assert machine.node is not None
    replace(machine.node.entropy.proving, "step", lambda partitions: None)


@ROT.fault("4, 9")
def copies_are_compared_wherever_they_stand(machine: Machine) -> None:
    """A copy that has what another one has not got yet is taken for one that differs."""
    assert machine.node is not None

    def differ(a: Contents, b: Contents) -> bool:
        return a.digest != b.digest

    def weigh(original: Callable[..., None], *args: object, **kwargs: object) -> None:
        with swapped(entropy, "differ", differ), swapped(verdict, "differ", differ):
            original(*args, **kwargs)

    around(machine.node.entropy, "_weigh", weigh)


@ROT.fault("4")
def a_primary_believes_itself(machine: Machine) -> None:
    """A primary judges as if its own rows were what was written, whatever came of reading them."""

    def judge(primary: NodeId, copies: dict[NodeId, Evidence]) -> Verdict:
        return verdict.judge(primary, copies | {primary: msgspec.structs.replace(copies[primary], proven=True)})

    _judged_by(machine, judge)


@ROT.fault("1, 9")
def two_copies_give_way_to_their_primary(machine: Machine) -> None:
    """Copies that differ from their primary are made anew, although they are two, and agree."""

    def judge(primary: NodeId, copies: dict[NodeId, Evidence]) -> Verdict:
        mine = copies[primary].contents
        return Verdict(tuple(n for n, s in copies.items() if not s.proven or verdict.differ(s.contents, mine)))

    _judged_by(machine, judge)


@ROT.fault("4, 10")
def what_was_suspected_waits_for_its_turn(machine: Machine) -> None:
    """A map ends the questions about a copy that differs, and are asked again when its turn comes in the next round."""
    assert machine.node is not None
    entropy, order = machine.node.entropy, machine.node.order
    at = next(at for at, (takes_effect, _) in enumerate(order) if takes_effect == entropy.switch)

    def switch(new: NewMap) -> None:
        entropy.switch(new)
        entropy._again = {}

    order[at] = (switch, order[at][1])


@ROT.fault("10")
def room_for_questions_is_not_given_back(machine: Machine) -> None:
    """What was read because somebody asked keeps its place after it was told, and under another map; there is one."""
    assert machine.node is not None
    read = machine.node.entropy.proving

    def take(original: Callable[[Fragment], bool | None], name: Fragment) -> bool | None:
        found = original(name)
        if found:
            read.proven[name] = None
        return found

    def forget(original: Callable[[], None]) -> None:
        kept = read.proven
        original()
        read.proven = kept

    around(read, "take", take)
    around(read, "forget", forget)
    during(machine, read, "ask", proving, "ASKED_MAX", 1)
