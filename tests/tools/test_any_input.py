"""Whatever is given to a command is done or refused: one line, an exit code of the table, and never a traceback.

Commands that would run for long are given something besides that they must refuse before they begin.
"""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tools.cli import PROGRAMS, app
from tools.terminal import ExitCode

WRONG = [
    *("", " ", "-", "--", "\t", "'", "*", "ä\udcff", "x" * 5_000, "a,b,,a", "1..2", "p0", "0x"),
    *("nowhere", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "[::1", "-1", "1e9", "nan", "9" * 400),
    *("../..", "/dev/null", "/proc/self/mem"),
]
HARMLESS = {("doctor",), ("node", "config")}
"""These may find nothing wrong."""
LONG = {("demo",), ("bench",), ("node", "start")}
DRAWS = 12


def _command(name: str) -> Any:
    return typer.main.get_command(importlib.import_module(PROGRAMS[name][0]).app)


def _verbs() -> Iterator[tuple[str, ...]]:
    """Every command that a person can type, by its words."""
    for name in PROGRAMS:
        verbs = list(getattr(_command(name), "commands", ()))
        if not verbs:
            yield (name,)
        for verb in verbs:
            yield name, verb


def _parameters(words: tuple[str, ...]) -> list[Any]:
    command = _command(words[0])
    parameters: list[Any] = (command.commands[words[1]] if len(words) > 1 else command).params
    return parameters


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path) -> Iterator[None]:
    """What a command leaves behind lies where it is looked for."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield
    os.chdir(before)


def test_all_commands_are_given_something() -> None:
    verbs = list(_verbs())
    assert {words[0] for words in verbs} == set(PROGRAMS)
    assert {("wal", "dump"), ("reconcile", "apply"), ("cluster", "reset-lost"), ("doctor",)} <= set(verbs)


@pytest.mark.parametrize("words", list(_verbs()), ids=" ".join)
def test_a_command_answers_whatever_it_is_given(words: tuple[str, ...], tmp_path: Path) -> None:
    draw = random.Random(" ".join(words))
    parameters = _parameters(words)
    options = [p.opts[0] for p in parameters if p.param_type_name == "option" and not p.is_flag]
    arguments = sum(p.param_type_name == "argument" for p in parameters)
    for _ in range(DRAWS):
        given = [draw.choice(WRONG) for _ in range(draw.randint(0, arguments + 1))]
        for option in draw.sample(options, min(len(options), draw.randint(0, 3))):
            given += [option, draw.choice(WRONG)]
        if words in LONG:
            given.insert(0, "--no-such-option")
        result = CliRunner().invoke(app, [*words, *given])
        said = f"{given}: {result.exception!r}, {result.output[-500:]}"
        assert result.exception is None or isinstance(result.exception, SystemExit), said
        assert result.exit_code in set(ExitCode), said
        assert "Traceback" not in result.output, said
        if words not in HARMLESS:
            assert result.exit_code != ExitCode.OK, said
    assert not list(tmp_path.iterdir()), "what is refused leaves nothing behind"


def test_a_number_that_is_none_is_refused_wherever_one_is_taken() -> None:
    """No comparison holds for `nan`: as a bound it lets all through, and who waits until then waits for ever."""
    seen = 0
    for words in _verbs():
        for option in _parameters(words):
            if option.param_type_name == "option" and option.type.name.startswith("float"):
                for number in ("nan", "inf") if option.opts[0] != "--ttl" else ("nan",):  # that one may last for ever
                    result = CliRunner().invoke(app, [*words, option.opts[0], number])
                    said = f"{words} {option.opts[0]} {number}: {result.output}"
                    assert (result.exit_code, option.opts[0] in result.output) == (ExitCode.USAGE, True), said
                    seen += 1
    assert seen > 30
