"""Where the command begins: `foreshore`, or `python -m foreshore`.

Nearly all that it does before it answers is importing, so whoever presses Ctrl-C early interrupts an import.
"""

import gc
import os
import sys


def main() -> None:
    """Run the command, and exit with its code."""
    try:
        from engine.siblings import check_siblings  # noqa: PLC0415  # inside, so that an interrupt is met

        gc.disable()  # until a program is there: a tenth of the time would be spent on what stays anyway
        check_siblings(["tools"])  # the engine has looked at those that it needs
        _import_msgspec()
        from tools.quick import quickly  # noqa: PLC0415

        code = quickly(sys.argv[1:])
        if code is not None:
            sys.stdout.flush()
            os._exit(code)  # nothing is left to be done, and to take all modules apart takes a tenth of a short answer
        from tools.cli import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        print("foreshore: interrupted", file=sys.stderr)
        sys.exit(130)
    except ImportError as error:
        missing = f"the command needs {error.name}, which is not installed: pip install 'foreshore[node]'"
        print(f"foreshore: {missing if isinstance(error, ModuleNotFoundError) else error}", file=sys.stderr)
        sys.exit(3)


def _import_msgspec() -> None:
    """Before anything else does. It takes from `typing_extensions`, if that can be imported, what `typing` has in each
    Python that this runs on; and that imports `inspect`, `ast` and `tokenize`: a fifth of the time of a short answer."""
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # it cannot be imported, as long as this stands
    try:
        import msgspec  # noqa: F401, PLC0415
    finally:
        del sys.modules["typing_extensions"]


if __name__ == "__main__":
    main()
