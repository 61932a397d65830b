"""What several verbs take, said alike.

It is for who makes a parser of a verb's signature. Verbs that are called often with nothing to parse do not import it
(`tools.quick`), and are given what their annotations name when a parser is made of them (`tools.wal.cli.verb`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from tools.shown import Values
from wal.ids import TABLE_MAX

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Data directories, logs, or segment files.")]
AsJson = Annotated[bool, typer.Option("--json", help="For a program: one JSON object a line.")]
FromLsn = Annotated[int, typer.Option(min=1, help="The first LSN.")]
ToLsn = Annotated[int | None, typer.Option(min=1, help="The last LSN.")]
FromTime = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before: 2023-11-14T22:13:20Z, or how long ago: -10m, -1h, -2d.")
]
ToTime = Annotated[str | None, typer.Option(metavar="TIME", help="Not after.")]
OfNamespace = Annotated[str | None, typer.Option(help="Only what is about this namespace.")]
OfPartition = Annotated[int | None, typer.Option(min=0, max=TABLE_MAX - 1, help="Only what is about this partition.")]
WithValues = Annotated[Values, typer.Option(help="What to show of values beside their size.")]
Jobs = Annotated[
    int, typer.Option(min=1, max=64, help="So many processes read at a time, a segment each; the answer is the same.")
]
