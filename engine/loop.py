"""An event loop in a thread of its own, for blocking callers: `engine.api` does everything there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from engine import errors

T = TypeVar("T")

CHUNK_ROWS = 1000
"""So many rows of an iterator are fetched in one pass through the loop."""


class Loop:
    """A thread that runs an event loop, for the calls of one database."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._open = True
        self._gate = threading.Lock()  # what is let in before the end is ended by it, what comes later is refused
        self._thread = threading.Thread(target=self.loop.run_forever, name="foreshore-client", daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self._open

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the loop, and wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise errors.UsageError("a blocking call was made on the database's own thread: use engine.aio there")
        with self._gate:
            if not self._open:
                work.close()
                raise errors.UsageError("the database was closed")
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            raise errors.UsageError("the database was closed") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End what is left on the loop, and the thread."""
        with self._gate:
            if not self._open:
                return
            self._open = False
            ending = asyncio.run_coroutine_threadsafe(_end_tasks(), self.loop)
        ending.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _end_tasks() -> None:
    """Cancel every other task of the loop, and wait until they and all iterators over rows are over."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  # optional: where it is not there, asyncio's own loop serves as well
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def iterate(run: Callable[[Coroutine[Any, Any, Any]], Any], rows: AsyncIterator[T]) -> Iterator[T]:
    """The rows of an asynchronous iterator, a chunk at a time."""

    async def chunk() -> list[T]:
        taken: list[T] = []
        async for row in rows:
            taken.append(row)
            if len(taken) >= CHUNK_ROWS:
                break
        return taken

    while page := run(chunk()):
        yield from page
