"""What the store's tests do in a process of its own, because it is killed, or may be brought down by damage.

`python -m tests.engine.state.store_child checkpoints PATH` writes one image after the other and prints each LSN when it is
durable; `hold PATH` reads until it is killed; `flips PATH FIRST END` flips one bit at a time and prints what came of it.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path
from typing import TypeAlias

from engine.state.loaded import Loaded
from engine.state.store import CheckpointImage, Entry
from engine.state.store_errors import StoreDamaged, StoreError
from engine.state.store_file import structure_problems
from engine.state.store_lmdb import LmdbStore
from wal.ids import Fragment

Rows: TypeAlias = dict[Fragment, dict[bytes, Entry]]

FRAGMENTS: list[Fragment] = [("acc", 0), ("acc", 1), ("bank", 0)]
KEYS = 100
MAP_BYTES = 1 << 16  # so that it grows under way


def contents(lsn: int) -> Rows:
    """All rows after checkpoint `lsn`; nearly each of them differs from the checkpoint before."""
    if lsn == 0:
        return {fragment: {} for fragment in FRAGMENTS}
    return {
        fragment: {
            b"key%04d" % n: Entry(lsn, n + 1, None if n % 7 == at else b"%d.%d." % (lsn, n) * (1 + (n * lsn) % 60))
            for n in range(KEYS)
            if (n + lsn) % 5 != at
        }
        for at, fragment in enumerate(FRAGMENTS)
    }


def states(lsn: int) -> Loaded:
    """What `load` returns after checkpoint `lsn`."""
    if lsn == 0:
        return Loaded(0, {}, {}, {})
    stamp = b"%d" % lsn
    return Loaded(lsn, {"node": stamp}, dict.fromkeys(FRAGMENTS, stamp), dict.fromkeys(range(8), stamp))


def story(lsn: int) -> CheckpointImage:
    """The checkpoint that leads from `contents(lsn - 1)` to `contents(lsn)`; some fragments are cleared first."""
    cleared = [fragment for at, fragment in enumerate(FRAGMENTS) if lsn % 4 == at]
    rows: dict[Fragment, dict[bytes, Entry | None]] = {}
    for fragment, after in contents(lsn).items():
        gone = contents(lsn - 1)[fragment].keys() - after.keys() if fragment not in cleared else set()
        rows[fragment] = {**after, **dict.fromkeys(gone)}
    loaded = states(lsn)
    return CheckpointImage(lsn, loaded.node, {**loaded.fragments}, loaded.partitions, cleared, rows)


def held(store: LmdbStore) -> Rows:
    """All rows of the story's fragments, as scans see them."""
    return {fragment: dict(store.scan(fragment, b"", KEYS + 1)) for fragment in FRAGMENTS}


def checkpoints(path: Path) -> None:
    """Write one image after the other, from where the store stands, until somebody ends it."""
    store = LmdbStore(path, map_bytes=MAP_BYTES)
    lsn = store.load().lsn
    while True:
        lsn += 1
        store.write(story(lsn))
        store.renew()
        print(lsn, flush=True)


def hold(path: Path) -> None:
    """Keep the last checkpoint from being overwritten, until somebody ends it."""
    store = LmdbStore(path, read_only=True)
    print(store.load().lsn, flush=True)
    time.sleep(600)


def flips(path: Path, first: int, end: int) -> None:
    """Flip bit `first`, `first + 1`, ... of a random order in a copy of `path`, and read everything each time."""
    lsn = LmdbStore(path, read_only=True).load().lsn
    whole = (path / "data.mdb").read_bytes()
    copy = path.with_name("flipped")
    for number in range(first, end):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        bit = random.Random(number).randrange(len(whole) * 8)
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (copy / "data.mdb").write_bytes(data)
        print(number, *sorted(read_everything(copy, lsn)), flush=True)


def read_everything(path: Path, lsn: int) -> set[str]:
    """What reading a damaged store of checkpoint `lsn` by every way there is came to: words, none if all was right."""
    wanted = contents(lsn)
    seen: set[str] = set()
    try:
        store = LmdbStore(path, read_only=True)
    except StoreError:
        return {"refused"}
    try:
        if store.load() != states(lsn):
            seen.add("wrong-state")
    except StoreDamaged:
        seen.add("told")
    for fragment, rows in wanted.items():
        for key, entry in rows.items():
            try:
                found = store.get(fragment, key)
                if found != entry:
                    seen.add("hidden" if found is None else "wrong-get")
            except StoreDamaged:
                seen.add("told")
        try:
            scanned = store.scan(fragment, b"", KEYS + 1)
            if scanned != sorted(rows.items()):
                seen.add("hidden" if set(scanned) < rows.items() else "wrong-scan")
        except StoreDamaged:
            seen.add("told")
    damages: list[StoreDamaged] = []
    for fragment, key, entry in store.rows(on_damage=damages.append):
        if wanted.get(fragment, {}).get(key) != entry:
            seen.add("wrong-row")
    store.close()
    if damages:
        seen.add("told-by-rows")
    if structure_problems(path):
        seen.add("told-by-structure")
    return seen


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["checkpoints", path]:
            checkpoints(Path(path))
        case ["hold", path]:
            hold(Path(path))
        case ["flips", path, first, end]:
            flips(Path(path), int(first), int(end))
        case _:
            sys.exit(__doc__)
