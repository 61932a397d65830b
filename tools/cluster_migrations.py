"""What an operator orders of migrations: pause them, resume them, limit what each node supplies.

An order says all that holds from now on, and on what it was given: whoever orders a pause keeps the limit that he saw, and
is refused if somebody else changed it meanwhile. It is done when the map says so, of the node that was asked.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from engine.errors import UsageError
from rebalance.migrations import BYTES_PER_SECOND_MAX, BYTES_PER_SECOND_MIN, Paused
from tools.asking import Refused, check_address, question, run, wait_for
from tools.terminal import emit, finite, plain, to_json

AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of any node.")]
Timeout = Annotated[float, typer.Option(min=0, callback=finite, help="Seconds to wait for it.")]


def pause(
    address: Address,
    everything: Annotated[bool, typer.Option("--all", help="Make no copies that are missing either.")] = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Move no copies and no primaries that would only be better elsewhere, until `cluster resume`.

    It holds for the whole cluster, whoever restarts or leads it. Copies that are missing are made all the same, unless
    --all is said: then nothing is copied, and who fails is not made good. No failover waits for it. Exit code 1: refused,
    or not done in time.
    """
    paused = Paused.ALL if everything else Paused.BALANCE
    run(_change(check_address(address), timeout, {"paused": paused}, as_json=as_json))


def resume(address: Address, timeout: Timeout = 30.0, as_json: AsJson = False) -> None:
    """Go on with what `cluster pause` held back. Exit code 1: refused, or not done in time."""
    run(_change(check_address(address), timeout, {"paused": Paused.NOTHING}, as_json=as_json))


def limit(
    address: Address,
    most: Annotated[int | None, typer.Option("--bytes-per-second", help="What one node supplies, to all others.")] = None,
    none: Annotated[bool, typer.Option("--none", help="As fast as it goes.")] = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Limit what each node supplies to copies that are being made, repairs included; or, with --none, do not.

    It holds for the whole cluster, whoever restarts or leads it. Exit code 1: refused, or not done in time.
    """
    if (most is None) != none:
        raise UsageError("expected one of --bytes-per-second and --none")
    if most is not None and not BYTES_PER_SECOND_MIN <= most <= BYTES_PER_SECOND_MAX:
        raise UsageError(
            f"--bytes-per-second is {most}: expected {BYTES_PER_SECOND_MIN} to {BYTES_PER_SECOND_MAX}; "
            "`foreshore cluster pause` stops migrations, --none lifts the limit"
        )
    run(_change(check_address(address), timeout, {"bytes_per_second": most or 0}, as_json=as_json))


async def _change(address: str, seconds: float, change: dict[str, Any], *, as_json: bool) -> None:
    before = await _ordered(address)
    wanted = {name: before[name] for name in ("paused", "bytes_per_second")} | change
    if any(before[name] != value for name, value in wanted.items()):
        paused, most = str(wanted["paused"]), str(wanted["bytes_per_second"])
        await question(address, "migrations", seen=[before["since"]], paused=[paused], bytes_per_second=[most])

    async def changed() -> dict[str, Any] | None:
        now = await _ordered(address)
        return now if now["since"] != before["since"] or all(now[n] == value for n, value in wanted.items()) else None

    now = await wait_for(changed, seconds)
    if now is None:
        raise Refused(
            f"nothing was changed within {seconds:g} s: `foreshore cluster status {address}` says what holds it up"
        )
    if any(now[name] != value for name, value in wanted.items()):
        raise Refused(f"somebody else ordered otherwise just then: {plain(told(now))}; order it again if it is meant")
    emit([to_json(now)] if as_json else [plain(told(now))])


async def _ordered(address: str) -> dict[str, Any]:
    status = await question(address, "status")
    if not status["formed"]:
        raise Refused(f"{status['node']} is in no cluster yet: run `foreshore cluster init {address} --nodes ...`")
    if "migrations" not in status:
        raise Refused(f"{status['node']} is of a version that knows no orders about migrations: upgrade it first")
    ordered: dict[str, Any] = status["migrations"]
    return ordered


def told(ordered: dict[str, Any]) -> dict[str, Any]:
    """What holds, for a line at a terminal; nothing of what nobody ordered."""
    paused = ordered["paused"] != Paused.NOTHING
    return {
        "migrations": "paused" if paused else "running",
        "paused": ordered["paused"] if paused else None,
        "since": ordered["paused_since"] if paused else None,
        "bytes_per_second": ordered["bytes_per_second"] or None,
    }


def problem(ordered: dict[str, Any], held: str) -> str:
    """That something waits by order, and for what; nothing if there is no such order. `held` says what waits."""
    if ordered["paused"] == Paused.NOTHING:
        return ""
    what = "all copying" if ordered["paused"] == Paused.ALL else "balancing"
    return (
        f"{what} is paused by order since version {ordered['paused_since']}, and {held}: "
        "`foreshore cluster resume` goes on with it"
    )
