"""Money moves between accounts and is never made or lost: every read of all accounts adds up to the same total.

The simplest proof of atomic commitment across partitions: half a transfer shows as a wrong total. It says nothing about
transfers that vanish as a whole; `list_append` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.sim.checkers.history import (
    Anomaly,
    BankAction,
    Key,
    Operation,
    ReadBalances,
    Report,
    Transfer,
    admit,
)
from tests.sim.checkers.notation import line


def check(
    total: int,
    history: Iterable[Operation],
    *,
    accounts: Collection[Key] | None = None,
    overdraft: bool = False,
) -> list[Anomaly]:
    """Judge a history of `Transfer` and `ReadBalances`.

    Every read must add up to `total`, hold no negative balance unless `overdraft` is allowed, and no account that is
    not one of `accounts`, if they are given. An account may be missing: at zero it may be deleted.
    """
    entries: list[tuple[Operation, BankAction]] = admit(history, Transfer, ReadBalances)
    report = Report()
    for operation, action in entries:
        if operation.outcome != "ok" or not isinstance(action, ReadBalances) or action.balances is None:
            continue
        found = sum(action.balances.values())
        if found != total:
            explanation = f"expected {total}, found {found} ({found - total:+}): {line(operation)}"
            report.add("wrong-total", explanation, [operation])
        for account, balance in action.balances.items():
            if accounts is not None and account not in accounts:
                report.add("unknown-account", f"{operation.name} read {account}={balance}", [operation], account)
            if balance < 0 and not overdraft:
                report.add("negative-balance", f"{operation.name} read {account}={balance}", [operation], account)
    return report.anomalies()
