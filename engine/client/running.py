"""What it takes to run a function in a transaction, again if need be: the options, the checks, the pauses."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Literal, TypedDict, TypeVar

from engine import errors
from engine.client.modes import Concurrency, Isolation
from engine.client.timing import REAL
from rebalance.table import Topology
from wal.ids import Namespace, NodeId

T = TypeVar("T")

Mode = Concurrency | Literal["PESSIMISTIC", "OPTIMISTIC"]
Level = Isolation | Literal["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"]


class TransactionOptions(TypedDict, total=False):
    """What `transaction` takes, and `run` for each transaction that it begins."""

    concurrency: Mode
    isolation: Level | None
    timeout: float
    label: str
    lock_timeout: float


CLAIMS_MAX = 64
"""So many keys at most are locked first where a transaction gave way that wanted to write them."""
RETRY_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Between two attempts, about."""


async def pause(attempt: int, chance: random.Random = REAL.chance) -> None:
    """The pause after a failed attempt: longer after later ones, and never the same for two that met."""
    seconds = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS)) - 1]
    await asyncio.sleep(seconds * chance.uniform(0.5, 1.5))


def in_order(
    wanted: Iterable[tuple[Namespace, bytes]], topology: Topology | None
) -> Iterator[tuple[Namespace, list[bytes]]]:
    """Keys in the order in which all lock them who know theirs beforehand, in as few steps as that takes: node by node, and
    those of one node at once, which stand in all of its lines from the same moment on."""
    if topology is None:
        return
    placements = topology.placements
    by_node: dict[tuple[NodeId, Namespace], list[bytes]] = {}
    for namespace, key in sorted(wanted):
        node = placements[topology.place(namespace, key)].primary or ""
        by_node.setdefault((node, namespace), []).append(key)
    for node, namespace in sorted(by_node):
        yield namespace, by_node[node, namespace]


def check_function(function: object) -> None:
    """Raise UsageError for what is no function of a transaction."""
    if not callable(function):
        raise errors.UsageError(f"expected a function of a transaction, found {type(function).__name__}")


def check_update(function: object) -> None:
    """Raise UsageError for what is no function of a value."""
    if not callable(function):
        raise errors.UsageError(f"expected a function of a value, found {type(function).__name__}")


def check_run(function: object, attempts: int, options: Iterable[str] = ()) -> None:
    """Raise UsageError for what cannot be run, and TypeError for `options` of a transaction that there are not."""
    check_function(function)
    check_attempts(attempts)
    for name in options:
        if name not in TransactionOptions.__optional_keys__:
            known = ", ".join(("attempts", *sorted(TransactionOptions.__optional_keys__)))
            raise TypeError(f"run() got an unexpected keyword argument {name!r}: expected {known}")


def check_attempts(attempts: int) -> None:
    """Raise UsageError for what is no number of attempts."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise errors.UsageError(f"attempts is {attempts!r}: expected a whole number, at least 1")


def _name_of(function: Callable[..., object]) -> str:
    """A function as a message names it."""
    return str(getattr(function, "__qualname__", repr(function)))


def to_await(function: Callable[..., object], began: Awaitable[T]) -> Awaitable[T]:
    """What an `async def` gave when it was called; refused if it is none."""
    if not inspect.isawaitable(began):
        raise errors.UsageError(
            f"{_name_of(function)} gave a {type(began).__name__}: expected an `async def` that returns what "
            "it found; a plain function belongs to the blocking form, and rows are returned as a list"
        )
    return began


def at_once(function: Callable[..., object], result: T) -> T:
    """What a plain function returned; refused if it has yet to be run, when its transaction would be over."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if not inspect.isasyncgen(result) and hasattr(result, "close"):
            result.close()
        raise errors.UsageError(
            f"{_name_of(function)} gave a {type(result).__name__}, which would run after its transaction: expected a "
            "plain function that returns what it found (rows as a list); for `async def` use engine.aio"
        )
    return result


def joined(first: Any, transaction: type, database: type) -> Any:
    """The transaction that a `transactional` function is to join."""
    if not isinstance(first, transaction):
        raise errors.UsageError(
            f"expected a {database.__name__} or a {transaction.__name__} of {database.__module__}, "
            f"found {type(first).__name__}"
        )
    return first
