"""Real nodes on logs in memory, and every message between them in a mailbox that a story empties by hand.

A host is one data directory (a log as a list of blocks, a `MemoryStore`) and, while it runs, a `Node` on it. Its effects
are paid at once and in order; messages go to the mailbox and stay there until the story delivers or drops them. Only
heartbeats and requests to join go by themselves, whenever the link is whole: they say nothing that a story is about. A
message that waits already is not put there twice, however often it is sent.

Whatever a reader may want to see comes back as lines: what was logged, said, answered and noted, and the rare paths
(`wal.probe`) that were reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from engine.messages import (
    Accept,
    AcceptStep,
    Announce,
    AskMap,
    Commit,
    CommitStep,
    Drained,
    HandOver,
    Heartbeat,
    Join,
    Message,
    Promise,
    Propose,
    ProposeStep,
    Refuse,
    SingleMap,
    kind_of,
)
from engine.node.node import Node
from engine.protocol.requests import CommitTx, Reply, Request, StageWrites
from engine.state.recover import recover
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.events import (
    Asked,
    CheckpointWritten,
    Connect,
    Event,
    LogMayShrink,
    PeerLost,
    PeerSeen,
    Received,
    Stop,
    Task,
    TrimLog,
    WriteCheckpoint,
)
from engine.turn.settings import Settings, habits_of
from rebalance.ports import CloseHistory, HistoryRead, OpenHistory, ReadHistory
from rebalance.table import Topology
from tests.conversations.in_turn import in_turn
from tests.conversations.names import Names
from tests.conversations.speech import Speech
from tests.conversations.story import StoryError
from tests.support.probes import listen_here
from wal.history import HistoryCursor, Wanted
from wal.ids import NodeId
from wal.records import Accepted, Committed, Promised, Record, Trimmed, spans

CHATTER = (Heartbeat, Join)
EXCHANGE = (
    *(Announce, Promise, SingleMap, Propose, Accept, Refuse, Commit, AskMap, Promised, Accepted, Committed),
    *(ProposeStep, AcceptStep, CommitStep, HandOver, Drained),
)
"""What is said and logged in an exchange; a story that is not about it can do without."""
STEP_NS = 50_000_000


class Letter:
    """One message on its way to one node."""

    def __init__(self, sender: NodeId, life: tuple[str, int], receiver: NodeId, message: Message, text: str) -> None:
        self.sender = sender
        self.life = life  # the disk and the incarnation of the sender
        self.receiver = receiver
        self.message = message
        self.text = text

    @property
    def kind(self) -> str:
        """The message's kind."""
        return kind_of(self.message)

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver} {self.text}"


class Block:
    """One turn's records in a log."""

    def __init__(self, first_lsn: int, records: list[Record]) -> None:
        self.first_lsn = first_lsn
        self.records = records

    @property
    def last_lsn(self) -> int:
        """The LSN of its last record."""
        return self.first_lsn + len(self.records) - 1


class Host:
    """One node's directory, and the node while it runs. It is its own log, for `recover` and for history."""

    def __init__(self, name: NodeId, allocation: str) -> None:
        self.name = name
        self.allocation = allocation
        self.store = MemoryStore()
        self.blocks: list[Block] = []
        self.node: Node | None = None
        self.inbox: deque[Event] = deque()
        self.wake_at: int | None = None
        self.busy = False  # it has something to do all the time
        self.cursors: dict[tuple[NodeId, int], HistoryCursor] = {}
        self.bytes_read = 0  # for wal.history.SegmentView, as are the next two
        self.findings = []  # type: ignore[var-annotated]  # a log in memory has no damage to find

    @property
    def last_lsn(self) -> int:
        """The LSN of the last record."""
        return self.blocks[-1].last_lsn if self.blocks else 0

    @property
    def begins(self) -> int:
        """The first LSN that is there."""
        return self.blocks[0].first_lsn if self.blocks else 1

    def replay(self, from_lsn: int) -> Iterator[Block]:
        """The log, for `recover`."""
        return iter([block for block in self.blocks if block.first_lsn >= from_lsn])

    def records(self, wanted: Wanted, until_lsn: int) -> Iterator[list[Record]]:
        """The log, for a history cursor."""
        for block in list(self.blocks):
            if block.last_lsn <= until_lsn and any((s[0], s[1]) in wanted for r in block.records for s in spans(r)):
                yield block.records

    def copy(self) -> Host:
        """The directory as it is now: an old disk image."""
        twin = Host(self.name, self.allocation)
        twin.store, twin.blocks = self.store.copy(), list(self.blocks)
        return twin


