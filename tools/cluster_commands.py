"""`foreshore cluster`: form a cluster and look at it; what an operator orders it to do is in `tools.cluster_orders`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from engine.errors import Unavailable
from tools import cluster_locks, cluster_migrations, cluster_moves, cluster_namespaces, cluster_orders, cluster_settings
from tools.asking import MOVED, Refused, check_address, form, node_names, question, run, status_or_none, too_full, wait_for
from tools.parser import program
from tools.terminal import ExitCode, Row, emit, finite, plain, show, to_json

app = program("cluster", "Form a cluster, look at it, and say which nodes hold its data.")
AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of any node.")]
Timeout = Annotated[float, typer.Option(min=0, callback=finite, help="Seconds to wait for it.")]
SHOWN = 20
INIT_SECONDS = 20.0


@app.command()
def init(
    address: Address,
    nodes: Annotated[str, typer.Option(help="Names of the first members, such as n1,n2,n3.")],
    timeout: Timeout = 30.0,
) -> None:
    """Form a new cluster of nodes that were started, once they see each other; wait until it serves."""
    run(_init(address, node_names(nodes, "--nodes"), timeout))


async def _init(address: str, nodes: list[str], seconds: float) -> None:
    last: dict[str, Any] = {}

    async def together() -> bool | None:
        last.clear()
        last.update(await status_or_none(address) or {})
        if last.get("formed"):
            raise Refused(f"{address}: the cluster is formed already: {last['cluster_name']} {last['version']}")
        return True if last and set(nodes) <= {last["node"], *last["seen"]} else None

    if not await wait_for(together, seconds):
        if not last:
            raise Unavailable(f"no answer from {address} within {seconds:g} s: is the node running there?")
        missing = [name for name in nodes if name not in {last["node"], *last["seen"]}]
        raise Refused(
            f"{last['node']} did not see {', '.join(missing)} within {seconds:g} s; it sees "
            f"{', '.join(last['seen']) or 'nobody'}: are they running, with --seeds that lead to each other?"
            + "".join(f"; {said}" for said in cluster_settings.apart(last))
        )
    await form(address, nodes, max(seconds, INIT_SECONDS))

    found = await wait_for(lambda: serving(address, nodes), seconds)
    if found is None:
        raise Refused(
            f"the cluster is formed and does not serve after {seconds:g} s: `foreshore cluster status {address}` says why"
        )
    emit([f"formed {found['cluster_name']} {found['cluster']} version={found['version']} members={','.join(nodes)}"])


async def serving(address: str, nodes: list[str]) -> dict[str, Any] | None:
    """What a node says of the cluster once all of these are members of it, and each member serves.

    Whoever was not named may have joined by then.
    """
    found = await status_or_none(address)
    if found is None or not set(nodes) <= {member["node"] for member in found.get("members", [])}:
        return None
    every = await asyncio.gather(*(status_or_none(member["address"]) for member in found["members"]))
    return found if all(status is not None and _settled(status) for status in every) else None


def _settled(status: dict[str, Any]) -> bool:
    return bool(status["serving"]) and not status["frozen"] and not status["partitions"].get("PROMOTING")


# Status.


class Whole(msgspec.Struct, frozen=True):
    """A cluster as the node that was asked sees it, and what each member says of itself; None: it did not answer."""

    asked: dict[str, Any]
    members: dict[str, dict[str, Any] | None]
    progress: dict[str, dict[str, Any] | None]
    silent: list[str] = []  # addresses of no member that were asked and did not answer

    @property
    def problems(self) -> list[str]:
        """What is not as it should be, in words; none: every copy is where it belongs and in sync."""
        asked, found = self.asked, list[str]()
        if not asked["quorum"]:
            found.append("no majority of the baseline is there: no writes until one is")
        elif not asked["serving"]:
            found.append(f"{asked['node']} is not in the topology: it waits for an exchange")
        found += [f"{name} does not answer" for name, status in self.members.items() if status is None]
        found += [f"no answer from {address}, which is no member's" for address in self.silent]
        found += [f"{m['node']} is suspected by {asked['node']}" for m in asked["members"] if m["suspected"]]
        found += [
            f"{m['node']} is too slow to be waited for and set aside, for the {m['aside']}. time: its log took long to "
            f"sync, or a batch was left unanswered; its last sync took {m['sync_ms']} ms"
            for m in asked["members"]
            if m["aside"]
        ]
        found += cluster_settings.differing(asked, self.members)
        away = [name for name in asked["baseline"] if name not in self.members]
        if away:
            found.append(f"{', '.join(away)} should hold data and {'is' if len(away) == 1 else 'are'} not here")
        if asked["lost"]:
            found.append(
                f"{len(asked['lost'])} partitions are LOST, no in-sync copy of them is here: {_some(asked['lost'])}"
            )
        found += too_few(asked)
        held = sum(told["held"] for told in self.progress.values() if told is not None)
        if by_order := cluster_migrations.problem(asked["migrations"], f"{held} copies wait"):
            found.append(by_order)
        if asked["under_replicated"]:
            found.append(f"{asked['under_replicated']} partitions have fewer in-sync copies than they should")
        for name, status in self._answers():
            if status["version"] != asked["version"]:
                found.append(f"{name} is at version {status['version']}, {asked['node']} at {asked['version']}")
            if overdue := status.get("overdue", status["in_doubt"]):  # each commit is in doubt for a moment
                found.append(f"{len(overdue)} transactions in doubt on {name}: {_some(overdue)}")
            if status["behind"]:
                found.append(f"{status['behind']} copies on {name} are behind")
            found += _on_disk(name, status)
            if status["frozen"]:
                found.append(f"{name} waits for an exchange")
            if status["held_up_by"]:
                found.append(f"an exchange on {name} is held up by {status['held_up_by']}")
            found += _wrong_rows(name, status.get("anti_entropy", {}))
            for other in status.get("split", []):
                found.append(
                    f"SPLIT: {other['node']} has map {other['map']} of version {other['version']}, which does not go "
                    f"with that of {name}: keep both directories, stop the side that is to be given up, wipe it, and let "
                    "it join"
                )
        return found

    def rows(self) -> Iterator[Row]:
        """One line per member."""
        for member in self.asked["members"]:
            name = member["node"]
            status, progress = self.members[name], self.progress[name]
            yield {
                "node": name,
                "address": member["address"],
                "durability": cluster_settings.unlike(self.asked, self.members, name),
                "state": _state(member, status),
                "primary": member["primary"],
                "in_sync": member["owning"],
                "moving": member["moving"],
                "async": member.get("async") or None,
                "async_lag": status["asynchronous"]["updates"] if status and member.get("async") else None,
                "behind": status["behind"] if status else None,
                "sync_ms": member["sync_ms"] or None,
                "lag_ms": member["lag_ms"] or None,
                "in_doubt": len(status["in_doubt"]) if status else None,
                "caught_up": _ways(progress) if progress else None,
            }

    def as_object(self) -> dict[str, Any]:
        """All of it, for a program."""
        members = {
            member["node"]: member | {"status": self.members[member["node"]], "progress": self.progress[member["node"]]}
            for member in self.asked["members"]
        }
        head = {name: value for name, value in self._head().items() if value is not None}
        return head | {"lost": self.asked["lost"], "members": members, "problems": self.problems}

    def lines(self) -> Iterator[str]:
        """The facts about the whole."""
        told = self._head()
        if "groups" in told:
            told["groups"] = ["/".join(f"{name}:{value}" for name, value in group.items()) for group in told["groups"]]
        yield plain(told)

    def _head(self) -> dict[str, Any]:
        asked = self.asked
        primaries = [member["primary"] for member in asked["members"]]
        return {
            "cluster": asked["cluster_name"],
            "id": asked["cluster"],
            "version": asked["version"],
            "epoch": asked["epoch"],
            "coordinator": asked["coordinator"],
            "partitions": asked["partition_count"],
            "backups": asked["backups"],
            "durability": list(cluster_settings.durabilities(asked, self.members)) or None,
            "async_backups": asked.get("async_backups") or None,
            "primaries_per_member": f"{min(primaries)}..{max(primaries)}",
            "under_replicated": asked["under_replicated"],
            "baseline": asked["baseline"],
            "copies": asked["copies"],
            **({"groups": asked["groups"]} if len(asked.get("groups", ())) > 1 else {}),
            **cluster_migrations.told(asked["migrations"]),
        }

    def _answers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return ((name, status) for name, status in self.members.items() if status is not None)


def too_few(asked: dict[str, Any]) -> Iterator[str]:
    """Of which partitions there cannot be as many copies as there should be."""
    hold = f"only {', '.join(asked['baseline'])} {'holds' if len(asked['baseline']) == 1 else 'hold'} data"
    if asked["copies"] < asked["backups"] + 1:
        yield f"{asked['copies']} of {asked['backups'] + 1} copies of each partition at most: {hold}"
    for backups, copies in {group["backups"]: group["copies"] for group in asked.get("groups", [])[1:]}.items():
        if copies < backups + 1:  # said once of groups that differ in asynchronous ones only
            yield f"{copies} of {backups + 1} copies at most in namespaces with {backups} backups: {hold}"
    for number, group in enumerate(asked.get("groups", [])):
        more = group.get("async_backups", 0)
        most = max(0, len(asked["baseline"]) - group["backups"] - 1)
        if most < more:
            whose = "each partition" if not number else f"namespaces with {group['backups']} backups"
            yield f"{most} of {more} asynchronous copies at most of {whose}: {hold}"


@app.command()
def status(
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS...", help="host:port of nodes; one is enough.")],
    as_json: AsJson = False,
) -> None:
    """What is not as it should be (then the exit code is 1), the members, and where the copies are.

    Of several nodes, the one that has a majority and the newest map is believed, and who does not answer is named.
    """
    whole = run(whole_of([part for address in addresses for part in address.split(",")]))
    if as_json:
        emit([to_json(whole.as_object())])
    else:
        emit(whole.problems)
        emit(whole.lines())
        show(whole.rows(), as_json=False)
        emit([] if whole.problems else ["every copy is in sync"])
    if whole.problems:
        raise typer.Exit(ExitCode.WRONG)


async def whole_of(given: list[str]) -> Whole:
    """The cluster as the one of these nodes sees it that is to be believed. Raises Unavailable and Refused."""
    for address in given:
        check_address(address)
    told = await asyncio.gather(*(question(at, "status") for at in given), return_exceptions=True)
    refusals = {at: error for at, error in zip(given, told, strict=True) if isinstance(error, BaseException)}
    answers = {at: answer for at, answer in zip(given, told, strict=True) if not isinstance(answer, BaseException)}
    for error in refusals.values():
        if not isinstance(error, Unavailable):
            raise error
    if not answers:
        raise Unavailable("; ".join(map(str, refusals.values())))
    address = max(answers, key=lambda at: (answers[at]["formed"], answers[at]["quorum"], _version(answers[at])))
    asked = answers[address]
    if not asked["formed"]:
        raise Refused(
            f"{asked['node']} is in no cluster yet, and sees {', '.join(asked['seen']) or 'nobody'}: "
            f"run `foreshore cluster init {address} --nodes ...`"
        )
    names = [member["node"] for member in asked["members"]]
    addresses = [member["address"] for member in asked["members"]]
    statuses = await asyncio.gather(*map(status_or_none, addresses))
    progress = await asyncio.gather(*map(_progress, addresses))
    strangers = [at for at in refusals if at not in addresses]
    return Whole(asked, dict(zip(names, statuses, strict=True)), dict(zip(names, progress, strict=True)), strangers)


def _version(status: dict[str, Any]) -> list[int]:
    return [int(part) for part in str(status["version"]).split(".")]


async def _progress(address: str) -> dict[str, Any] | None:
    try:
        return await question(address, "progress")
    except Unavailable:
        return None


def _state(member: dict[str, Any], status: dict[str, Any] | None) -> str:
    if status is None:
        return "NO-ANSWER"
    if member["suspected"]:
        return "SUSPECTED"
    return "serving" if status["serving"] and status["quorum"] else "WAITING"


def _ways(progress: dict[str, Any]) -> str:
    """How many fragments came to be up to date in which way, since that node started."""
    ways = [f"{way}:{count}" for way, count in sorted(progress["fragments"].items())]
    return " ".join([*ways, f"updates:{_total(progress['updates'])}"]) if ways else "-"


def _total(counted: Any) -> int:
    return sum(counted.values()) if isinstance(counted, dict) else int(counted)


def _on_disk(name: str, status: dict[str, Any]) -> Iterator[str]:
    """What is the matter with a node's disk, and its directory; and that writes wait for its store."""
    if (disk := status.get("disk")) and (disk["low"] or disk.get("full")):
        yield f"the disk of {name} is nearly full: {too_full(disk)}"
    if status.get("moved"):
        yield f"the data directory of {name} was moved: {MOVED}"
    if name in status.get("backlogged", ()):
        told = f"the store of {name} does not keep up with what is written, and writes wait for it"
        yield f"{told}: {status['in_no_checkpoint_bytes']} bytes lie in memory and in no checkpoint"


