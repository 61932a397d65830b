"""States as they are stored: what a checkpoint hands to a store, and what that held when it was opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from wal.ids import Fragment

Encoded: TypeAlias = bytes | list[bytes]
"""A state, in pieces that follow each other if it is large: it was made so, and nobody joins it whom others wait for."""


def in_pieces(state: Encoded) -> list[bytes]:
    """Its pieces, in their order."""
    return [state] if isinstance(state, bytes) else state


def whole(state: Encoded) -> bytes:
    """All of it."""
    return state if isinstance(state, bytes) else b"".join(state)


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
