"""The engine of one machine: each item in a child of this process, some at a time; a child that dies is told.

LMDB trusts the pages that it reads, and a damaged one can end the process that looks at it. So nobody who reads a store
is anybody's only process: a child that was killed by a signal is a `WorkerDied`, and its parent goes on.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, TypeVar, get_type_hints

import msgspec

from engine.errors import CorruptionError, Error, UsageError

A = TypeVar("A")
B = TypeVar("B")

_READ_BYTES = 1 << 20
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class WorkerDied(Error):
    """A process that read stores was ended by a signal: a page of one of them may be damaged."""


class _Said(msgspec.Struct, frozen=True):
    """What a child has to say: its result, or the error that it ended with."""

    result: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode(None))
    error: str = ""
    usage: bool = False
    broken: bool = False


NICENESS = 5
"""A child is so much nicer than whoever began it: nodes and their clients go before a check of them, which can wait.

With 10, on two processors that seven others wanted, a check that takes seconds took ten minutes.
"""


class InChildren:
    """Runs a function over a list in children, `at_once` at a time; its result travels as MessagePack.

    A result that has to wait for those before it, or for whoever takes them, waits in a file if it is large.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = max(1, at_once)

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
        """The results, in the order of the list. Raises WorkerDied, and what the function raises of ours."""
        whole = function.func if isinstance(function, partial) else function
        kind: Any = get_type_hints(whole)["return"]
        running: dict[int, tuple[int, int]] = {}  # the pipe of a child -> it, and its place in the list
        begun, taken = 0, 0
        with ExitStack() as files:
            said = [files.enter_context(SpooledTemporaryFile[bytes](max_size=_READ_BYTES)) for _ in items]
            try:
                while taken < len(items):
                    while begun < len(items) and len(running) < self._at_once:
                        with uninterrupted():
                            child, pipe = _begun(function, items[begun])
                            running[pipe] = (child, begun)
                            begun += 1
                    for pipe in select.select(list(running), [], [])[0]:
                        data = os.read(pipe, _READ_BYTES)
                        said[running[pipe][1]].write(data)
                        if not data:
                            child, _ = running.pop(pipe)
                            os.close(pipe)
                            _check_end(os.waitpid(child, 0)[1])
                    under_way = {at for _, at in running.values()}
                    while taken < begun and taken not in under_way:
                        yield _result(said[taken], kind)
                        taken += 1
            finally:
                for pipe, (child, _) in running.items():
                    os.kill(child, signal.SIGKILL)  # before its pipe is closed: it would complain that nobody reads
                    os.waitpid(child, 0)
                    os.close(pipe)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is over, and is heard then; so does who ends it otherwise (`tools.terminal.put_away`).

    Modules have hooks at a fork, and Python drops an interrupt that falls into one of them (those of `logging` are in
    every process): whoever pressed it would wait for ever.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begun(function: Callable[[A], B], item: A) -> tuple[int, int]:
    """A child that does one item, and the pipe that its result comes from."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        os.close(reading)
        os.nice(NICENESS)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # that is for children, too
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        try:
            said = _Said(msgspec.Raw(msgspec.msgpack.encode(function(item))))
        except Error as error:
            said = _Said(error=str(error), usage=isinstance(error, UsageError), broken=isinstance(error, CorruptionError))
        data = memoryview(msgspec.msgpack.encode(said))
        while data:
            data = data[os.write(writing, data) :]
        code = 0
    except KeyboardInterrupt:
        code = 0
    except BaseException:  # a mistake of ours: it is shown here, and the parent says that there was one
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _check_end(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise WorkerDied(f"a process that read the stores was ended by {signal.Signals(-code).name}")
    assert not code, "a child ended with a mistake of ours, which it has shown"


def _result(said: SpooledTemporaryFile[bytes], kind: Any) -> Any:
    """What a child had to say, which is not kept here any longer."""
    said.seek(0)
    data = said.read()
    said.close()
    if not data:
        raise KeyboardInterrupt
    told = msgspec.msgpack.decode(data, type=_Said)
    if told.error:
        raise UsageError(told.error) if told.usage else CorruptionError(told.error) if told.broken else Error(told.error)
    return msgspec.msgpack.decode(told.result, type=kind)
