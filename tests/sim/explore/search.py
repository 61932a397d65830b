"""Every order of what can happen in a small world, up to a bound.

The state of a world is the state of each node, the letters under way, what the world may still do (each crash, wipe or
wait is counted), and what was seen that a promise speaks of. Equal states are met once. A letter may be lost: there is
nothing that forces a delivery, and a promise that holds after every sequence of deliveries holds when the rest never
comes. It may be late for as long as there are steps. It is doubled by whoever says it again.

Two things that happen to different nodes come to the same in either order, so only one order of them is walked: each
state carries the happenings that need not be tried in it, because a walk through a sibling tries them (sleep sets, as
Godefroid has them for searches that keep states: who comes to a known state with fewer of them walks the difference).
A life that ends is not independent of anything, because what is said to it is lost.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.node.node import Node
from engine.protocol.requests import Reply
from engine.turn.settings import Settings
from tests.sim.explore.nodes import DOWN, Happening, Letter, Nodes, Step, told
from tests.sim.world import Plant
from wal import records as r
from wal.ids import NodeId

SETTINGS = Settings(cluster="small", partitions=1, backups=2, checkpoint_ms=3_600_000, in_doubt_ms=200, anti_entropy_ms=0)


STATES = 1_000_000
"""So many are walked at most: all of them are kept, at about three kilobytes each."""


class Fact(NamedTuple):
    """Something that was seen, of which a promise speaks: a map was committed, an outcome told."""

    kind: str
    about: object
    value: object


Notice = Callable[[NodeId, r.Record | Reply], Fact | None]
"""What a record in a log, or an answer to a client, says that a promise is about."""
Judge = Callable[[frozenset[Fact]], str]
"""Which promise these facts break together, or nothing."""


Rests = Callable[[Sequence[Node | None]], str]
"""What of the nodes, in their order, ought not to be so where nothing is left to happen; or nothing."""


class Might(NamedTuple):
    """Something that the world may do, so many times at most; and only while a node is `down`, if one is named, once
    something was `seen`, or if it takes so long that nothing else is left to happen (`at_rest`)."""

    happening: Happening
    times: int = 1
    down: NodeId = ""
    seen: Fact | None = None
    at_rest: bool = False


class SmallWorld(NamedTuple):
    """Which nodes there are, how it begins, what may happen beside deliveries, and what must never be seen."""

    name: str
    about: str
    names: tuple[NodeId, ...]
    begin: Callable[[Walk], None]
    may: tuple[Might, ...]
    notice: Notice
    judge: Judge
    depth: int
    apart: tuple[tuple[NodeId, NodeId], ...] = ()  # of these nothing gets from one to the other
    settings: Settings = SETTINGS
    rests: Rests | None = None


class State(NamedTuple):
    """One state of a world."""

    nodes: tuple[int, ...]
    letters: frozenset[Letter]
    left: tuple[int, ...]
    facts: frozenset[Fact]


class Found(NamedTuple):
    """What a search came to."""

    states: int
    node_states: int
    transitions: int
    depth: int
    whole: bool
    violation: str
    story: list[str]
    seconds: float

    def __str__(self) -> str:
        reached = "all of it" if self.whole else f"all up to {self.depth} steps"
        head = (
            f"{self.states} states, {self.node_states} states of nodes, {self.transitions} transitions, {reached}, "
            f"{self.seconds:.1f} s"
        )
        if not self.violation:
            return head
        return "\n".join([head, f"BROKEN: {self.violation}", *(f"  {n}. {line}" for n, line in enumerate(self.story, 1))])


class Walk:
    """One world while it is looked at; `deliver_all` is for how it begins."""

    def __init__(self, world: SmallWorld, plant: Plant | None) -> None:
        self.world = world
        self.nodes = Nodes(world.names, world.settings, plant)
        self.begun = False
        self.at = {name: n for n, name in enumerate(world.names)}
        steps = [self.nodes.begin(name) for name in world.names]
        self.state = State(tuple(s.state for s in steps), frozenset(), tuple(m.times for m in world.may), frozenset())

    # One after the other.

    def happen(self, happening: Happening) -> None:
        """Let it happen now."""
        self.state = self.after(self.state, happening)

    def deliver_all(self, wanted: Callable[[Letter], bool] = lambda _: True) -> None:
        """Deliver what is under way, in one order, until nothing that is wanted is left."""
        while ready := sorted(letter for letter in self.state.letters if wanted(letter)):
            self.happen(Happening("deliver", ready[0].receiver, ready[0]))

    def after(self, state: State, happening: Happening) -> State:
        """The state that follows."""
        at = self.at[happening.node]
        if happening.what == "lose":
            assert happening.letter is not None
            facts = state.facts | {Fact("lost", happening.node, happening.letter.kind)}
            return State(state.nodes, state.letters - {happening.letter}, self._left(state, happening), facts)
        step = self.nodes.step(state.nodes[at], happening)
        nodes = (*state.nodes[:at], step.state, *state.nodes[at + 1 :])
        letters = state.letters
        if happening.letter is not None:
            letters -= {happening.letter}
        if happening.is_life:
            letters = frozenset(letter for letter in letters if letter.receiver != happening.node)
        if step.said:
            letters |= self._letters(happening.node, nodes, step)
        facts = state.facts
        found = [self.world.notice(happening.node, said) for said in (*step.logged, *(a for _, a in step.answers))]
        if any(found):
            facts = facts | {fact for fact in found if fact is not None}
        return State(nodes, letters, self._left(state, happening), facts)

    def _left(self, state: State, happening: Happening) -> tuple[int, ...]:
        might = happening._replace(letter=None) if happening.what == "lose" else happening
        left = zip(state.left, self.world.may, strict=True)
        return tuple(times - (each.happening == might) for times, each in left)

    def _letters(self, sender: NodeId, nodes: tuple[int, ...], step: Step) -> frozenset[Letter]:
        allocation, incarnation, _ = self.nodes.life(nodes[self.at[sender]])
        return frozenset(
            Letter(sender, allocation, incarnation, target, self.nodes.life(nodes[self.at[target]])[2], message)
            for target, message in step.said
            if target in self.at and self._reaches(sender, target, nodes)
        )

    def _reaches(self, sender: NodeId, target: NodeId, nodes: tuple[int, ...]) -> bool:
        apart = self.begun and (sender, target) in self.world.apart
        return not apart and self.nodes.life(nodes[self.at[target]])[2] != DOWN

    # All at once.

    def enabled(self, state: State) -> list[Happening]:
        """All that can happen in a state."""
        found = [Happening("deliver", letter.receiver, letter) for letter in sorted(state.letters)]
        at_rest: list[Happening] = []
        for might, left in zip(self.world.may, state.left, strict=True):
            happening = might.happening
            late = might.seen is not None and might.seen not in state.facts
            early = bool(might.down) and not self._is_down(state, might.down)
            idle = not happening.is_life and self._is_down(state, happening.node)
            if left <= 0 or late or early or idle:
                continue
            if happening.what == "lose":
                lost = [letter for letter in sorted(state.letters) if letter.receiver == happening.node]
                found += [happening._replace(letter=letter) for letter in lost if letter.kind in happening.names]
            else:
                (at_rest if might.at_rest else found).append(happening)
        return found or at_rest

    def _unrest(self, state: State) -> str:
        """What ought not to be so in a state in which nothing is left to happen."""
        return self.world.rests([self.nodes.look(at) for at in state.nodes]) if self.world.rests is not None else ""

    def _is_down(self, state: State, node: NodeId) -> bool:
        return self.nodes.life(state.nodes[self.at[node]])[2] == DOWN

    def search(
        self, *, depth: int, seconds: float, states: int = STATES, say: Callable[[str], None] = lambda _: None
    ) -> Found:
        """Walk every order, shortest first, until nothing is left, a promise is broken, or a bound is reached."""
        began, self.begun = time.monotonic(), True
        first = self.state
        slept: dict[State, frozenset[Happening]] = {}  # what was not tried in a state, because a sibling tries it
        come: dict[State, tuple[State, Happening] | None] = {first: None}
        level: deque[tuple[State, frozenset[Happening], frozenset[Happening] | None]] = deque([(first, frozenset(), None)])
        transitions, steps = 0, 0

        def result(steps: int, *, whole: bool, violation: str = "", last: State | None = None) -> Found:
            story = self._story(come, last) if last is not None else []
            took = time.monotonic() - began
            return Found(len(come), len(self.nodes), transitions, steps, whole, violation, story, took)

        while level and steps < depth:
            following: deque[tuple[State, frozenset[Happening], frozenset[Happening] | None]] = deque()
            for state, sleeping, only in level:
                if len(come) >= states or time.monotonic() - began > seconds:
                    return result(steps, whole=False)
                tried: list[Happening] = []
                enabled = self.enabled(state)
                if not enabled and (broken := self._unrest(state)):
                    return result(steps, whole=False, violation=broken, last=state)
                for happening in enabled:
                    if happening in sleeping or (only is not None and happening not in only):
                        continue
                    transitions += 1
                    after = self.after(state, happening)
                    asleep = frozenset(h for h in (*sleeping, *tried) if _independent(h, happening))
                    tried.append(happening)
                    known = slept.get(after)
                    if known is None:
                        slept[after] = asleep
                        if after not in come:
                            come[after] = (state, happening)
                        if after.facts != state.facts and (broken := self.world.judge(after.facts)):
                            return result(steps + 1, whole=False, violation=broken, last=after)
                        following.append((after, asleep, None))
                    elif fewer := known - asleep:
                        slept[after] = known & asleep
                        following.append((after, asleep, fewer))
            steps += 1
            say(f"{steps} steps: {len(come)} states, {len(self.nodes)} of nodes, {len(following)} to go on from")
            level = following
        return result(steps, whole=not level)

    def _story(self, come: dict[State, tuple[State, Happening] | None], last: State) -> list[str]:
        lines: list[str] = []
        step = come[last]
        while step is not None:
            before, happening = step
            lines.append(told(happening))
            step = come[before]
        return lines[::-1]


def _independent(a: Happening, b: Happening) -> bool:
    """Whether two happenings come to the same in either order, and neither lets the other happen or not."""
    return a.node != b.node and not (a.is_life or a.waits or b.is_life or b.waits)


def kinds(letters: Sequence[Letter]) -> Counter[str]:
    """How many letters there are between whom."""
    return Counter(f"{letter.sender} -> {letter.receiver}" for letter in letters)
