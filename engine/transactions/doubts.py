"""What is prepared and has no outcome yet, and who holds the keys of it meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from wal.ids import TxId


class Doubt(NamedTuple):
    """A part of a transaction that is prepared here, or about to be, and whose outcome is open.

    `holder` has its keys: the owner of the transaction's locks, as whoever asked for the vote named it; of what a new
    primary found prepared the transaction itself, where nobody had named another. It stays so to the end of the part, also
    where another part is asked for later and its owner is named.
    """

    since: int  # ns, as far as this node knows
    asked: int  # ns; its outcome
    turn: int | None  # in which the copies were told of it, if it was by this node
    holder: TxId
