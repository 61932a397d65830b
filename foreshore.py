"""Where the command begins: `foreshore`, or `python -m foreshore`.

Nearly all that it does before it answers is importing, so whoever presses Ctrl-C early interrupts an import.
"""

from __future__ import annotations

import gc
import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run the command, and exit with its code."""
    _open_what_is_closed()
    try:
        import signal  # noqa: PLC0415  # inside, so that an interrupt is met

        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))  # for why see `tools.importing`
        try:
            from engine.siblings import check_siblings  # noqa: PLC0415

            gc.disable()  # until a program is there: a tenth of the time would be spent on what stays anyway
            check_siblings(["tools"])  # the engine has looked at those that it needs
            _import_msgspec()
            from tools.importing import whole_module  # noqa: PLC0415
            from tools.quick import quickly  # noqa: PLC0415
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = quickly(sys.argv[1:])
        if code is not None:
            sys.stdout.flush()
            os._exit(code)  # nothing is left to be done, and to take all modules apart takes a tenth of a short answer
        whole_module("tools.cli").main()
    except KeyboardInterrupt:
        print("foreshore: interrupted", file=sys.stderr)
        sys.exit(130)
    except ImportError as error:
        missing = f"the command needs {error.name}, which is not installed: pip install 'foreshore[node]'"
        print(f"foreshore: {missing if isinstance(error, ModuleNotFoundError) else error}", file=sys.stderr)
        sys.exit(3)


def _open_what_is_closed() -> None:
    """Where whoever began this closed its input, its output or its errors (`>&-`), the next file that is opened would stand
    there, and be written to. An answer that nobody can get fails as one for which there is no room."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # the lowest that is free, which is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # to the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _import_msgspec() -> None:
    """And pathlib, before anything else does, and without what they import in vain: a third of the time of a short answer.

    msgspec takes from `typing_extensions`, if that can be imported, what `typing` has in each Python that this runs on. In
    place of functions that both take from elsewhere stand some that import them when they are called.
    """
    standing: dict[str, object] = {
        "platform": ModuleType("platform"),  # asked for this alone, by `uuid`
        "textwrap": ModuleType("textwrap"),
        "typing_extensions": None,  # it cannot be imported, as long as this stands
        "urllib.parse": ModuleType("urllib.parse"),
    }
    vars(standing["platform"])["system"] = lambda: os.uname().sysname
    vars(standing["textwrap"])["dedent"] = _dedent
    vars(standing["urllib.parse"])["quote_from_bytes"] = _quote_from_bytes
    waiting = {name: stands for name, stands in standing.items() if name not in sys.modules}
    sys.modules.update(waiting)  # type: ignore[arg-type]
    try:
        import pathlib  # noqa: F401, PLC0415

        import msgspec  # noqa: F401, PLC0415
    finally:
        for name in waiting:
            del sys.modules[name]


def _dedent(text: str) -> str:
    import textwrap  # noqa: PLC0415

    return textwrap.dedent(text)


def _quote_from_bytes(*words: Any) -> str:
    from urllib.parse import quote_from_bytes  # noqa: PLC0415

    return quote_from_bytes(*words)


if __name__ == "__main__":
    main()
