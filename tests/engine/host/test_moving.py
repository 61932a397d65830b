"""Real transports of nodes that come and go: machines lose power and start again, ways are cut, names lead elsewhere.

Whatever happens: what is heard was said to whoever hears it, by a life that is or was, once and in order; and when nothing
is wrong any more, each node is soon connected to each other in its present life, over every connection, and knows that.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from engine.host.links import Link
from engine.host.transport import Transport
from engine.messages import Leave, Message, Replicated, Supply
from engine.protocol import redial as redial_module
from engine.protocol.roles import PEERS
from engine.turn.events import Event, PeerSeen, Received
from engine.turn.settings import Settings
from tests.engine.host.streams import MS, SECOND, At, Streams
from wal.ids import NO_VERSION

NAMES = ("n1", "n2", "n3")
PORT = 7_000
WHOLE_NS = 7 * SECOND
"""What stands still is given up after 5 s, and dialed after a pause; an attempt that nobody hears takes 5 s."""
SEEDS = range(12)


class Node:
    """One life of a node: its transport, and what it has heard."""

    def __init__(self, story: Story, name: str, place: str, life: int) -> None:
        self.story = story
        self.name = name
        self.place = place
        self.life = life
        self.heard: dict[tuple[str, int, type[Message]], list[int]] = {}
        self.present: dict[str, int] = {}  # whoever is there, and in which life, as the node was told
        self.transport = Transport(
            At(story.loop, place),  # type: ignore[arg-type]  # it is the loop, for somebody
            identity=PeerSeen(name, f"{name}-disk", life, f"{name}:{PORT}", "", ""),
            settings=Settings(cluster="c"),
            cluster_id=lambda: "",
            taken=lambda hello: "",
            inbox=self._hear,
            note=lambda text: None,
        )
        listening = story.loop.create_task(self.transport.listen(f"{place}:{PORT}"))
        story.loop.run_for(0)
        listening.result()
        for other in NAMES:
            self.transport.connect(f"{other}:{PORT}")

    def _hear(self, event: Event, weight: int) -> None:
        match event:
            case Received(sender, allocation, incarnation, message):
                assert allocation == f"{sender}-disk"
                assert incarnation <= self.story.lives[sender], "it has begun"
                to, number = _read(message)
                assert to == self.name, f"{self.name} hears what is for {to}"
                heard = self.heard.setdefault((sender, incarnation, type(message)), [])
                assert number not in heard, "once"
                assert not isinstance(message, Replicated) or number > max(heard, default=0), "in order"
                heard.append(number)
            case PeerSeen(node=node, incarnation=incarnation):
                self.present[node] = incarnation
            case _:
                pass

    def say(self, to: str) -> None:
        """Something over each connection to a peer."""
        self.story.said += 1
        number = 10 * self.story.said + NAMES.index(to)
        said = Replicated(NO_VERSION, [number], 0), Leave(self.name, number), Supply(NO_VERSION, number, 1)
        self.transport.send([((to,), each) for each in said])

    def lacks(self) -> list[str]:
        """To which of the others it does not speak, or what it does not know of them."""
        transport, found = self.transport, list[str]()
        for name in NAMES:
            for role in PEERS if name != self.name else ():
                by_role = transport.beside_by_node | {
                    ("peer", node): link for node, link in transport.links_by_node.items()
                }
                link = by_role.get((role, name))
                peer = link.peer if link is not None and link.connection is not None else None
                if peer is None or (peer.node, peer.incarnation) != (name, self.story.lives[name]):
                    found.append(f"{self.name}>{name} as {role}")
            if name != self.name and self.present.get(name) != self.story.lives[name]:
                found.append(f"{self.name} knows of {name} in life {self.present.get(name)}, not {self.story.lives[name]}")
        return found


def _read(message: Message) -> tuple[str, int]:
    match message:
        case Replicated():
            number = message.sequences[0]
        case Leave():
            number = message.incarnation
        case Supply():
            number = message.session
        case _:
            raise AssertionError(message)
    return NAMES[number % 10], number


class Story:
    """Three nodes, each at a place where a name leads, and what befalls them."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.loop = Streams(self.draw)  # type: ignore[abstract]  # it has what transports use
        self.said = 0
        self.lives = dict.fromkeys(NAMES, 0)
        self.nodes: dict[str, Node] = {}
        self._places = 0
        for name in NAMES:
            self.start(name)

    def start(self, name: str, place: str = "") -> None:
        """A node begins, at a place of its own or another one's."""
        if not place:
            self._places += 1
            place = f"host{self._places}"
        with self.loop.entered():
            self.loop.off.pop(place, None)
            self.loop.names[name] = place
            self.lives[name] += 1
            self.nodes[name] = Node(self, name, place, self.lives[name])

    def run_for(self, ns: int) -> None:
        """All goes on for so long."""
        with self.loop.entered():
            self.loop.run_for(ns)

    def talk(self, ms: int) -> None:
        """All speak to all for so long."""
        for _ in range(ms // 50):
            self._say()
            self.run_for(50 * MS)

    def power_cut(self, name: str) -> None:
        """Its machine is off, and says nothing to anybody."""
        node = self.nodes[name]
        self.loop.off[node.place] = None
        with self.loop.entered():
            for end in [end for end in self.loop.ends if end.place == node.place]:
                end.lose()
            self.loop.hear_no_more((node.place, PORT))
            self.loop.create_task(node.transport.close())
            self.loop.run_for(0)

    def play(self, steps: int = 40) -> None:
        """Things happen; then nothing is wrong any more."""
        draw = self.draw
        for _ in range(steps):
            draw.choice((self._say, self._say, self._cut, self._heal, self._break, self._again, self._exchange))()
            self.run_for(draw.choice((0, 30, 400, 1_500, 4_000)) * MS)
        self.loop.calm = True
        self.loop.cuts.clear()
        self.must_be_whole(WHOLE_NS)
        self._must_be_heard()

    def must_be_whole(self, within: int) -> None:
        """All are connected by then."""
        for _ in range(within // (50 * MS)):
            self._say()
            self.run_for(50 * MS)
            if not self.lacks():
                return
        raise AssertionError(f"after {within / SECOND:g} s: {', '.join(self.lacks())}")

    def lacks(self) -> list[str]:
        """What is wrong."""
        return [lack for node in self.nodes.values() for lack in node.lacks()]

    def _must_be_heard(self) -> None:
        before = self.said
        self.talk(2_000)  # over a connection whose other end is gone it is lost once
        self.run_for(SECOND)
        for node in self.nodes.values():
            for name in NAMES:
                for kind in (Replicated, Leave, Supply) if name != node.name else ():
                    heard = node.heard[name, self.lives[name], kind]
                    assert max(heard) > 10 * before, f"{name} to {node.name}, {kind.__name__}"

    def _say(self) -> None:
        for node in self.nodes.values():
            for other in NAMES:
                if other != node.name:
                    node.say(other)

    def _cut(self) -> None:
        one, other = self.draw.sample(NAMES, 2)
        self.loop.cuts[self.nodes[one].place, self.nodes[other].place] = None

    def _heal(self) -> None:
        self.loop.cuts.clear()

    def _break(self) -> None:
        if self.loop.ends:
            end = self.draw.choice(self.loop.ends)
            self.draw.choice((end.cut, end.vanish))()

    def _again(self) -> None:
        """A machine loses its power, and comes back at its place or at another one, where its name leads then."""
        name = self.draw.choice(NAMES)
        place = self.nodes[name].place
        self.power_cut(name)
        self.run_for(self.draw.choice((0, 100, 1_000, 3_500, 7_000)) * MS)
        self.start(name, self.draw.choice((place, "")))

    def _exchange(self) -> None:
        """Two come back, each where the other one was."""
        one, other = self.draw.sample(NAMES, 2)
        there, here = self.nodes[one].place, self.nodes[other].place
        self.power_cut(one)
        self.power_cut(other)
        self.run_for(self.draw.choice((0, 3_000)) * MS)
        self.start(one, here)
        self.run_for(self.draw.choice((0, 3_000)) * MS)
        self.start(other, there)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_comes_and_goes_is_spoken_to_and_nobody_else_is(seed: int) -> None:
    Story(seed).play()


def _quiet() -> Story:
    """Three that are connected, and nothing goes wrong by itself."""
    story = Story(1)
    story.loop.calm = True
    story.must_be_whole(WHOLE_NS)
    return story


@pytest.mark.parametrize(
    "off_ms", [4_000, 6_500], ids=["its connections hang", "it is asked to connect, and hears nothing"]
)
def test_whoever_was_off_is_spoken_to_as_soon_as_it_speaks(off_ms: int) -> None:
    """Kernels say again what was not acknowledged, and ask again to connect, later each time: so long it is not waited."""
    story = _quiet()
    story.power_cut("n2")
    story.talk(off_ms)
    story.start("n2", story.nodes["n2"].place)
    story.must_be_whole(500 * MS)


def test_a_name_that_leads_here_for_a_while_leads_to_its_node_again() -> None:
    story = _quiet()
    here, there = story.nodes["n1"].place, story.nodes["n2"].place
    story.power_cut("n2")
    story.loop.names["n2"] = here
    story.talk(7_000)
    story.start("n2", there)
    story.must_be_whole(500 * MS)


def test_a_node_that_meets_itself_dials_itself_ever_more_rarely() -> None:
    """Its own address is among its seeds, in another spelling."""
    story = _quiet()
    node = story.nodes["n1"]
    story.loop.names["alias"] = node.place
    with story.loop.entered():
        node.transport.connect(f"alias:{PORT}")
    story.run_for(100 * SECOND)
    link = node.transport.links[f"alias:{PORT}"]
    assert 5 <= link._redial.attempts <= 10, "once a second it would be a hundred times"
    story.loop.names["alias"] = "nowhere"
    story.run_for(33 * SECOND)
    before = link._redial.attempts
    story.run_for(10 * SECOND)
    assert link._redial.attempts - before > 1, "where nobody answers, the next one may at any time"


def test_a_name_that_leads_here_although_its_node_speaks_is_asked_soon() -> None:
    """The name service is late: it tells the address that the node had before."""
    story = _quiet()
    here, there = story.nodes["n1"].place, story.nodes["n2"].place
    story.power_cut("n2")
    story.loop.names["n2"] = here
    story.run_for(60 * SECOND)
    story.start("n2", there)
    story.loop.names["n2"] = here
    story.talk(10_000)
    story.loop.names["n2"] = there
    story.must_be_whole(1_500 * MS)


def test_a_name_that_leads_to_another_node_for_a_while_leads_to_its_own_again() -> None:
    story = _quiet()
    there = story.nodes["n2"].place
    story.power_cut("n2")
    story.loop.names["n2"] = story.nodes["n3"].place
    story.talk(7_000)
    story.start("n2", there)
    story.loop.names["n2"] = story.nodes["n3"].place  # whoever answers for names has not heard yet
    story.talk(3_000)
    assert [lack for lack in story.lacks() if lack.startswith("n1>n2")] == [
        "n1>n2 as peer",
        "n1>n2 as beat",
        "n1>n2 as bulk",
    ]
    story.loop.names["n2"] = there
    story.must_be_whole(1_500 * MS)


# That it would be noticed.


def _closes_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has dialed itself it never dials again."""
    refused = Link.refused

    def close(link: Link, reason: str) -> None:
        refused(link, reason)
        if "itself" in reason:
            link.close()

    monkeypatch.setattr(Link, "refused", close)


def _stays_with_whoever_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is connected, to whomever."""
    monkeypatch.setattr(Link, "_is_stray", lambda *_: False)


def _waits_for_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is waited for, whoever speaks."""
    monkeypatch.setattr(Link, "heard", lambda *_: None)


def _never_dials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or not for an hour."""
    monkeypatch.setattr(redial_module, "REDIAL_SECONDS", (0.05, 3_600.0))


def _speaks_to_whoever_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is the one of who answered first, whoever answers now."""
    monkeypatch.setattr(Link, "leads_to", lambda *_: True)


def _play_all() -> None:
    test_whoever_was_off_is_spoken_to_as_soon_as_it_speaks(4_000)
    for seed in SEEDS:
        Story(seed).play()


@pytest.mark.parametrize(
    "fault",
    [
        _closes_for_good,
        _stays_with_whoever_answers,
        _waits_for_its_kernel,
        _never_dials_again,
        _speaks_to_whoever_was_there,
    ],
)
def test_what_is_wrong_with_dialing_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        _play_all()
