"""`foreshore wal`: what a node's log says, read from its files beside the live node or after it.

DIR is a data directory, its `wal`, or a segment file. What is wrong with a log is told on stderr, in its place, and
everything that verifies is shown all the same; then the exit code says how bad it is (`tools.terminal.ExitCode`).

Each verb is imported when it is called.
"""

from __future__ import annotations

from typing import Any

import typer

from tools.importing import whole_module
from tools.parser import program

VERBS = {
    "verify": "Check all that can be checked: log, store, and that one folds onto the other.",
    "counters": "Where each copy of each fragment stands.",
    "dump": "Print the records of a log, one line each.",
    "key": "Tell the story of a key, and on which directories it differs.",
    "tx": "Tell the story of a transaction, and how it ended.",
    "diff": "Compare what two logs say of the same counters.",
    "history": "From which counter each fragment could be supplied from this log.",
    "stat": "Count what a log holds.",
    "segments": "List the segment files of a log, who needs them, and what goes next.",
    "cut": "Copy a log up to an LSN.",
    "repair": "Copy what of a log can be believed.",
    "export": "Write one row for each update in a log.",
}
"""Each in a few words; its own help has the rest."""
_MODULES = {"cut": "mend", "repair": "mend"}

app = program(
    "wal", "Look at a node's log, live or stopped; only `repair` and `cut` write, and only where they are told to."
)


def verb(name: str) -> typer.Typer:
    """One verb, as a program of its own."""
    from tools.wal import options  # noqa: PLC0415  # whoever asks for help of all of them needs none

    module = whole_module(f"tools.wal.{_MODULES.get(name, name)}")
    for known, meant in {**vars(options), "typer": typer}.items():
        vars(module).setdefault(known, meant)  # what its annotations name, which nothing has asked for until now
    one = program(name)
    one.command(name)(getattr(module, name))
    return one


def _attach(name: str, meaning: str) -> None:
    def command(context: typer.Context) -> None:
        code: Any = verb(name)(args=context.args, prog_name=f"foreshore wal {name}", standalone_mode=False)
        if isinstance(code, int) and code:
            raise typer.Exit(code)

    app.command(
        name,
        help=meaning,
        add_help_option=False,  # the verb's own
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
    )(command)


for _name, _meaning in VERBS.items():
    _attach(_name, _meaning)
