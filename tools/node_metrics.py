"""`foreshore node metrics`: what nodes say of themselves, as metrics: once, or to whoever collects them.

A node serves no HTTP: this is a process beside it, which asks it as `node status` does whenever somebody asks for the
metrics. What it meets with ends in it, and a node that does not answer is a figure, too. Names and units are those that
Prometheus recommends: seconds, bytes, `_total` for what only grows. Labels are names of nodes and words of closed sets,
never keys or transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from threading import Thread
from typing import Any, Self

import typer

from engine.errors import Error
from tools.asking import check_address, question, run
from tools.metrics import Figures, metrics_server
from tools.terminal import ExitCode, complain, emit

PREFIX = "foreshore"

Status = dict[str, Any]
Answers = dict[str, Status | Error]
"""By address: what a node says of itself, or why it does not."""
Answer = Callable[[str], Awaitable[Status | Error]]


def tell(addresses: Sequence[str], listen: str) -> None:
    """Print the metrics of these nodes; or serve them until interrupted, if there is an address to `listen` at."""
    once = list(dict.fromkeys(map(check_address, addresses)))
    if listen:
        asker = Asker(once)
        with metrics_server(listen, asker.text) as server, asker:
            emit([f"metrics on {server.url}"])
            server.serve_forever()
    found = run(_ask(once, answer_of))
    emit(metrics(found).splitlines())
    failed = [answer for answer in found.values() if isinstance(answer, Error)]
    namesakes = untold(found)
    for problem in (*failed, *namesakes):
        complain(str(problem))
    if failed or namesakes:
        raise typer.Exit(ExitCode.UNREADABLE if failed else ExitCode.WRONG)


class Asker:
    """Asks nodes for whoever wants their figures, in threads of their own.

    All who come while the nodes are being asked are told the same: however many collect, a node is asked once at a time.
    And all of it is done on one event loop that does not end. One for each question would not end before the name service
    has answered, for which nobody waits any more.
    """

    def __init__(self, addresses: Sequence[str], answer: Answer | None = None) -> None:
        self._addresses = addresses
        self._answer = answer or answer_of
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._asking: asyncio.Task[str] | None = None
        self._complained = set[str]()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def text(self) -> str:
        """The metrics of now. From any other thread."""
        return asyncio.run_coroutine_threadsafe(self.told(), self._loop).result()

    async def told(self) -> str:
        """The same, on the loop."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await self._asking

    async def _ask(self) -> str:
        found = await _ask(self._addresses, self._answer)
        for problem in untold(found):
            if problem not in self._complained:
                self._complained.add(problem)
                complain(problem)
        return metrics(found)


async def _ask(addresses: Sequence[str], answer: Answer) -> Answers:
    return dict(zip(addresses, await asyncio.gather(*map(answer, addresses)), strict=True))


async def answer_of(address: str) -> Status | Error:
    """What a node says of itself, or why it does not."""
    try:
        return await question(address, "status")
    except Error as error:
        return error


def metrics(found: Answers) -> str:
    """The figures of nodes, by address, in the text format of Prometheus. What is at several addresses tells once."""
    told, first = Figures(PREFIX), _first(found)
    for address, status in found.items():
        told.gauge("up", "1: the node answers", not isinstance(status, Error), address=address)
    for address, status in found.items():
        if isinstance(status, Error):
            continue
        _who(told, address, status)
        if first[status["node"]] == address:
            _of_the_node(told, status)
            _of_its_disk(told, status)
            _of_its_maps(told, status)
            _of_its_members(told, status)
    return told.text()


def untold(found: Answers) -> list[str]:
    """Which nodes do not tell their figures, because one of another cluster has their name, which is their label."""
    problems, first = list[str](), _first(found)
    for address, status in found.items():
        if not isinstance(status, Error):
            other = found[first[status["node"]]]
            assert not isinstance(other, Error), "it answered, and first"
            if _cluster_of(status) != _cluster_of(other):
                problems.append(
                    f"{address} and {first[status['node']]} are {status['node']} of two clusters, and only the second one "
                    "tells its figures: name those of each cluster to a `node metrics` of its own"
                )
    return problems


def _first(found: Answers) -> dict[str, str]:
    """By the name of each node that answers, the first address at which one does."""
    first = dict[str, str]()
    for address, status in found.items():
        if not isinstance(status, Error):
            first.setdefault(status["node"], address)
    return first


def _cluster_of(status: Status) -> tuple[str, str]:
    return status["cluster_name"], status.get("cluster", "")


def _who(told: Figures, address: str, status: Status) -> None:
    told.gauge(
        "node_info",
        "1; who the node is, and of which cluster",
        1,
        node=status["node"],
        address=address,
        cluster=status["cluster_name"],
        cluster_id=status.get("cluster", ""),
    )


