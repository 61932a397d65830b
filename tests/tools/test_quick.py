"""Questions that leave nothing to be parsed get the same answers as by the parser, and everything else goes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.support.commands import environment, wal
from tests.support.patience import PATIENCE_SECONDS
from tests.wal import golden
from tools.quick import quickly

TX = golden.TX.hex()
LOG = str(golden.DIRECTORY)
QUESTIONS = [
    ["verify", LOG],
    ["verify", LOG, "--json"],
    ["verify", LOG, str(golden.NOTED_DIRECTORY)],
    ["verify", "nowhere"],
    ["stat", "--json", LOG],
    ["stat", LOG],
    ["dump", LOG],
    ["dump", "--tx", TX, LOG, "--json"],
    ["dump", "--tx", "abcdef", LOG],
    ["dump", LOG, "--tx", "no id"],
    ["tx", TX, LOG],
    ["tx", TX[:8], LOG, "--json"],
    ["tx", "no id", LOG],
    ["tx", TX],
    ["tx", "ff" * 16, LOG],
    ["key", "acc", "a", LOG, "--partition", "7"],
    ["key", "acc", "a", "--partition", "7", "--json", LOG],
    ["key", "acc", "nope", LOG, "--partition", "7"],
    ["key", "acc", "a", LOG],
]
OTHERS = [
    [],
    ["wal"],
    ["wal", "verify"],
    ["wal", "--help", LOG],
    ["wal", "verify", LOG, "--help"],
    ["wal", "verify", "--jobs", "2", LOG],
    ["wal", "dump", LOG, "--tx"],
    ["wal", "dump", LOG, "--tx", "--json"],
    ["wal", "dump", LOG, f"--tx={TX}"],
    ["wal", "dump", "--tx", TX, "--tx", TX, LOG],
    ["wal", "dump", LOG, "--json", "--json"],
    ["wal", "tx", "--label", "pay", LOG],
    ["wal", "key", "acc", "a"],
    ["wal", "key", "acc", "a", LOG, "--partition", "70000"],
    ["wal", "key", "acc", "a", LOG, "--partition", "seven"],
    ["wal", "key", "acc", "a", LOG, "--partition", "9" * 5000],
    ["wal", "key", "acc", "", LOG],
    ["wal", "verify", "--", LOG],
    ["wal", "segments", LOG],
    ["cluster", "status", LOG],
    ["--version", "--help"],
    ["version", LOG],
]


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_the_answer_is_that_of_the_parser(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = quickly(["wal", *words])
    quick = capsys.readouterr()
    slow = wal(*words)
    assert (code, quick.out, quick.err) == (slow.exit_code, slow.stdout, slow.stderr)


@pytest.mark.parametrize("words", [["--version"], ["version"]], ids=" ".join)
def test_the_version_is_that_of_the_metadata(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert quickly(words) == 0
    assert capsys.readouterr() == (f"foreshore {version('foreshore')}\n", "")


def test_where_nothing_is_installed_the_version_is_left_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/nowhere", str(golden.DIRECTORY)])
    assert quickly(["--version"]) is None


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_whatever_is_more_than_that_is_left_to_the_parser(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert quickly(words) is None
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_no_parser_is_imported_for_it_and_the_exit_code_is_told() -> None:
    """And the process ends at once, with all that it has said."""
    script = "import sys, foreshore; sys.addaudithook(lambda e, a: e == 'import' and a[0] == 'typer' and print('typer')); "
    script += "sys.argv = ['foreshore', 'wal', *sys.argv[1:]]; foreshore.main()"
    for words, code in ((["tx", TX, LOG], wal("tx", TX, LOG).exit_code), (["verify", "nowhere"], 3), (["dump", LOG], 0)):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
            check=False,
            env=environment(),
        )
        assert done.returncode == code
        assert "typer" not in done.stdout.splitlines()
        assert (done.stdout, done.stderr) == (wal(*words).stdout, wal(*words).stderr)


IN_VAIN = """
import sys, foreshore
foreshore._import_msgspec()
print([name for name in ("platform", "textwrap", "urllib.parse", "typing_extensions") if name in sys.modules])
import msgspec, pathlib, uuid

class Told(msgspec.Struct):
    'So.'
    id: uuid.UUID

print(pathlib.Path("/a b").as_uri(), msgspec.json.schema(Told)["$defs"]["Told"]["description"])
import platform, textwrap, typing_extensions, urllib.parse
print(platform.system(), textwrap.shorten("a b", 9), urllib.parse.quote("a b"), typing_extensions.__name__)
"""


def test_what_msgspec_and_pathlib_import_in_vain_is_there_for_whoever_uses_it() -> None:
    """None of it is imported for a short answer; what stands for it meanwhile does the same."""
    done = subprocess.run(
        [sys.executable, "-c", IN_VAIN],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=True,
        env=environment(),
    )
    system = f"{os.uname().sysname} a b a%20b typing_extensions"
    assert done.stdout.splitlines() == ["[]", "file:///a%20b So.", system]


@pytest.mark.parametrize("words", [["dump", LOG], ["dump", LOG, "--values", "none"]], ids=["quick", "parsed"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_an_output_that_was_closed_is_no_file_that_is_opened_later(closed: str, words: list[str]) -> None:
    """And no traceback: an answer for which there is no output was not given."""
    command = [sys.executable, "-m", "foreshore", "wal", *words]
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {closed}', "sh", *command],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env=environment(),
    )
    lost = ">&-" in closed.replace("2>&-", "")
    assert done.returncode == (3 if lost else 0)
    assert done.stdout == ("" if lost else wal("dump", LOG).stdout)
    assert done.stderr.startswith("foreshore: the answer could not be written") if closed == ">&-" else done.stderr == ""
