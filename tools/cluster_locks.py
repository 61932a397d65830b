"""Who holds and who waits for what, which transactions are open or in doubt, and how one is given up.

Each member is asked for what it knows, page by page, and what they say of one transaction is laid together. The pages are
not of one moment: what comes and goes while they are asked for may be missed, and a ring of waits may be gone before it is
read. So a person looks twice, and `--kill` asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from engine.errors import Unavailable, UsageError
from engine.transactions.deadlocks import circles_in
from tools.asking import STATUS_SECONDS, Refused, check_address, question, run
from tools.terminal import Cell, ExitCode, Row, complain, emit, finite, show, to_json, word

AsJson = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of any node.")]
Told = Mapping[str, dict[str, Any] | None]
"""What each member says; None: it does not answer."""
Facts = dict[str, Any]

_STATES = ("coordinated", "prepared", "holds", "waits")
"""How a transaction stands, the furthest first."""


def locks(
    address: Address,
    tx: Annotated[str | None, typer.Option("--tx", metavar="ID", help="Only what has to do with this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many locks that are held.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Who waits for whom and for what, in rings if there are any, and who holds what: the waits first.

    A line names the node, the key, whether it is locked to read or to write, the transaction with its label, its client and
    since when it holds something (or waits) on that node. `voted`: only the transaction's outcome releases it.
    """
    run(_locks(check_address(address), tx, limit, as_json=as_json))


async def _locks(address: str, tx: str | None, limit: int, *, as_json: bool) -> None:
    only = {} if tx is None else {"tx": [tx]}
    members = await _members(address)
    first = await _each(members, "locks", **only)
    held: list[Row] = []
    for name, told in first.items():
        page = told
        while page is not None and len(held) <= limit:
            held += [_held(name, row) for row in page["locks"]]
            if page["next"] is None:
                break
            page = (await _each({name: members[name]}, "locks", after=page["next"], **only))[name]
    more = len(held) > limit
    del held[limit:]
    answers = {name: page for name, page in first.items() if page is not None}
    waits = [_wait(name, row) for name, page in answers.items() for row in page["waits"]]
    rings = rings_of(waits)
    if as_json:
        unasked = [name for name, page in first.items() if page is None]
        emit([to_json({"waits": waits, "rings": rings, "locks": held, "more": more, "silent": unasked})])
    else:
        show(waits, as_json=False)
        emit(f"ring {' -> '.join([*ring, ring[0]])}" for ring in rings)
        show(held, as_json=False)
        if more:
            complain(f"there are more locks than these {limit}: see --limit, and --tx ID for those of one transaction")
    _say_silent(first)


def _held(node: str, row: Facts) -> Row:
    return {
        "node": node,
        "key": f"{row['namespace']}:{word(bytes.fromhex(row['key']))}",
        "mode": row["mode"],
        "voted": row["voted"],
        **_who(row),
    }


def _wait(node: str, row: Facts) -> Row:
    key = f"{row['namespace']}:{word(bytes.fromhex(row['key']))}"
    return {"node": node, "key": key, "mode": row["mode"], "waits_for": row["for"], **_who(row)}


def _who(row: Facts) -> dict[str, Cell]:
    age_ms = row["age_ms"]
    return {
        "tx": row["tx"],
        "label": row["label"],
        "client": row["client"],
        "age_s": age_ms / 1000 if age_ms is not None else None,
    }


def rings_of(waits: Iterable[Row]) -> list[list[str]]:
    """The transactions that wait for each other in a circle, each time from the one that is first in order."""
    blockers: dict[bytes, list[bytes]] = {}
    for wait in waits:
        blockers.setdefault(bytes.fromhex(str(wait["tx"])), []).append(bytes.fromhex(str(wait["waits_for"])))
    rings: list[list[str]] = []
    for circle in circles_in(blockers, {}):
        at = circle.index(min(circle))
        rings.append([tx.hex() for tx in (*circle[at:], *circle[:at])])
    return rings


# Transactions.


def transactions(
    address: Address,
    older_than: Annotated[
        float,
        typer.Option("--older-than", metavar="SECONDS", min=0, callback=finite, help="Only what is at least so old."),
    ] = 0.0,
    kill: Annotated[str | None, typer.Option("--kill", metavar="ID", help="Give this one up.")] = None,
    as_json: AsJson = False,
) -> None:
    """Transactions that hold locks, wait for some, are prepared (in doubt until they are decided) or are being committed.

    An optimistic one is seen when it commits, and not before. The age is what the nodes know: since it holds something, or
    since it was prepared. `--kill` takes the locks of one that has not voted, and its places in line: its client is told
    that when it waits, or else at its commit, which is refused; `run` begins the function again. One that has voted ends
    by its decision alone.
    """
    checked = check_address(address)
    if kill is not None:
        run(_kill(checked, kill.partition("@")[0], as_json=as_json))  # an id as a client shows it says where it is decided
    else:
        run(_transactions(checked, older_than, as_json=as_json))


async def _transactions(address: str, older_than: float, *, as_json: bool) -> None:
    members = await _members(address)
    told = dict(zip(members, await asyncio.gather(*(_all_of(at) for at in members.values())), strict=True))
    found = [row for row in together(told) if (_age(row) or 0.0) >= older_than]
    if as_json:
        silent = [name for name, pages in told.items() if pages is None]
        emit([to_json({"transactions": found, "silent": silent})])
    else:
        show(found, as_json=False)
    _say_silent(told)


async def _all_of(address: str) -> list[Facts] | None:
    """All pages of a node; None if it does not answer."""
    pages: list[Facts] = []
    after: list[str] | None = ["0", "0"]
    while after is not None:
        try:
            pages.append(await question(address, "transactions", after=after))
        except Unavailable:
            return None
        after = pages[-1]["next"]
    return pages


