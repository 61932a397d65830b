"""Anti-entropy: live members find by themselves that a copy is wrong, and heal it (`docs/anti-entropy.md`).

```
 primary, a few partitions at a tick                       each other copy in sync
 AskProofs(round, partitions) ------------------------->   sums up what it contains
 sums up what it contains itself
                              <-------------------------   Proofs(counters, digests; what it disproved itself)
 one differs, or was disproved: it is suspected
 AskProofs(round, read=[it])  ------------------------->   reads its rows, and so does the primary
                              <-------------------------   Proofs(..., proven or disproved)
 all were read: `rebalance.verdict`
 Heal(it)                     ------------------------->   takes it anew (`rebalance.anew`)
```

A tick is a thirtieth of `anti_entropy_ms`, and takes a thirtieth of the partitions, or as many as its budget has room for.
Each question stands for itself: what is lost, or overtaken by a write, is asked again in the next round, and nothing is
held for anybody meanwhile. Copies are compared where they stand at the same counters, which needs no stop: contents follow
from counters. A copy that is wrong is out of the in-sync set before anything of it is touched, and back on its primary's
word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never, get_args

import msgspec

from rebalance.anew import Anew
from rebalance.comparing import OneByOne
from rebalance.following import UNASKED, Following
from rebalance.messages import AskProofs, Contents, CopyProof, Heal, Proofs, Stands, ToAntiEntropy
from rebalance.partition import LocalPartition, Role
from rebalance.ports import MS, WORK_MAX, Node, leads, may_act
from rebalance.proving import Proving
from rebalance.rule import NewMap, Rule
from rebalance.telling import no_contents
from rebalance.verdict import Evidence, differ, judge
from wal.ids import Fragment, Namespace, NodeId, fragment_name
from wal.probe import probe

TICKS = 30
"""A round is spread over so many."""
FRAGMENTS_A_TICK = 500
"""Of these, about, the contents are told at a time. A round of very many fragments takes longer than it should."""
ASKED_OF_WORK = 4
"""So many partitions are as much work to ask about, beside what is in them, as one thing that is decided."""
SUSPECTED_AT_ONCE = 32
"""Fragments that are looked at more closely; others are found again in a later round."""
FOUND_MAX = 256
"""Findings that are kept for a person to see."""


class Trial:
    """One question of a primary about one partition, and what is said of it."""

    __slots__ = ("mine", "partition", "round", "said")

    def __init__(self, partition: int, round_: int) -> None:
        self.partition = partition
        self.round = round_
        self.mine: dict[Namespace, Contents] | None = None
        self.said: dict[NodeId, CopyProof] = {}


class Told(msgspec.Struct):
    """What anti-entropy has done in this life of a node; for status."""

    compared: int = 0
    healed: dict[str, int] = {}  # copies that this node found wrong, by node


class AntiEntropy(Rule):
    """The copies of one node, compared with those of others and with what it wrote."""

    takes = get_args(ToAntiEntropy)

    def __init__(self, core: Node, anew: Anew, lack: Callable[[Iterable[int]], None]) -> None:
        super().__init__()
        self.core = core
        self._anew = anew
        self.following = Following(core, lack, partial(anew.order, kept=True))
        self.proving = Proving(core)
        self.told = Told()
        self.suspected: dict[Fragment, dict[NodeId, bool]] = {}  # whose rows were read for it, and prove their digest
        self._again: dict[int, None] = {}  # partitions of which some were, when a map came
        self.undecided: dict[Fragment, tuple[str, tuple[object, ...]]] = {}  # what a person is told, and by what evidence
        self._trials: dict[int, Trial] = {}
        self._sums = OneByOne(core)
        self._next = 0
        self._thirtieths = 0  # of a partition, that the next tick is to take beside its own
        self._round = core.run << 32

    # Time.

    def switch(self, new: NewMap) -> None:
        """A new map: what was asked under the last one is over; where something was suspected it is asked again at once.

        To wait for the next round would be to heal one partition a round: each that is healed brings a map.
        """
        self.following.switch(new)
        numbers = (*self._again, *(number for _, number in self.suspected))
        self._again = {number: None for number in numbers if self.core.local[number].mine}
        self._trials, self.suspected = {}, {}
        self._sums.switch()
        self.undecided = {name: told for name, told in self.undecided.items() if self._mine(name)}
        self.proving.forget()
        if self.core.settings.anti_entropy_ms:
            self._plan()

    def step(self, new: NewMap) -> None:
        """A light step: whoever was asked may count no more, and others may; what others lead now is theirs to judge."""
        self.following.switch(new)
        self._trials, mine = {}, self._mine
        self.suspected = {name: read for name, read in self.suspected.items() if mine(name)}
        self.undecided = {name: told for name, told in self.undecided.items() if mine(name)}

    def _mine(self, name: Fragment) -> bool:
        return self.core.local[name[1]].mine

    def _plan(self) -> None:
        self.alarm.set(self.core.now + max(1, self.core.settings.anti_entropy_ms * MS // TICKS))

    def tick(self) -> None:
        """Read some rows, and compare some copies, in a turn that has room for it."""
        core = self.core
        if core.work >= WORK_MAX:
            self.alarm.set(core.now + MS)
            return
        self._plan()
        if not may_act(core, core.fence):
            return
        some, self._thirtieths = divmod(self._thirtieths + len(core.local), TICKS)
        self.proving.step(some)
        self._renew_followers()
        if any(trial.mine is None for trial in self._trials.values()):
            probe("entropy.sums_up_still")
            return  # a round takes longer than it should where turns have no room for more
        due = dict.fromkeys(number for _, number in self.suspected) | self._again
        self._again = {}
        for number in self._in_turn(some):
            due[number] = None
        due = {number: None for number in due if leads(core, number) is not None}
        self.following.tell(due)
        self._ask(list(due))

    def _in_turn(self, left: int) -> list[int]:
        """The next partitions of the round, of up to so many, that this node leads."""
        core, found = self.core, list[int]()
        budget = FRAGMENTS_A_TICK
        while left > 0 and budget > 0:
            left -= 1
            number = self._next
            self._next = (number + 1) % len(core.local)
            if leads(core, number) is not None:
                found.append(number)
                budget -= 1 + len(core.replica.partition(number).fragments)
        return found

    # Asking.

    def _others(self, number: int) -> list[NodeId]:
        """Whose copies are to be compared with this node's."""
        return [node for node in self.core.local[number].placement.in_sync if node != self.core.node]

    def _ask(self, numbers: Sequence[int]) -> None:
        """Ask the other copies of these partitions, all of one node at once."""
        core = self.core
        core.work += len(numbers) // ASKED_OF_WORK
        self._round += 1
        asked: dict[NodeId, list[int]] = {}
        followed = {number: None for number in numbers if core.local[number].placement.asynchronous}
        shown: list[CopyProof] = []

        def summed_up(trial: Trial, contents: list[Contents] | None) -> None:
            self._is_summed_up(trial, contents)
            if trial.partition in followed:
                shown.append(self._shown(trial.partition, contents))
                if len(shown) == len(followed):
                    self.following.show(shown)

        for number in numbers:
            trial = self._trials[number] = Trial(number, self._round)
            for node in self._others(number):
                asked.setdefault(node, []).append(number)
            self._sums.sum_up(number, partial(summed_up, trial))
        for name in self.suspected:
            self.proving.ask(name)
        for node, some in asked.items():
            read = [name for name in self.suspected if name[1] in some]
            core.send(node, AskProofs(core.fence, self._round, some, read))

    def _is_summed_up(self, trial: Trial, contents: list[Contents] | None) -> None:
        if contents is None:
            if self._trials.get(trial.partition) is trial:
                del self._trials[trial.partition]  # it is in no state to be compared
            return
        trial.mine = {c.namespace: c for c in contents}
        self._look(trial)

    def _shown(self, number: int, contents: list[Contents] | None) -> CopyProof:
        """What asynchronous copies of a partition are told, who may have asked for some of it to be read.

        As long as a copy in sync is another one, that comes first; and nothing is proven where nobody can say who is wrong.
        """
        read = [name for name in self.proving.proven if name[1] == number and name not in self.suspected]
        proof = self._proof(number, contents, read)
        proven = [namespace for namespace in proof.proven if (namespace, number) not in self.undecided]
        return msgspec.structs.replace(proof, proven=proven)

    def _on_ask_proofs(self, sender: NodeId, message: AskProofs) -> None:
        """A primary asks what this node's copies contain; or an asynchronous copy, that some of its primary's are read."""
        core = self.core
        if not may_act(core, message.version):
            return
        ours = [
            number
            for number in message.partitions
            if (local := self._local(number)) is not None and local.in_sync and local.placement.primary == sender
        ]
        for name in message.read:
            self.proving.ask(name)
        answers: list[CopyProof] = []

        def told(number: int, contents: list[Contents] | None) -> None:
            answers.append(self._proof(number, contents, message.read))
            if len(answers) == len(ours):
                core.send(sender, Proofs(message.version, message.round, answers))

        for number in ours:
            self._sums.sum_up(number, partial(told, number))

    def _local(self, number: int) -> LocalPartition | None:
        """A partition that somebody else has named, if there is such a one."""
        return self.core.local[number] if 0 <= number < len(self.core.local) else None

    def _proof(self, number: int, contents: list[Contents] | None, read: Sequence[Fragment]) -> CopyProof:
        disproved = [namespace for namespace, partition in self.proving.disproved if partition == number]
        proven = [name[0] for name in read if name[1] == number and self.proving.take(name)]
        return CopyProof(number, contents, proven, disproved)

    # Judging.

    def _on_proofs(self, sender: NodeId, message: Proofs) -> None:
        """A copy has said what it contains; or a primary to its asynchronous copies, which did not ask."""
        if not may_act(self.core, message.version):
            return
        if message.round == UNASKED:
            self.following.on_shown(sender, message.copies)
            return
        for proof in message.copies:
            trial = self._trials.get(proof.partition)
            if trial is not None and trial.round == message.round:
                trial.said[sender] = proof
                self._look(trial)

    def _look(self, trial: Trial) -> None:
        """Once all have answered: does a copy differ?"""
        core, number = self.core, trial.partition
        others = self._others(number)
        if self._trials.get(number) is not trial or trial.mine is None or any(node not in trial.said for node in others):
            return
        del self._trials[number]
        if leads(core, number) is None or any(trial.said[node].contents is None for node in others):
            return
        said = {node: {c.namespace: c for c in trial.said[node].contents or ()} for node in others}
        said[core.node] = trial.mine
        names = dict.fromkeys(ns for contents in said.values() for ns in contents)
        self.told.compared += len(names)
        core.work += len(names)
        for namespace in names:
            copies = {node: contents.get(namespace) or no_contents(namespace) for node, contents in said.items()}
            disproved = [node for node in others if namespace in trial.said[node].disproved]
            proven = [node for node in others if namespace in trial.said[node].proven]
            self._weigh((namespace, number), copies, proven=proven, disproved=disproved)

    def _weigh(
        self, name: Fragment, copies: dict[NodeId, Contents], *, proven: Sequence[NodeId], disproved: Sequence[NodeId]
    ) -> None:
        """One fragment, of which all copies have said what they contain."""
        core = self.core
        mine = copies[core.node]
        wrong_here = name in self.proving.disproved
        if not (wrong_here or disproved or any(differ(mine, theirs) for theirs in copies.values())):
            self.suspected.pop(name, None)
            self.undecided.pop(name, None)
            return
        evidence = tuple((node, c.lwm, c.digest, c.history, node in disproved) for node, c in copies.items())
        if name in self.undecided and self.undecided[name][1] == evidence:
            return  # a person was told, and nothing has changed
        if name not in self.suspected:
            probe("entropy.suspected")
            if len(self.suspected) < SUSPECTED_AT_ONCE:
                self.suspected[name] = {}
            return
        read = self.suspected[name]
        read |= dict.fromkeys(disproved, False) | dict.fromkeys(proven, True)
        own = self.proving.take(name)
        if own is not None:
            read[core.node] = own
        if any(node not in read for node in copies):
            return
        del self.suspected[name]
        verdict = judge(core.node, {node: Evidence(contents, read[node]) for node, contents in copies.items()})
        if verdict.undecided:
            probe("entropy.undecided")
            core.note(f"WRONG ROWS in {fragment_name(name)}, and nothing is done about it: {verdict.undecided}")
            if len(self.undecided) < FOUND_MAX:
                self.undecided[name] = (verdict.undecided, evidence)
        for node in verdict.wrong:
            self._order(name, node, mine, copies[node], kept=read[node])

    # Healing.

    def _order(self, name: Fragment, node: NodeId, mine: Contents, theirs: Contents, *, kept: bool) -> None:
        """A copy is wrong: it is to be taken anew."""
        core = self.core
        self.told.healed[node] = self.told.healed.get(node, 0) + 1
        what = "has other rows than its primary" if kept else "has rows that are not those which were written to it"
        digests = f"digest {theirs.digest:016x} at lwm={theirs.lwm}, {mine.digest:016x} at lwm={mine.lwm} here"
        core.note(f"{node}'s copy of {fragment_name(name)} {what} ({digests}): it is taken anew")
        if node == core.node:
            probe("entropy.primary_is_wrong")
            self._take_anew(name, what, kept=kept)
        else:
            core.send(node, Heal(core.fence, name, kept, what))

    def _on_heal(self, sender: NodeId, message: Heal) -> None:
        """This node's copy is wrong; another one is not."""
        local = self._local(message.name[1])
        if may_act(self.core, message.version) and local is not None and local.placement.primary == sender:
            self._take_anew(message.name, message.reason, kept=message.kept)

    def _take_anew(self, name: Fragment, reason: str, *, kept: bool) -> None:
        """Not while this node heals others: one map takes all that were found by then."""
        if self._anew.loading:
            probe("entropy.heals_others_first")
            return
        problem = self._anew.order([name], f"anti-entropy: it {reason}", kept=kept)
        if problem:
            self.core.note(f"{fragment_name(name)} is not taken anew: {problem}")

    def _renew_followers(self) -> None:
        """An asynchronous copy of this node has rows that it did not write: nobody is asked before it is taken anew."""
        for name in [name for name in self.proving.disproved if self.core.local[name[1]].role is Role.ASYNC]:
            if not self._anew.order([name], "anti-entropy: it has rows that are not those which were written to it"):
                del self.proving.disproved[name]

    def as_object(self) -> dict[str, object]:
        """What it found and did, for a person."""
        return {
            "compared": self.told.compared,
            "rows_read": self.proving.rows,
            "ordered": self.told.healed,
            "wrong_here": [
                {"fragment": fragment_name(name), "found": found} for name, found in self.proving.disproved.items()
            ][:FOUND_MAX],
            "undecided": [{"fragment": fragment_name(name), "found": told} for name, (told, _) in self.undecided.items()],
        }

    def on(self, sender: NodeId, message: ToAntiEntropy) -> None:
        """Everything that copies say to find out whether they are equal."""
        match message:
            case AskProofs():
                self._on_ask_proofs(sender, message)
            case Proofs():
                self._on_proofs(sender, message)
            case Heal():
                self._on_heal(sender, message)
            case Stands():
                self.following.on_stands(sender, message)
            case _:
                assert_never(message)
