"""`python -m tools.bench.processor COMMAND...`: how much processor time a command took, with all that it left behind.

Spark's Java virtual machine outlives the command that began it, and its workers outlive Java: whoever measures them has to
be the one to whom orphans are given. The last line on stderr is the seconds, and then the exit code.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from engine.errors import Error

PR_SET_CHILD_SUBREAPER = 36
"""Linux: orphans among the descendants become children of this process."""


class Failed(Error):
    """A measured command did not do what it should have done."""


def main() -> None:
    """Run the command, wait for all of its descendants, and tell."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("this system gives no orphans away")
    code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False).returncode  # noqa: S603  # as it was told
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    used = os.times()
    print(f"{used.children_user + used.children_system:.3f} {code}", file=sys.stderr)


def processor_seconds(command: Sequence[str]) -> float:
    """What a command took that ends with exit code 0. Raises Failed."""
    told = subprocess.run(  # noqa: S603  # a command of this project
        [sys.executable, "-m", "tools.bench.processor", *command], capture_output=True, text=True, check=False
    )
    *said, last = told.stderr.splitlines() or [""]
    seconds, _, code = last.partition(" ")
    if code != "0":
        raise Failed(f"{' '.join(command)} ended with {code or told.returncode}: {' '.join(said[-3:])}")
    return float(seconds)


if __name__ == "__main__":
    main()
