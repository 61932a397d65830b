"""Where the command begins: `foreshore`, or `python -m foreshore`.

Nearly all that it does before it answers is importing, so whoever presses Ctrl-C early interrupts an import.
"""

import gc
import sys


def main() -> None:
    """Run the command, and exit with its code."""
    try:
        from engine.siblings import check_siblings  # noqa: PLC0415  # inside, so that an interrupt is met

        gc.disable()  # until a program is there: a tenth of the time would be spent on what stays anyway
        check_siblings(["wal", "rebalance", "tools"])
        from tools.cli import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        print("foreshore: interrupted", file=sys.stderr)
        sys.exit(130)
    except ImportError as error:
        missing = f"the command needs {error.name}, which is not installed: pip install 'foreshore[node]'"
        print(f"foreshore: {missing if isinstance(error, ModuleNotFoundError) else error}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
