"""The demo as a story in seven acts, told against real processes; `tools.demo.cli` is the command around it.

One `Story` owns the nodes, the clients and what was found. Every act does one thing, says so, and adds to the summary;
what must hold becomes a `Check`. An act that cannot go on raises `engine.errors.Error`.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from engine import aio
from engine.client.admin import ask
from engine.errors import Error, Unavailable, UsageError
from engine.turn.settings import Settings
from tools.demo import flights as data
from tools.demo.evidence import Check, check_return, damage, equal, lost_hours, read_return, same_counters
from tools.demo.load import Heart, Load, Watch
from tools.demo.screen import Screen
from tools.demo.summary import Killed, Loaded, Reconciled, Replaced, Returned, Summary
from tools.local_cluster import LocalCluster, NodeProcess, spawn, until

NODES = ("n1", "n2", "n3")
NEW_NODE = "n4"
PATIENCE_SECONDS = 120.0
CHUNK_KEYS = 2_000
HOURS_MIN = 6
WRITERS = 8
"""Single writes that are under way while a node is replaced."""
RECONCILE_SECONDS = 300.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for."""

    directory: Path
    months: int = 12
    hours: int = 0  # 0: all of them
    partitions: int = 1024
    kill: str = "primary"
    engine: str = "spark"


class Story:
    """One run of the demo."""

    def __init__(self, options: Options, screen: Screen, summary: Summary) -> None:
        self.options = options
        self.screen = screen
        self.summary = summary
        self.settings = Settings(partitions=options.partitions, backups=2, prefer_history=True)
        self.cluster = LocalCluster(
            options.directory,
            ["--partitions", str(options.partitions), "--backups", "2", "--prefer-history"],
        )
        self._departures: list[data.Departure] = []
        self._hours: list[data.Hour] = []
        self._victim = ""

    async def tell(self) -> None:
        """All of it, in order; the nodes are gone when it returns or raises."""
        with self.cluster:
            async with self._act("three nodes form a cluster"):
                await self._form()
            async with await aio.connect(self.cluster.addresses) as database:
                load = Load(database, self._hours, self.options.directory / "acknowledged.jsonl")
                await self._load_and_kill(load)
                async with self._act("what the load left"):
                    await self._after_load(load)
                async with self._act(f"{NEW_NODE}, empty, replaces a node that is stopped for good"):
                    await self._replace(database)
                async with self._act("totals, contents and counters"):
                    await self._compare(load)
            for node in self.cluster.running:
                node.kill()  # a power cut: what follows reads the files as they are
            async with self._act(f"reconciliation from the files alone ({self.options.engine})"):
                await self._reconcile()

    @asynccontextmanager
    async def _act(self, title: str) -> AsyncIterator[None]:
        self.screen.act(title)
        began = time.monotonic()
        yield
        self.summary.seconds[title] = round(time.monotonic() - began, 2)

    def _check(self, checks: Iterable[Check]) -> None:
        for check in checks:
            self.summary.checks.append(check)
            self.screen.check(check)

    # Act 1.

    async def _form(self) -> None:
        reading = asyncio.create_task(asyncio.to_thread(self._read))
        await self.cluster.form(NODES)
        await reading
        self.screen.say(
            f"{len(NODES)} processes, {self.options.partitions} partitions, 2 synchronous backups, FSYNC, prefer_history: "
            "a node that comes back gets what it missed, however few rows that is"
        )

    def _read(self) -> None:
        path = data.data_file("flights.csv.zip")
        departures = list(data.read_departures(path, months=self.options.months))
        hours = data.hours_of(departures)
        if self.options.hours:
            hours = hours[: self.options.hours]
            names = {hour.name for hour in hours}
            departures = [d for d in departures if d.hour in names]
        check_hours(len(hours))
        self._departures, self._hours = departures, hours

    # Acts 2 to 4: the load goes on through all of them.

    async def _load_and_kill(self, load: Load) -> None:
        third = math.ceil(load.total / 3)
        self.screen.say(f"{len(self._departures):,} flights in {load.total:,} hours, a transaction each")
        await self._load_tables(load.database)
        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(load.run())
            tasks.create_task(self.screen.follow(load, loading))
            async with self._act("the load begins"):
                await load.reached(third)
            self.summary.load.keys_per_second = round(load.keys_per_second(0.0, load.seconds))
            async with self._act("kill -9"):
                await self._kill(load)
                await load.reached(2 * third)
            async with self._act("it comes back"):
                await self._come_back(load)
            async with self._act("the rest of the load"):
                await loading

    async def _load_tables(self, database: aio.Database) -> None:
        for namespace in (data.AIRLINES, data.AIRPORTS, data.PLANES):
            await database.namespace(namespace).put_many(data.read_table(data.data_file(f"{namespace}.csv")))

    async def _kill(self, load: Load) -> None:
        status = await self.cluster.status()
        coordinator = str(status["coordinator"])
        primaries = {m["node"]: m["primary"] for m in status["members"]}
        others = [node for node in primaries if node != coordinator]
        self._victim = coordinator if self.options.kill == "coordinator" else max(others, key=lambda n: primaries[n])
        heart = Heart(load.database, self._victim)
        beating = asyncio.create_task(heart.beat())
        try:
            await asyncio.sleep(0.2)
            began, done, beats = load.seconds, load.done, heart.beats
            self.cluster.nodes[self._victim].kill()
            role = "the coordinator" if self._victim == coordinator else "not the coordinator"
            self.screen.say(f"{self._victim} is dead: primary of {primaries[self._victim]} partitions, {role}")

            async def serving() -> bool:
                if beating.done():
                    await beating
                return load.done >= min(done + 40, load.total) and heart.beats >= beats + 40

            await until(serving, PATIENCE_SECONDS, "writes did not go on after the kill")
        finally:
            beating.cancel()
        self.summary.kill = Killed(
            node=self._victim,
            coordinator=self._victim == coordinator,
            primary_of=primaries[self._victim],
            blocked_seconds=round(heart.longest, 3),
            silence_seconds=round(load.longest_silence(began, load.seconds), 3),
            at=round(began, 2),
        )
        self.screen.say(
            f"writes to its partitions were blocked for {heart.longest:.2f} s at most; the load paused for "
            f"{self.summary.kill.silence_seconds:.2f} s"
        )
        await load.send_again()

    async def _come_back(self, load: Load) -> None:
        assert self.summary.kill is not None
        node = self.cluster.nodes[self._victim]
        away, began, done = load.seconds - self.summary.kill.at, load.seconds, load.done
        self.cluster.start(self._victim)
        await node.ready()
        await until(lambda: self.cluster.healthy(len(NODES)), PATIENCE_SECONDS, f"{self._victim} did not catch up")
        progress = await ask(node.address, "progress")
        self.summary.back = Returned(
            node=self._victim,
            away_seconds=round(away, 2),
            seconds=round(load.seconds - began, 2),
            fragments=progress["fragments"],
            updates=progress["updates"],
            rows=progress["rows"],
            transactions_meanwhile=load.done - done,
        )
        self.screen.say(
            f"{self._victim} was away for {away:.1f} s and caught up in {self.summary.back.seconds:.1f} s, while "
            f"{load.done - done} transactions were committed: {_ways(progress)}"
        )
        await load.send_again()

    # Act 5.

    async def _after_load(self, load: Load) -> None:
        assert self.summary.kill is not None
        assert self.summary.back is not None
        await load.send_again()
        await self._quiet()
        summary, killed, back = self.summary, self.summary.kill, self.summary.back
        rss = {node.name: node.rss_bytes() for node in self.cluster.running}
        keys = sum(entry.keys for entry in load.acknowledged)
        summary.load = Loaded(
            transactions=load.done,
            keys=keys,
            seconds=round(load.acknowledged[-1].at, 2),
            keys_per_second=summary.load.keys_per_second,
            tries=load.tries,
            sent_again=load.sent_again,
            rss_bytes=rss,
        )
        node = self.cluster.nodes[self._victim]
        progress = await ask(node.address, "progress")
        survivors = [n for n in self.cluster.running if n.name != self._victim]
        supplied = sum([(await ask(n.address, "progress"))["supplied"].get(self._victim, 0) for n in survivors])
        fetched = progress["fetched"]
        counters = await ask(survivors[0].address, "counters")
        told = await asyncio.to_thread(read_return, node.data)
        back.before, back.undone, back.supplied, back.live = told.before, told.undone, told.supplied, told.live
        self._check(
            [
                equal("every hour was acknowledged", {h.name for h in self._hours}, {e.hour for e in load.acknowledged}),
                equal("transactions were acknowledged while the node was away", True,
                      load.acknowledged_in(killed.at + killed.silence_seconds, killed.at + back.away_seconds) > 0),
                equal("no fragment came back in full", 0, progress["fragments"].get("full", 0)),
                equal("some fragments came back by history", True, progress["fragments"].get("historical", 0) > 0),
                *check_return(self._victim, told, counters, supplied, fetched),
            ]
        )  # fmt: skip

    async def _quiet(self) -> None:
        """Until every copy is in sync and has what the others have."""
        members = len(self.cluster.running)

        async def same() -> bool:
            if not await self.cluster.healthy(members):
                return False
            told = [await ask(node.address, "counters") for node in self.cluster.running]
            stands = [{name: (f["lwm"], f["hwm"]) for name, f in counters.items() if f["hwm"]} for counters in told]
            return all(s == stands[0] for s in stands) and all(lwm == hwm for lwm, hwm in stands[0].values())

        await until(same, PATIENCE_SECONDS, "the copies did not come to rest")

    # Act 6.

    async def _replace(self, database: aio.Database) -> None:
        coordinator = (await self.cluster.status())["coordinator"]
        gone = next(n for n in reversed(self.cluster.running) if n.name not in {self._victim, coordinator})
        began = time.monotonic()
        heart = Heart(database, gone.name, width=WRITERS)
        watch = Watch(heart, self._copies_missing, self.screen.watch)
        beating = asyncio.create_task(watch.look())
        await ask(gone.address, "stop")
        if not await gone.ended(PATIENCE_SECONDS):
            raise Error(f"{gone.name} was asked to leave and did not; its log says:\n{gone.last_words()}")
        self.screen.say(f"{gone.name} left the cluster; {NEW_NODE} starts with an empty directory")
        node = self.cluster.start(NEW_NODE)
        await node.ready()
        await until(lambda: self._is_member(NEW_NODE), PATIENCE_SECONDS, f"{NEW_NODE} was not let in")
        names = [n.name for n in self.cluster.running]
        await ask(self.cluster.running[0].address, "baseline", nodes=names)
        await until(lambda: self._holds_all(node), PATIENCE_SECONDS, f"{NEW_NODE} did not take over")
        if beating.done():
            await beating
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        self.screen.watched(watch)
        self.screen.say(f"{heart.beats:,} single writes went on meanwhile, the slowest took {heart.longest:.2f} s")
        await self._quiet()
        progress = await ask(node.address, "progress")
        self.summary.replacement = Replaced(
            gone=gone.name,
            node=NEW_NODE,
            seconds=round(time.monotonic() - began, 2),
            fragments=progress["fragments"],
            updates=progress["updates"],
            rows=progress["rows"],
            writes=heart.beats,
            blocked_seconds=round(heart.longest, 3),
            lagged_most=max(watch.lags, default=0),
        )
        self.screen.say(f"{NEW_NODE} has everything: {_ways(progress)}")
        written = heart.beats + WRITERS  # each writer may have been stopped before it heard of its last one
        self._check(
            [
                equal("writes went on while a node was replaced", True, heart.beats > 0),
                equal("what the new node got, it got in full", {"full"}, set(progress["fragments"]) - {"historical"}),
                equal("by history it got no more than what was written meanwhile (a copy that was filled already, and"
                      " then missed some of it, asks for that alone)", True,
                      progress["updates"].get("historical", 0) <= written),
            ]
        )  # fmt: skip

    async def _copies_missing(self) -> int:
        """Partitions that have fewer in-sync copies than they should."""
        try:
            return int((await self.cluster.status())["under_replicated"])
        except Unavailable:
            return self.options.partitions

    async def _is_member(self, name: str) -> bool:
        return name in [m["node"] for m in (await self.cluster.status())["members"]]

    async def _holds_all(self, node: NodeProcess) -> bool:
        members = (await self.cluster.status())["members"]
        return any(m["node"] == node.name and m["owning"] == self.options.partitions for m in members)

    # Act 7.

    async def _compare(self, load: Load) -> None:
        database = load.database
        expected = data.expected_totals(self._departures)
        for namespace, totals in expected.items():
            found = data.found_totals([row async for row in database.namespace(namespace).scan()])
            self._check([equal(f"totals of {namespace} are those of the file", totals, found)])
        flights = await self._read_all(database, data.FLIGHTS, [k for hour in self._hours for k in hour.flights])
        lost = lost_hours([entry.hour for entry in load.acknowledged], self._hours, flights)
        self._check([equal("no acknowledged transaction was lost", {}, lost)])
        for namespace in (data.AIRLINES, data.AIRPORTS, data.PLANES):
            table = data.read_table(data.data_file(f"{namespace}.csv"))
            self._check(
                [equal(f"{namespace} are those of the file", table, await self._read_all(database, namespace, table))]
            )
        nodes = self.cluster.running
        self._check(same_counters({node.name: await ask(node.address, "counters") for node in nodes}))
        for node in nodes:
            status = await self.cluster.status(node)
            left = {fact: status[fact] for fact in ("under_replicated", "lost", "in_doubt", "locks")}
            nothing = {"under_replicated": 0, "lost": [], "in_doubt": [], "locks": 0}
            self._check([equal(f"nothing is left undone on {node.name}", nothing, left)])

    async def _read_all(self, database: aio.Database, namespace: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted, found = list(keys), dict[bytes, bytes]()
        for start in range(0, len(wanted), CHUNK_KEYS):
            found |= await database.namespace(namespace).get_many(wanted[start : start + CHUNK_KEYS])
        return found

    # Act 8.

    async def _reconcile(self) -> None:
        nodes = [n for n in self.cluster.nodes.values() if n.name != (r.gone if (r := self.summary.replacement) else "")]
        directories = [node.data for node in nodes]
        code, report = await self._run_reconcile(directories)
        findings = sum(report["findings"].values())
        keys = report["namespaces"].get(data.FLIGHTS, {}).get("keys", 0)
        self.screen.say(f"exit code {code}: {findings} differences in {report['keys']:,} keys of {len(nodes)} directories")
        self._check(
            [
                equal("the copies agree: exit code and differences", (0, 0), (code, findings)),
                equal("the reconciliation saw every flight", len(self._departures), keys),
            ]
        )
        key = next(iter(self._hours[len(self._hours) // 2].flights))
        wrong = nodes[1]
        copy = self.options.directory / "damaged" / wrong.name
        await asyncio.to_thread(shutil.copytree, wrong.data, copy)
        where = await asyncio.to_thread(
            damage, copy, cluster=self.settings.cluster, settings=self.settings, namespace=data.FLIGHTS, key=key
        )
        self.screen.say(f"one value is damaged in a copy of {wrong.name}'s directory: {where} {key.decode()}")
        code, damaged = await self._run_reconcile([copy if d == wrong.data else d for d in directories])
        named = [(f.get("key"), f["on"]) for f in damaged["report"]]
        self._check(
            [
                equal("the damage is found: exit code", 1, code),
                equal("the damage is found: key and node, and nothing else", [(key.decode(), [wrong.name])], named),
            ]
        )
        self.summary.reconciliation = Reconciled(
            engine=self.options.engine, keys=report["keys"], differences=findings, damaged_key=key.decode(), found=named
        )

    async def _run_reconcile(self, directories: list[Path]) -> tuple[int, dict[str, Any]]:
        """Exit code, and the summary with the findings in `report`."""
        output = self.options.directory / "reconcile.jsonl"
        errors = self.options.directory / "reconcile.log"
        command = [sys.executable, "-m", "tools.reconcile", "check", *map(str, directories)]
        command += ["--engine", self.options.engine, "--json", "--grace", "0"]
        with output.open("wb") as out, errors.open("ab") as err:
            process = spawn(command, output=out.fileno(), errors=err.fileno())
            try:
                until_ns = time.monotonic() + RECONCILE_SECONDS
                while process.poll() is None and time.monotonic() < until_ns:
                    await asyncio.sleep(0.05)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        lines = output.read_bytes().splitlines()
        if not lines:
            raise Error(f"the reconciliation said nothing (exit code {process.returncode}); see {errors}")
        summary: dict[str, Any] = msgspec.json.decode(lines[-1])
        return process.returncode, summary | {"report": [msgspec.json.decode(line) for line in lines[:-1]]}


def check_hours(hours: int) -> None:
    """Whether so many hours can be told in thirds. Raises UsageError."""
    if hours < HOURS_MIN:
        raise UsageError(f"{hours} hours are too few for this story: expected at least {HOURS_MIN}")


def _ways(progress: dict[str, Any]) -> str:
    """What catching up moved, per way."""
    fragments, updates, rows = progress["fragments"], progress["updates"], progress["rows"]
    moved = {"historical": f" ({updates.get('historical', 0):,} updates)", "full": f" ({rows.get('full', 0):,} rows)"}
    return ", ".join(
        f"{way} {fragments.get(way, 0)} fragments{moved.get(way, '') if fragments.get(way) else ''}"
        for way in ("nothing", "historical", "full")
    )
