"""What an operator orders a cluster to do, and means: other nodes for its data, a stop of all, copies anew, and the ways
out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from engine.errors import UsageError
from tools.asking import Refused, listens, node_names, question, run, wait_for
from tools.terminal import emit, finite, to_json
from wal.ids import fragment_named

AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of any node.")]
Timeout = Annotated[float, typer.Option(min=0, callback=finite, help="Seconds to wait for it.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it although it costs what it says.")]
ANSWER_SECONDS = 15.0
FRAGMENTS_AT_ONCE = 256


async def _order(
    address: str, command: str, *, sure: bool, nodes: Sequence[str] = (), **more: Sequence[str]
) -> dict[str, Any]:
    """Order something of a node; `sure`: whatever it costs."""
    if sure:
        more["yes"] = []
    return await question(address, command, timeout=ANSWER_SECONDS, nodes=nodes, **more)


# Who holds the data.


def baseline(
    address: Address,
    nodes: Annotated[str | None, typer.Option("--set", help="The nodes that hold data from now on, as n1,n2,n4.")] = None,
    planned: Annotated[str | None, typer.Option(help="Only if nobody came or went since this `cluster plan`.")] = None,
    yes: Yes = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """The nodes that are meant to hold data, here or not, and whose majority decides; or, with --set, other ones.

    What would leave fewer than `backups` + 1 copies is refused without --yes. Exit code 1: refused, or not done in time.
    """
    names = None if nodes is None else node_names(nodes, "--set")
    run(_baseline(address, names, timeout, planned, yes=yes, as_json=as_json))


async def _baseline(
    address: str, nodes: list[str] | None, seconds: float, planned: str | None, *, yes: bool, as_json: bool
) -> None:
    more = {} if planned is None else {"planned": [planned]}
    cost = {} if nodes is None else await _order(address, "baseline", sure=yes, nodes=nodes, **more)
    await _told_when_changed(address, nodes, cost, seconds, as_json=as_json)


def remove(
    address: Address,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of the nodes that go.")],
    yes: Yes = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Take nodes out of the baseline: they hold no data any more and do not vote. Says what it costs.

    Their copies are made elsewhere first, and go only then; `cluster status` says when that is done. What would leave fewer
    than `backups` + 1 copies is refused without --yes. Exit code 1: refused, or not done in time.
    """
    run(_remove(address, node_names(",".join(nodes), "NODE"), timeout, yes=yes, as_json=as_json))


async def _remove(address: str, nodes: list[str], seconds: float, *, yes: bool, as_json: bool) -> None:
    cost = await _order(address, "remove", sure=yes, nodes=nodes)
    await _told_when_changed(address, cost["baseline"], cost, seconds, as_json=as_json)


async def _told_when_changed(
    address: str, nodes: list[str] | None, cost: dict[str, Any], seconds: float, *, as_json: bool
) -> None:
    async def there() -> list[str] | None:
        found = await _formed(address)
        now: list[str] = found["baseline"]
        if nodes is not None and set(now) != set(nodes):
            if problem := void(cost, found):
                raise Refused(problem)
            return None
        return now

    now = await wait_for(there, seconds)
    if now is None:
        raise Refused(
            f"the baseline did not change within {seconds:g} s: `foreshore cluster status {address}` says what holds it up"
        )
    emit([to_json(cost | {"baseline": now})] if as_json else [f"baseline {','.join(now)}"])
    if cost and not as_json:
        emit([cost["cost"]])


