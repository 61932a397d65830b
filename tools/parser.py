"""The parser of all commands. What it answers by itself, which is help, it writes with the manners of any other answer."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tools.terminal import while_it_is_read


class _Group(TyperGroup):
    """Several commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what they are told, and print their help where that is asked for."""
        with while_it_is_read():
            return super().parse_args(ctx, args)


class _Command(TyperCommand):
    """One command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The same."""
        with while_it_is_read():
            return super().parse_args(ctx, args)


class Program(typer.Typer):
    """A program whose commands are of these kinds."""

    def __init__(self, **told: Any) -> None:
        super().__init__(cls=_Group, **told)

    def command(self, name: str | None = None, **told: Any) -> Any:
        """Add one."""
        return super().command(name, cls=_Command, **told)


def program(name: str, meaning: str = "", *, epilog: str | None = None) -> typer.Typer:
    """A program of the command: all of them look and behave alike."""
    return Program(
        name=name,
        help=meaning or None,
        epilog=epilog,
        no_args_is_help=bool(meaning),
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
