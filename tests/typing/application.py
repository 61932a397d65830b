"""An application as its author would write it: what is right passes, and each mistake is found at its line.

A line that ends in `# error: CODE` must give that error of mypy in strict mode, and no other line any
(`test_what_a_type_checker_finds`). Nothing here is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import engine
from engine import aio


@dataclass
class Account:
    """A value with a type."""

    owner: str
    balance: int


def namespaces(db: engine.Database) -> None:
    """The codec says what keys and values are."""
    raw = db.namespace("raw")
    assert_type(raw, engine.Namespace[bytes, bytes])
    assert_type(raw[b"k"], bytes)
    texts = db.namespace("texts", codec="str")
    assert_type(texts.get("k"), str | None)
    assert_type(texts.get("k", 0), str | int)
    assert_type(texts.get_many(["k"]), dict[str, str])
    accounts = db.namespace("accounts", codec=Account)
    assert_type(accounts["ann"], Account)
    assert_type([key for key, _ in accounts.scan(prefix="a")], list[str])
    accounts["ann"] = Account("ann", 3)
    events = db.namespace("events", codec=engine.by_tuple(Account))
    assert_type(events[("ann", 3)], Account)
    assert_type(db.namespace("names", codec=engine.by_tuple("str")).get(("ann",)), str | None)
    texts.update(k="v")
    assert_type(texts.setdefault("k", "v"), str)
    events["ann"] = Account("ann", 3)  # error: index
    events[("ann", 3)] = 3  # error: assignment
    texts.setdefault("k", 3)  # error: arg-type
    texts.update({"k": 3})  # error: arg-type
    raw["k"] = b"v"  # error: index
    texts["k"] = 3  # error: assignment
    texts.put(b"k", "v")  # error: arg-type
    accounts["ann"] = {"owner": "ann", "balance": 3}  # error: assignment
    accounts.get_many("ann").get(3)  # error: call-overload
    db.namespace("accounts", codec="jsn")  # error: call-overload
    db.namespace("accounts", backup=2)  # error: call-overload


def transactions(db: engine.Database) -> None:
    """A namespace keeps its types inside a transaction; modes are words that are known."""
    accounts = db.namespace("accounts", codec=Account)
    with db.transaction(concurrency="OPTIMISTIC", label="audit") as tx:
        inside = tx.namespace(accounts)
        assert_type(inside.get("ann"), Account | None)
        assert_type(tx.namespace("texts", codec="str").get("k", ""), str)
        inside.put("ann", 3)  # error: arg-type
    db.transaction(concurrency="OPTIMISTC")  # error: arg-type
    db.transaction(isolation="SERIALISABLE")  # error: arg-type
    assert_type(db.run(lambda tx: 3, attempts=2, timeout=1.0), int)
    db.run(lambda tx: 3, attmpts=2)  # error: call-arg
    assert_type(db.transact([engine.Put(accounts, "ann", Account("ann", 3)), engine.Delete(accounts, "bob")]), bool)
    engine.Put(accounts, b"ann", Account("ann", 3))  # error: misc
    db.transact([("ann", 3)])  # error: list-item
    if db.transaction_status("id") == "comitted":  # error: comparison-overlap
        return


@engine.transactional
def deposit(tx: engine.Transaction, name: str, amount: int) -> int:
    """Joins a transaction, or makes one."""
    inside = tx.namespace("balances", codec="json")
    balance: int = inside.get(name, 0)
    inside.put(name, balance + amount)
    return balance + amount


@engine.transactional
async def adeposit(tx: aio.Transaction, name: str, amount: int) -> int:
    """The same with asyncio."""
    inside = tx.namespace("balances", codec="json")
    balance: int = await inside.get(name, 0)
    await inside.put(name, balance + amount)
    return balance + amount


def calls(db: engine.Database, tx: engine.Transaction) -> None:
    """A transactional function keeps its parameters."""
    assert_type(deposit(db, "ann", 3), int)
    assert_type(deposit(tx, "ann", amount=3), int)
    deposit(db, "ann", "oops")  # error: arg-type
    deposit(db, "ann", 3, 4)  # error: call-arg
    deposit("no database", "ann", 3)  # error: arg-type


async def acalls(db: aio.Database) -> None:
    """The asynchronous face has the same types."""
    assert_type(await adeposit(db, "ann", 3), int)
    accounts = db.namespace("accounts", codec=Account)
    assert_type(await accounts.get("ann"), Account | None)
    await accounts.put("ann", "nothing")  # error: arg-type
    async with db.transaction() as tx:
        assert_type(await tx.namespace(accounts).get_many(["ann"]), dict[str, Account])
    print(accounts.get("ann").balance)  # error: attr-defined
