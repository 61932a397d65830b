"""What a store held when it was opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wal.ids import Fragment


class Loaded(NamedTuple):
    """All of it."""

    lsn: int
    node: dict[str, bytes]
    fragments: dict[Fragment, bytes]
    partitions: dict[int, bytes]


class Loading(NamedTuple):
    """The same, where there may be very many: each state is held by whoever takes it, and by nobody else."""

    lsn: int
    node: dict[str, bytes]
    fragments: Iterable[tuple[Fragment, bytes]]
    partitions: Iterable[tuple[int, bytes]]

    def all(self) -> Loaded:
        """All at once."""
        return Loaded(self.lsn, self.node, dict(self.fragments), dict(self.partitions))
