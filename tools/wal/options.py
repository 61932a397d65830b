"""What several verbs take, said alike."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.errors import UsageError
from tools.reconcile.findings import Values
from wal.ids import TABLE_MAX

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, logs, or segment files.")]
AsJson = Annotated[bool, typer.Option("--json", help="For a program: one JSON object a line.")]
FromLsn = Annotated[int, typer.Option(min=1, help="The first LSN.")]
ToLsn = Annotated[int | None, typer.Option(min=1, help="The last LSN.")]
OfNamespace = Annotated[str | None, typer.Option(help="Only what is about this namespace.")]
OfPartition = Annotated[int | None, typer.Option(min=0, max=TABLE_MAX - 1, help="Only what is about this partition.")]
WithValues = Annotated[Values, typer.Option(help="What to show of values beside their size.")]


def check_range(from_lsn: int, to_lsn: int | None) -> None:
    """Raise UsageError for a range that ends before it begins."""
    if to_lsn is not None and to_lsn < from_lsn:
        raise UsageError(
            f"--to-lsn is {to_lsn} and --from-lsn is {from_lsn}: expected a range that ends where it begins or later"
        )
