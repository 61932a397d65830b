"""What an operator asks about locks and transactions: who holds what on this node and who waits, page by page.

A page is what one answer has room for, and is made in pieces, so that a hundred thousand locks cost no turn more than its
part. It is of the moment in which it is made: what comes and goes between two pages may be missed, or seen twice. Nothing
here changes anything but `give_up`, and that takes nothing from whoever has voted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from engine.data.holdings import Who
from engine.node.machines import Machines
from engine.protocol.requests import Report
from engine.transactions.commits import Phase
from engine.transactions.pieces import partition_at
from engine.turn.events import SessionId
from rebalance.ports import MS
from wal.ids import TX_ID_BYTES, TxId, tx_name

PAGE = 1_000
"""So many locks, or transactions of a kind, in one answer; and at most so many waits."""
PIECE = 100
"""Of which so many are put together before a turn may end."""
NAMED_MAX = 100
"""So many of a transaction's partitions are named; how many there are is told beside them."""
DIGITS_MAX = 12
KINDS = ("holds", "waits", "prepared", "coordinated")
"""Of transactions; a page is of one kind."""
PER_WORK = 10
"""So many partitions that are looked at, or in which a transaction holds something, are one piece of work."""

Row = dict[str, Any]
Words = Mapping[str, Sequence[str]]


