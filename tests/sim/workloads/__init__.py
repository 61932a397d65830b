"""What clients do while a world goes wrong, and how their histories are judged.

Each workload is chosen for what it would notice; see there. All run at once, over the same few nodes, and on few keys,
so that they meet.
"""

from __future__ import annotations

from tests.sim.workloads.at_once import at_once_of
from tests.sim.workloads.bulk import Bulk
from tests.sim.workloads.claiming import empty, queue_of
from tests.sim.workloads.cuts import cuts_of
from tests.sim.workloads.ending import ending_of
from tests.sim.workloads.fleeting import fleeting_of
from tests.sim.workloads.late import late_of
from tests.sim.workloads.load import Load, either, give_copies, set_up
from tests.sim.workloads.one_key import SHARE as ONE_KEY_SHARE
from tests.sim.workloads.one_key import Many, one_key_of
from tests.sim.workloads.retry import retry_of
from tests.sim.workloads.rows import rows_of
from tests.sim.workloads.running import running_of
from tests.sim.workloads.single import batches_of, registers_of, set_of
from tests.sim.workloads.strays import strays_of
from tests.sim.workloads.transactions import bank_of, lists_of, ring_of, rooms_of
from tests.sim.workloads.verdict import judge, read_everything

WORKLOADS = {
    "bank": bank_of,
    "lists": either(lists_of, running_of),
    "ring": ring_of,
    "registers": registers_of,
    "set": set_of,
    "batches": batches_of,
    "retry": retry_of,
    "rows": rows_of,
    "strays": strays_of,
    "rooms": rooms_of,
    "cuts": cuts_of,
    "fleeting": fleeting_of,
    "at-once": at_once_of,
    "ending": ending_of,
    "late": late_of,
    "queue": queue_of,
}

__all__ = [
    "ONE_KEY_SHARE",
    "WORKLOADS",
    "Bulk",
    "Load",
    "Many",
    "empty",
    "give_copies",
    "judge",
    "one_key_of",
    "read_everything",
    "set_up",
]
