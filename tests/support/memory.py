"""How much memory a task takes at most, told by a process that does nothing else.

Whoever counts in the process of the tests counts what its other threads do as well: a node that another test still uses
writes a checkpoint of large values whenever it likes.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def held_while(task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R, int]:
    """What a function of a module returns, and how many bytes were held at once while it ran, at most."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_traced, partial(task, *args, **kwargs)).result()


def _traced(task: Callable[[], R]) -> tuple[R, int]:
    tracemalloc.start()
    try:
        return task(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
