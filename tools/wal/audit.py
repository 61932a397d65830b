"""The store against the log: for each row whose counter the log still covers, is it what the log says?

Whole logs are read again, once for every so many bytes of them, so that what is remembered of keys stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from engine.offline.directory import State
from tools.terminal import word
from tools.wal.logic import INTERNAL
from tools.wal.rows import LogRows, Rows, audited
from wal import Block
from wal.ids import Fragment, fragment_name, partition_of

BYTES_AT_ONCE = 256 << 20
SHOWN = 20


def audit(blocks: Iterable[Block], state: State, *, log_bytes: int) -> Iterator[str]:
    """The rows that are not what the log says, or not where their keys hash to; of many the first, and how many.

    `blocks` are the log up to what the state was folded from, and are read again for each pass.
    """
    found = 0
    passes = 1 + log_bytes // BYTES_AT_ONCE
    for at in range(passes):
        for what in _audit(blocks, state, at, passes):
            found += 1
            if found <= SHOWN:
                yield what
    if found > SHOWN:
        yield f"and {found - SHOWN} more rows"


def _audit(blocks: Iterable[Block], state: State, at: int, passes: int) -> Iterator[str]:
    log = LogRows(lambda fragment: fragment[1] % passes == at)
    for block in blocks:
        log.take(block.records)
    for name, view in sorted(state.fragments.items()):
        if name[1] % passes == at and not view.loading:
            damaged: set[bytes | None] = set()
            rows = list(state.rows(name, lambda key, _what, damaged=damaged: damaged.add(key)))  # type: ignore[misc]
            yield from (f"{fragment_name(name)} key {word(key)}: {why}" for key, why in _misplaced(state, name, rows))
            if None in damaged:
                continue  # told already, and what is missing may be in the part that cannot be read
            for key, why in audited(rows, log.fragments.get(name) or Rows(), view.history_from):
                if key not in damaged:
                    yield f"{fragment_name(name)} key {word(key)}: {why}"


def _misplaced(state: State, name: Fragment, rows: Sequence[tuple[bytes, object]]) -> Iterator[tuple[bytes, str]]:
    if state.topology is None or name[0].startswith(INTERNAL):
        return
    for key, _ in rows:
        right = partition_of(key, state.topology.partitions)
        if (
            right != name[1] % state.topology.partitions
        ):  # of whichever group: what was dropped leaves tombstones in its own
            yield key, f"it hashes to partition {right}"
