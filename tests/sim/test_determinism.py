"""The same seed gives the same world, byte for byte, in every process and under every hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["51"], ["20", "--storm", "4"]], ids=["power cuts and damage", "a thousand partitions on LMDB"]
)
def test_two_processes_with_different_hash_seeds_print_the_same_trace(words: list[str]) -> None:
    first, second = (_trace(words, hash_seed) for hash_seed in ("1", "4242"))
    assert len(first) > 100_000, first[-2_000:]
    if first != second:
        pairs = zip(first.splitlines(), second.splitlines(), strict=False)
        number, (here, there) = next((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1])
        pytest.fail(f"line {number} differs:\n{here[:500]!r}\n{there[:500]!r}")


def _trace(words: list[str], hash_seed: str) -> bytes:
    told = subprocess.run(
        [sys.executable, "-m", "tests.sim", "run", "-v", "--seed", *words],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_SECONDS,
    )
    assert not told.stderr, told.stderr[-2_000:]
    return told.stdout