def _of_the_node(told: Figures, status: Status) -> None:
    node: str = status["node"]
    told.gauge("formed", "1: the node is in a cluster", status["formed"], node=node)
    told.gauge("serving", "1: it serves, with a majority", status["serving"] and status["quorum"], node=node)
    told.gauge("stopping", "1: it was told to stop", status["stopping"] is not None, node=node)
    for role, count in sorted(status["partitions"].items()):
        told.gauge("partitions", "partitions, by what the node is for them", count, node=node, role=role.lower())
    told.gauge("partitions_behind", "partitions whose copy here is not caught up", status["behind"], node=node)
    told.gauge("locks", "keys that transactions hold", status["locks"], node=node)
    told.gauge("transactions_in_doubt", "prepared, with no outcome yet", len(status["in_doubt"]), node=node)
    told.gauge("transactions_overdue", "of these, for longer than they should be", len(status["overdue"]), node=node)
    proofs = status["anti_entropy"]
    told.counter("copies_compared", "fragments of which a copy was compared", proofs["compared"], node=node)
    told.gauge("copies_wrong", "fragments of which the copy here was found wrong", len(proofs["wrong_here"]), node=node)
    told.gauge("copies_undecided", "fragments of which nobody can tell who is right", len(proofs["undecided"]), node=node)
    turns = status["turns"]
    told.counter("turns", "turns of the node's loop", turns["taken"], node=node)
    told.counter("turns_too_long", "turns above the bound, in which the node is not heard", turns["above"], node=node)
    told.gauge("turn_longest_seconds", "the longest turn since it started", turns["longest_ms"] / 1000, node=node)


def _of_its_disk(told: Figures, status: Status) -> None:
    node = status["node"]
    told.gauge("durable_lsn", "how far its log is durable", status["durable_lsn"], node=node)
    told.gauge("checkpointing", "1: a checkpoint is written", status["checkpointing"], node=node)
    written = status["in_no_checkpoint_bytes"]
    told.gauge("not_in_checkpoint_bytes", "what was written since its last checkpoint", written, node=node)
    told.gauge("backlogged", "1: its store does not keep up", node in status["backlogged"], node=node)
    told.gauge("not_archived", "1: segments could not be archived", bool(status["not_archived"]), node=node)
    if (disk := status["disk"]) is not None:
        told.gauge("disk_free_bytes", "what the disk of its log has left", disk["free_bytes"], node=node)
        told.gauge("disk_needed_bytes", "what the next segment of its log takes", disk["next_bytes"], node=node)
        told.gauge("disk_full", "1: there is no room on it", bool(disk["low"] or disk["full"]), node=node)


def _of_its_maps(told: Figures, status: Status) -> None:
    node, maps = status["node"], status["maps"]
    for kind in ("full", "light"):
        told.counter("maps", "maps that it followed since it started, by step", maps[kind], node=node, step=kind)
    told.counter("stopped_seconds", "how long maps stopped what it serves", maps["stopped_ms"] / 1000, node=node)
    told.gauge("stopped_longest_seconds", "the longest of these", maps["longest_stop_ms"] / 1000, node=node)
    for side in ("handed_over", "taken_over"):
        told.counter("handovers", "partitions that were handed over or taken over", maps[side], node=node, side=side)
        for name in ("p50", "p99"):  # of the last ones: no quantiles of a summary, which would have a sum and a count
            took = maps[f"{side}_{name}_ms"] / 1000
            told.gauge("handover_seconds", "how long they took nothing new", took, node=node, side=side, percentile=name)
    told.gauge("splits", "members that have another map of one version", len(status["split"]), node=node)


def _of_its_members(told: Figures, status: Status) -> None:
    """What it knows of the cluster, as every member does: alert on the largest, or on the coordinator's."""
    if not status["formed"]:
        return
    node = status["node"]
    told.gauge("coordinator", "1: it leads the next exchange", status["coordinator"] == node, node=node)
    told.gauge("epoch", "the greatest epoch of a partition", status["epoch"], node=node)
    lacking = status["under_replicated"]
    told.gauge("partitions_under_replicated", "partitions of the cluster that lack copies in sync", lacking, node=node)
    told.gauge("partitions_lost", "partitions of the cluster that nobody has", len(status["lost"]), node=node)
    for member in status["members"]:
        name = member["node"]
        told.gauge("member_suspected", "1: the node does not hear that member", member["suspected"], node=node, member=name)
        lag, sync = member["lag_ms"] / 1000, member["sync_ms"] / 1000
        told.gauge(
            "member_lag_seconds",
            "for how long it has not answered the oldest write that it has to",
            lag,
            node=node,
            member=name,
        )
        told.gauge("member_sync_seconds", "how long its disk takes to sync", sync, node=node, member=name)
