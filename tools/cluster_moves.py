"""What would be moved, shown before it is done, and what is being moved, while it is."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from engine.client.admin import table
from engine.errors import Unavailable, UsageError
from rebalance.migrations import as_object
from rebalance.moves import Kind, Move, moves, waits
from rebalance.table import Topology
from tools import cluster_migrations
from tools.asking import Refused, check_address, node_names, question, run
from tools.terminal import ExitCode, Row, complain, emit, finite, plain, show, to_json

AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of any node.")]
COUNTERS_SECONDS = 60.0
ASKED_AT_ONCE = 512
"""Partitions; there may be 256 fragments in each."""
OF_ROWS = (Kind.COPY, Kind.ASYNC)


def plan(
    address: Address,
    nodes: Annotated[str | None, typer.Option("--set", help="If these were to hold the data, as n1,n2,n4.")] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="A line for each partition, in their order.")] = False,
    as_json: AsJson = False,
) -> None:
    """What would be moved, between whom, and why; nothing is done. Without --set: what is still to be done now.

    `updates` are the counters of what moves, and so no fewer than its rows; reasons are repair (there are fewer copies than
    there should be), leaves (a node that has one is to have none) and balance. `cluster baseline --set ... --planned MAP`
    does it, unless members or the baseline have changed since.
    """
    run(_plan(check_address(address), None if nodes is None else node_names(nodes, "--set"), partitions, as_json=as_json))


async def _plan(address: str, nodes: Sequence[str] | None, partitions: bool, *, as_json: bool) -> None:
    topology = await table(address)
    if topology is None:
        raise Refused(f"{address} is in no cluster yet: run `foreshore cluster init {address} --nodes ...`")
    known = {m.node for m in topology.members} | set(topology.baseline)
    unknown = [n for n in nodes or () if n not in known]
    if unknown:
        raise UsageError(f"--set names {', '.join(unknown)}: expected members, which are {', '.join(sorted(known))}")
    found = moves(topology, topology.baseline if nodes is None else nodes)
    updates = await _updates(topology)
    head: Row = {
        "map": str(topology.fenced),
        "baseline": ",".join(topology.baseline if nodes is None else nodes),
        "copies": sum(m.kind is Kind.COPY for m in found),
        **({"async_copies": asynchronous} if (asynchronous := sum(m.kind is Kind.ASYNC for m in found)) else {}),
        "updates": sum(updates[m.partition] for m in found if m.kind in OF_ROWS),
        "primaries": sum(m.kind is Kind.PRIMARY for m in found),
        "drops": sum(m.kind is Kind.DROP for m in found),
        "waits_for": ",".join(sorted({m.node for m in found if not m.here and m.kind is not Kind.DROP})) or None,
    }
    ordered = as_object(topology.migrations)
    held = sum(waits(m, topology.migrations.paused) for m in found)
    rows = _each(found, updates) if partitions or as_json else _together(found, updates)
    if as_json:
        emit([to_json({**head, "migrations": ordered, "held": held, "moves": rows})])
    else:
        by_order = cluster_migrations.problem(ordered, f"{held} of these moves wait")
        emit([by_order] if by_order else [])
        emit([plain({**head, **cluster_migrations.told(ordered)})])
        show(rows, as_json=False)


def _each(found: Sequence[Move], updates: Mapping[int, int]) -> list[Row]:
    return [msgspec.structs.asdict(m) | {"updates": updates[m.partition] if m.kind in OF_ROWS else None} for m in found]


def _together(found: Sequence[Move], updates: Mapping[int, int]) -> list[Row]:
    """One line for all that is done by the same nodes for the same reason, in the order in which they begin."""
    count, sums = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for m in found:
        key = (m.kind, m.why, m.node, m.source, m.here)
        count[key] += 1
        sums[key] += updates[m.partition]
    return [
        {
            "kind": kind,
            "why": why,
            "node": node,
            "from": source,
            "here": here,
            "partitions": count[kind, why, node, source, here],
            "updates": sums[kind, why, node, source, here] if kind in OF_ROWS else None,
        }
        for kind, why, node, source, here in count
    ]


async def _updates(topology: Topology) -> Counter[int]:
    """The counters of each partition, as the member says who has the most of it."""
    told = await asyncio.gather(
        *(_lwms(m.address, len(topology.placements)) for m in topology.members), return_exceptions=True
    )
    most = Counter[str]()
    for answer in told:
        if isinstance(answer, Counter):
            most |= answer
        elif not isinstance(answer, Unavailable):
            raise answer
    found = Counter[int]()
    for name, lwm in most.items():
        found[int(name.rpartition("/")[2])] += lwm
    return found


async def _lwms(address: Address, partitions: int) -> Counter[str]:
    """The LWM of each fragment of one member. Of very many one answer would be more than a frame holds."""
    found = Counter[str]()
    for first in range(0, partitions, ASKED_AT_ONCE):
        which = [str(first), str(first + ASKED_AT_ONCE)]
        told = await question(address, "counters", timeout=COUNTERS_SECONDS, partitions=which)
        found |= Counter({name: int(fragment["lwm"]) for name, fragment in told.items()})
    return found


def migrations(
    address: Address,
    watch: Annotated[bool, typer.Option("--watch", help="Say it each interval until nothing moves.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.05, callback=finite, help="Seconds over which rates are measured.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """What each member is taking: copies that move, what was taken since it started, how fast, and the time left.

    `differ` are copies that had other contents than their primary's and were taken again, `put_off` those of which that is
    to be tried later, `held` those that wait for `cluster resume`. The time left is what remains of `behind` at the rate at
    which it shrank.
    """
    run(_migrations(check_address(address), interval, watch=watch, as_json=as_json))


async def _migrations(address: str, interval: float, *, watch: bool, as_json: bool) -> None:
    ordered = (await question(address, "status")).get("migrations")
    if ordered is not None and not as_json and (by_order := cluster_migrations.problem(ordered, "what it holds waits")):
        emit([by_order])
    (before, _), at = await _taken(address), time.monotonic()
    while True:
        await asyncio.sleep(interval)
        (after, away), now = await _taken(address), time.monotonic()
        show([row_of(node, before.get(node), told, now - at) for node, told in after.items()], as_json=as_json)
        if not watch or not any(told is None or _state(told) == "moving" for told in after.values()):
            break
        before, at = after, now
    if away:
        complain(f"of the baseline {', '.join(away)} is not here: what is to be taken there is told when it is back")
    if silent := [node for node, told in after.items() if told is None]:
        complain(f"no answer from {', '.join(silent)}: what is taken there is not told")
        raise typer.Exit(ExitCode.UNREADABLE)


async def _taken(address: str) -> tuple[dict[str, dict[str, int] | None], list[str]]:
    """What each member says that it has taken so far (None: it does not answer); who of the baseline is no member."""
    status = await question(address, "status")
    if not status["formed"]:
        raise Refused(f"{status['node']} is in no cluster yet: run `foreshore cluster init {address} --nodes ...`")

    async def of(member: dict[str, Any]) -> dict[str, int] | None:
        try:
            told = await question(member["address"], "progress")
        except Unavailable:
            return None
        return {
            "moving": member["moving"],
            "behind": told["behind"],
            "fragments": sum(told["fragments"].values()),
            "rows": sum(told["rows"].values()),
            "updates": sum(told["updates"].values()),
            "differ": sum(told["differed"].values()),
            "put_off": told["put_off"],
            "held": told["held"],
        }

    members = status["members"]
    names = [member["node"] for member in members]
    taken = dict(zip(names, await asyncio.gather(*map(of, members)), strict=True))
    return taken, [node for node in status["baseline"] if node not in taken]


def row_of(node: str, before: Mapping[str, int] | None, told: Mapping[str, int] | None, seconds: float) -> Row:
    """One line of a member. A rate is known of who answered twice and did not start again in between."""
    if told is None:
        return {"node": node, "state": "NO-ANSWER"}
    known = before is not None and all(told[n] >= before[n] for n in ("rows", "updates", "fragments"))
    moved = sum(told[n] - before[n] for n in ("rows", "updates")) if known and before is not None else None
    shrank = before["behind"] - told["behind"] if known and before is not None else 0
    return {
        "node": node,
        "state": _state(told),
        **told,
        "per_second": round(moved / seconds) if moved is not None else None,
        "seconds_left": round(told["behind"] * seconds / shrank, 1) if shrank > 0 and told["behind"] else None,
    }


def _state(told: Mapping[str, int]) -> str:
    left = max(told["moving"], told["behind"])
    return "whole" if not left else "moving" if left > told["held"] else "held"
