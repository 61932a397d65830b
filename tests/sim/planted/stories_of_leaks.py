"""Stories of what is long over, for the oracle that counts what nodes keep."""

from __future__ import annotations

from tests.sim.oracles.entitled import SPARE
from tests.sim.planted.stage import NAMESPACE, Stage, Stories, key
from tests.sim.world import Plant

LEAKS = Stories()
story = LEAKS.story


@story
def many_transactions_are_over(plant: Plant | None) -> None:
    """More transactions of two partitions than a table may have things that nobody asked for; all come to an end."""
    with Stage(plant) as stage:
        for number in range(3 * SPARE):
            tx = stage.transaction()
            stage.do(tx.put(NAMESPACE, {key(0, number % 4): b"%d" % number, key(2, number % 3): b"%d" % number}))
            stage.do(tx.commit())
        stage.curtain()
