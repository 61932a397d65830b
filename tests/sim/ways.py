"""What goes wrong between nodes: partitions of every form, and messages that come late, out of turn or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from engine.host.links import unheard_ms
from engine.messages import KINDS
from engine.protocol.roles import PEERS, Role
from tests.sim.network import MAY_BE_NARROW, MS, Pair, Rule

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World


ONE_SHARE = 0.7
"""Of what befalls connections, the share that befalls one of a pair, where they are apart."""


def lasting(draw: Random) -> int:
    """How long something stays wrong, in ns."""
    return draw.choice([300 * MS, 1_000 * MS, 3_000 * MS, 6_000 * MS])


class Ways:
    """Each method is one fault, and says whether it came."""

    def __init__(self, world: World, draw: Random) -> None:
        self.world = world
        self._draw = draw
        self._cuts = 0

    def _some(self, ways: Sequence[Role]) -> Sequence[Role]:
        """All these connections of a pair, or one of them, where each may have a fate of its own."""
        return (self._draw.choice(ways),) if self.world.network.apart and self._draw.random() < ONE_SHARE else ways

    def _cut(self, pairs: list[Pair]) -> bool:
        self._cuts += 1
        name = f"cut {self._cuts}"
        self.world.say(f"{name}: {', '.join(f'{a}>{b}' for a, b in pairs)}")
        self.world.network.cut(name, pairs)
        self.world.after(lasting(self._draw), self.world.network.heal, name)
        return True

    def split(self, machine: Machine) -> bool:
        """Some sides are cut off from the others, in both directions."""
        sides = [*self.world.machines, *(c.name for c in self.world.clients.values() if not c.sheltered)]
        here = {machine.name, *(s for s in sides if self._draw.random() < 0.3)}
        return self._cut([(a, b) for a in sides for b in sides if (a in here) != (b in here)])

    def one_way(self, machine: Machine) -> bool:
        """Nothing passes from one node to some."""
        others = [m for m in self.world.machines if m != machine.name]
        some = [m for m in others if self._draw.random() < 0.6] or others[:1]
        return self._cut([(machine.name, other) for other in some])

    def partial(self, _: Machine) -> bool:
        """Any of the ways between nodes are cut, each in its own direction."""
        sides = list(self.world.machines)
        pairs = [(a, b) for a in sides for b in sides if a != b and self._draw.random() < 0.3]
        return bool(pairs) and self._cut(pairs)

    def late(self, _: Machine) -> bool:
        """A few messages of one kind wait; what has happened since does not hold them up."""
        kind, network = self._draw.choice(KINDS), self.world.network
        rule = Rule("late", lambda _, __, said: isinstance(said, kind), drop=False, left=self._draw.randrange(1, 4))
        network.rules.append(rule)
        self.world.say(f"{rule.left} of {kind.__name__} are late")

        def arrive() -> None:
            network.release([rule], [held for held in network.held if held.rule is rule])

        self.world.after(self._draw.choice([300 * MS, 2_000 * MS, 6_000 * MS, 20_000 * MS]), arrive)
        return True

    def clog(self, machine: Machine) -> bool:
        """What one node says arrives late, and all at once."""
        until, ways = self.world.now + lasting(self._draw), self._some(PEERS)
        self._say_which(ways)
        self.world.network.clog([(machine.name, m) for m in self.world.machines if m != machine.name], until, ways)
        return True

    def narrow(self, machine: Machine) -> bool:
        """So few bytes pass from a node to others, to it, both ways or between all, that what is large takes seconds."""
        draw, names = self._draw, list(self.world.machines)
        others = [name for name in names if name != machine.name]
        other = draw.choice(others)
        out, into = [(machine.name, name) for name in others], [(name, machine.name) for name in others]
        pairs = draw.choice(
            [
                [(machine.name, other)],
                [(machine.name, other), (other, machine.name)],
                out,
                into,
                out + into,
                [(a, b) for a in names for b in names if a != b],
            ]
        )
        network, rate = self.world.network, self.world.settings.link_bytes_per_s
        rate = max(1 << 10, int(rate * draw.choice([0.5, 1, 1, 2, 8])))
        self.world.say(f"{', '.join(f'{a}>{b}' for a, b in pairs)}: {rate} bytes a second")
        ways = self._some(MAY_BE_NARROW)
        self._say_which(ways)
        network.narrow(pairs, rate, ways)
        self.world.after(draw.choice([1_000, 3_000, 6_000, 15_000]) * MS, network.widen, pairs)
        return True

    def reset(self, machine: Machine) -> bool:
        """The connections from one to another break, and the one who made them notices; where one breaks by itself, perhaps
        only when its kernel does."""
        other = self._draw.choice(list(self.world.machines))
        ways = self._some(PEERS)
        most = unheard_ms(self.world.settings)
        unheard = self._draw.choice([0, 0, min(1_000, most), most]) * MS if len(ways) == 1 else 0
        if len(ways) == 1:
            self.world.say(f"{machine.name}>{other}: the connection for {ways[0]} breaks, noticed after {unheard // MS} ms")
        self.world.network.reset((machine.name, other), ways, after=unheard)
        return True

    def _say_which(self, ways: Sequence[Role]) -> None:
        if len(ways) == 1:
            self.world.say(f"over the connection for {ways[0]} alone")
