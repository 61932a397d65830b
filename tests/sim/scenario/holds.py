"""What a story holds back or loses, and how it lets go of it: all that matches, or the narrower part that it names."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.network import Held, Network, Rule
from tests.sim.scenario.matching import Batches, Wanted, matches

EVERYTHING = Wanted("")


class Hold(Rule):
    """One `hold` or `drop`. What was released from it by a narrower name passes from then on."""

    def __init__(
        self, text: str, wanted: Wanted, batches: Batches, *, drop: bool, left: int | None, caught: Callable[[object], None]
    ) -> None:
        super().__init__(text, self._means, drop=drop, left=left)
        self.wanted = wanted
        self.released: list[Wanted] = []
        self._batches = batches
        self._note = caught

    def _means(self, sender: str, receiver: str, said: object) -> bool:
        if not matches(self.wanted, self._batches, sender, receiver, said):
            return False
        if any(matches(w, self._batches, sender, receiver, said) for w in self.released):
            return False
        self._note(said)
        return True


def release(network: Network, batches: Batches, wanted: Wanted) -> bool:
    """Let go of what is wanted: whole rules, and what is held of wider ones. False if nothing of the kind is held."""
    ended: list[Rule] = []
    narrowed = False
    for rule in network.rules:
        assert isinstance(rule, Hold), "only stories make rules"
        if wanted == EVERYTHING:
            ended.append(rule)
            continue
        if _covers(wanted, rule.wanted):
            ended.append(rule)
        elif _covers(rule.wanted, wanted) or any(h.rule is rule and is_meant(h, wanted, batches) for h in network.held):
            rule.released.append(wanted)
            narrowed = True
    freed = [h for h in network.held if h.rule in ended or is_meant(h, wanted, batches)]
    network.release(ended, freed)
    return bool(ended or narrowed or freed)


def is_meant(held: Held, wanted: Wanted, batches: Batches) -> bool:
    """Whether something that is held is what these words mean."""
    return wanted != EVERYTHING and matches(wanted, batches, held.src, held.dst, held.said)


def _covers(wide: Wanted, narrow: Wanted) -> bool:
    """Whether every field that `wide` names says the same in `narrow`."""
    return all(
        mine in (default, theirs)
        for mine, theirs, default in zip(_fields(wide), _fields(narrow), _fields(EVERYTHING), strict=True)
    )


def _fields(wanted: Wanted) -> tuple[object, ...]:
    return (wanted.kind, wanted.tx, wanted.sender, wanted.receiver, wanted.namespace, wanted.partition)
