"""A copy catches up by history, and the log that it comes from is trimmed: at whatever moment, the copy becomes whole.

Where what it needs is gone it takes all rows, and where it has what it needs it does not.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.sim.network import MS
from tests.sim.planted.stage import NAMESPACE, SETTINGS, Stage, key
from tests.sim.world import SECOND
from wal.probe import listen

SMALL = msgspec.structs.replace(
    SETTINGS,
    wal_segment_bytes=4 << 10,
    supply_batch_bytes=1 << 10,
    supply_credit=1,
    prefer_history=True,
)
MISSED = 40


def give_way(stage: Stage, *names: str) -> None:
    """The logs of these nodes are trimmed to what their checkpoints do not hold, whoever pins it."""
    for name in names:
        stage[name].truncate_log()
    stage.wait(1)
    for name in names:
        log = stage[name].log
        assert log is not None
        first = log.segments()[0].first_lsn
        stage.must(first > 1, f"the log of {name} was trimmed: it begins at {first}")


def back(stage: Stage) -> None:
    """n3 comes back, and so far nothing has gone."""
    stage.start("n3")


def while_it_is_away(stage: Stage) -> None:
    """Nothing is reserved yet."""
    give_way(stage, "n1", "n2")
    back(stage)


def while_its_demand_is_on_its_way(stage: Stage) -> None:
    """Nobody knows yet what it needs."""
    held = stage.lose("demand", "n3")
    back(stage)
    stage.until(lambda: held.caught > 0, "n3 demands", look_every=MS)
    give_way(stage, "n1", "n2")
    stage.end(held)


def while_the_log_is_read_for_the_first_batch(stage: Stage) -> None:
    """It is reserved, and the reader is in the middle of it."""
    supplier = stage["n1"]
    supplier.speed.checkpoint = 20 * SECOND
    back(stage)
    stage.until(lambda: "history" in supplier.works_on, "n1 reads its log", look_every=MS)
    give_way(stage, "n1")
    supplier.speed.checkpoint = 2 * MS


def while_the_first_batch_is_on_its_way(stage: Stage) -> None:
    """A part was read, and has not arrived."""
    held = stage.lose("supply", "n1", "n3")
    back(stage)
    stage.until(lambda: held.caught > 0, "n1 supplies", look_every=MS)
    give_way(stage, "n1")
    stage.end(held)


def while_the_supplier_waits_to_be_asked_for_more(stage: Stage) -> None:
    """A part has arrived."""
    held = stage.lose("more", "n3", "n1")
    back(stage)
    stage.until(lambda: held.caught > 0, "n3 took a batch", look_every=MS)
    give_way(stage, "n1")
    stage.end(held)


def after_it_died_in_the_middle_of_it(stage: Stage) -> None:
    """A part has arrived, and it demands the rest in another life."""
    held = stage.lose("more", "n3", "n1")
    back(stage)
    stage.until(lambda: held.caught > 0, "n3 took a batch", look_every=MS)
    stage.power_cut("n3")
    give_way(stage, "n1", "n2")
    stage.end(held)
    stage.left_out("n3")
    back(stage)


def after_its_supplier_died_in_the_middle_of_it(stage: Stage) -> None:
    """A part has arrived, and another primary is asked for the rest, whose log is gone."""
    held = stage.lose("more", "n3", "n1")
    back(stage)
    stage.until(lambda: held.caught > 0, "n3 took a batch", look_every=MS)
    give_way(stage, "n2")
    stage.power_cut("n1")
    stage.end(held)
    stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
    stage.start("n1")


def while_it_says_that_it_has_all(stage: Stage) -> None:
    """All has arrived: what goes is not needed any more."""
    held = stage.lose("settled", "n3", "n1")
    back(stage)
    stage.until(lambda: held.caught > 0, "n3 says that it has all", look_every=MS)
    give_way(stage, "n1", "n2")
    stage.end(held)


Moment = Callable[[Stage], None]
FULL: list[Moment] = [
    while_it_is_away,
    while_its_demand_is_on_its_way,
    while_the_log_is_read_for_the_first_batch,
    while_the_first_batch_is_on_its_way,
    while_the_supplier_waits_to_be_asked_for_more,
    after_it_died_in_the_middle_of_it,
    after_its_supplier_died_in_the_middle_of_it,
]


@pytest.mark.parametrize("moment", [*FULL, while_it_says_that_it_has_all])
@pytest.mark.parametrize("archived", [False, True])
def test_a_reservation_gives_way(moment: Moment, archived: bool) -> None:
    made: list[str] = []
    deaf = listen(lambda name: made.append(name) if name == "wal.archive.made" else None)
    settings = msgspec.structs.replace(SMALL, wal_archive_bytes_per_s=(1 << 20) * archived)
    try:
        with Stage(None, settings=settings) as stage:
            for number in range(20):
                stage.put(key(0, number), b"x" * 300)
            stage.wait(500)
            stage.power_cut("n3")
            stage.left_out("n3")
            for number in range(MISSED):
                stage.put(key(0, number % 20), b"y" * 300 + b"%d" % number)
            for name in ("n1", "n2"):
                stage[name].rotate_log()
                stage.world.command(stage[name], "checkpoint")
            stage.wait(1_000)
            moment(stage)
            stage.curtain()
            node = stage["n3"].node
            assert node is not None
            way = node.demander.progress.kinds[NAMESPACE, 0]
            assert way == ("full" if moment in FULL else "historical")
    finally:
        deaf()
    assert bool(made) == archived
