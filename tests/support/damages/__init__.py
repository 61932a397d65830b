"""Sixty damages of real directories, each with what a reconciliation must find of it, and the exit code.

The tests of the local engine, of sketches, of shares and of Spark tell the same stories.
"""

from __future__ import annotations

from tests.support.damages.files import FILES
from tests.support.damages.histories import HISTORIES
from tests.support.damages.roles import ROLES
from tests.support.damages.rows import ROWS
from tests.support.damages.transactions import TRANSACTIONS
from tests.support.reconciled import Damage


def _one_of_each() -> dict[str, Damage]:
    """For each set of kinds, and each exit code, the first damage that leads to it."""
    found: dict[tuple[frozenset[str], int], str] = {}
    for name, damage in COMPARED.items():
        found.setdefault((frozenset(kind for kind, *_ in damage.found), damage.exit_code), name)
    return {name: DAMAGES[name] for name in found.values()}


HARMLESS = {"nothing": Damage(lambda _: None, [], 0)} | {
    name: one for table in (HISTORIES, ROLES, TRANSACTIONS, FILES) for name, one in table.items() if not one.exit_code
}
"""What is done, and damages nothing."""
DAMAGES = HARMLESS | ROWS | HISTORIES | ROLES | TRANSACTIONS | FILES
COMPARED = {name: damage for name, damage in DAMAGES.items() if damage.exit_code != 2}
"""Those that are no mistake of who names the directories."""
ONE_OF_EACH = _one_of_each()
