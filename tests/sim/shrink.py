"""Which faults a failing seed needs: they are left out one after the other as long as it fails of the same."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sim.faults import RATES
from tests.sim.knobs import AS_DRAWN, Knobs
from tests.sim.run import run_seed
from tests.sim.world import Plant


def shrink(
    seed: int, rates: Mapping[str, float] | None = None, *, plant: Plant | None = None, knobs: Knobs = AS_DRAWN
) -> dict[str, float]:
    """The smallest set of faults, as rates, with which the seed fails by the oracle that it fails by with all of them.

    Raises ValueError if it does not fail at all.
    """
    first = run_seed(seed, rates=rates, plant=plant, knobs=knobs, digest=False)
    if first.violation is None:
        raise ValueError(f"seed {seed} finds nothing: there is nothing to shrink")
    oracle = first.violation.oracle
    needed = {kind: (rates or RATES)[kind] for kind in first.drawn}
    for kind in list(needed):
        fewer = {k: rate for k, rate in needed.items() if k != kind}
        again = run_seed(seed, rates=fewer, plant=plant, knobs=knobs, digest=False)
        if again.violation is not None and again.violation.oracle == oracle:
            needed = fewer
    return needed
