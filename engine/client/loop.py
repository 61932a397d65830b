"""An event loop in a thread of its own, for blocking callers: `engine.api` does everything there.

Of a process only the thread that calls `os.fork()` lives on in the child, so the loop's thread is not there. A loop knows
that it was forked, and asks its owner what to do (`Loop.forked`): to begin again on a new thread, or to refuse.

A program may end without closing its database. Its loop ends then before the interpreter does: a thread that comes back
from a socket into an interpreter that is not there any more takes the process down. And it may lose a database before: a
loop that nobody has closes what it is for, and ends. Everything that a database gives out has its loop.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from engine import errors
from engine.client.here import OfThisProcess
from engine.client.unclosed import Unclosed, close_soon, warn_unclosed

T = TypeVar("T")

ELSEWHERE = "this database belongs to another event loop: connect to it in the one that uses it"
OWN_THREAD = "a blocking call was made on the database's own thread: use engine.aio there"
CHUNK_ROWS = 1000
"""So many rows of an iterator are fetched in one pass through the loop."""
EXIT_SECONDS = 2.0
"""So long the end of the program waits for what a loop is just doing, which may be a codec's own."""


class _Begun(Generic[T]):
    """Work on a loop that another thread waits for, or gives up.

    What interrupts a thread, Ctrl-C or an alarm, is raised between any two steps, also when it has just locked something.
    So nothing here is locked by both threads in turn, as it is in what `concurrent.futures` has: who was interrupted there
    may leave it locked, and then the loop stands still for good, for everybody. Whoever waits here does so on a lock that
    the loop only releases, once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work: Coroutine[Any, Any, T] | None = work  # None: it was begun
        self._task: asyncio.Task[T] | None = None
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def begin(self) -> None:
        """On the loop: do it, unless it was given up."""
        work, self._work = self._work, None
        if work is not None:
            self._task = self._loop.create_task(work)
            self._task.add_done_callback(self._end)

    def give_up(self) -> None:
        """On the loop: nobody waits for it."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        self._task = None  # it ends where it was: what is tidied up by a thread that is interrupted may not be
        if task.cancelled():
            self._error = errors.UsageError("the database was closed") if task.cancelling() else _raised_in(task)
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._value.append(task.result())
        self._over.release()

    def wait(self) -> None:
        """On another thread: until it is over."""
        self._over.acquire()

    def result(self) -> T:
        """What came of it, when it is over."""
        error, self._error = self._error, None
        if error is None:
            return self._value[0]
        try:
            raise error
        finally:
            del error  # which refers to this frame


def _raised_in(task: asyncio.Task[Any]) -> BaseException:
    """With what a task ended that nobody has cancelled: a codec has raised it."""
    try:
        task.result()
    except asyncio.CancelledError as error:
        return error
    raise AssertionError("it ended by it")