def void(cost: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Why what was ordered is not done any more: the baseline is another than the one of which it was asked; or nothing."""
    given_on, since = cost.get("given_on"), found.get("baselined")
    if None in (given_on, since) or given_on == since:
        return ""
    return (
        f"the baseline is {','.join(found['baseline'])} since map {since}, by another order: this one was given on what "
        f"map {given_on} said of it, and is void; look at it, and order it again if it is still meant"
    )


async def _formed(address: str) -> dict[str, Any]:
    found = await question(address, "status")
    if not found["formed"]:
        raise Refused(f"{found['node']} is in no cluster yet: run `foreshore cluster init {address} --nodes ...`")
    return found


# Stopping all.


def stop(
    address: Address,
    now: Annotated[bool, typer.Option("--now", help="Stop although some copies are not in sync.")] = False,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Stop the whole cluster: wait until every copy is in sync, then stop all nodes at once, handing nothing over.

    So every disk counts in full when they start again, and one of them may be lost meanwhile. Exit code 1: a copy did not
    come to be in sync in time, or a node still runs.
    """
    run(_stop(address, timeout, now=now, as_json=as_json))


async def _stop(address: str, seconds: float, *, now: bool, as_json: bool) -> None:
    members = {m["node"]: m["address"] for m in (await _formed(address))["members"]}
    await _until_not_refused(lambda: _order(address, "halt", sure=now), seconds)

    async def all_gone() -> bool | None:
        return None if any([await listens(member) for member in members.values()]) else True

    if not await wait_for(all_gone, seconds):
        left = [node for node, member in members.items() if await listens(member)]
        raise Refused(f"{', '.join(left)} still runs after {seconds:g} s: `foreshore node stop` stops one node")
    emit([to_json({"stopped": list(members)})] if as_json else [f"stopped {','.join(members)}"])


async def _until_not_refused(order: Callable[[], Awaitable[dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Give an order until it is taken; the last refusal, if it never is."""
    refusal = Refused("it was not taken")

    async def taken() -> dict[str, Any] | None:
        nonlocal refusal
        try:
            return await order()
        except Refused as error:
            refusal = error
            return None

    answer = await wait_for(taken, seconds)
    if answer is None:
        raise refusal
    return answer


# Copies that are not what they should be.


def refetch(
    address: Address,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Whose copies.")],
    fragments: Annotated[list[str], typer.Argument(metavar="FRAGMENT...", help="As accounts/7: namespace and partition.")],
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Take copies of a node that runs anew, in full, from their peers: their rows are wrong, and nothing is missing.

    Each leaves the in-sync set first, a primary hands over, and is in sync again when it is whole. Refused where no other
    copy is in sync. Exit code 1: refused, or not done in time.
    """
    try:
        for fragment in fragments:
            fragment_named(fragment)
    except ValueError as error:
        raise UsageError(str(error)) from None
    run(_refetch(address, node, fragments, timeout, as_json=as_json))


async def _refetch(address: str, node: str, fragments: Sequence[str], seconds: float, *, as_json: bool) -> None:
    await taken_anew(address, {node: list(fragments)}, seconds)
    emit([to_json({"node": node, "refetched": fragments})] if as_json else [f"refetched {node} {','.join(fragments)}"])


async def taken_anew(address: str, wanted: Mapping[str, Sequence[str]], seconds: float) -> None:
    """Order fragments of nodes anew, all before any is waited for, and wait until they are whole. Raises Refused."""
    members = {m["node"]: m["address"] for m in (await _formed(address))["members"]}
    away = [node for node in wanted if node not in members]
    if away:
        raise Refused(f"{', '.join(away)} is no member that runs: members are {', '.join(members)}")
    for node, fragments in wanted.items():
        for at in range(0, len(fragments), FRAGMENTS_AT_ONCE):
            part = list(fragments[at : at + FRAGMENTS_AT_ONCE])
            await question(members[node], "refetch", timeout=ANSWER_SECONDS, fragments=part)
    stands: dict[str, dict[str, list[str]]] = {}

    async def whole() -> bool | None:
        for node in wanted:
            stands[node] = await question(members[node], "refetch", timeout=ANSWER_SECONDS)
        return None if any(stand["wanted"] or stand["loading"] for stand in stands.values()) else True

    if not await wait_for(whole, seconds):
        left = [f"{node} {name}" for node, stand in stands.items() for name in (*stand["wanted"], *stand["loading"])]
        raise Refused(
            f"{', '.join(left[:8])}: not whole after {seconds:g} s; `foreshore cluster status {address}` says more"
        )
    kept = [f"{node} {name}" for node, names in wanted.items() for name in names if name in stands[node]["kept"]]
    if kept:
        raise Refused(f"{', '.join(kept[:8])}: kept as it is, because no other copy was in sync when it came to that")


# Ways out.


def reset_lost(address: Address, yes: Yes = False, timeout: Timeout = 30.0, as_json: AsJson = False) -> None:
    """Let LOST partitions begin again with the best copies that are there, or empty.

    What only the lost copies had is gone for good then, even if they come back. Without --yes it says which partitions and
    disks are meant, and does nothing. Exit code 1: refused, or not done in time.
    """
    run(_reset_lost(address, timeout, yes=yes, as_json=as_json))


async def _reset_lost(address: str, seconds: float, *, yes: bool, as_json: bool) -> None:
    lost = (await _order(address, "reset-lost", sure=yes))["lost"]

    async def done() -> dict[str, Any] | None:
        found = await _formed(address)
        return found if not set(found["lost"]) & set(lost) else None

    found = await wait_for(done, seconds)
    if found is None:
        raise Refused(
            f"partitions are LOST still after {seconds:g} s: `foreshore cluster status {address}` says what holds it up"
        )
    resets = [t for i in found["interventions"] if i["kind"] == "reset-lost" for t in i["taken"]]
    taken = list({t["partition"]: t for t in resets if t["partition"] in lost}.values())
    if as_json:
        emit([to_json({"reset": taken})])
    else:
        emit([f"partition {t['partition']}: {_source(t)}" for t in taken] or ["no partition was LOST"])


def recover(
    address: Address,
    nodes: Annotated[str, typer.Option("--nodes", help="Names of all nodes that are left, as n1,n2.")],
    force: Annotated[bool, typer.Option("--force", help="Do it: the majority is gone for good.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on from the disks that are left, when the majority of the nodes that hold data is gone for good.

    ADDRESS is one of them. The best copy of each partition goes on, in an epoch that those who are gone cannot have
    reached; a record of it stays in the log of each node. Refused while a majority is heard of, or a node that is not
    named. Without --force it says what would be lost, and does nothing. Exit code 1: refused.
    """
    run(_recover(address, node_names(nodes, "--nodes"), force=force, as_json=as_json))


async def _recover(address: str, nodes: list[str], *, force: bool, as_json: bool) -> None:
    done = await _order(address, "recover", sure=force, nodes=nodes)
    if as_json:
        emit([to_json(done)])
    else:
        emit([f"recovered version={done['version']}: {done['told']}"])
        emit(f"partition {t['partition']}: {_source(t)}" for t in done["taken"])


def _source(taken: dict[str, Any]) -> str:
    if not taken["node"]:
        return "empty, no copy of it was there"
    return f"the copy of {taken['node']}, epoch={taken['epoch']} updates={taken['updates']}"
