"""A command that is killed at one of its steps, as by `kill -9`, or whose disk is full from then on.

A step is a call by which what is on the disk changes, or is made durable. The command runs in a process of its own, a child
of this one, that ends on the spot: nothing of Python runs any more, no `finally` and no `with`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner

from tools.cli import app

STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "fdatasync", "pwrite", "posix_fallocate", "ftruncate")
KILLED, FULL_AT = 137, ("rename", "mkdir", "pwrite", "posix_fallocate")


def killed_at(step: int, *arguments: object, full: bool = False) -> bool:
    """Run a command in a child that is killed before so many steps were done; whether it was, or came to its end before.

    `full`: it goes on, and each step from there on that takes room finds none.
    """
    child = os.fork()
    if not child:
        try:
            reached = _counted(step, full=full)
            result = CliRunner().invoke(app, list(map(str, arguments)))
            os._exit(KILLED if full and reached() else 0 if result.exit_code == 0 else 1)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), f"step {step} of {arguments}: {code}"
    return code == KILLED


def _counted(step: int, *, full: bool) -> Callable[[], bool]:
    """From now on each step of this process is counted."""
    done = 0

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal done
            if done >= step and not full:
                os._exit(KILLED)
            if done >= step and name in FULL_AT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += 1
            return original(*args, **options)

        return call

    for name in STEPS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    return lambda: done >= step
