"""The cyclic collector rests while a task reads: millions of rows and no circle among them.

It would look at all that a task holds again and again; that is a quarter of what a comparison costs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncollected(task: Callable[P, R]) -> Callable[P, R]:
    """The task, during which nothing is collected but by its count of references."""

    @wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not gc.isenabled():
            return task(*args, **kwargs)
        gc.disable()
        try:
            return task(*args, **kwargs)
        finally:
            gc.enable()

    return run
