"""The namespaces of a cluster: what there is, settings of their own, and the end of one."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from engine import aio
from engine.client.namespaces import NamespaceInfo, check_name_of
from engine.client.timing import time_to_live
from engine.errors import UsageError
from rebalance.namespaces import LossPolicy
from rebalance.table import BACKUPS_MAX
from tools.asking import Refused, check_address, question, run
from tools.terminal import Row, finite, number, show

AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of any node.")]


def namespaces(
    address: Address,
    name: Annotated[str | None, typer.Option("--set", help="Give this one settings; it need not exist.")] = None,
    ttl: Annotated[
        float | None, typer.Option(callback=number, help="With --set: seconds for which a value lasts; else for good.")
    ] = None,
    backups: Annotated[
        int | None, typer.Option(min=0, max=BACKUPS_MAX, help="With --set: copies beside the first; else as it is.")
    ] = None,
    async_backups: Annotated[
        int | None, typer.Option(min=0, max=BACKUPS_MAX, help="With --set: copies that nobody waits for.")
    ] = None,
    loss_policy: Annotated[LossPolicy | None, typer.Option(help="With --set: what a LOST partition stops.")] = None,
    doomed: Annotated[str | None, typer.Option("--drop", help="Delete this one, with all that is in it.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Drop it although it has rows.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, callback=finite, help="Seconds to wait for it.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """All namespaces, with how many keys each has and its settings; or, with --set or --drop, one changed first.

    The ttl of a namespace is for what is written there from then on without one of its own. Where only one of --backups and
    --async-backups is said, the other one is the cluster's; both are for what is not written yet. What has rows is dropped
    with --yes only. Exit code 1: there is no such namespace, somebody else changed it just then, or the node that was asked
    hears no majority.
    """
    check_address(address)
    if name is not None and doomed is not None:
        raise UsageError("--set and --drop were both given: expected one of them")
    for given in (name, doomed):
        if given is not None:
            check_name_of(given)
    if ttl is not None and name is None:
        raise UsageError("--ttl is for --set NAME, or for each value that is put")
    time_to_live(ttl)
    settings = _Settings(ttl, backups, async_backups, loss_policy)
    if name is None and settings != _Settings():
        raise UsageError("--backups, --async-backups and --loss-policy are for --set NAME")
    run(_namespaces(address, name, settings, doomed, timeout, yes=yes, as_json=as_json))


class _Settings(NamedTuple):
    ttl: float | None = None
    backups: int | None = None
    async_backups: int | None = None
    loss_policy: LossPolicy | None = None


async def _namespaces(
    address: str, name: str | None, given: _Settings, doomed: str | None, seconds: float, *, yes: bool, as_json: bool
) -> None:
    told = await question(address, "status")
    if not told["formed"]:
        raise Refused(f"{told['node']} is in no cluster yet: run `foreshore cluster init {address} --nodes ...`")
    if not told["quorum"]:
        raise Refused(
            f"{told['node']} hears no majority of {', '.join(told['baseline'])}: until one is there nobody says how many "
            f"rows there are, and nothing is changed; `foreshore cluster status {address}` says who is away; another node "
            "may hear one"
        )
    async with await aio.connect(address, timeout=seconds) as db:
        if doomed is not None and not yes:
            rows = next((info.rows for info in await db.namespaces() if info.name == doomed), 0)
            if rows:
                raise Refused(
                    f"namespace {doomed} has {rows} rows, which would be gone for good: say --yes if that is meant"
                )
        try:
            if name is not None:
                await db.create_namespace(name, **given._asdict())
            elif doomed is not None:
                await db.drop_namespace(doomed)
        except UsageError as error:
            raise Refused(f"{address}: {error}") from None
        found = [_row(info) for info in await db.namespaces()]
    show(found, as_json=as_json)


def _row(info: NamespaceInfo) -> Row:
    return {
        "namespace": info.name,
        "rows": info.rows,
        "ttl": info.ttl,
        "state": "DROPPING" if info.dropping else "THERE",
        "backups": info.backups,
        "async_backups": info.async_backups,
        "loss_policy": info.loss_policy,
    }