def together(told: Mapping[str, Sequence[Facts] | None]) -> list[Row]:
    """One line for each transaction, of all that the members say of it; the oldest first."""
    found: dict[str, Facts] = {}
    for node, pages in told.items():
        for page in pages or ():
            for row in page["rows"]:
                _add(found.setdefault(row["tx"], {}), node, page["kind"], row)
    rows = [_row(tx, facts) for tx, facts in found.items()]
    return sorted(rows, key=lambda row: (-(_age(row) or 0.0), str(row["tx"])))


def _add(facts: Facts, node: str, kind: str, row: Facts) -> None:
    facts.setdefault("kinds", {})[kind] = True
    facts.setdefault("nodes", {})[node] = True
    facts["age_ms"] = max(facts.get("age_ms", -1), row["age_ms"] if row["age_ms"] is not None else -1)
    for name in ("label", "client", "id", "decision", "phase", "outcome"):
        facts[name] = row.get(name) or facts.get(name)
    facts["keys"] = facts.get("keys", 0) + row.get("keys", 0)
    if kind == "prepared":
        facts["prepared"] = facts.get("prepared", 0) + 1
    facts["participants"] = max(facts.get("participants", 0), row.get("participants", 0))


def _row(tx: str, facts: Facts) -> Row:
    kind = next(state for state in _STATES if state in facts["kinds"])
    state = {"holds": "open", "waits": "waiting"}.get(kind, facts["phase"] if kind == "coordinated" else kind)
    age_ms = facts["age_ms"]
    return {
        "tx": tx,
        "state": state,
        "age_s": age_ms / 1000 if age_ms >= 0 else None,
        "label": facts["label"],
        "client": facts["client"],
        "nodes": ",".join(facts["nodes"]),
        "locks": facts["keys"],
        "commits_as": facts["id"],
        "participants": facts["participants"] or None,
        "prepared": facts.get("prepared"),
        "decided_in": facts["decision"] if facts["participants"] else None,
        "outcome": facts["outcome"],
    }


def _age(row: Row) -> float | None:
    age = row["age_s"]
    return age if isinstance(age, float) else None


# Giving one up.


async def _kill(address: str, tx: str, *, as_json: bool) -> None:
    members = await _members(address)
    looked = await _each(members, "give-up", tx=[tx])
    _refuse(tx, looked)
    owners = {row["tx"] for row in looked.values() if row is not None and row["known"]}
    owner = min(owners - {tx}, default=tx)  # it was named by the id under which it commits
    done = await _each(members, "give-up", tx=[owner], yes=[])
    voted = [name for name, row in done.items() if row is not None and (row["voted"] or row["phase"])]
    given = {name: row["keys"] for name, row in done.items() if row is not None and row["given_up"]}
    answer: Row = {"tx": owner, "given_up_on": ",".join(given), "locks": sum(given.values()), "voted_on": ",".join(voted)}
    if as_json:
        emit([to_json(answer)])
    else:
        show([answer], as_json=False)
    if voted:
        raise Refused(
            f"transaction {owner} has begun to commit on {', '.join(voted)} meanwhile, and ends by its decision: look at "
            f"`foreshore cluster transactions` again"
        )
    _say_silent(looked | {name: row for name, row in done.items() if row is None})


def _refuse(tx: str, looked: Told) -> None:
    """Raise Refused for what cannot be given up."""
    known = {name: row for name, row in looked.items() if row is not None and row["known"]}
    for name, row in known.items():
        if row["voted"]:
            named = ", ".join(map(str, row["named"]))
            raise Refused(
                f"transaction {tx} has voted on {name}, in {row['voted']} partitions ({named}): it may be committed by "
                "now, so only its decision releases its locks; that is made by the primary of its decision partition, or "
                "by recovery if that is gone: `foreshore cluster transactions` shows who is asked"
            )
        if row["phase"]:
            raise Refused(
                f"transaction {tx} is being committed by {name} ({row['phase']}): its client has asked for that, and it "
                "ends by itself: look at `foreshore cluster transactions` again"
            )
    silent = [name for name, row in looked.items() if row is None]
    if not known and silent:
        raise Unavailable(f"nothing is known of transaction {tx}, and {', '.join(silent)} did not answer")
    if not known:
        raise Refused(
            f"nothing is known of transaction {tx}: it is over, or holds no locks; expected the `tx` of a line of "
            "`foreshore cluster transactions`"
        )


# Asking.


async def _members(address: str) -> dict[str, str]:
    """Where the members are. Raises Refused if there are none yet."""
    status = await question(address, "status")
    if not status["formed"]:
        raise Refused(f"{status['node']} is in no cluster yet: run `foreshore cluster init {address} --nodes ...`")
    return {member["node"]: member["address"] for member in status["members"]}


async def _each(members: Mapping[str, str], command: str, **arguments: Sequence[str]) -> dict[str, Facts | None]:
    """What each member answers; None: nothing. Raises UsageError where a node does not know what is meant."""

    async def ask(address: str) -> Facts | None:
        try:
            return await question(address, command, timeout=STATUS_SECONDS, **arguments)
        except Unavailable:
            return None
        except Refused as error:
            raise UsageError(str(error)) from None

    return dict(zip(members, await asyncio.gather(*map(ask, members.values())), strict=True))


def _say_silent(told: Mapping[str, object]) -> None:
    """Say who did not answer: then this is not all."""
    silent = [name for name, said in told.items() if said is None]
    if silent:
        complain(f"no answer from {', '.join(silent)}: what is there is not told")
        raise typer.Exit(ExitCode.UNREADABLE)