class Loop:
    """A thread that runs an event loop, for the calls of one database: its `owner`, which is closed where nobody has this.

    `forked` is called at the first call in a child of `os.fork()`: it may `begin` a thread again, and whoever else calls
    waits until it is done; what it raises is what every call in the child is told.
    """

    _open = False

    def __init__(self) -> None:
        self.forked: Callable[[Loop], None] | None = None
        self.owner: Unclosed | None = None
        self.in_child = False  # of a fork, where no call was made yet, or none can be
        self._let: dict[asyncio.Task[object], None] = {}
        self._thread: threading.Thread
        self._new_locks()
        self.begin()
        self._open = True
        _loops.add(self)

    def _new_locks(self) -> None:
        self._gate = threading.Lock()  # what is let in before the end is ended by it, what comes later is refused
        self._reviving, self._reviver = threading.Lock(), 0

    def begin(self) -> None:
        """Start a thread with a loop of its own; it may have begun already, in vain."""
        if self.in_child and self._thread.is_alive():
            return
        self.loop = _new_loop()
        self._thread = threading.Thread(target=_serve, args=(self.loop,), name="foreshore-client", daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self._open

    def after_fork(self) -> None:
        """This is the child: nothing of the parent's loop may be touched, or let go, for both share its descriptors."""
        immortal(self.loop)
        self.in_child = True
        self._new_locks()

    def _revive(self) -> None:
        with self._reviving:
            if not self.in_child:
                return
            forked = self.forked
            if forked is None:
                raise errors.UsageError("this database was opened before os.fork(): open one in the child")
            self._reviver = threading.get_ident()
            try:
                forked(self)
                self.in_child = False
            finally:
                self._reviver = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the loop, and wait for it."""
        if self.in_child and self._reviver != threading.get_ident():
            try:
                self._revive()
            except BaseException:
                work.close()
                raise
        if threading.current_thread() is self._thread:
            work.close()
            raise errors.UsageError(OWN_THREAD)
        begun = _Begun(self.loop, work)
        try:
            with self._gate:
                if not self._open:
                    work.close()
                    raise errors.UsageError("the database was closed")
                self.loop.call_soon_threadsafe(begun.begin)
            begun.wait()
        except BaseException:
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(begun.give_up)
            raise
        return begun.result()

    def let(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have it done on the loop, from any thread, and wait for nothing. It is not where the loop has ended."""
        if self._open and not self.in_child:
            work = begin()
            try:
                self.loop.call_soon_threadsafe(self._do, work)
            except RuntimeError:
                work.close()

    def _do(self, work: Coroutine[Any, Any, object]) -> None:
        task = self.loop.create_task(work)
        self._let[task] = None
        task.add_done_callback(self._let.pop)

    def stop(self) -> None:
        """End what is left on the loop, and the thread."""
        if threading.current_thread() is self._thread:
            raise errors.UsageError(OWN_THREAD)
        with self._gate:
            if not self._open:
                return
            self._open = False
            if self.in_child:
                return  # the thread and what it did are the parent's
            ending = _Begun(self.loop, _end_tasks())
            self.loop.call_soon_threadsafe(ending.begin)
        ending.wait()
        ending.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._open or ends() or self.in_child or not self._thread.is_alive():
            return
        self._open = False
        loop, owner = self.loop, self.owner
        named = repr(owner)
        if owner is not None:
            owner._let_go()
        _left[loop] = self._thread
        close_soon(loop, partial(_end, loop, owner))
        if owner is not None:
            warn_unclosed(owner, named)

    def leave(self) -> None:
        """The program ends: so does the thread, between two of the things that it does. Nothing is closed."""
        if self._open and not self.in_child:
            _leave(self.loop, self._thread)


class Held(OfThisProcess):
    """What a thread has on a loop, and ends. What nobody has any more is ended, too (`drop`): whatever interrupts a thread,
    Ctrl-C or an alarm, may do so just before the end of a `with` begins."""

    _held = False

    def __init__(self, loop: Loop, drop: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._loop = loop
        self._drop = drop

    def __del__(self) -> None:
        if self._held:
            self._loop.let(self._drop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the loop. Whoever has this method, as its namespaces do, has the whole."""
        return self._loop.run(work)


def immortal(thing: object) -> None:
    """Never let go of a thing, not even at the end of the process: letting go would close what a parent uses."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_loops: weakref.WeakSet[Loop] = weakref.WeakSet()
_left: dict[asyncio.AbstractEventLoop, threading.Thread] = {}
"""Those that nobody has, and that have not ended yet, with their threads."""


def _after_fork() -> None:
    for loop in list(_loops):
        loop.after_fork()
    while _left:
        immortal(_left.popitem()[0])


os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    for loop in list(_loops):
        loop.leave()
    for left in list(_left):
        if (thread := _left.pop(left, None)) is not None:  # else it has ended by itself
            _leave(left, thread)


def _leave(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        immortal(loop)
        with suppress(RuntimeError):  # it has just been closed, and its thread ends
            loop.call_soon_threadsafe(loop.stop)
        thread.join(EXIT_SECONDS)


atexit.register(_at_exit)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped. What a codec raises there to end the program ends a loop, too: whoever called is told
    of it, and goes on or not; all others are still served."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
        if loop in _left:  # else the program ends, or who has stopped it closes it
            loop.close()
            _left.pop(loop, None)  # last: until then the end of the program waits for this thread
        return


async def _end(loop: asyncio.AbstractEventLoop, owner: Unclosed | None) -> None:
    """End a loop that nobody has, and what it is for."""
    try:
        if owner is not None:
            await owner.close()
        await _end_tasks()
    finally:
        loop.stop()


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


class Closed(Protocol):
    """What is to be closed again."""

    async def close(self) -> None:
        """Close it."""
        ...


Opened = TypeVar("Opened", bound=Closed)


def opened(loop: Loop, begin: Callable[[], Coroutine[Any, Any, Opened]]) -> Opened:
    """What `begin` opens on the loop. If its caller is interrupted meanwhile, as by Ctrl-C, it is closed, however far it
    is, and so is the loop."""
    begun = list[asyncio.Task[Opened]]()

    async def work() -> Opened:
        begun.append(asyncio.ensure_future(begin()))
        return await begun[0]

    async def give_up() -> None:
        for task in begun:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().close()

    try:
        return loop.run(work())
    except BaseException:
        try:
            loop.run(give_up())
        finally:
            loop.stop()
        raise


def iterate(
    run: Callable[[Coroutine[Any, Any, Any]], Any], rows: AsyncIterator[T], check: Callable[[], None] | None = None
) -> Iterator[T]:
    """The rows of an asynchronous iterator, a chunk at a time. `check` is called before each, and may refuse it."""

    async def chunk() -> list[T]:
        taken: list[T] = []
        async for row in rows:
            taken.append(row)
            if len(taken) >= CHUNK_ROWS:
                break
        return taken

    while page := run(chunk()):
        if check is None:
            yield from page
            continue
        for row in page:
            check()
            yield row


def walked(given: T, *, pairs: bool = False) -> T | list[Any]:
    """What a caller gives to be iterated over, walked in the caller's own thread: it may take its time, and make blocking
    calls itself, while the loop serves others. `pairs`: of a mapping, the items are wanted, and not the keys."""
    if isinstance(given, list | tuple | dict | str | bytes | bytearray) or not isinstance(given, Iterable):
        return given
    return list(given.items() if pairs and isinstance(given, Mapping) else given)
