"""Conversations between whole nodes: two-phase commit, the exchange, demand and supply.

```
cluster n1 n2 n3 [partitions=1] [backups=2] [heartbeat_ms=250 ...]    form a cluster; any knob of `engine.turn.settings`
start n4 | crash n1 | restart n1 | leave n3           processes come and go
image n1, put-back n1 | wipe n1                       keep a disk image, put it back; an empty disk (of a crashed node)
busy n1                                               from now on it has no moment to spare
checkpoint n1 | trim n1                               the store is brought up to date; the log is cut to it
cut n1 n2 | cut n1->n2 | heal                         links
baseline n1 n2 n4                                     the operator's wish
quiet exchange                                        exchanges happen without being told
mail                                                  what is on its way
deliver KIND [n1->n2] [WORD ...]                      bring all letters of which this is true, the oldest first
  [once]                                              only the oldest
drop ... | hold ... | release                         lose them; keep `run` and `settle` from them; no more
repeat KIND ...                                       bring once more what was brought before
run                                                   deliver until nothing is left, in the order in which it was said
tick 300ms                                            time passes; only heartbeats arrive; what is said again prints once
settle [30s] [until=3.1]                              both, until nothing happens any more (or there is that version);
                                                      prints notes, answers and rare paths only
put acc/0 a=1 b= [at=n2] [as=t1]                      a client's requests; to the primary, unless `at` another node
get acc/0 a [stale] | swap acc/0 a absent 1 | swap acc/0 a equals 1 2
lock t1 acc/0 a b [for=5s] [holding] | unlock t1 acc/0
prepare t1 acc/0 a=1 acc/1 b=2 [reading acc/0 c@1.3]  two-phase commit, up to the votes
commit t1 [acc/0 a=1 ... [if acc/1 b=2 c=]]           what was prepared, or all of it; if keys have these values, or none
count acc/0                                           how many rows there are
scan acc/0 a c                                        the rows a <= key < c, and where the fragment stood before
check t1 acc/0 a c@1.3                                did anything come into that range since?
status t1 acc/0 | again t1                            how did it end? | the same request once more
map | show acc/0 | rows acc/0 | doubt                 what all nodes have
```

`KIND` may be `any`, and so may a side of a route. The partition of a key is what the story says: a hash tag that is not
printed puts it there. In answers `logs` is what a node made durable, `*` a rare path that it took, and `->` what it said.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.node.node import Node
from engine.protocol.requests import (
    Admin,
    Check,
    CommitTx,
    Get,
    GetStatus,
    Lock,
    Put,
    Request,
    Scan,
    Scanned,
    StageWrites,
    Swap,
    Unlock,
)
from engine.state.store import Entry
from engine.turn.settings import Settings
from rebalance.partition import LocalPartition, Role
from tests.conversations.cluster import Cluster, Host, Letter
from tests.conversations.fragment import standing_of
from tests.conversations.names import Names, duration, key_in, key_name
from tests.conversations.records import entries, fragment
from tests.conversations.speech import decision_text, placement_line
from tests.conversations.story import Command, Interpreter, StoryError
from wal.ids import DECISIONS, Fragment, Namespace, NodeId, TxId

_TOLD = (" notes: ", " answers ", " * ", " stops: ")


class NodesStory(Interpreter):
    """A cluster, what its clients asked, and the images of disks that were kept."""

    def __init__(self) -> None:
        self.names = Names()
        self._cluster: Cluster | None = None
        self.images: dict[NodeId, Host] = {}
        self.requests: dict[str, tuple[NodeId, Request, str]] = {}
        self.commits: dict[TxId, CommitTx] = {}
        self.pessimistic: dict[TxId, None] = {}
        self.number = 0

    @property
    def cluster(self) -> Cluster:
        """The cluster of the story."""
        if self._cluster is None:
            raise StoryError("a story begins with `cluster`")
        return self._cluster

    def answer(self, command: Command) -> list[str]:
        """What nodes did follows what was asked."""
        lines = super().answer(command)
        if self._cluster is not None:
            done, self._cluster.lines = self._cluster.lines, []
            lines = [*(line for line in lines if line != "ok" or not done), *done]
        return [self.names.shorten(line) for line in lines]

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    # Nodes.

    def on_cluster(self, command: Command) -> list[str]:
        knobs: dict[str, object] = {"partitions": 1, "checkpoint_ms": 3_600_000}
        for field in msgspec.structs.fields(Settings):
            text = command.option(field.name)
            if text is not None:
                knobs[field.name] = msgspec.convert(text, field.type, strict=False)
        self._cluster = cluster = Cluster(msgspec.convert({"anti_entropy_ms": 0} | knobs, Settings), self.names)
        nodes = command.rest()
        for node in nodes:
            cluster.start(node)
        cluster.ask(nodes[0], Admin(self._id(), "init", {"cluster": ["c1"], "nodes": nodes}), "init")
        assert cluster.settle(60_000_000_000), "the new cluster does not come to rest"
        cluster.lines.clear()
        cluster.past.clear()
        return self.on_map(command)

    def on_start(self, command: Command) -> None:
        self.cluster.start(command.word("a node"))

    def on_restart(self, command: Command) -> None:
        self.cluster.start(self._down(command))

    def on_crash(self, command: Command) -> None:
        self.cluster.crash(command.word("a node"))

    def on_busy(self, command: Command) -> None:
        self.cluster.hosts[command.word("a node")].busy = True

    def on_leave(self, command: Command) -> None:
        self._admin(command.word("a node"), "stop", {})

    def on_baseline(self, command: Command) -> None:
        leader = self.cluster.map().members[0].node
        self._admin(leader, "baseline", {"nodes": command.rest(), "yes": []})

    def on_image(self, command: Command) -> str:
        node = command.word("a node")
        self.images[node] = self.cluster.hosts[node].copy()
        return f"kept as of LSN {self.images[node].last_lsn}"

    def on_put_back(self, command: Command) -> str:
        node = self._down(command)
        self.cluster.put_back(self.images[node])
        return f"as of LSN {self.images[node].last_lsn}"

    def on_wipe(self, command: Command) -> None:
        self.cluster.wipe(self._down(command))

    def on_checkpoint(self, command: Command) -> None:
        self.cluster.checkpoint(command.word("a node"))

    def on_trim(self, command: Command) -> None:
        self.cluster.trim(command.word("a node"))

    def _down(self, command: Command) -> NodeId:
        node = command.word("a node")
        if node not in self.cluster.hosts or self.cluster.hosts[node].node is not None:
            raise StoryError(f"{node} is not a node that crashed")
        return node

    def _admin(self, node: NodeId, verb: str, arguments: dict[str, list[str]]) -> None:
        self.cluster.ask(node, Admin(self._id(), verb, arguments), verb)

    # Links and time.

    def on_quiet(self, command: Command) -> None:
        if command.word("what") != "exchange":
            raise StoryError("only exchanges can be quiet")
        self.cluster.quiet = True

    def on_cut(self, command: Command) -> None:
        a, arrow, b = command.word("a node or a route").partition("->")
        b = b or command.word("another node")
        self.cluster.cut_link(a, b)
        if not arrow:
            self.cluster.cut_link(b, a)

    def on_heal(self, _: Command) -> None:
        self.cluster.heal()

    def on_run(self, _: Command) -> None:
        self.cluster.run()

    def on_tick(self, command: Command) -> None:
        self.cluster.tick(duration(command.word("how long")))
        self.cluster.lines = list(dict.fromkeys(self.cluster.lines))

    def on_settle(self, command: Command) -> str | None:
        cluster, version = self.cluster, command.option("until")
        at_most = duration((command.rest() or ["60s"])[0])
        quiet = cluster.settle(at_most, lambda: str(cluster.map().version) == version)
        cluster.lines = [line for line in cluster.lines if any(mark in line for mark in _TOLD)]
        cluster.lines = list(dict.fromkeys(cluster.lines))
        return None if quiet else "it does not come to rest"

    # Mail.

    def on_mail(self, _: Command) -> list[str]:
        held = self.cluster.is_held
        return [f"{letter}{' (held)' if held(letter) else ''}" for letter in self.cluster.waiting()] or ["nothing"]

    def on_deliver(self, command: Command) -> None:
        for letter in self._letters(command):
            self.cluster.deliver(letter)

    def on_drop(self, command: Command) -> list[str]:
        letters = self._letters(command)
        for letter in letters:
            self.cluster.mail.remove(letter)
        return [f"lost: {letter}" for letter in letters]

    def on_repeat(self, command: Command) -> str | None:
        matches = _matching(command)
        letters = [letter for letter in self.cluster.past if matches(letter)]
        for letter in letters:
            self.cluster.bring(letter)
        return None if self.cluster.lines else f"{len(letters)} letters, and nothing happens"

    def on_hold(self, command: Command) -> None:
        self.cluster.held.append(_matching(command))

    def on_release(self, _: Command) -> None:
        self.cluster.held.clear()

    def _letters(self, command: Command) -> list[Letter]:
        once = command.flag("once")
        matches = _matching(command)
        letters = [letter for letter in self.cluster.waiting() if matches(letter)][: 1 if once else None]
        if not letters:
            there = "".join(f"\n    {letter}" for letter in self.cluster.waiting())
            raise StoryError(f"there is no such letter; there are:{there or ' none'}")
        return letters

    # Clients.

    def on_put(self, command: Command) -> None:
        at, name, tx = command.option("at"), command.option("as"), self._auto_tx()
        namespace, partition = fragment(command)
        words = command.rest()
        keys, values = self._entries(partition, words)
        request = Put(self._id(), self.names.tx(name) if name else tx, namespace, keys, values)
        self._ask(partition, request, name or f"put {key_name(keys[0])}", at)

    def on_swap(self, command: Command) -> None:
        at, name, tx = command.option("at"), command.option("as"), self._auto_tx()
        namespace, partition = fragment(command)
        key, when = self._key(partition, command.word("a key")), command.word("a condition")
        old = command.word("the old value").encode() if when == "equals" else None
        new = command.word("the new value").encode()
        request = Swap(self._id(), self.names.tx(name) if name else tx, namespace, key, when, old, new)
        self._ask(partition, request, name or f"swap {key_name(key)}", at)

    def on_get(self, command: Command) -> None:
        at, stale = command.option("at"), command.flag("stale")
        namespace, partition = fragment(command)
        keys = [self._key(partition, word) for word in command.rest()]
        self._ask(partition, Get(self._id(), namespace, keys, stale), f"get {key_name(keys[0])}", at)

    def on_scan(self, command: Command) -> None:
        namespace, partition = fragment(command)
        start, end = (self._key(partition, word) for word in command.rest())
        self._ask(partition, Scan(self._id(), namespace, [partition], start, end, 10, marks=True), "scan", None)

    def on_count(self, command: Command) -> None:
        namespace, partition = fragment(command)
        self._ask(partition, Scan(self._id(), namespace, [partition], b"", None, 1, count=True), "count", None)

    def on_check(self, command: Command) -> None:
        name = command.word("a transaction")
        namespace, partition = fragment(command)
        words, _, mark = " ".join(command.rest()).partition("@")
        start, end = (self._key(partition, word) for word in words.split())
        epoch, _, counter = mark.partition(".")
        seen = Scanned(namespace, start, end, [(partition, int(epoch), int(counter))], [])
        tx = self.names.tx(name)
        self._ask(partition, Check(self._id(), tx, [], [], scanned=[seen], tx=tx), f"check {name}", None)

    def on_lock(self, command: Command) -> None:
        at, patience = command.option("at"), duration(command.option("for") or "5s")
        name = command.word("a transaction")
        tx = self.names.tx(name)
        namespace, partition = fragment(command)
        holding = command.flag("holding")
        keys = [self._key(partition, word) for word in command.rest()]
        self.pessimistic[tx] = None
        request = Lock(self._id(), tx, namespace, keys, patience // 1_000_000, holding=holding)
        self._ask(partition, request, f"lock {name}", at)

    def on_unlock(self, command: Command) -> None:
        name = command.word("a transaction")
        _, partition = fragment(command)
        self._ask(partition, Unlock(self._id(), self.names.tx(name)), f"unlock {name}", None)

    def on_prepare(self, command: Command) -> None:
        self._commit(command, prepare_only=True)

    def on_commit(self, command: Command) -> None:
        self._commit(command, prepare_only=False)

    def on_stage(self, command: Command) -> None:
        """`stage t1 2 decided=0 size=8 acc/1 b=1`: the second piece of what it will write."""
        at, decided, size = command.option("at"), int(command.option("decided") or 0), int(command.option("size") or 99)
        name, number = command.word("a transaction"), command.number("which piece")
        tx, (writes, _) = self.names.tx(name), self._shares(command.rest())
        request = StageWrites(self._id(), tx, tx, decided, number, size, writes)
        self._ask(decided, request, f"stage {name} {number}", at)

    def _commit(self, command: Command, *, prepare_only: bool) -> None:
        at, staged, name = command.option("at"), command.option("staged"), command.word("a transaction")
        tx = self.names.tx(name)
        words = command.rest()
        if words:
            tested = words.index("if") if "if" in words else len(words)
            conditions = [
                (ns, key, "equals" if value is not None else "absent", value, 0, 0)
                for ns, keys, values in self._shares(words[tested + 1 :])[0]
                for key, value in zip(keys, values, strict=True)
            ]
            words = words[:tested]
            reading = words.index("reading") if "reading" in words else len(words)
            writes, _ = self._shares(words[:reading])
            _, reads = self._shares(words[reading + 1 :])
            mode = tx not in self.pessimistic
            commit = CommitTx(0, tx, tx, mode, writes, [], reads, conditions=conditions, staged=int(staged or 0))
            self.commits[tx] = commit
        elif tx not in self.commits:
            raise StoryError(f"what does {name} write?")
        request = msgspec.structs.replace(self.commits[tx], id=self._id(), prepare_only=prepare_only)
        verb = "prepare" if prepare_only else "commit"
        decided_in = self._partition_of(request.writes[0][1][0])
        self._ask(decided_in, request, f"{verb} {name}", at)

    def on_status(self, command: Command) -> None:
        at, name = command.option("at"), command.word("a transaction")
        _, partition = fragment(command)
        self._ask(partition, GetStatus(self._id(), self.names.tx(name), partition), f"status {name}", at)

    def on_again(self, command: Command) -> None:
        """Ask once more what was asked last under this name."""
        at, name = command.option("at"), " ".join(command.rest())
        if name not in self.requests:
            raise StoryError(f"{name!r} was not asked before; there were: {', '.join(self.requests)}")
        _, request, what = self.requests[name]
        partition = self._partition_of_request(request)
        self._ask(partition, msgspec.structs.replace(request, id=self._id()), what, at)

    def _ask(self, partition: int, request: Request, what: str, at: str | None) -> None:
        node = at or self.cluster.map().placements[partition].primary
        if node is None:
            node = self.cluster.running()[0].name
        self.requests[what] = (node, request, what)
        self.cluster.ask(node, request, what)

    # Looking.

    def on_map(self, _: Command) -> list[str]:
        topology = self.cluster.map()
        behind = [
            f"{host.name} is at {host.node.core.version}"
            for host in self.cluster.running()
            if host.node is not None and host.node.core.version != topology.version
        ]
        lines = [f"{topology.version} of {' '.join(m.node for m in topology.members)}"]
        return [*lines, *(placement_line(number, p) for number, p in enumerate(topology.placements)), *behind]

    def on_show(self, command: Command) -> list[str]:
        name = fragment(command)
        lines = []
        for host in self.cluster.hosts.values():
            if host.node is None:
                lines.append(f"{host.name} is down")
                continue
            lines.append(f"{host.name} {self._copy(host.node, name)}")
        return lines

    def _copy(self, node: Node, name: Fragment) -> str:
        role = _role(node.core.local[name[1]]) if node.core.local else "-"
        if not node.core.serving:
            role = "not serving"
        state = node.core.replica.fragments.get(name)
        partition = node.core.replica.partition(name[1])
        prepared = " ".join(self.names.tx_name(tx) for tx in partition.prepared)
        said = standing_of(state) if state is not None else "nothing"
        return f"{role}: {said}{f' prepared={prepared}' if prepared else ''}"

    def on_rows(self, command: Command) -> list[str]:
        """The rows of all copies, which nodes agree on them side by side."""
        name = fragment(command)
        found: dict[str, list[str]] = {}
        for host in self.cluster.running():
            assert host.node is not None
            rows = host.node.core.replica.store.scan(name, b"", 100)
            said = " ".join(f"{self._row(name, key, entry)}@{entry.epoch}.{entry.counter}" for key, entry in rows)
            found.setdefault(said or "nothing", []).append(host.name)
        return [f"{' '.join(nodes)}: {said}" for said, nodes in found.items()]

    def _row(self, name: Fragment, key: bytes, entry: Entry) -> str:
        if name[0] == DECISIONS:
            return decision_text(self.names.tx_name(key), entry.value)
        return f"{key_name(key)}={(entry.value or b'deleted').decode()}"

    def on_doubt(self, _: Command) -> list[str]:
        """Transactions whose outcome a node does not know."""
        lines = []
        for host in self.cluster.running():
            assert host.node is not None
            for number, partition in sorted(host.node.core.replica.partitions.items()):
                lines += [f"{host.name} p{number} {self.names.tx_name(tx)}" for tx in partition.prepared]
        return lines or ["nothing is in doubt"]

    # Names.

    def _id(self) -> int:
        self.number += 1
        return self.number

    def _auto_tx(self) -> TxId:
        return (1_000_000 + self.number).to_bytes(8, "big") + b"no name."

    def _key(self, partition: int, name: str) -> bytes:
        return key_in(partition, self.cluster.map().partitions, name)

    def _entries(self, partition: int, words: list[str]) -> tuple[list[bytes], list[bytes | None]]:
        keys, values = entries(words)
        return [self._key(partition, key.decode()) for key in keys], values

    def _shares(
        self, words: list[str]
    ) -> tuple[list[tuple[Namespace, list[bytes], list[bytes | None]]], list[tuple[Namespace, bytes, int, int]]]:
        """`acc/1 a=1 acc/0 b=2` as writes, `acc/1 a@1.3` as reads."""
        writes: list[tuple[Namespace, list[bytes], list[bytes | None]]] = []
        reads: list[tuple[Namespace, bytes, int, int]] = []
        namespace, partition = "", 0
        for word in words:
            if "/" in word:
                namespace, number = word.split("/")
                partition = int(number)
                continue
            key, at, version = word.partition("@")
            if at:
                epoch, _, counter = version.partition(".")
                reads.append((namespace, self._key(partition, key), int(epoch), int(counter)))
                continue
            keys, values = self._entries(partition, [word])
            if not writes or writes[-1][0] != namespace:
                writes.append((namespace, [], []))
            writes[-1][1].extend(keys)
            writes[-1][2].extend(values)
        return writes, reads

    def _partition_of(self, key: bytes) -> int:
        partitions = self.cluster.map().partitions
        return next(n for n in range(partitions) if key_in(n, partitions, key_name(key)) == key)

    def _partition_of_request(self, request: Request) -> int:
        match request:
            case Put(keys=[key, *_]) | Swap(key=key) | Get(keys=[key, *_]) | Lock(keys=[key, *_]):
                return self._partition_of(key)
            case CommitTx(writes=[(_, [key, *_], _), *_]):
                return self._partition_of(key)
            case GetStatus(partition=partition) | StageWrites(partition=partition):
                return partition
        raise StoryError(f"cannot be asked again: {request}")


def _role(local: LocalPartition) -> str:
    return "primary" if local.active else "no copy" if local.role is Role.NONE else local.role.name.lower()


def _matching(command: Command) -> Callable[[Letter], bool]:
    """Which letters are meant by `KIND [s1->s2] [WORD ...]`."""
    kind, *words = command.rest()
    route = words.pop(0) if words and "->" in words[0] else "any->any"
    sender, _, receiver = route.partition("->")

    def matches(letter: Letter) -> bool:
        said = letter.text.replace(";", " ").split()
        return (
            kind in ("any", letter.kind)
            and sender in ("any", letter.sender)
            and receiver in ("any", letter.receiver)
            and all(word in said for word in words)
        )

    return matches