class Inquiry:
    """Questions about the locks and transactions of one node."""

    def __init__(self, node: Machines) -> None:
        self.node = node

    def ask(self, session: SessionId, request_id: int, command: str, words: Words) -> str:
        """What is wrong with a question, or nothing: the answer follows.

        `locks`: from a place that the last answer gave (`after`), or those of one transaction (`tx`); and who waits.
        `transactions`: who holds something, who only waits, which parts are prepared, and what is coordinated, from such a
        place. `give-up`: what a transaction holds here, and whether it has voted; with `yes` it is given up, if it has not.
        """
        problem, (at, skip) = _place(words)
        tx, more = _owner(words) if "tx" in words or command == "give-up" else (None, "")
        if problem := problem or more:
            return problem
        match command:
            case "locks":
                answer = self._locks((at, skip), tx)
            case "transactions":
                answer = self._transactions(at, skip)
            case _:
                assert tx is not None, "it was named"
                answer = self._give_up(tx, sure="yes" in words)
        self.node.core.in_pieces(self._answer(session, request_id, answer))
        return ""

    def _answer(self, session: SessionId, request_id: int, answer: Generator[int, None, Row]) -> Iterator[int]:
        body = yield from answer
        self.node.desk.reply(session, Report(request_id, msgspec.json.encode({"node": self.node.core.node} | body)))

    def _locks(self, after: tuple[int, int], owner: TxId | None) -> Generator[int, None, Row]:
        node, core = self.node, self.node.core
        number, skip = after
        only = node.participant.owner_of.get(owner, owner) if owner is not None else None
        found: list[Row] = []
        partitions = len(core.local)
        while number < partitions and len(found) < PAGE:
            most = min(PIECE, PAGE - len(found))
            page = node.locks.held_in(number, skip, most, only)
            for tx, (namespace, key) in page:
                found.append(
                    {
                        "namespace": namespace,
                        "key": key.hex(),
                        "partition": number,
                        "mode": "write" if node.locks.may_write(tx, (namespace, key)) else "read",
                        "voted": node.locks.is_pinned(tx, (namespace, key)),
                        **self._who(tx, node.locks.who(tx)),
                    }
                )
            yield len(page) + (not number % PER_WORK)
            if len(page) < most:
                number, skip = number + 1, 0
            else:
                skip += len(page)
        waits: list[Row] = []
        if after == (0, 0):
            for waiter, holder, (namespace, key), shared in islice(node.locks.waits(), PAGE):
                if only is None or only in (waiter, holder):
                    who = self._who(waiter, node.locks.waits_at(waiter))
                    mode = "read" if shared else "write"
                    waits.append({"namespace": namespace, "key": key.hex(), "mode": mode, "for": holder.hex(), **who})
            yield len(waits)
        following = [str(number), str(skip)] if number < partitions else None
        return {"locks": found, "next": following, "waits": waits, "waiting": node.locks.waiters}

    def _transactions(self, kind: int, skip: int) -> Generator[int, None, Row]:
        pages = (self._owners, self._waiters, self._prepared, self._coordinated)
        if kind >= len(pages):
            return {"kind": "", "rows": [], "next": None}
        rows: list[Row] = []
        looked_at = 0
        for row, work in pages[kind](skip):
            looked_at += 1
            rows += [row] if row is not None else []
            yield work
        following = (kind, skip + PAGE) if looked_at >= PAGE else (kind + 1, 0)
        return {
            "kind": KINDS[kind],
            "rows": rows,
            "next": list(map(str, following)) if following[0] < len(pages) else None,
        }

    def _owners(self, skip: int) -> Iterator[tuple[Row | None, int]]:
        locks = self.node.locks
        for owner in locks.owners(skip, PAGE):
            keys, partitions = locks.counted(owner)
            yield {"keys": keys, "partitions": partitions, **self._who(owner, locks.who(owner))}, 1 + partitions // PER_WORK

    def _waiters(self, skip: int) -> Iterator[tuple[Row | None, int]]:
        for owner, who in self.node.locks.waiting(skip, PAGE):
            yield self._who(owner, who), 1

    def _prepared(self, skip: int) -> Iterator[tuple[Row | None, int]]:
        participant = self.node.participant
        for tx, number in participant.parts_in_doubt()[skip : skip + PAGE]:
            part = participant.prepared(tx, number)
            if part is None:
                yield None, 1
                continue
            prepare, since = part
            row = {
                "tx": participant.holder(tx, number).hex(),
                "id": tx_name(tx),
                "partition": number,
                "decision": prepare.decision,
                "participants": len(prepare.participants),
                "named": list(dict.fromkeys(prepare.participants[:NAMED_MAX])),
                "held": prepare.held,
                "age_ms": (self.node.core.now - since) // MS,
            }
            yield row, 1

    def _coordinated(self, skip: int) -> Iterator[tuple[Row | None, int]]:
        for t in list(islice(self.node.coordinator.active.values(), skip, skip + PAGE)):
            row = {
                "tx": t.owner.hex(),
                "id": t.tx.hex(),
                "phase": t.phase.value,
                "outcome": ("commit" if t.commit else "abort") if t.phase in (Phase.DECIDING, Phase.FINISHING) else "",
                "decision": t.decision,
                "participants": len(t.participants),
                "named": list(dict.fromkeys(t.participants[:NAMED_MAX])),
                "awaited": list(dict.fromkeys(map(partition_at, islice(t.awaited, NAMED_MAX)))),
                "age_ms": (self.node.core.now - t.since) // MS,
            }
            yield row, 1

    def _give_up(self, given: TxId, *, sure: bool) -> Generator[int, None, Row]:
        node = self.node
        yield 1 + node.locks.counted(given)[1] // PER_WORK  # what follows is of one moment
        active = node.coordinator.active.get(given)
        owner = active.owner if active is not None else node.participant.owner_of.get(given, given)
        parts = [number for _, number in node.participant.voted(owner)]
        coordinated = [t.phase.value for t in node.coordinator.active.values() if t.owner == owner]
        coordinated += ["committing" for alone in node.coordinator.one_phase.values() if alone.owner == owner]
        keys, _ = node.locks.counted(owner)
        waits = node.locks.waits_at(owner) is not None
        who = self._who(owner, node.locks.who(owner) or node.locks.waits_at(owner))
        given_up = sure and not parts and not coordinated and bool(keys or waits)
        if given_up:
            node.core.note(f"transaction {owner.hex()} is given up by an operator: it held {keys} keys")
            yield from node.locks.leaving(owner)
        return {
            "known": bool(keys or waits or parts or coordinated),
            **who,
            "keys": keys,
            "waits": waits,
            "voted": len(parts),
            "named": parts[:NAMED_MAX],
            "phase": coordinated[0] if coordinated else "",
            "given_up": given_up,
        }

    def _who(self, tx: TxId, who: Who | None) -> Row:
        """What a person is told of a transaction that holds or awaits something here."""
        known = who if who is not None else Who("", -1)
        return {
            "tx": tx.hex(),
            "label": known.label,
            "client": self.node.writes.origins.client(known.session),
            "age_ms": (self.node.core.now - known.since) // MS if known.since >= 0 else None,
        }


def _place(words: Words) -> tuple[str, tuple[int, int]]:
    """What is wrong with the place from which to go on, and the place."""
    after = list(words.get("after", ("0", "0")))
    if len(after) == 2 and all(0 < len(n) <= DIGITS_MAX and n.isascii() and n.isdigit() for n in after):
        return "", (int(after[0]), int(after[1]))
    return f"`after` is {[n[:20] for n in after[:3]]}: expected the `next` of an answer, two whole numbers", (0, 0)


def _owner(words: Words) -> tuple[TxId, str]:
    """The transaction that is named, and what is wrong with its name."""
    given = list(words.get("tx", ()))
    text = given[0] if given else ""
    if len(given) == 1 and len(text) == 2 * TX_ID_BYTES and all(c in "0123456789abcdef" for c in text):
        return bytes.fromhex(text), ""
    return b"", f"{text[:80]!r} is no id of a transaction: expected {2 * TX_ID_BYTES} hexadecimal digits"
