"""Who is slower than the others is noticed by those who wait for it. Where all are slow alike nobody is too slow: story
`all-machines-are-equally-slow`.
"""

from __future__ import annotations

from tests.sim.planted.stage import Stage
from tests.sim.planted.stories_of_pace import until_somebody_is_set_aside


def test_one_that_is_slower_than_the_others_is_set_aside() -> None:
    """They have nothing to do but to wait for it."""
    with Stage(None) as stage:
        aside, _ = until_somebody_is_set_aside(stage, {"n1": 6, "n2": 6, "n3": 100}, seconds=12)
        assert aside == {"n3": 1}
