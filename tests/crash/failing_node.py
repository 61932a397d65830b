"""`python -m tests.crash.failing_node CONTROL --data ...`: a node as `foreshore node start` runs it, on a failing disk."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from tests.support.failing_disk import failing
from tools.config import load
from tools.node_commands import serve
from tools.terminal import end_of


def main(arguments: Sequence[str]) -> int:
    """Run the node; its exit code."""
    control, *flags = arguments
    given = {flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    ready_file = given.pop("ready_file")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    return end_of(lambda: uvloop.run(serve(load(given, file=None), Path(ready_file), disk=failing(Path(control)))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
