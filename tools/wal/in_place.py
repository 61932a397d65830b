"""A copy of a log takes the log's place, and the log becomes a backup beside it.

```
 1  wal.<by>.tmp          the copy, whole and synced: nothing else was touched yet
 2  wal -> wal.before-<by>
 3  wal.<by>.tmp -> wal
```

Whoever is killed after the first step has left a copy that is made anew; after the second one, a copy that goes where it
was meant to, as soon as somebody looks. A node does not start there before (`engine.host.data_directory`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.outputs import sync_names
from tools.terminal import Unreadable

BY = ("cut", "repair")


def copy_of(log: Path, by: str) -> Path:
    """Where the copy is made. What one that was killed has left there goes: the log is here, so it is of no use."""
    for other in BY:
        shutil.rmtree(_copy(log, other), ignore_errors=True)
    return _copy(log, by)


def put_in_place(log: Path, by: str) -> Path:
    """The copy takes the log's place; where the log is now. Raises Unreadable."""
    backup, n = log.with_name(f"{log.name}.before-{by}"), 1
    while backup.exists():
        n += 1
        backup = log.with_name(f"{log.name}.before-{by}.{n}")
    try:
        os.rename(log, backup)
        os.rename(_copy(log, by), log)
        sync_names(log.parent)
    except OSError as error:
        raise Unreadable(f"{log} cannot be written: {error.strerror}; begin again, and it goes on") from error
    return backup


def go_on(path: Path) -> str:
    """Bring to its end what was cut short at a log that is not here; by which command. Empty: there is nothing of that."""
    log = path / "wal" if (path / "identity.json").exists() else path
    by = "" if log.exists() else next((by for by in BY if _copy(log, by).is_dir()), "")
    if by:
        try:
            os.rename(_copy(log, by), log)
            sync_names(log.parent)
        except OSError as error:
            raise Unreadable(f"{log} cannot be written: {error.strerror}; begin again, and it goes on") from error
    return by


def _copy(log: Path, by: str) -> Path:
    return log.with_name(f"{log.name}.{by}.tmp")