class Cluster:
    """The hosts, the mailbox between them, the links that are cut, and the time."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self.settings = settings
        self.names = names
        self.speech = Speech(names)
        self.hosts: dict[NodeId, Host] = {}
        self.mail: list[Letter] = []
        self.past: list[Letter] = []  # what was delivered, in order
        self.held: list[Callable[[Letter], bool]] = []
        self.cut: dict[tuple[NodeId, NodeId], None] = {}
        self.now = 1_000_000_000
        self.starts = 0  # no two lives are one, not even after an old image was put back
        self.asked: dict[int, str] = {}  # request id -> what the story calls it
        self.lines: list[str] = []
        self.quiet = False  # exchanges go on without a word
        self._reached: list[str] = []
        self._deaf = listen_here(self._reached.append)

    def close(self) -> None:
        """The story is over."""
        self._deaf()

    # Nodes.

    def up(self, name: NodeId) -> Node:
        """A running node."""
        node = self.hosts[name].node if name in self.hosts else None
        if node is None:
            raise StoryError(f"{name} is not running")
        return node

    def running(self) -> list[Host]:
        """The hosts whose node runs."""
        return [host for host in self.hosts.values() if host.node is not None]

    def start(self, name: NodeId) -> None:
        """Start a node on what its directory holds, and connect it with all others."""
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = Host(name, f"disk-{name}")
        assert host.node is None, f"{name} runs already"
        self.starts += 1
        replica = recover(LayeredStore(host.store), host)
        host.node = Node(
            self.settings,
            replica,
            node=name,
            allocation=host.allocation,
            address=f"{name}:1",
            durable_lsn=host.last_lsn,
            draw=self.starts,
            affinity=in_turn,
        )
        self.turn(host, [])
        for other in self.running():
            if other is not host and not self._is_cut(name, other.name):
                self.meet(host, other)

    def meet(self, a: Host, b: Host) -> None:
        """Two nodes have a connection."""
        for host, other in ((a, b), (b, a)):
            node = other.node
            assert node is not None
            core = node.core
            life, settings = (other.name, other.allocation, core.incarnation), core.settings
            seen = PeerSeen(*life, core.address, settings.domain, "", habits_of(settings))
            self.turn(host, [seen])

    def crash(self, name: NodeId) -> None:
        """A process ends; what it said is on its way, what was said to it is lost, and its peers notice."""
        self.up(name)
        host = self.hosts[name]
        host.node, host.wake_at = None, None
        host.inbox.clear()
        host.cursors.clear()
        self.mail = [letter for letter in self.mail if letter.receiver != name]
        for other in self.running():
            self.turn(other, [PeerLost(name)])

    def put_back(self, image: Host) -> None:
        """Put an old image of a disk in place of what it is now."""
        self.hosts[image.name] = image.copy()

    def wipe(self, name: NodeId) -> None:
        """An empty disk in place of the one that was."""
        fresh = Host(name, f"{self.hosts[name].allocation}'")
        self.hosts[name] = fresh

    def map(self) -> Topology:
        """The newest committed map that a running node has."""
        maps = [host.node.core.topology for host in self.running() if host.node is not None]
        known = [topology for topology in maps if topology is not None]
        if not known:
            raise StoryError("the cluster is not formed")
        return max(known, key=lambda topology: topology.version)

    # Turns.

    def turn(self, host: Host, events: Iterable[Event]) -> None:
        """Bring events to a node and pay what it owes, then whatever follows from it at once."""
        host.inbox.extend(events)
        while True:
            taken = list(host.inbox)
            host.inbox.clear()
            node = host.node
            if node is None:
                return
            if host.busy:
                node.core.note_busy(self.now, 0)
            effects = node.turn(self.now, taken)
            self._reach(host)
            for targets, message in effects.early:
                self._say(host, targets, message)
            if effects.log:
                host.blocks.append(Block(host.last_lsn + 1, effects.log))
                node.core.durable_lsn = host.last_lsn
                told = [record for record in effects.log if not (self.quiet and isinstance(record, EXCHANGE))]
                if told:
                    self.lines.append(f"{host.name} logs {self.speech.records(told)}")
            for targets, message in effects.send:
                self._say(host, targets, message)
            for session, reply in effects.reply:
                self._answer(host, session, reply)
            for note in effects.notes:
                self.lines.append(f"{host.name} notes: {note}")
            for task in effects.tasks:
                self._do(host, task)
            host.wake_at = effects.wake_at
            node.core.replica.check()
            for message in node.core.to_self:
                if self.quiet and isinstance(message, EXCHANGE):
                    continue
                self.lines.append(f"{host.name} -> itself {self.speech.message(message)}")
            if not host.inbox and not node.core.to_self:
                return

    def _say(self, host: Host, targets: tuple[NodeId, ...], message: Message) -> None:
        if isinstance(message, CHATTER):
            for target in targets:
                self._post(Letter(host.name, self._life(host), target, message, ""))
            return
        text = self.speech.message(message)
        new = [t for t in targets if self._post(Letter(host.name, self._life(host), t, message, text))]
        if new and not (self.quiet and isinstance(message, EXCHANGE)):
            self.lines.append(f"{host.name} -> {' '.join(new)} {text}")

    def _post(self, letter: Letter) -> bool:
        """Put a letter into the mailbox, unless it waits there already or cannot arrive."""
        receiver = self.hosts.get(letter.receiver)
        if receiver is None or receiver.node is None or self._is_cut(letter.sender, letter.receiver):
            return False
        route = (letter.sender, letter.receiver)
        if any((other.sender, other.receiver) == route and other.message == letter.message for other in self.mail):
            return False
        self.mail.append(letter)
        return True

    def _answer(self, host: Host, session: int, reply: Reply) -> None:
        what = self.asked.get(reply.id, f"request {reply.id}")
        self.lines.append(f"{host.name} answers {what}: {self.speech.reply(reply)}")

    def _reach(self, host: Host) -> None:
        for name in dict.fromkeys(self._reached):
            self.lines.append(f"{host.name} * {name}")
        self._reached.clear()

    def _do(self, host: Host, task: Task) -> None:
        match task:
            case WriteCheckpoint(image):
                host.store.write(image)
                self.lines.append(f"{host.name} writes a checkpoint up to LSN {image.lsn}")
                host.inbox.append(CheckpointWritten(image.lsn))
            case OpenHistory(session, wants):
                host.cursors[session] = HistoryCursor([1], lambda _lsn, _wanted: host, wants, host.last_lsn)
            case ReadHistory(session, size, updates):
                cursor = host.cursors[session]
                writes = cursor.read(size, updates)
                host.inbox.append(HistoryRead(session, writes, cursor.done, list(cursor.missed) if cursor.done else []))
            case CloseHistory(session):
                host.cursors.pop(session, None)
            case TrimLog(first_lsn):
                host.blocks = [block for block in host.blocks if block.last_lsn >= first_lsn]
            case Connect():
                pass
            case Stop(reason):
                self.lines.append(f"{host.name} stops: {reason}")
                host.node, host.wake_at = None, None
            case _:
                raise AssertionError(f"no such task: {task}")

    # Mail.

    def waiting(self) -> list[Letter]:
        """The mail that a story sees."""
        return [letter for letter in self.mail if not isinstance(letter.message, CHATTER)]

    def is_held(self, letter: Letter) -> bool:
        """Whether only an explicit `deliver` takes this letter."""
        return any(rule(letter) for rule in self.held)

    def deliver(self, letter: Letter) -> None:
        """Take a letter out of the mailbox and bring it to its node."""
        self.mail.remove(letter)
        if not isinstance(letter.message, CHATTER):
            self.past.append(letter)
        self.bring(letter)

    def bring(self, letter: Letter) -> None:
        """Bring a letter to its node, if it runs."""
        host = self.hosts[letter.receiver]
        if host.node is not None and not self._is_cut(letter.sender, letter.receiver):
            self.turn(host, [Received(letter.sender, *letter.life, letter.message)])

    @staticmethod
    def _life(host: Host) -> tuple[str, int]:
        assert host.node is not None, "only a running node speaks"
        return (host.allocation, host.node.core.incarnation)

    def chat(self) -> None:
        """Deliver all heartbeats and requests to join."""
        while True:
            letters = [letter for letter in self.mail if isinstance(letter.message, CHATTER)]
            if not letters:
                return
            for letter in letters:
                self.deliver(letter)

    def run(self) -> int:
        """Deliver everything that is not held, the oldest first, until nothing is left; how many letters."""
        delivered = 0
        while True:
            self.chat()
            letter = next((letter for letter in self.mail if not self.is_held(letter)), None)
            if letter is None:
                return delivered
            self.deliver(letter)
            delivered += 1
            assert delivered < 10_000, "the nodes never fall silent"

    # Time.

    def tick(self, by: int) -> None:
        """Let time pass; nodes wake when they wanted to, heartbeats arrive, other mail waits."""
        until = self.now + by
        while True:
            due = [(host.wake_at, host.name) for host in self.running() if host.wake_at is not None]
            at, name = min(due, default=(until + 1, ""))
            if at > until:
                break
            self.now = max(self.now, at)
            self.turn(self.hosts[name], [])
            self.chat()
        self.now = until

    def settle(self, at_most: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Deliver everything and let time pass until nothing happens any more, or `until`; whether that was reached."""
        quiet, end = 0, self.now + at_most
        while self.now < end:
            before = len(self.lines)
            self.run()
            if until():
                return True
            self.tick(STEP_NS)
            quiet = quiet + STEP_NS if len(self.lines) == before and not self._open_mail() else 0
            if quiet > self.settings.suspicion_ms * 2_000_000:
                return True
        return False

    def _open_mail(self) -> bool:
        return any(not self.is_held(letter) for letter in self.waiting())

    # Links.

    def _is_cut(self, sender: NodeId, receiver: NodeId) -> bool:
        return (sender, receiver) in self.cut

    def cut_link(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing goes from one node to another any more; what is on its way is lost."""
        self.cut[(sender, receiver)] = None
        self.mail = [letter for letter in self.mail if (letter.sender, letter.receiver) != (sender, receiver)]

    def heal(self) -> None:
        """All links are whole again, and connections are made anew."""
        apart = {tuple(sorted(link)) for link in self.cut}
        self.cut.clear()
        for a, b in sorted(apart):
            if self.hosts[a].node is not None and self.hosts[b].node is not None:
                self.meet(self.hosts[a], self.hosts[b])

    # Clients and operators.

    def ask(self, name: NodeId, request: Request, what: str) -> None:
        """A client, or an operator, asks a node."""
        self.up(name)
        self.asked[request.id] = what
        staging = isinstance(request, StageWrites) or (isinstance(request, CommitTx) and request.staged > 0)
        self.turn(self.hosts[name], [Asked(0 if staging else request.id, request)])  # of all else each has its connection

    def checkpoint(self, name: NodeId) -> None:
        """Make a node write a checkpoint now."""
        self.up(name).checkpoint_wanted = True
        self.turn(self.hosts[name], [])

    def trim(self, name: NodeId) -> None:
        """Everything that the last checkpoint holds leaves the log."""
        host = self.hosts[name]
        first_lsn = host.store.load().lsn + 1
        ends: dict[tuple[str, int], int] = {}
        for block in host.blocks:
            if block.last_lsn < first_lsn:
                for record in block.records:
                    for namespace, partition, start, delta in spans(record):
                        known = ends.get((namespace, partition), 0)
                        ends[(namespace, partition)] = max(known, start + delta)
        self.turn(host, [LogMayShrink(Trimmed(first_lsn, [(ns, p, end) for (ns, p), end in sorted(ends.items())]))])
