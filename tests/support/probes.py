"""The names of all rare paths, as the sources declare them: so that one that no test reaches is seen to be missing."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from wal.probe import listen

PACKAGES = ("wal", "rebalance", "engine")
ROOT = Path(__file__).parents[2]


@cache
def declared() -> tuple[str, ...]:
    """Every name that is given to `probe`, sorted."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "probe" and node.args:
                    name = node.args[0]
                    if isinstance(name, ast.Constant) and isinstance(name.value, str):
                        found.add(name.value)
    return tuple(sorted(found))


def listen_here(listener: Callable[[str], None]) -> Callable[[], None]:
    """`listen` to this thread alone: a node that another test left in a thread of its own is no part of what is told."""
    here = threading.get_ident()
    return listen(lambda name: listener(name) if threading.get_ident() == here else None)


@contextmanager
def heard() -> Iterator[list[str]]:
    """The rare paths that are reached in here, as they are."""
    reached: list[str] = []
    deaf = listen(reached.append)
    try:
        yield reached
    finally:
        deaf()
