"""All small worlds, in the order of the table (docs/explore.md)."""

from __future__ import annotations

from tests.sim.explore import cuts, worlds
from tests.sim.explore.search import SmallWorld

_ALL = (
    worlds.SECOND_BALLOT,
    worlds.LIGHT_STEP,
    worlds.STEP_AND_POWER,
    worlds.JOIN,
    worlds.LEAVE,
    worlds.BASELINE,
    worlds.HANDOVER,
    worlds.WRONG_PRIMARY,
    worlds.TWO_COORDINATORS,
    worlds.LOST_DISK,
    worlds.COMMIT,
    worlds.ASKED_AGAIN,
    worlds.IN_LINE,
    worlds.CATCHING_UP,
    worlds.REPEAT,
    worlds.COUNTING,
    worlds.ASYNCHRONOUS,
    cuts.CUT_AND_PUTS,
    cuts.CUT_AND_LATE,
    cuts.CUT_AND_COMMIT,
    cuts.CUT_AND_READER,
    cuts.CUT_AFTER_COMMIT,
)
WORLDS: dict[str, SmallWorld] = {world.name: world for world in _ALL}
