"""What nobody has any more and nobody has closed is closed then, and a developer is told of it (`python -X dev`).

Which thread finds out is anybody's, at any moment: nothing is waited for here, and nothing locked. What is found out when
the interpreter takes itself apart is let be: the program has ended without closing it.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

_closing: dict[asyncio.Task[None], None] = {}
"""What is being closed for nobody: a loop by itself would forget it."""
_log = logging.getLogger("foreshore")


class Unclosed(Protocol):
    """What can be closed, on its loop. `_let_go`: it is about to be, says whichever thread."""

    def _let_go(self) -> None: ...

    async def close(self) -> None: ...


def warn_unclosed(what: object, named: str) -> None:
    """Tell whoever wants to hear it. `named`: what it was before it began to be closed, which may be over by now."""
    warnings.warn(f"unclosed {named}: expected `close`, or `with`", ResourceWarning, stacklevel=3, source=what)


def close_soon(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have it closed on the loop that it belongs to. At once, where this is that one: as the loop may just be ending, and
    then takes with it what it knows of. Where the loop has been closed meanwhile there is nothing left to do it."""

    def begin() -> None:
        task = loop.create_task(close())
        _closing[task] = None
        task.add_done_callback(_closed)

    if is_running(loop):
        begin()
        return
    with suppress(RuntimeError):  # it has been closed
        loop.call_soon_threadsafe(begin)


def _closed(task: asyncio.Task[None]) -> None:
    _closing.pop(task, None)
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, RuntimeError):  # so says a program that ends, where there is no thread
        _log.warning("what nobody had any more was not closed in good order: %s", error)


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this code runs on that loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
