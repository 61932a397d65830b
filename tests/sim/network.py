"""The ways between nodes: they lose, double, delay and reorder, break in one direction, clog, are narrow, and hold what a
story wants held.

A node speaks to another over connections that it made to it, and each of them may break, stand still or be narrow. What
goes by which counts only where there is a rate, or they are `apart`: else it all keeps one order. A connection belongs to
two processes: what was sent to a process that has died is never delivered to the next one, which is what TCP gives us, and
all that the engine may rely on. What a dead process sent may still arrive. Everything else is weather.

Who dials is told at once that nobody listens, and a connection lasts however long nothing gets through; with `kernels` it
is as systems do it: where a way is cut, or no power is, nothing answers; it is asked again after a while, given up after
another, and a connection over which nothing is acknowledged breaks. A process that stands still is connected to, and greets
nobody until it goes on. Then nobody knows of a process that starts before it says something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engine.host.links import LARGE_BYTES, unheard_ms, way_of
from engine.messages import Message, PrepareParts
from engine.protocol.addresses import HELLO_SECONDS
from engine.protocol.redial import Redial
from engine.protocol.roles import BEAT, BULK, PEER, PEERS, Role
from engine.protocol.wire import decode_messages, frame
from engine.turn.events import PeerLost, PeerSeen, Received
from engine.turn.settings import habits_of
from tests.sim.trace import CHATTER, FRAME_HEADER_BYTES
from wal.ids import NodeId

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

US = 1_000
MS = 1_000_000
SECOND = 1_000 * MS
ASKS_AGAIN_SECONDS = (1.0, 2.0, HELLO_SECONDS - 3.0)
"""Between two times at which a kernel asks to connect; with the last who dials gives up."""
COPIES_MAX = 4
SOON_NS = 500 * MS
"""A way on which what is said waits longer than that is as good as cut: whoever can serve is not judged by it."""

Side = str
"""A node or a client, by name."""
Pair = tuple[Side, Side]
Way = tuple[Side, Side, Role]
MAY_BE_NARROW = (PEER, BULK)
"""What members say is never large, and passes."""


@dataclass
class Weather:
    """How the network is now. Probabilities are per message; times are in ns."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay: int = 200 * US
    jitter: int = 0
    spike: float = 0.0
    spike_delay: int = 50 * MS
    reorder: bool = False
    refuse: float = 0.0  # a connection attempt fails

    @property
    def calm(self) -> bool:
        """Nothing bad can happen by chance."""
        return not (self.loss or self.duplicate or self.spike or self.refuse)


class Link:
    """The connections that `src` made, or wants to make, to speak to `dst`."""

    __slots__ = ("boots", "dead", "dialing", "dst", "excused_until", "last", "off", "redial", "src", "taken", "waiting")

    def __init__(self, src: Machine, dst: Machine) -> None:
        self.src = src
        self.dst = dst
        self.boots: tuple[int, int] | None = None  # the two processes that they connect
        self.off: dict[Role, Redial] = {}  # those that broke while others did not
        self.dead: dict[Role, None] = {}  # those over which nothing comes any more, and nobody has noticed
        self.dialing: _Attempt | None = None
        self.redial = Redial()
        self.excused_until = 0  # what does not come over a dead connection is nobody's fault before its kernel has found it
        self.taken = dict.fromkeys(PEERS, 0)  # until when what was sent takes each connection, if the way is narrow
        self.waiting: dict[Role, deque[_Waiting]] = {}  # and what that is, the next one first
        self.last = dict.fromkeys(PEERS, 0)  # when the last message of each arrives, for weather that keeps the order


class _Attempt:
    """All connections of a pair are to be made, now or after a pause."""

    __slots__ = ("begins",)

    def __init__(self, begins: int) -> None:
        self.begins = begins


class _Accepted:
    """A connection to a process that stands still: its system has taken it, and nobody greets who dialed."""

    __slots__ = ("dst", "go_on", "hang_up")

    def __init__(self, dst: Machine, go_on: Callable[[], None], hang_up: Callable[[], None]) -> None:
        self.dst = dst
        self.go_on = go_on
        self.hang_up = hang_up


