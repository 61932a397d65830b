"""The command of spark-submit: `spark-submit tools/reconcile/spark_job.py DIR...`, with the arguments of a check."""

from __future__ import annotations

import sys

from tools.reconcile.cli import main as command


def main() -> None:
    """`foreshore reconcile check --engine spark` with these arguments."""
    command(["check", "--engine", "spark", *sys.argv[1:]])


if __name__ == "__main__":
    main()
