"""What a demander keeps: one session with a supplier, and what its node's catching up has moved."""

from __future__ import annotations

import msgspec

from rebalance.messages import Supply, Transfer
from wal.ids import Fragment, NodeId, TxId


class Progress(msgspec.Struct):
    """What one node's rebalancing has moved; for status, the demo and the scenarios."""

    kinds: dict[Fragment, str] = {}
    reasons: dict[Fragment, str] = {}
    expected: dict[Fragment, int] = {}
    updates: dict[str, int] = {}
    rows: dict[str, int] = {}


class Session:
    """One demand and what was supplied for it."""

    def __init__(self, number: int, supplier: NodeId, parts: list[list[int]], now: int) -> None:
        self.number = number
        self.supplier = supplier
        self.parts = parts
        self.said = 0  # how many of the parts
        self.partitions = {n: None for part in parts for n in part}
        self.awaited: dict[int, None] = {}  # demanded, and nothing of them was supplied yet
        self.transfers: dict[Fragment, Transfer] = {}
        self.in_full = False  # something is taken in full
        self.later: dict[int, None] = {}  # partitions that the supplier will serve in another session
        self.doubts: dict[int, list[TxId]] = {}  # prepared here without a write, when the demand was made
        self.batch = 0  # the last batch that was taken
        self.ahead: dict[int, Supply] = {}  # batches that came and were not taken yet
        self.taking = False
        self.ending: list[int] | None = None  # everything was supplied: partitions still to be looked at
        self.heard_at = now
        self.asked_at = now