class _Waiting:
    """What takes its time on a narrow way."""

    __slots__ = ("at", "boots", "data", "over")

    def __init__(self, at: int, boots: tuple[int, int], data: bytes) -> None:
        self.at = at
        self.boots = boots
        self.data = data
        self.over = False  # it came, or is lost


Matcher = Callable[[Side, Side, object], bool]
"""Whether a story means what one side says to another: a message, a request or a reply."""


class Rule:
    """Messages that a story holds back, or loses: all that match, until it is released."""

    def __init__(self, text: str, matches: Matcher, *, drop: bool, left: int | None = None) -> None:
        self.text = text
        self.matches = matches
        self.drop = drop
        self.left = left  # so many more; None: without end
        self.caught = 0


class Held:
    """Something said that waits for its release. `about` is what the trace keeps of it; `go` sends it on."""

    def __init__(self, rule: Rule, src: Side, dst: Side, said: object, about: object, go: Callable[[], None]) -> None:
        self.rule = rule
        self.src = src
        self.dst = dst
        self.said = said
        self.about = about
        self.go = go


class Network:
    """All links of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.apart = (
            False  # the connections of a pair keep no order among each other, and what befalls one spares the others
        )
        self.kernels = False  # what does not get through is asked and said again, and given up, as systems do
        self.links: dict[Pair, Link] = {}
        self.rules: list[Rule] = []
        self.held: list[Held] = []
        self.sent = 0
        self.delivered = 0
        self.lost = 0
        self.doubled = 0
        self.dropped = 0  # because too much waited
        self.said_at = 0  # when something other than chatter was last delivered
        self.shut: dict[Way, None] = {}  # connections that are not made when they have broken
        self._accepted: dict[_Accepted, None] = {}
        self._cuts: dict[str, dict[Pair, None]] = {}
        self._blocked: dict[Pair, int] = {}
        self._clogged: dict[Way, int] = {}
        self._rates: dict[Way, int] = {}
        self._lives: dict[tuple[Side, int], tuple[str, int]] = {}  # a process -> its disk and its incarnation
        self._draw = world.draws.of("network")

    # Reachability.

    def passes(self, src: Side, dst: Side) -> bool:
        """Whether anything gets from one side to the other now."""
        return not self._blocked or (src, dst) not in self._blocked

    def flows(self, src: Side, dst: Side) -> bool:
        """Whether what is sent now gets there, and soon."""
        now, link = self.world.now, self.links.get((src, dst))
        if not self.passes(src, dst) or (link is not None and link.excused_until > now):
            return False
        return max(self._clogged.get((src, dst, way), 0) for way in PEERS) <= now and self.waits(src, dst) <= SOON_NS

    def cut(self, name: str, pairs: Iterable[Pair]) -> None:
        """From now on nothing passes in these directions, until the cut of this name is healed."""
        self.heal(name)
        self._cuts[name] = dict.fromkeys(pairs)
        for pair in self._cuts[name]:
            self._blocked[pair] = self._blocked.get(pair, 0) + 1
        if self.kernels:
            self.world.after(self._unheard_ns, self._unheard, name, self._cuts[name])

    @property
    def _unheard_ns(self) -> int:
        """A connection over which nothing is acknowledged for so long breaks."""
        return unheard_ms(self.world.settings) * MS

    def _unheard(self, name: str, cut: dict[Pair, None]) -> None:
        """Nothing passed for too long, neither what is said nor that it was heard."""
        if self._cuts.get(name) is cut:
            for link in [self.links.get(pair) for a, b in cut for pair in ((a, b), (b, a))]:
                if link is not None and link.boots is not None:
                    self._broken(link, link.boots)

    def heal(self, name: str | None = None) -> None:
        """End one cut, or all of them; then what is not heard over a connection any more is noticed, too."""
        for link in self.links.values() if name is None else ():
            for way in list(link.dead):
                self._notice(link, way)
        for healed in [name] if name is not None else list(self._cuts):
            for pair in self._cuts.pop(healed, {}):
                left = self._blocked[pair] - 1
                if left:
                    self._blocked[pair] = left
                else:
                    del self._blocked[pair]

    @property
    def whole(self) -> bool:
        """Nothing is cut off from anything."""
        return not self._blocked

    def clog(self, pairs: Iterable[Pair], until: int, ways: Sequence[Role] = PEERS) -> None:
        """What is sent in these directions arrives at `until` and not before."""
        self._clogged |= {(*pair, way): until for pair in pairs for way in ways}

    def narrow(self, pairs: Iterable[Pair], rate: int, ways: Sequence[Role] = MAY_BE_NARROW) -> None:
        """So many bytes a second pass in these directions, over each connection one message after the other. Two on which
        something waits have half of it each."""
        self._rates |= {(*pair, way): rate for pair in pairs for way in ways}

    def widen(self, pairs: Iterable[Pair] | None = None) -> None:
        """In these directions, or all, anything passes from now on, and what waits comes."""
        for pair in dict.fromkeys((src, dst) for src, dst, _ in self._rates) if pairs is None else pairs:
            for way in PEERS:
                self._rates.pop((*pair, way), None)
            if (link := self.links.get(pair)) is not None:
                for waiting in self._take(link):
                    self.world.after(self._delay(), self._deliver, link, waiting.boots, waiting.data)

    def _take(self, link: Link, ways: Sequence[Role] = PEERS) -> list[_Waiting]:
        """What waits on a narrow way does not any more."""
        found = [each for way in list(link.waiting) if way in ways for each in link.waiting.pop(way) if not each.over]
        for each in found:
            each.over = True
        link.taken |= dict.fromkeys(ways, 0)
        return found

    def waits(self, src: Side, dst: Side) -> int:
        """For how long what is sent now waits for what was sent before it, in ns."""
        link = self.links.get((src, dst)) if self._rates else None
        return max(0, max(link.taken.values()) - self.world.now) if link is not None else 0

    def _backlog(self, link: Link, way: Role) -> int:
        """How many bytes wait for a connection."""
        now, some = self.world.now, link.waiting.get(way, ())
        while some and (some[0].over or some[0].at <= now):
            some.popleft()
        return sum(len(each.data) for each in some)

    def reset(self, pair: Pair, ways: Sequence[Role] = PEERS, *, after: int = 0) -> None:
        """All connections from one to another break, or some, and the one who made them notices; `after` a while, in which
        nothing comes over them."""
        link = self.links.get(pair)
        if link is None or link.boots is None:
            return
        if len(ways) == len(PEERS) and not after:
            self._broken(link, link.boots)
            return
        for way in ways:
            if way in link.off or way in link.dead:
                continue
            link.dead[way] = None
            link.excused_until = max(link.excused_until, self.world.now + after)
            if after:
                self.world.after(after, self._notice, link, way)
            else:
                self._notice(link, way)

    def _notice(self, link: Link, way: Role) -> None:
        """A connection is found to be broken: it is made anew, and what is not for it goes on over the others."""
        if way not in link.dead:
            return
        del link.dead[way]
        if link.boots is None or not link.src.up or link.src.boot != link.boots[0]:
            return
        link.off[way] = Redial()
        self._lose_waiting(link, (way,))
        if way == PEER:
            link.src.receive(PeerLost(link.dst.name))
        elif way == BULK and PEER not in link.off:
            link.src.receive(_seen(link.dst, (BULK,)))
        self._dial_anew(link, way)

    def _dial_anew(self, link: Link, way: Role) -> None:
        pause = _ns(link.off[way].pause())
        self.world.after(pause + 2 * self._delay(), self._dialed_anew, link, link.boots, way, link.off[way].attempts)

    def _dialed_anew(
        self, link: Link, boots: tuple[int, int], way: Role, attempt: int, asked: int = 0, *, late: bool = False
    ) -> None:
        if way not in link.off or link.off[way].attempts != attempt or link.boots != boots or not link.src.up:
            return
        if (link.src.name, link.dst.name, way) in self.shut:
            self._dial_anew(link, way)
            return
        if not late and self._asks_on(link, asked):
            again = _ns(ASKS_AGAIN_SECONDS[asked])
            self.world.after(again, self._dialed_anew, link, boots, way, attempt, asked + 1)
            return
        if not late and self._stands_still(link):
            go_on = partial(self._dialed_anew, link, boots, way, attempt)
            self._accept(link, self.world.now, go_on, partial(go_on, late=True))
            return
        if late or not self._answers(link):
            self._dial_anew(link, way)
            return
        del link.off[way]
        if way != BEAT:  # of which nobody is told
            link.src.receive(_seen(link.dst, (PEER, BULK) if way == PEER and BULK in link.off else (way,)))
        if way == PEER:
            link.dst.receive(_seen(link.src, (way,)))
            self._heard(link)

    # Connections.

    def started(self, machine: Machine) -> None:
        """A process runs: it dials everyone, and everyone dials it."""
        assert machine.node is not None
        self._lives[(machine.name, machine.boot)] = (machine.allocation, machine.node.core.incarnation)
        for other in self.world.machines.values():
            if other is machine:
                continue
            out, back = self._link(machine, other), self._link(other, machine)
            out.boots, out.redial = None, Redial()
            self._dial(out, 0)
            if self.kernels:
                if back.dialing is None and back.boots is None:
                    self._dial(back, 0)
            elif back.boots is not None:
                self.world.after(self._delay(), self._broken, back, back.boots)
            else:
                back.redial = Redial()
                self._dial(back, 0)

    def stopped(self, machine: Machine, *, reset: bool) -> None:
        """A process is gone. `reset`: its system still runs, and says so to everyone who was connected."""
        for accepted in [each for each in self._accepted if reset and each.dst is machine]:
            self.world.after(self._delay(), self._end, accepted, accepted.hang_up)
        for link in self.links.values():
            if link.src is machine:
                link.boots = None
                self._lose_waiting(link)
                if self.kernels:
                    link.dialing = None
            elif link.dst is machine and link.boots is not None and reset and self.passes(machine.name, link.src.name):
                self.world.after(self._delay(), self._broken, link, link.boots)
            elif link.dst is machine and link.boots is not None and self.kernels:
                self.world.after(self._unheard_ns, self._broken, link, link.boots)

    def _lose_waiting(self, link: Link, ways: Sequence[Role] = PEERS) -> None:
        """What waits for a connection goes with it."""
        for waiting in self._take(link, ways) if link.waiting else ():
            self._lose(link.src.name, link.dst.name, waiting.data)

    def _link(self, src: Machine, dst: Machine) -> Link:
        pair = (src.name, dst.name)
        link = self.links.get(pair)
        if link is None:
            link = self.links[pair] = Link(src, dst)
        return link

    def _dial(self, link: Link, pause: int) -> None:
        if link.dialing is None:
            attempt = link.dialing = _Attempt(self.world.now + pause)
            link.redial.begin(attempt.begins / SECOND)
            self.world.after(pause + 2 * self._delay(), self._dialed, link, attempt)

    def _dialed(self, link: Link, attempt: _Attempt, asked: int = 0, *, late: bool = False) -> None:
        src, dst = link.src, link.dst
        if link.dialing is not attempt:
            return
        wanted = src.up and link.boots is None and not dst.gone
        if wanted and not late and self._asks_on(link, asked):
            self.world.after(_ns(ASKS_AGAIN_SECONDS[asked]), self._dialed, link, attempt, asked + 1)
            return
        if wanted and not late and self._stands_still(link):
            go_on = partial(self._dialed, link, attempt)
            self._accept(link, attempt.begins, go_on, partial(go_on, late=True))
            return
        link.dialing = None
        if not wanted:
            return
        if late or not self._answers(link):
            if dst.up and dst.paused and self.passes(src.name, dst.name):
                dst.receive(_seen(src))  # it will read the greeting of whoever has hung up by then
            self._dial(link, _ns(link.redial.pause()))
            return
        link.redial.met()
        link.boots, link.off, link.dead = (src.boot, dst.boot), {}, {}
        src.receive(_seen(dst))
        dst.receive(_seen(src, (PEER,)))
        self._heard(link)

    def _asks_on(self, link: Link, asked: int) -> bool:
        """Whether nothing answers to who dials, and he does not give up yet."""
        src, dst = link.src.name, link.dst.name
        nothing = not link.dst.powered or not self.passes(src, dst) or not self.passes(dst, src)
        return self.kernels and nothing and asked < len(ASKS_AGAIN_SECONDS)

    def _stands_still(self, link: Link) -> bool:
        """Whether whoever is dialed is a process that does not run, whose system takes the connection."""
        src, dst = link.src.name, link.dst
        return self.kernels and dst.up and dst.paused and self.passes(src, dst.name) and self.passes(dst.name, src)

    def _accept(self, link: Link, begun: int, go_on: Callable[[], None], hang_up: Callable[[], None]) -> None:
        """Who dialed waits to be greeted: until the process goes on, or is gone, or for so long as it waits for anybody."""
        accepted = _Accepted(link.dst, go_on, hang_up)
        self._accepted[accepted] = None
        self.world.at(begun + _ns(HELLO_SECONDS), self._end, accepted, hang_up)

    def _end(self, accepted: _Accepted, then: Callable[[], None]) -> None:
        if accepted in self._accepted:
            del self._accepted[accepted]
            then()

    def resumed(self, machine: Machine) -> None:
        """A process goes on, and greets whoever has dialed it."""
        for accepted in [each for each in self._accepted if each.dst is machine]:
            self.world.after(self._delay(), self._end, accepted, accepted.go_on)

    def _heard(self, link: Link) -> None:
        """Who is dialed hears who dials, and what hangs of its own connections to him is for nothing (`Link.heard`)."""
        back = self.links.get((link.dst.name, link.src.name))
        if not self.kernels or back is None or back.src.gone:
            return
        now = self.world.now
        if back.boots is not None:
            if back.boots[1] != link.src.boot:
                self._broken(back, back.boots)
            for way in list(back.off):
                self._dial_anew(back, way)
        elif back.dialing is None or back.dialing.begins > now or back.redial.is_vain(now / SECOND):
            back.dialing = None
            self._dial(back, 0)

    def _answers(self, link: Link) -> bool:
        """Whether who dials is greeted."""
        src, dst = link.src, link.dst
        reachable = dst.up and not dst.paused and self.passes(src.name, dst.name) and self.passes(dst.name, src.name)
        refused = self.weather.refuse and self._draw.random() < self.weather.refuse
        return reachable and not refused

    def _broken(self, link: Link, boots: tuple[int, int]) -> None:
        if link.boots != boots:
            return
        link.boots = None
        self._lose_waiting(link)
        if link.src.up and link.src.boot == boots[0]:
            link.src.receive(PeerLost(link.dst.name))
            self._dial(link, _ns(link.redial.pause()))
            if not self.kernels:
                link.redial.met()  # what broke is no attempt that failed: stories and seeds go on as they always did

    # Messages.

    def send(self, src: Machine, targets: Sequence[NodeId], message: Message) -> None:
        """Say something to each of the targets; what cannot be sent is lost."""
        data = frame([message])
        for target in targets:
            self.sent += 1
            link = self.links.get((src.name, target))
            if (
                link is None
                or link.boots is None
                or link.boots[0] != src.boot
                or link.boots[1] != link.dst.boot
                or not self.passes(src.name, target)
            ):
                self._lose(src.name, target, data)
                continue
            way = self.way_of(message, data, link) if self._rates or self.apart else PEER
            if way in link.off:
                way = PEER  # by which all goes that has no connection of its own
                if way in link.off:
                    self._lose(src.name, target, data)
                    continue
            if not self.rules or not self.catches(
                src.name, target, message, data, partial(self._post, link, link.boots, data, way)
            ):
                self._post(link, link.boots, data, way)

    def way_of(self, message: Message, data: bytes, link: Link) -> Role:
        """Over which connection it goes, as nodes with sockets decide."""
        if type(message) is PrepareParts and len(data) >= LARGE_BYTES:
            return BULK
        return way_of(message, behind=link.taken[PEER] > self.world.now)

    def _post(self, link: Link, boots: tuple[int, int], data: bytes, way: Role) -> None:
        weather, draw, now = self.weather, self._draw, self.world.now
        if (weather.loss and draw.random() < weather.loss) or way in link.dead:
            self._lose(link.src.name, link.dst.name, data)
            return
        copies = 1
        while weather.duplicate and copies < COPIES_MAX and draw.random() < weather.duplicate:
            copies += 1
            self.doubled += 1
        for _ in range(copies):
            at = now + self._delay()
            if weather.spike and draw.random() < weather.spike:
                at += draw.randrange(weather.spike_delay)
            if self._clogged:
                at = max(at, self._clogged.get((link.src.name, link.dst.name, way), 0))
            rate = self._rates.get((link.src.name, link.dst.name, way)) if self._rates else None
            if rate is not None:
                if self._backlog(link, way) >= link.src.backlog_max:
                    self.dropped += 1
                    self._lose(link.src.name, link.dst.name, data)
                    continue
                at = max(at, self._passed(link, way, len(data), rate))
                waiting = _Waiting(at, boots, data)
                link.waiting.setdefault(way, deque()).append(waiting)
                self.world.at(at, self._arrives, link, waiting)
                continue
            if not weather.reorder:
                order = way if self.apart else PEER
                if at < link.last[order]:
                    at = link.last[order]
                link.last[order] = at
            self.world.at(at, self._deliver, link, boots, data)

    def _arrives(self, link: Link, waiting: _Waiting) -> None:
        if not waiting.over:
            waiting.over = True
            self._deliver(link, waiting.boots, waiting.data)

    def _passed(self, link: Link, way: Role, size: int, rate: int) -> int:
        """When so many bytes more have passed a narrow way."""
        now = self.world.now
        others = sum(taken > now for other, taken in link.taken.items() if other is not way)
        link.taken[way] = max(now, link.taken[way]) + size * 1_000 * MS * (1 + others) // rate
        return link.taken[way]

    def _delay(self) -> int:
        weather = self.weather
        return weather.delay + (self._draw.randrange(weather.jitter) if weather.jitter else 0)

    def _deliver(self, link: Link, boots: tuple[int, int], data: bytes) -> None:
        src, dst = link.src.name, link.dst
        if not dst.up or dst.boot != boots[1] or not self.passes(src, dst.name):
            self._lose(src, dst.name, data)
            return
        self.delivered += 1
        self.world.trace.add(self.world.now, "deliver", src, dst.name, data)
        for message in decode_messages(data[FRAME_HEADER_BYTES:]):
            if not isinstance(message, CHATTER):
                self.said_at = self.world.now
            dst.receive(Received(src, *self._lives[(src, boots[0])], message))
            for watcher in self.world.watchers.delivered:
                watcher.delivered(src, dst.name, message)

    def _lose(self, src: Side, dst: Side, about: object) -> None:
        self.lost += 1
        self.world.trace.add(self.world.now, "lose", src, dst, about)

    # What a story holds.

    def catches(self, src: Side, dst: Side, said: object, about: object, go: Callable[[], None]) -> bool:
        """Whether a rule holds or loses this; what is held is sent on by `go` when it is released."""
        for rule in self.rules:
            if rule.left == 0 or not rule.matches(src, dst, said):
                continue
            if rule.left is not None:
                rule.left -= 1
            rule.caught += 1
            if rule.drop:
                self._lose(src, dst, about)
            elif not any((h.src, h.dst) == (src, dst) and h.about == about for h in self.held):
                self.world.trace.add(self.world.now, "hold", src, dst, about)
                self.held.append(Held(rule, src, dst, said, about, go))
            return True
        return False

    def release(self, rules: Sequence[Rule], held: Sequence[Held]) -> None:
        """End these rules, and send on what was held."""
        self.rules = [rule for rule in self.rules if rule not in rules]
        self.held = [h for h in self.held if h not in held]
        for h in held:
            h.go()

    def discard(self, held: Sequence[Held]) -> None:
        """What was held is lost."""
        self.held = [h for h in self.held if h not in held]
        for h in held:
            self._lose(h.src, h.dst, h.about)


def _ns(seconds: float) -> int:
    return round(seconds * SECOND)


def _seen(machine: Machine, over: tuple[Role, ...] = PEERS) -> PeerSeen:
    assert machine.node is not None, "only a running node is seen"
    core = machine.node.core
    return PeerSeen(
        machine.name,
        machine.allocation,
        core.incarnation,
        machine.address,
        core.settings.domain,
        core.topology.cluster if core.topology is not None else "",
        habits_of(core.settings),
        over,
    )
