"""Modules of commands are imported whole: Ctrl-C waits meanwhile, and is heard then.

In the middle of an import it may come where Python takes no notice of it, and the command goes on; or to a class of
msgspec that is half made, and the process dies of a segmentation fault.
"""

from __future__ import annotations

import importlib
import signal
from types import ModuleType


def whole_module(name: str) -> ModuleType:
    """A module, imported to its end. Raises KeyboardInterrupt behind that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        return importlib.import_module(name)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
