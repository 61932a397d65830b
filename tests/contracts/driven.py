"""An asynchronous database driven by blocking calls, so that one test can tell of both forms of the API.

`Driven` knows nothing of the API: it makes each call on the loop, waits for what comes of it, and lists what is iterated
over. What it wraps is whatever `engine.aio` returned.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from engine import aio
from engine.client.loop import Loop

_WRAPPED = (aio.Database, aio.Namespace, aio.Transaction, aio.TransactionNamespace, aio.Snapshot, aio.SnapshotNamespace)


class Driven:
    """`native`, with its methods made blocking."""

    def __init__(self, native: Any, loop: Loop) -> None:
        self._native = native
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(type(self._native), name, None), property):  # what it tells may be found out there and then
            return self._wrap(self._loop.run(_done(getattr, [self._native, name], {})))
        member = getattr(self._native, name)
        if not callable(member):
            return self._wrap(member)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [arg._native if isinstance(arg, Driven) else arg for arg in args]
            return self._wrap(self._loop.run(_done(member, plain, kwargs)))

        return call

    def run(self, function: Callable[[Any], Any], **options: Any) -> Any:
        """`Database.run`, for a function that blocks: each call has a thread, however deep they are nested."""

        async def native(transaction: aio.Transaction) -> Any:
            with ThreadPoolExecutor(1) as thread:
                return await asyncio.get_running_loop().run_in_executor(thread, function, self._wrap(transaction))

        return self._loop.run(self._native.run(native, **options))

    def read(self, function: Callable[[Any], Any], **options: Any) -> Any:
        """`Database.read`, likewise."""

        async def native(snapshot: aio.Snapshot) -> Any:
            with ThreadPoolExecutor(1) as thread:
                return await asyncio.get_running_loop().run_in_executor(thread, function, self._wrap(snapshot))

        return self._loop.run(self._native.read(native, **options))

    def _wrap(self, thing: Any) -> Any:
        return Driven(thing, self._loop) if isinstance(thing, _WRAPPED) else thing

    def __enter__(self) -> Self:
        self._loop.run(self._native.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.run(self._native.__aexit__(kind, error, traceback))


async def _done(member: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    result = member(*args, **kwargs)
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, AsyncIterator):
        return [row async for row in result]
    return result
