"""What a run of the demo found: the values behind its table and its `--json`."""

from __future__ import annotations

import msgspec

from tools.demo.evidence import Check


class Loaded(msgspec.Struct):
    """The load. `keys_per_second` is that of the first third, before anything was killed."""

    transactions: int = 0
    keys: int = 0
    seconds: float = 0.0
    keys_per_second: int = 0
    tries: int = 0
    sent_again: int = 0
    rss_bytes: dict[str, int] = {}


class Killed(msgspec.Struct):
    """The kill -9. `blocked_seconds`: the longest put into its partitions; `silence`: the longest pause of the load."""

    node: str
    coordinator: bool
    primary_of: int
    blocked_seconds: float
    silence_seconds: float
    at: float


class Returned(msgspec.Struct):
    """How the node came back: fragments by way, what was moved, and what its own log says of it."""

    node: str
    away_seconds: float
    seconds: float
    fragments: dict[str, int]
    updates: dict[str, int]
    rows: dict[str, int]
    transactions_meanwhile: int
    before: int = 0
    undone: int = 0
    supplied: int = 0
    live: int = 0


class Replaced(msgspec.Struct):
    """How the new node was filled."""

    gone: str
    node: str
    seconds: float
    fragments: dict[str, int]
    updates: dict[str, int]
    rows: dict[str, int]
    writes: int = 0  # single ones, that were acknowledged meanwhile
    blocked_seconds: float = 0.0  # the longest that one of them took
    lagged_most: int = 0  # partitions that lacked an in-sync copy at one time


class Reconciled(msgspec.Struct):
    """What the files said."""

    engine: str
    keys: int
    differences: int
    damaged_key: str
    found: list[tuple[str | None, list[str]]]


class Summary(msgspec.Struct):
    """The whole demo. `verdict` is `ok` only if it came to its end and every check held."""

    verdict: str = "interrupted"
    seconds_total: float = 0.0
    seconds: dict[str, float] = {}
    load: Loaded = msgspec.field(default_factory=Loaded)
    kill: Killed | None = None
    back: Returned | None = None
    replacement: Replaced | None = None
    reconciliation: Reconciled | None = None
    checks: list[Check] = []

    @property
    def failed(self) -> list[Check]:
        """The checks that did not hold."""
        return [check for check in self.checks if not check.held]
