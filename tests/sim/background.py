"""What a simulated process does beside its turns, cut wherever the disk is asked for something.

The real driver does slow things in threads. Here what stops on its way has a thread as well, but one that runs only
while the world waits for it: it stops before calls of the disk, as often as the seed says, and goes on at another time
of the world. In between the node takes turns, closes what is being read, removes what is being looked for, or dies. So
the real code of the log, of its cursors and of the store meets every interleaving that a seed can draw, the same one
each time. What the seed lets pass in one go needs no thread, and what pauses only where it says so is a generator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from random import Random
from types import GeneratorType, TracebackType
from typing import ClassVar

from tests.support.memory_disk import PowerCut

PAUSES_MAX = 12
"""One piece of work is interrupted so often at most."""
PAUSES_BY_ITSELF = "checkpoint"
"""Work of this name asks nothing of the disk in which pauses are drawn: it yields where it takes a while."""

Work = Callable[[], object]
"""Done when it is called; or what it hands back is a generator, which pauses wherever it yields."""


class _Thread:
    """A thread that does one piece of work after the other: to begin a thread for each would take most of the time."""

    idle: ClassVar[list[_Thread]] = []

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._wanted = threading.Lock()
        self._wanted.acquire()
        threading.Thread(target=self._run, daemon=True, name="simulated background").start()

    def take(self, work: Callable[[], None]) -> None:
        """Do this."""
        self._work = work
        self._wanted.release()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            assert self._work is not None
            self._work()


os.register_at_fork(after_in_child=_Thread.idle.clear)  # there are no threads in a child


class Fibre:
    """One piece of background work. Invariant: it runs only inside `resume` or `kill`."""

    def __init__(self, name: str, run: Work, draw: Random) -> None:
        self.name = name
        self.result: object = None
        self.error: BaseException | None = None
        self.finished = False
        self.quiet = False  # an oracle looks: no pause
        self._run = run
        self._draw = draw
        self._density = draw.choice([0.0, 0.2, 1.0])
        self._pauses = 0
        self._killed = False
        self._here_and_now = name == PAUSES_BY_ITSELF or not self._density
        if not self._here_and_now:
            self._here, self._there = threading.Lock(), threading.Lock()
            self._here.acquire()
            self._there.acquire()
        self._pieces: Generator[None, None, None] | None = None
        self._thread: _Thread | None = None

    @property
    def begun(self) -> bool:
        """It is somewhere on its way, or back."""
        return self._thread is not None or self._pieces is not None or self.finished

    def resume(self) -> None:
        """Go on until the next pause, or to the end."""
        assert not self.finished, f"{self.name} is finished"
        if self._here_and_now:
            self._go_on()
            return
        if self._thread is None:
            self._thread = _Thread.idle.pop() if _Thread.idle else _Thread()
            self._thread.take(self._work)
        else:
            self._there.release()
        self._here.acquire()

    def kill(self) -> None:
        """The process is gone: whatever is asked of the disk next is never done."""
        self._killed = True
        if not self.begun:
            self.finished = True
        while not self.finished:
            self.resume()

    def pause(self) -> None:
        """Called by the work itself, before a call of the disk."""
        if self._killed:
            raise PowerCut
        if self.quiet or self._pauses >= PAUSES_MAX or self._draw.random() >= self._density:
            return
        self._pauses += 1
        assert not self._here_and_now, f"{self.name} asks the disk for something, and has no thread to wait in"
        self._here.release()
        self._there.acquire()
        if self._killed:
            raise PowerCut

    def _go_on(self) -> None:
        """The next piece, in the thread of the world."""
        try:
            if self._pieces is None:
                result = self._run()
                if not isinstance(result, GeneratorType):
                    assert self.name != PAUSES_BY_ITSELF, (
                        "what pauses by itself is a generator; who wraps it hands that back"
                    )
                    self.result, self.finished = result, True
                    return
                self._pieces = result
            if self._killed:
                self._pieces.throw(PowerCut())
            next(self._pieces)
        except StopIteration:
            self.finished = True
        except BaseException as error:  # the world is told
            self.error, self.finished = error, True

    def _work(self) -> None:
        assert self._thread is not None
        try:
            self.result = self._run()
        except BaseException as error:  # the world is told
            self.error = error
        self.finished = True
        _Thread.idle.append(self._thread)
        self._here.release()


class Turnstile:
    """A lock that background work may hold while it is paused. Whoever comes then lets that work go on until it is free."""

    def __init__(self, current: Callable[[], Fibre | None], advance: Callable[[Fibre], None]) -> None:
        self._current = current
        self._advance = advance
        self._held = False
        self._holder: Fibre | None = None

    def __enter__(self) -> None:
        while self._held:
            assert self._holder is not None, "the world waits for itself"
            self._advance(self._holder)
        self._held, self._holder = True, self._current()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held, self._holder = False, None
