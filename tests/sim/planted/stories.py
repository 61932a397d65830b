"""Stories for the faults that seeds meet too rarely: each goes straight to the moment at which the fault bites.

A story is told to the cluster as it is, where nothing is found, and to one with a fault, where an oracle speaks, or the
story itself says which promise to a user was broken.
"""

from __future__ import annotations

from tests.sim.planted.stage import Story
from tests.sim.planted.stories_of_asynchronous import ASYNCHRONOUS
from tests.sim.planted.stories_of_chains import CHAINS
from tests.sim.planted.stories_of_circles import CIRCLES
from tests.sim.planted.stories_of_cuts import CUTS
from tests.sim.planted.stories_of_data import DATA
from tests.sim.planted.stories_of_deeds import DEEDS
from tests.sim.planted.stories_of_expiry import EXPIRY
from tests.sim.planted.stories_of_leaks import LEAKS
from tests.sim.planted.stories_of_links import LINKS
from tests.sim.planted.stories_of_locks import LOCKS
from tests.sim.planted.stories_of_maps import MAPS
from tests.sim.planted.stories_of_members import MEMBERS
from tests.sim.planted.stories_of_migrations import MIGRATIONS
from tests.sim.planted.stories_of_namespaces import NAMESPACES
from tests.sim.planted.stories_of_pace import PACE
from tests.sim.planted.stories_of_parting import PARTING
from tests.sim.planted.stories_of_queues import QUEUES
from tests.sim.planted.stories_of_ranges import RANGES
from tests.sim.planted.stories_of_room import ROOM
from tests.sim.planted.stories_of_rot import ROT
from tests.sim.planted.stories_of_staging import STAGING
from tests.sim.planted.stories_of_transactions import TRANSACTIONS
from tests.sim.planted.stories_of_transfers import TRANSFERS

STORIES: dict[str, Story] = MAPS.all | MEMBERS.all | TRANSACTIONS.all | DATA.all | TRANSFERS.all | DEEDS.all
STORIES |= ASYNCHRONOUS.all | STAGING.all | ROOM.all | LEAKS.all | LINKS.all | CHAINS.all | PARTING.all | PACE.all
STORIES |= (
    RANGES.all | CIRCLES.all | LOCKS.all | CUTS.all | EXPIRY.all | NAMESPACES.all | MIGRATIONS.all | ROT.all | QUEUES.all
)
