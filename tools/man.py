"""`foreshore man`: the manual page, of the same text as the help of each command."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import version

import typer

from tools.wal.cli import VERBS, verb

WIDTH = 78


def manual(name: str, meaning: str, programs: dict[str, tuple[str, str]]) -> Iterator[str]:
    """The page in roff: `foreshore man | man -l -`."""
    yield f'.TH {name.upper()} 1 "" "{name} {version(name)}" "User Commands"'
    yield ".SH NAME"
    yield f"{name} \\- {_escaped(meaning)}"
    yield ".SH SYNOPSIS"
    yield f".B {name}"
    yield "COMMAND [OPTION]... [ARGUMENT]..."
    yield ".SH COMMANDS"
    for program, (module, says) in programs.items():
        yield f".SS {name} {program}"
        yield _escaped(says)
        for words, helped in _helps(name, program, module):
            yield from (".TP", f".B {_escaped(words)}", ".nf")
            yield from (_escaped(line) for line in helped.splitlines())
            yield ".fi"


def _helps(name: str, program: str, module: str) -> Iterator[tuple[str, str]]:
    """(how it is called, its help) for each command of a program."""
    if program == "wal":
        for one in VERBS:
            yield f"{name} {program} {one}", _help(verb(one), f"{name} {program} {one}")
        return
    started = importlib.import_module(module).app
    yield f"{name} {program}", _help(started, f"{name} {program}")
    command = typer.main.get_command(started)
    for one, inner in getattr(command, "commands", {}).items():
        with inner.make_context(one, [], resilient_parsing=True, max_content_width=WIDTH) as context:
            context.info_name = f"{name} {program} {one}"
            yield f"{name} {program} {one}", inner.get_help(context)


def _help(app: typer.Typer, words: str) -> str:
    command = typer.main.get_command(app)
    with command.make_context(words, [], resilient_parsing=True, max_content_width=WIDTH) as context:
        return command.get_help(context)


def _escaped(text: str) -> str:
    r"""A line as roff takes it for text.

    >>> print(_escaped(".a-b \\x"))
    \&.a\-b \ex
    """
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
