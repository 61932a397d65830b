"""All deliberate faults, in the order of the table."""

from __future__ import annotations

from tests.sim.planted.asynchronous import ASYNCHRONOUS
from tests.sim.planted.chains import CHAINS
from tests.sim.planted.clients import CLIENTS
from tests.sim.planted.copies import COPIES
from tests.sim.planted.cuts import CUTS
from tests.sim.planted.deeds import DEEDS
from tests.sim.planted.elections import ELECTIONS
from tests.sim.planted.expiry import EXPIRY
from tests.sim.planted.fault import Fault
from tests.sim.planted.leaks import LEAKS
from tests.sim.planted.locks import LOCKS
from tests.sim.planted.membership import MEMBERSHIP
from tests.sim.planted.migrations import MIGRATIONS
from tests.sim.planted.namespaces import NAMESPACES
from tests.sim.planted.parting import PARTING
from tests.sim.planted.queues import QUEUES
from tests.sim.planted.rot import ROT
from tests.sim.planted.staging import STAGING
from tests.sim.planted.transactions import TRANSACTIONS
from tests.sim.planted.transfers import TRANSFERS
from tests.sim.planted.words import WORDS

_MEMBERS = (WORDS, ELECTIONS, MEMBERSHIP, PARTING)
_DATA = (CLIENTS, TRANSACTIONS, STAGING, LOCKS, CHAINS, QUEUES, CUTS, EXPIRY, NAMESPACES, MIGRATIONS)
_COPIES = (COPIES, TRANSFERS, ASYNCHRONOUS, ROT, DEEDS, LEAKS)
FAULTS: dict[str, Fault] = {fault.name: fault for faults in (*_MEMBERS, *_DATA, *_COPIES) for fault in faults.all}
