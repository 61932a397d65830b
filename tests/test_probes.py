"""Rare paths are told by whoever reached them: what runs beside a story, in another thread, is not part of it."""

from __future__ import annotations

import threading

from tests.support.patience import PATIENCE_SECONDS
from tests.support.probes import heard, listen_here
from wal.probe import probe


def test_what_another_thread_reaches_is_not_part_of_what_is_told_here() -> None:
    told: list[str] = []
    deaf = listen_here(told.append)
    try:
        with heard() as everything:
            beside = threading.Thread(target=lambda: probe("there"))
            beside.start()
            beside.join(PATIENCE_SECONDS)
            probe("here")
    finally:
        deaf()
    probe("later")
    assert told == ["here"]
    assert everything == ["there", "here"]
