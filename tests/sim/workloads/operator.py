"""Operators who only look: every question that a node answers, at any moment, from several sessions, and at its limits.

Beside the questions there are orders that are to be refused, because they name another map, or nobody, or what cannot be.
None of that changes anything, and each is answered once, by whatever node it is asked and whatever that is at. What an
answer says is judged by itself (it is JSON of a shape, and what belongs together in it fits), and beside the ones before
it in the same life: a version, a log and a page never go back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from engine.node.inquiry import DIGITS_MAX, KINDS, PAGE
from engine.protocol.limits import NODES_MAX
from engine.protocol.requests import Admin, Code, Failed, Report
from engine.turn.events import Asked, ClientSeen
from rebalance.partition import Role
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import Load
from wal.ids import NAME, TX_ID_BYTES

if TYPE_CHECKING:
    from tests.sim.machine import Machine

Words = dict[str, list[str]]
Body = dict[str, Any]

OPERATORS = 2
PAGES_MAX = 400
"""More pages than this are no end: what is on all of them is more than a world has."""
LOOK_NS = 20 * MS
LARGEST = "9" * DIGITS_MAX

REFUSED: tuple[tuple[str, Words], ...] = (
    ("?", {}),
    ("status", {"x": ["y"] * (NODES_MAX + 1)}),
    ("baseline", {"nodes": ["n1"], "planned": ["0.0"], "yes": []}),
    ("baseline", {"nodes": ["n1", "n1"], "yes": []}),
    ("baseline", {"nodes": ["n1/"], "yes": []}),
    ("baseline", {"nodes": ["nobody"], "yes": []}),
    ("remove", {"nodes": ["nobody"], "yes": []}),
    ("remove", {"nodes": ["n1"], "planned": ["0.0"], "yes": []}),
    ("init", {}),
    ("init", {"cluster": ["another"], "nodes": ["nobody"]}),
    ("recover", {"nodes": ["nobody"], "yes": []}),
    ("refetch", {"fragments": ["bank"]}),
    ("refetch", {"fragments": ["bank/²"]}),
    ("refetch", {"fragments": ["bank/99999"]}),
    ("counters", {"partitions": ["5", "5"]}),
    ("counters", {"partitions": ["0", "100000"]}),
    ("locks", {"after": ["0", f"{LARGEST}0"]}),
    ("locks", {"after": ["-1", "0"]}),
    ("locks", {"tx": ["00"]}),
    ("give-up", {}),
    ("give-up", {"tx": ["zz" * TX_ID_BYTES]}),
    ("transactions", {"after": ["0"]}),
    ("namespaces", {"name": ["bank"]}),
    ("namespaces", {"name": ["bank"], "seen": ["999999999999.99999999"], "ttl_ms": ["0"]}),
    ("namespaces", {"name": ["~tx"], "seen": ["0.0"], "ttl_ms": ["0"]}),
    ("namespaces", {"name": ["bank"], "seen": ["0.0"], "ttl_ms": ["0"], "backups": ["9" * 15]}),
    ("migrations", {}),
    ("migrations", {"seen": ["999999999999.0"], "paused": ["none"], "bytes_per_second": ["0"]}),
    ("migrations", {"seen": ["0.0"], "paused": ["some"], "bytes_per_second": ["0"]}),
    ("migrations", {"seen": ["0.0"], "paused": ["none"], "bytes_per_second": ["1"]}),
)
"""What no node does, in any state."""


class Looking:
    """One operator, and what nodes have told him in their lives."""

    def __init__(self, load: Load, client: Client, draw: Random) -> None:
        self.load = load
        self.client = client
        self.told: Counter[str] = Counter()  # answers, by command
        self._draw = draw
        self._sessions: dict[tuple[str, int, int], int] = {}
        self._waiting: dict[tuple[str, int, int], asyncio.Future[Report | Failed]] = {}
        self._ids = 0
        self._seen: dict[tuple[str, int, str], tuple[int, ...]] = {}  # by node, life and what it is
        self._txs: list[str] = []  # that were told of, the last ones

    async def look(self) -> None:
        """Ask something of some node."""
        draw, running = self._draw, self.client.world.running
        if not running:
            return
        machine = draw.choice(running)
        if draw.random() < 0.3:
            command, words = draw.choice(REFUSED)
            reply = await self._ask(machine, command, words)
            if reply is not None and not isinstance(reply, Failed):
                self._wrong(machine, command, words, f"is done: {str(reply)[:200]}")
            return
        await draw.choice(_QUESTIONS)(self, machine, draw)

    async def _ask(self, machine: Machine, command: str, words: Words) -> Report | Failed | None:
        """What a node answers; None if its life ends before."""
        self._ids += 1
        number, boot = self._ids, machine.boot
        session = self._session(machine)
        future = self._waiting[machine.name, boot, number] = self.client.loop.create_future()
        request = Admin(number, command, words)
        self.client.world.trace.add(self.client.world.now, "ask", self.client.name, machine.name, request)
        machine.receive(Asked(session, request))
        while not future.done() and machine.up and machine.boot == boot:
            await self.client.pause(LOOK_NS)
        del self._waiting[machine.name, boot, number]
        if not future.done():
            return None
        self.told[command] += 1
        reply: Report | Failed = future.result()
        if isinstance(reply, Failed) and ((reply.code is not Code.USAGE and not reply.retryable) or not reply.message):
            self._wrong(machine, command, words, f"is refused with {reply}")
        return reply

    async def _body(self, machine: Machine, command: str, words: Words) -> Body | None:
        """The same, of a question that has an answer."""
        reply = await self._ask(machine, command, words)
        if reply is None:
            return None
        if isinstance(reply, Failed):
            raise self._violation(machine, command, words, f"is refused: {reply.message}")
        return msgspec.json.decode(reply.body, type=Body)

    def _session(self, machine: Machine) -> int:
        key = machine.name, machine.boot, self._draw.randrange(3)
        session = self._sessions.get(key)
        if session is None:

            def told(reply: Any) -> None:
                waits = self._waiting.get((machine.name, key[1], reply.id))
                if waits is None or waits.done():
                    raise Violation("operator", f"{machine.name} answers what nobody asks: {str(reply)[:200]}")
                waits.set_result(reply)

            session = self._sessions[key] = machine.new_session(told)
            machine.receive(ClientSeen(session, self.client.name, f"{self.client.name}:1"))
        return session

    def _violation(self, machine: Machine, command: str, words: Mapping[str, Sequence[str]], what: str) -> Violation:
        asked = {name: [*values[:3]] for name, values in words.items()}
        return Violation("operator", f"{machine.name}: `{command}` {asked} {what}", About(nodes=(machine.name,)))

    def _wrong(self, machine: Machine, command: str, words: Words, what: str) -> None:
        raise self._violation(machine, command, words, what)

    def _never_back(self, machine: Machine, name: str, value: tuple[int, ...]) -> None:
        key = machine.name, machine.boot, name
        before = self._seen.get(key, value)
        if value < before:
            self._wrong(machine, "status", {}, f"says {name} {value} after {before}, in one life")
        self._seen[key] = value

    # The questions.

    async def status(self, machine: Machine, _: Random) -> None:
        """What is known of the cluster."""
        body = await self._body(machine, "status", {})
        if body is None:
            return
        self._never_back(machine, "version", tuple(map(int, body["version"].split("."))))
        self._never_back(machine, "durable_lsn", (body["durable_lsn"],))
        self._never_back(machine, "turns", (body["turns"]["taken"],))
        if not body["formed"]:
            return
        partitions = body["partition_count"] * len(body["groups"])
        held = sum(body["partitions"].values())
        members = [member["node"] for member in body["members"]]
        if body["node"] != machine.name or held != partitions or not set(body["partitions"]) <= {r.value for r in Role}:
            self._wrong(machine, "status", {}, f"says that {body['node']} has {body['partitions']} of {partitions}")
        if len(set(members)) != len(members) or (body["coordinator"] or machine.name) not in (machine.name, *members):
            self._wrong(machine, "status", {}, f"says that {body['coordinator']} leads {members}")
        if body["lost"] != sorted(set(body["lost"])) or body["under_replicated"] > partitions:
            self._wrong(machine, "status", {}, f"says that {body['lost']} are lost, {body['under_replicated']} lack copies")

    async def counters(self, machine: Machine, draw: Random) -> None:
        """How far each copy of each fragment is, of all or of some."""
        first = draw.choice([0, 3, 99_000])
        end = draw.choice([first + 1, first + 5, 99_999])
        named = draw.choice([["bank"], ["nobody", "lists"], [f"no{at}" for at in range(NODES_MAX)], [""]])
        words: Words = draw.choice(
            [{}, {"partitions": [str(first), str(end)]}, {"namespace": named, "partitions": [str(first), str(end)]}]
        )
        body = await self._body(machine, "counters", words)
        for fragment, told in (body or {}).items():
            namespace, _, number = fragment.rpartition("/")
            if words and (not first <= int(number) < end or namespace not in words.get("namespace", [namespace])):
                self._wrong(machine, "counters", words, f"tells of {fragment}")
            at = told["lwm"]
            for start, count in told["ranges"]:
                if start <= at or count < 1:
                    self._wrong(machine, "counters", words, f"tells of {fragment}: {told}")
                at = start + count
            if not told["lwm"] <= at <= told["hwm"] or len(told["digest"]) != 16 or told["epoch"] < 0:
                self._wrong(machine, "counters", words, f"tells of {fragment}: {told}")

    async def progress(self, machine: Machine, _: Random) -> None:
        """How its copies came to be whole."""
        body = await self._body(machine, "progress", {})
        if body is not None and not set(body["missing"]) <= set(body["fragments"]):
            self._wrong(machine, "progress", {}, f"tells that {body['missing']} was missing of {body['fragments']}")

    async def namespaces(self, machine: Machine, _: Random) -> None:
        """What the map says of namespaces."""
        body = await self._body(machine, "namespaces", {})
        if body is not None and (body["node"] != machine.name or not all(map(NAME.fullmatch, body["namespaces"]))):
            self._wrong(machine, "namespaces", {}, f"tells of {list(body['namespaces'])} at {body['node']}")

    async def locks(self, machine: Machine, draw: Random) -> None:
        """Who holds what, page by page; or what one transaction holds; or what is beyond the last page."""
        words: Words = {"after": draw.choice([["0", "0"], ["3", "1"], [LARGEST, LARGEST], ["0", LARGEST]])}
        if self._txs and draw.random() < 0.3:
            words["tx"] = [draw.choice(self._txs)]
        boot = machine.boot
        for _ in range(PAGES_MAX):
            body = await self._body(machine, "locks", words)
            if body is None or machine.boot != boot:
                return
            first = int(words["after"][0])
            owner = ""
            for lock in body["locks"]:
                self._txs = [*self._txs[-20:], lock["tx"]]
                told = f"tells of the lock {lock}"
                if lock["mode"] not in ("read", "write") or lock["tx"] == "":
                    self._wrong(machine, "locks", words, told)
                # Who took a part over knows its transaction by the id of the commit, others by that of its locks.
                owner = owner or lock["tx"]
                if lock["partition"] < first or ("tx" in words and lock["tx"] != owner):
                    self._wrong(machine, "locks", words, told)
            if len(body["locks"]) > PAGE or body["waiting"] < 0:
                self._wrong(machine, "locks", words, f"tells of {len(body['locks'])} locks")
            if body["next"] is None:
                return
            self._goes_on(machine, "locks", words, body)
        self._wrong(machine, "locks", words, "has no end")

    async def transactions(self, machine: Machine, draw: Random) -> None:
        """Which run, of each kind."""
        words: Words = {"after": draw.choice([["0", "0"], ["0", "0"], ["2", LARGEST], [LARGEST, "0"]])}
        boot = machine.boot
        for _ in range(PAGES_MAX):
            body = await self._body(machine, "transactions", words)
            if body is None or machine.boot != boot:
                return
            kind = int(words["after"][0])
            if body["kind"] != (KINDS[kind] if kind < len(KINDS) else ""):
                self._wrong(machine, "transactions", words, f"is of kind {body['kind']!r}")
            self._txs = [*self._txs[-20:], *(row["tx"] for row in body["rows"][:5])]
            if body["next"] is None:
                return
            self._goes_on(machine, "transactions", words, body)
        self._wrong(machine, "transactions", words, "has no end")

    def _goes_on(self, machine: Machine, command: str, words: Words, body: Body) -> None:
        """The next page begins behind this one."""
        if tuple(map(int, body["next"])) <= tuple(map(int, words["after"])):
            self._wrong(machine, command, words, f"goes on at {body['next']}")
        words["after"] = body["next"]

    async def give_up(self, machine: Machine, draw: Random) -> None:
        """What giving up a transaction would take from it: it is not meant."""
        tx = draw.choice([*self._txs, draw.randbytes(TX_ID_BYTES).hex()])
        body = await self._body(machine, "give-up", {"tx": [tx]})
        if body is None:
            return
        has_some = any(body[what] for what in ("keys", "waits", "voted", "phase"))
        if body["given_up"] or body["known"] is not has_some:
            self._wrong(machine, "give-up", {"tx": [tx]}, f"says {body}")

    async def checkpoint(self, machine: Machine, _: Random) -> None:
        """One is due now."""
        if await self._body(machine, "checkpoint", {}) not in ({}, None):
            self._wrong(machine, "checkpoint", {}, "says more than that it is done")

    async def reset_lost(self, machine: Machine, _: Random) -> None:
        """What would begin again: nothing, or so much that it is to be said again."""
        reply = await self._ask(machine, "reset-lost", {})
        if isinstance(reply, Report) and msgspec.json.decode(reply.body) != {"lost": []}:
            self._wrong(machine, "reset-lost", {}, f"is done: {reply.body!r}")

    async def recover(self, machine: Machine, _: Random) -> None:
        """What going on by force would cost."""
        reply = await self._ask(machine, "recover", {"nodes": [machine.name]})
        if isinstance(reply, Report) and not isinstance(msgspec.json.decode(reply.body), dict):
            self._wrong(machine, "recover", {}, f"says {reply.body!r}")


_QUESTIONS = (
    Looking.status,
    Looking.counters,
    Looking.progress,
    Looking.namespaces,
    Looking.locks,
    Looking.locks,
    Looking.transactions,
    Looking.give_up,
    Looking.checkpoint,
    Looking.reset_lost,
    Looking.recover,
)


async def look_on(looking: Looking, pause_ns: int, stop: Callable[[], bool]) -> None:
    """Ask again and again."""
    while not stop():
        await looking.look()
        await looking.load.pause(looking.client, pause_ns)


def operate(load: Load, draw: Random) -> list[Looking]:
    """Some operators ask whatever there is to know, until the load ends."""
    world = load.recorder.world
    looking: list[Looking] = []
    for number in range(OPERATORS):
        client = world.add_client(f"operator {number}")
        client.sheltered = True
        looking.append(Looking(load, client, world.draws.of(client.name)))
        client.spawn(look_on(looking[-1], draw.choice([10, 40, 200]) * MS, lambda: load.stopping), client.name)
    return looking
