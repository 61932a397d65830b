"""Where the command begins: `foreshore`, or `python -m tools`.

Nearly all that it does before it answers is importing, so whoever presses Ctrl-C early interrupts an import.
"""

import sys


def main() -> None:
    """Run the command, and exit with its code."""
    try:
        from tools.cli import main as run  # noqa: PLC0415  # inside, so that an interrupt is met

        run()
    except KeyboardInterrupt:
        print("foreshore: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
