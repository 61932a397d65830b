"""What a copy lacks, as a supplier asks its log for it: said by what decides, answered by `wal.history`."""

from __future__ import annotations

import msgspec

from wal.counters import PartitionCounter
from wal.ids import Fragment


class Want(msgspec.Struct):
    """The counters up to `up_to` that a copy of `fragment` lacks: those that `have`, its counter, does not cover.

    `epochs` is the supplier's table of (epoch, first counter), ascending. A cursor changes `have`: give it a copy.
    """

    fragment: Fragment
    have: PartitionCounter
    up_to: int
    epochs: list[tuple[int, int]]
