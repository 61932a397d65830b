"""What stands among a log's files and is none of them: a node passes over it, and so does whoever reads the log."""

from __future__ import annotations

import re

from tools.wal.places import Place
from wal.beside import NOTES
from wal.cut import is_loss_name
from wal.kept import KEPT
from wal.segment import PREPARED, segment_lsn

SHOWN = 10
"""So many are named."""
ASIDE = re.compile(r".*\.(?:torn|lost)(?:\.\d+)?")
"""What a node, or an operator, has set aside."""


def strangers_text(place: Place) -> str:
    """What was not read of a log's directory because it is nothing that a log has, for a person; empty if there is none."""
    if place.log is None or not place.log.is_dir():
        return ""
    names = sorted(repr(entry.name) for entry in place.log.iterdir() if not _is_ours(entry.name))
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (
        f"not read, because no log has anything of this name: {', '.join(names[:SHOWN])}{more}; a segment is called "
        "like 00000000000000000001.wal"
    )


def _is_ours(name: str) -> bool:
    name = name.removesuffix(".tmp")
    known = name in {PREPARED, KEPT} or segment_lsn(name) is not None or is_loss_name(name)
    return known or segment_lsn(name.removesuffix(NOTES) + ".wal") is not None or ASIDE.fullmatch(name) is not None
