"""README shows only what runs: its examples are these tests, and what it names is there."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import engine
from engine.turn.settings import Durability
from tests.support.patience import PATIENCE_SECONDS
from tools.cli import PROGRAMS, app
from tools.reconcile.findings import Kind
from tools.reconcile.report import ExitCode
from tools.wal.cli import verb as log_verb

ROOT = Path(__file__).parent.parent
README, MAKEFILE = ROOT / "README.md", ROOT / "Makefile"
PAGES = [README, ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_examples_of_the_api_run(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if b.startswith(">>>")]
    assert len(blocks) >= 6, "the page lost its examples"
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    names: dict[str, object] = {"engine": engine, "directory": tmp_path / "node"}
    test = parser.get_doctest("\n".join(blocks), names, "README.md", "README.md", 0)
    problems: list[str] = []
    runner.run(test, out=problems.append)
    assert not runner.failures, "".join(problems)


BESIDE = {command.name for command in app.registered_commands} - set(PROGRAMS)
"""Commands that are no programs: help, version, ..."""


def words_of(path: Path) -> list[list[str]]:
    """What a page says in code: its shell lines, and what stands between backquotes."""
    text = path.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [said.partition("#")[0].split() for said in [*lines, *re.findall(r"`([^`]+)`", prose)]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_there_with_its_options(page: Path) -> None:
    for words in words_of(page):
        match words:
            case ["foreshore", program, *rest] if program not in {"|", "-", *BESIDE}:
                assert program in PROGRAMS, words
                command = get_command(importlib.import_module(PROGRAMS[program][0]).app)
                commands: dict[str, Any] = getattr(command, "commands", {})
                for verb in verbs_of(rest) if commands else []:
                    assert verb in commands, words
                    found: Any = get_command(log_verb(verb)) if program == "wal" else commands[verb]
                    known = {o for parameter in found.params for o in parameter.opts}
                    assert {word for word in rest if word.startswith("--")} <= known, words
            case ["make", target, *_]:
                assert re.search(rf"^{target}: .*## ", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE), words
            case [name] if name.startswith("docs/") or name.endswith(".md"):
                assert (ROOT / name).exists(), f"{page.name} points to {name}"


def verbs_of(rest: list[str]) -> list[str]:
    """The sub-commands that are named: `dump`, or several as in `dump | stat | verify`."""
    if rest[1:2] == ["|"]:
        return [word for word in rest if word.isalpha()]
    return rest[:1]


def test_every_target_is_listed_by_help_and_named_once() -> None:
    told = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    listed = re.findall(r"^  make (\S+) +\S", told.stdout, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert phony
    assert sorted(listed) == sorted(phony[1].split())


def test_a_checkout_may_lie_where_a_name_has_a_space(tmp_path: Path) -> None:
    place = tmp_path / "a checkout"
    (place / ".venv" / "jre").mkdir(parents=True)
    shutil.copy(MAKEFILE, place)
    told = subprocess.run(
        ["make", "-C", str(place), "--no-print-directory", "--eval", "where: ; @echo $$FORESHORE_JAVA_HOME", "where"],
        env={name: value for name, value in os.environ.items() if name != "FORESHORE_JAVA_HOME"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (told.stdout, told.stderr) == (f"{place}/.venv/jre\n", "")


def test_what_stands_before_the_main_branch_is_what_the_page_says() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]
    assert "make test " in README.read_text(encoding="utf-8")


def test_the_durability_table_has_every_mode() -> None:
    rows = re.findall(r"^\| `(\w+)`", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [mode.value for mode in Durability]


def test_the_exit_codes_of_a_reconciliation_are_those_of_its_page() -> None:
    rows = re.findall(r"^\| (\d+)[, ].*?\|", (ROOT / "docs" / "reconcile.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitCode)


def test_the_kinds_of_findings_are_those_of_their_page() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs" / "reconcile.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert list(dict.fromkeys(rows)) == list(Kind), "the first table has each kind, and later ones may have them again"
