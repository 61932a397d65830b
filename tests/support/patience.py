"""How long a test waits for what must come: until it is surely a hang, also on a machine that is twenty times slower.

Every wait of a test has this bound: a hang is a failure that names what was waited for. Most calls take a `timeout`; for
what takes none (a line through a pipe, the end of threads) there is this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

PATIENCE_SECONDS = 600.0


@contextmanager
def waiting(process: Popen[Any], what: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """While `what` is read from a process: when it does not come the process is killed, which ends its pipes."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        assert not late.is_set(), f"{process.args!r} hangs: after {seconds:g} s there was no {what}"


def next_line(process: Popen[str], what: str, seconds: float = PATIENCE_SECONDS) -> str:
    """The next line of a process."""
    assert process.stdout is not None
    with waiting(process, what, seconds):
        return process.stdout.readline()


def joined(*threads: threading.Thread, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for the ends of threads. They are daemons, so that one which hangs does not keep the tests from ending."""
    for thread in threads:
        assert thread.daemon, f"{thread.name} is no daemon"
        thread.join(seconds)
        assert not thread.is_alive(), f"{thread.name} hangs: after {seconds:g} s it has not ended"