def _wrong_rows(name: str, told: dict[str, Any]) -> list[str]:
    """What anti-entropy has found on a node, and could not heal, or not yet."""
    return [
        *(f"WRONG ROWS in {wrong['fragment']} on {name}: {wrong['found']}" for wrong in told.get("wrong_here", [])),
        *(
            f"WRONG ROWS in {wrong['fragment']}, and nothing is done about it: {wrong['found']}"
            for wrong in told.get("undecided", [])
        ),
    ]


def _some(things: list[Any]) -> str:
    shown = ", ".join(map(str, things[:SHOWN]))
    return shown if len(things) <= SHOWN else f"{shown} and {len(things) - SHOWN} more"


# What moves.

app.command()(cluster_moves.plan)
app.command()(cluster_moves.migrations)
app.command()(cluster_migrations.pause)
app.command()(cluster_migrations.resume)
app.command()(cluster_migrations.limit)

# Who holds what.

app.command()(cluster_locks.locks)
app.command()(cluster_locks.transactions)

# Namespaces.

app.command()(cluster_namespaces.namespaces)

# Orders.

app.command()(cluster_orders.baseline)
app.command()(cluster_orders.remove)
app.command()(cluster_orders.stop)
app.command()(cluster_orders.refetch)
app.command("reset-lost")(cluster_orders.reset_lost)
app.command()(cluster_orders.recover)
