"""What all tests share: draws that are the same in each run.

The gate must not depend on a draw: hypothesis derives its examples from the test itself (the profile `gate`).
`--hypothesis-profile random` draws others each time, to look for what the gate's do not find; what it finds is printed
as a line to paste (`@reproduce_failure`), and becomes an `@example` or a test of its own.
"""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and every process below would be deaf to what tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by `nohup`, and so it would be with nodes, which heed that
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("gate")

LONGEST = (
    "tests/spark/",
    "tests/sim/test_seeds.py",
    "tests/crash/",
    "tests/sim/test_wording.py",
    "tests/test_architecture.py",
    "tests/wal/test_log_exhaustive.py",
    "tests/sim/test_command.py",
    "tests/tools/bench/",
    "tests/tools/demo/",
    "tests/tools/reconcile/",
    "tests/sim/test_turns.py",
    "tests/sim/explore/",
    "tests/sim/test_determinism.py",
    "tests/contracts/",
)
"""What lasts for more than ten seconds at a time, the longest first."""


def rank(name: str) -> int:
    """How early a test begins."""
    return next((at for at, long in enumerate(LONGEST) if name.startswith(long)), len(LONGEST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers share the tests, what is long begins first: a worker that has none left takes over from the
    end of another one's, and what is long there would keep one busy while the others have nothing to do."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


COLLECTED_AFTER = 20_000
"""Objects. Machines refer to each other in circles that live as long as their node: to look for those that do not after
each 700 takes a fifteenth of the processor time of all tests."""


def pytest_collection_finish() -> None:
    """Seven thousand tests were collected, and stay: no walk for circles goes through them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
