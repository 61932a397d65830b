"""One real node of a small world: what it is after each sequence of things that happened to it.

A node is a value that takes events, so that its state is the sequence of events which led to it. States are kept by
number; equal ones (`fingerprint`) have one. What an event makes of a state is found out once, by a real `Node` on a real
log in memory, which is told the whole sequence again if it has gone on since; and then remembered.

A step is one event, paid to the end: what the node says to itself is part of it. Heartbeats, requests to join and the word
for copies that caught up are left out: in a small world nobody is suspected by the clock, and maps change as it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from engine.cluster.attempt import Intent
from engine.messages import CaughtUp, Heartbeat, Join, Message, kind_of
from engine.node.node import Node
from engine.protocol.requests import Reply, Request
from engine.state.recover import recover
from engine.state.store import LayeredStore
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event, PeerSeen, Received, Task
from engine.turn.settings import Settings
from rebalance import baselines, going, steps
from rebalance.ports import MS, CloseHistory, HistoryRead, OpenHistory, ReadHistory
from rebalance.table import Candidate, Placement
from tests.conversations.cluster import Block, Host
from tests.conversations.in_turn import in_turn
from tests.sim.explore.fingerprint import fingerprint
from tests.sim.machine import Machine
from tests.sim.world import Plant
from wal import records as r
from wal.history import HistoryCursor
from wal.ids import NodeId

BEGIN_NS = 1_000_000_000
DOWN = 0
"""The life of a node that does not run."""
_LEFT_OUT = (CaughtUp, Heartbeat, Join)
_encode = msgspec.msgpack.Encoder().encode
_message_in = msgspec.msgpack.Decoder(Message).decode  # made once: that takes as long as eighty decodings
_request_in = msgspec.msgpack.Decoder(Request).decode


class Letter(NamedTuple):
    """Something that one life of a node said to one life of another."""

    sender: NodeId
    allocation: str
    incarnation: int
    receiver: NodeId
    life: int  # which process of the receiver it is for
    message: bytes

    @property
    def kind(self) -> str:
        """What kind of message it is."""
        return kind_of(_message_in(self.message))


class Happening(NamedTuple):
    """What can happen to a node. `what` is start, crash, wipe, set-back, image, begin, step, join, move, note, let-go,
    rebase, stand, tell, wait, deliver, lose or ask. `worse`: a primary moves off a copy that is wrong; `names` of what is
    lost: which kinds of letters to it."""

    what: str
    node: NodeId
    letter: Letter | None = None
    names: tuple[NodeId, ...] = ()
    ms: int = 0
    request: bytes = b""  # a request is not hashable
    worse: bool = False

    @property
    def is_life(self) -> bool:
        """Whether a process ends, and perhaps another begins: letters to it are lost."""
        return self.what in {"start", "crash", "wipe", "set-back"}

    @property
    def waits(self) -> bool:
        """Whether it may happen hangs on what else may."""
        return self.what == "tell"


class Step(NamedTuple):
    """What came of something that happened to a node: its next state, what it said, and what it logged and answered."""

    state: int
    said: tuple[tuple[NodeId, bytes], ...]
    logged: tuple[r.Record, ...]
    answers: tuple[tuple[int, Reply], ...]


class _Running:
    """A real node, as it is after some happenings."""

    def __init__(self, nodes: Nodes, name: NodeId) -> None:
        self.nodes = nodes
        self.host = Host(name, f"disk-{name}")
        self.images: list[Host] = []
        self.now = BEGIN_NS
        self.life = 0
        self.said: list[tuple[NodeId, bytes]] = []
        self.logged: list[r.Record] = []
        self.answers: list[tuple[int, Reply]] = []

    def happen(self, happening: Happening) -> None:
        """Let it happen, and everything that follows at once."""
        self.said, self.logged, self.answers = [], [], []
        node = self.host.node
        match happening.what:
            case "start" | "wipe" | "set-back":
                if happening.what == "wipe":
                    self.host = Host(self.host.name, f"{self.host.allocation}'")
                elif happening.what == "set-back":
                    self.host = self.images[0].copy()
                self._start()
            case "crash":
                self.host.node, self.life = None, DOWN
            case "image":
                self.images.append(self.host.copy())
            case "see":
                self._turn([PeerSeen(n, f"disk-{n}", self.nodes.incarnation(n), f"{n}:1", "", "") for n in happening.names])
            case "begin":
                assert node is not None
                if node.core.topology is None or node.exchange.attempt is not None:
                    return
                topology = node.core.topology
                candidates = [
                    Candidate(m.node, m.allocation, m.incarnation, m.address, m.domain)
                    for m in topology.members
                    if m.node in happening.names
                ]
                if topology.member(self.host.name) is None:
                    candidates.append(node.membership.joining.me)
                self._lead(node, lambda: node.exchange.begin(Intent(candidates, reason="a small world")))
            case "step" | "move":
                assert node is not None
                old, exchange = node.core.topology, node.exchange
                if old is None or exchange.standing is None or exchange.attempt is not None or node.steps.under_way:
                    return
                placement = old.placements[0]
                changed = msgspec.structs.replace(placement, version=placement.version + 1)
                if happening.what == "move":
                    owners = (*placement.owners[1:], placement.owners[0])
                    changed = Placement(changed.version, placement.epoch + 1, owners, owners)
                step = steps.Step(old.version, node.core.map_hash, [(0, changed)], list(old.claims), worse=happening.worse)
                self._lead(node, lambda: node.steps.begin(step))
            case "join":
                assert node is not None
                old, exchange, (name, disk) = node.core.topology, node.exchange, happening.names
                life = self.nodes.incarnation(name) + (disk != f"disk-{name}")  # the first one, on this disk or on the next
                joiner = Candidate(name, disk, life, f"{name}:1", "")
                if old is None or exchange.standing is None or exchange.attempt is not None or node.steps.under_way:
                    return
                if steps.may_join(old, [joiner]):
                    joining = steps.light_step(old, node.core.map_hash, {}, node.claims.sure(), in_turn, joins=[joiner])
                    assert joining is not None
                    self._lead(node, lambda: node.steps.begin(joining))
            case "stand" | "note" | "let-go" | "rebase":
                assert node is not None
                if node.core.topology is not None and node.exchange.attempt is None and not node.steps.under_way:
                    self._lead(node, lambda: self._lead_steps(node, happening))
            case "tell":
                assert node is not None
                self._wait(happening.ms)
                leads = [local.number for local in node.core.local if local.mine]
                self._lead(node, lambda: node.entropy.following.tell(leads))
            case "wait":
                self._wait(happening.ms)
            case "deliver":
                letter = happening.letter
                assert letter is not None
                message = _message_in(letter.message)
                self._turn([Received(letter.sender, letter.allocation, letter.incarnation, message)])
            case "ask":
                self._turn([Asked(1, _request_in(happening.request))])
            case _:
                raise AssertionError(f"nobody knows how {happening.what} happens")

    def _wait(self, ms: int) -> None:
        """Time passes, in which it has heard everybody."""
        self.now += ms * MS
        if self.host.node is not None:
            for other in self.nodes.names:
                self.host.node.detector.heard(other)
        self._turn([])

    def _lead_steps(self, node: Node, happening: Happening) -> None:
        """It asks for promises; or, under a ballot that stands, has some noted, or go, or be the baseline."""
        names, old, made = happening.names, node.core.topology, node.steps
        assert old is not None
        if happening.what == "stand":
            node.steps.ballot.stand()
        elif node.exchange.standing is None:
            return
        elif happening.what == "note" and not any(n in going.going(old) for n in names):
            made.note_going(names)
        elif happening.what == "let-go" and all(n in going.going(old) for n in names) and not going.led_by(old, names):
            made.let_go(names)
        elif happening.what == "rebase" and old.baseline != names and baselines.may_be(old, names):
            made.rebase(names)

    def _lead(self, node: Node, begin: Callable[[], None]) -> None:
        """It begins something by itself, and pays for it."""
        before = node.core.effects
        node.core.effects = Effects()
        begin()
        self._pay(node, node.core.effects)
        node.core.effects = before
        self._turn([])

    def _start(self) -> None:
        host, nodes = self.host, self.nodes
        self.life += 1
        host.node = Node(
            nodes.settings,
            recover(LayeredStore(host.store), host),
            node=host.name,
            allocation=host.allocation,
            address=f"{host.name}:1",
            durable_lsn=host.last_lsn,
            draw=self.life,
            affinity=in_turn,
        )
        if nodes.plant is not None:
            nodes.plant(cast("Machine", host))  # a host has what a plant asks of a machine: its name, disk and node
        self._turn([])
        self._turn([PeerSeen(n, f"disk-{n}", 1 << 20 | 1, f"{n}:1", "", "") for n in nodes.names if n != host.name])

    def _turn(self, events: list[Event]) -> None:
        node = self.host.node
        assert node is not None
        while True:
            effects = node.turn(self.now, events)
            node.core.to_self = [said for said in node.core.to_self if not isinstance(said, _LEFT_OUT)]
            self._pay(node, effects)
            events = [read for task in effects.tasks if (read := self._read(task)) is not None]
            if not (events or node.core.to_self or node.core.resumed or node.core.unhurried):
                return

    def _read(self, task: Task) -> Event | None:
        """Read the log for a copy that lacks something; what else a task may be, needs a world that is larger."""
        host = self.host
        match task:
            case OpenHistory(session, wants):
                host.cursors[session] = HistoryCursor([1], lambda _lsn, _wanted: host, wants, host.last_lsn)
            case ReadHistory(session, size, updates):
                cursor = host.cursors[session]
                writes = cursor.read(size, updates)
                return HistoryRead(session, writes, cursor.done, list(cursor.missed) if cursor.done else [])
            case CloseHistory(session):
                host.cursors.pop(session, None)
            case _:
                pass
        return None

    def _pay(self, node: Node, effects: Effects) -> None:
        host = self.host
        if effects.log:
            host.blocks.append(Block(host.last_lsn + 1, list(effects.log)))
            node.core.durable_lsn = host.last_lsn
            self.logged.extend(effects.log)
        for targets, message in (*effects.early, *effects.send):
            if not isinstance(message, _LEFT_OUT):
                encoded = _encode(message)
                self.said.extend((target, encoded) for target in targets)
        self.answers.extend((reply.id, reply) for _, reply in effects.reply)

    def fingerprint(self) -> bytes:
        """All that this node is, and all that its disk and the images of it are."""
        host = self.host
        disk = [block.records for block in host.blocks]
        return fingerprint(host.name, host.allocation, self.life, self.now, disk, len(self.images), host.node)


class Nodes:
    """All states of all nodes of one small world."""

    def __init__(self, names: tuple[NodeId, ...], settings: Settings, plant: Plant | None) -> None:
        self.names = names
        self.settings = settings
        self.plant = plant
        self.steps = 0
        self._paths: list[tuple[NodeId, tuple[Happening, ...]]] = []
        self._running: dict[int, _Running] = {}
        self._by_print: dict[tuple[NodeId, bytes], int] = {}
        self._known: dict[tuple[int, Happening], Step] = {}
        self._lives: list[tuple[str, int, int]] = []

    def __len__(self) -> int:
        return len(self._paths)

    def begin(self, name: NodeId) -> Step:
        """A new node, started for the first time."""
        running = _Running(self, name)
        first = Happening("start", name)
        running.happen(first)
        return self._settle(running, name, (first,))

    def step(self, state: int, happening: Happening) -> Step:
        """What comes of something that happens in a state."""
        key = (state, happening)
        known = self._known.get(key)
        if known is None:
            name, path = self._paths[state]
            running = self._running.pop(state, None)
            if running is None:
                running = _Running(self, name)
                for earlier in path:
                    running.happen(earlier)
            running.happen(happening)
            self.steps += 1
            known = self._known[key] = self._settle(running, name, (*path, happening))
        return known

    def _settle(self, running: _Running, name: NodeId, path: tuple[Happening, ...]) -> Step:
        printed = (name, running.fingerprint())
        state = self._by_print.get(printed)
        if state is None:
            state = self._by_print[printed] = len(self._paths)
            self._paths.append((name, path))
            node = running.host.node
            self._lives.append((running.host.allocation, node.core.incarnation if node is not None else 0, running.life))
            self._running[state] = running
        elif state not in self._running and not running.images:
            self._running[state] = running  # it is in that state, as good as the one that has gone on from there
        return Step(state, tuple(running.said), tuple(running.logged), tuple(running.answers))

    def life(self, state: int) -> tuple[str, int, int]:
        """The disk, the incarnation and the number of the process that runs in a state."""
        return self._lives[state]

    def incarnation(self, name: NodeId) -> int:
        """The incarnation of a node in its first life."""
        return 1 << 20 | 1

    def look(self, state: int) -> Node | None:
        """The node as it is in a state; not to be told anything."""
        running = self._running.get(state)
        if running is None:
            name, path = self._paths[state]
            running = self._running[state] = _Running(self, name)
            for earlier in path:
                running.happen(earlier)
        return running.host.node

    def path(self, state: int) -> tuple[Happening, ...]:
        """All that happened to a node up to a state: one way to get there."""
        return self._paths[state][1]


def ask(node: NodeId, request: Request) -> Happening:
    """A client asks a node something."""
    return Happening("ask", node, request=_encode(request))


def told(happening: Happening) -> str:
    """A happening as a line."""
    match happening.what:
        case "deliver":
            assert happening.letter is not None
            letter = happening.letter
            kind = kind_of(_message_in(letter.message))
            return f"{letter.sender} -> {letter.receiver} {kind}"
        case "begin":
            return f"{happening.node} begins an exchange with {', '.join(happening.names)}"
        case "step":
            return f"{happening.node} proposes a light step"
        case "move":
            whence = " off a copy that is wrong" if happening.worse else ""
            return f"{happening.node} proposes a step that moves the primary{whence}"
        case "join":
            return f"{happening.node} proposes a step by which {' joins on '.join(happening.names)}"
        case "stand":
            return f"{happening.node} asks for promises"
        case "tell":
            return f"{happening.ms} ms later {happening.node} tells asynchronous copies where it stands"
        case "lose":
            assert happening.letter is not None
            return f"lost: {happening.letter.sender} -> {happening.node} {happening.letter.kind}"
        case "note" | "let-go" | "rebase":
            said = {"note": "notes that it goes:", "let-go": "lets go", "rebase": "has the baseline be"}[happening.what]
            return f"{happening.node} proposes a step that {said} {', '.join(happening.names)}"
        case "wait":
            return f"{happening.node} waits {happening.ms} ms"
        case "ask":
            return f"{happening.node} is asked {type(_request_in(happening.request)).__name__}"
        case "start":
            return f"{happening.node} loses its power and starts again"
        case "crash":
            return f"{happening.node} loses its power for good"
        case _:
            return f"{happening.node}: {happening.what}"
