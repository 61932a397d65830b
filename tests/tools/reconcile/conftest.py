"""The directories of one cluster, built once for a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.turn.settings import Settings
from tests.support.directories import SEGMENT_BYTES, build
from tests.support.reconciled import PARTITIONS, story

SETTINGS = Settings(partitions=PARTITIONS, wal_segment_bytes=SEGMENT_BYTES)


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three nodes that were stopped at once: all is in their checkpoints."""
    return build(tmp_path_factory.mktemp("stopped"), story, settings=SETTINGS, stop=True)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of the directories of three nodes that run: all is in their logs."""
    return build(tmp_path_factory.mktemp("running"), story, settings=SETTINGS)
