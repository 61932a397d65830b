"""How long turns take is known: counted by the driver, shown to the operator."""

from __future__ import annotations

from engine.messages import AskMap
from engine.protocol.requests import Get
from engine.turn.events import Asked, CheckpointWritten, Received
from engine.turn.turns import TURN_MS_MAX, Maps, Turns
from wal.ids import Version

MS = 1_000_000
GET = Asked(1, Get(1, "n", [b"k"], False))


def test_a_turn_above_the_bound_is_counted_and_the_longest_says_what_it_took() -> None:
    turns = Turns()
    turns.note(3 * MS, [])
    assert (turns.taken, turns.above, turns.longest_took) == (1, 0, "nothing new")
    turns.note((TURN_MS_MAX + 1) * MS, [GET, CheckpointWritten(7), GET, Received("n2", "d2", 1, AskMap(Version(1, 0)))])
    turns.note(TURN_MS_MAX * MS, [GET])
    assert (turns.taken, turns.above) == (3, 1)
    assert turns.longest == (TURN_MS_MAX + 1) * MS
    assert turns.longest_took == "2 get, 1 CheckpointWritten, 1 ask-map"


def test_the_time_for_which_a_node_stopped_is_told_by_map() -> None:
    maps = Maps()
    maps.note(None, light=True)
    maps.stopped_at = 5 * MS
    maps.note(12 * MS, light=False)
    maps.stopped_at = 20 * MS
    maps.note(22 * MS, light=False)
    assert (maps.full, maps.light, maps.stopped, maps.longest) == (2, 1, 9 * MS, 7 * MS)
