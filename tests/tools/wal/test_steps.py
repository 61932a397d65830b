"""Readers of a log that tells maps as what steps change of them."""

from __future__ import annotations

import msgspec

from rebalance.table import Placement, encode
from tests.engine.state.test_maps import committed, moving, steps_from
from tools.reconcile.logs import Reading as Log
from tools.wal.copy_at_rest import AtRest
from tools.wal.story import Story
from wal import Block
from wal import records as r


def test_a_story_follows_the_steps_of_a_log_from_the_map_that_it_met() -> None:
    first = moving(4)
    (one, after_one), (two, after_two), *_ = steps_from(first)
    story = Story(("acc", 0), b"k", keep=False)
    log: list[r.Record] = [r.Committed(first.version, encode(first)), committed(one, after_one), committed(two, after_two)]
    reading = story.reading("n1", AtRest())
    reading.take(Block(1, 0, log, "", 0, 0))
    assert reading.topology == after_two
    behind = story.reading("n2", AtRest())
    behind.take(Block(3, 0, log[2:], "", 0, 0))
    assert behind.topology is None, "of a map that it cannot know it says nothing"
    ahead = story.reading("n3", AtRest(topology=after_two))
    ahead.take(Block(1, 0, log[:2], "", 0, 0))
    assert ahead.topology == after_two, "the checkpoint has a newer one"


def test_no_step_loses_a_partition_so_what_was_lost_is_lost_yet() -> None:
    first = moving(4)
    (one, after_one), *_ = steps_from(first)
    gone = Placement(1, 1, ("n3",), ("n3",), lost=True)
    lost = encode(msgspec.structs.replace(first, placements=(gone, *first.placements[1:])))
    before = Log(topologies=[(1, "1.0", lost)])
    behind = Log(topologies=[(2, str(after_one.version), committed(one, after_one).topology)])
    assert before.then(behind).told().lost_since == {0: "1.0"}
