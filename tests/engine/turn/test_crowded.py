"""A transfer waits for a checkpoint before it fills memory, but not so often that checkpoints are all that is done."""

from __future__ import annotations

import pytest

from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import CROWDED_AT, Core
from engine.turn.settings import Settings
from wal import records as r

NAME = ("acc", 0)
BYTES = 64 << 10
UPDATES = 4_000


def a_core() -> Core:
    """A node that writes a checkpoint for so many bytes."""
    settings = Settings(checkpoint_bytes=BYTES)
    replica = Replica(LayeredStore(MemoryStore()))
    return Core(settings, replica, node="n1", allocation="d1", incarnation=1, address="a", durable_lsn=0)


def write(core: Core, first: int, count: int) -> int:
    """Updates of one key each after a counter; what is not beyond a gap is settled. Where they end."""
    for at in range(first, first + count):
        stable = at if at == core.replica.fragment(NAME).counter.lwm else 0
        core.replica.apply(r.Update([r.Write(*NAME, 1, at, [b"key-%d" % at], [bytes(100)], stable)]))
    return first + count


def checkpoint(core: Core) -> None:
    """One is written."""
    core.replica.freeze(0, [])
    assert sum(core.replica.changes.pieces())
    for _ in core.replica.store.thaw():
        pass


def bytes_until_crowded(core: Core, first: int) -> int:
    """How many come before it is too much."""
    assert not core.crowded()
    while not core.crowded():
        first = write(core, first, 1)
    return core.replica.store.active_bytes


@pytest.mark.parametrize(("first", "more"), [(0, False), (1, True)], ids=["whole", "beyond a gap"])
def test_what_fills_a_copy_waits_in_proportion_to_what_each_checkpoint_encodes_anew(first: int, *, more: bool) -> None:
    core = a_core()
    write(core, first, UPDATES)
    checkpoint(core)
    encoded = core.replica.changes.states_bytes
    assert (encoded > 2 * BYTES) is more, "what lies beyond a gap is in the state, with its values"
    found = bytes_until_crowded(core, first + UPDATES)
    assert found == pytest.approx(max(BYTES, encoded) / CROWDED_AT, rel=0.05)
