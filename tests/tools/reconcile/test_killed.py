"""What `reconcile` writes when it is killed at each of its steps: begun again it ends well, and nothing stays of before."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import foreshore
from tests.support.damages import DAMAGES
from tests.support.directories import copies
from tests.support.killed import killed_at


def files(place: Path) -> dict[str, bytes]:
    """All that lies in a directory, and below it."""
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def shown(found: dict[str, bytes]) -> dict[str, bytes]:
    """What of it a reader looks at: what begins with a dot is passed over."""
    return {name: data for name, data in found.items() if not name.startswith(".") and "/." not in name}


def is_nothing_or_all(found: dict[str, bytes], whole: dict[str, bytes]) -> None:
    """A plan, a sketch or a table is there as it is to be, or not there."""
    assert shown(found) in ({}, whole)


def has_a_summary_if_it_is_all(found: dict[str, bytes], whole: dict[str, bytes]) -> None:
    """A report is one that has a summary."""
    assert "out/summary.json" not in found or shown(found) == whole


@pytest.mark.parametrize(
    ("words", "may_be"),
    [
        (("plan", "{report}", "--out", "{out}"), is_nothing_or_all),
        (("sketch", "{n1}", "--out", "{out}"), is_nothing_or_all),
        (("export", "{n1}", "{n2}", "--out", "{out}"), is_nothing_or_all),
        (("export", "{n1}", "--kind", "wal", "--out", "{out}"), is_nothing_or_all),
        (("check", "{n1}", "{n2}", "{n3}", "--out", "{out}"), has_a_summary_if_it_is_all),
    ],
    ids=["plan", "sketch", "export state", "export wal", "check"],
)
def test_one_that_is_killed_leaves_no_half_and_can_be_begun_again(
    stopped: list[Path],
    tmp_path: Path,
    words: tuple[str, ...],
    may_be: Callable[[dict[str, bytes], dict[str, bytes]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of a check that is killed a folder of its own stays there
    if words[0] == "plan":
        damaged = copies(stopped, tmp_path)
        DAMAGES["several rows"].do(tmp_path)
        assert foreshore("reconcile", "check", *damaged, "--out", tmp_path / "report").returncode == 1
    named = {"report": tmp_path / "report"} | {path.name: path for path in stopped}

    def command(place: Path) -> list[str]:
        return ["reconcile", *(word.format(out=place / "out", **named) for word in words)]

    (tmp_path / "whole").mkdir()
    assert foreshore(*command(tmp_path / "whole")).returncode == 0
    whole, step = files(tmp_path / "whole"), 0
    place = tmp_path / "killed"
    place.mkdir()
    while killed_at(step, *command(place)):
        may_be(files(place), whole)
        if words[0] == "export":
            shutil.rmtree(place / "out", ignore_errors=True)  # what is there is refused, as somebody's
        step += 1
    assert step > 2
    assert files(place) == whole, "what was left went with the one that came to its end"


def test_what_a_check_found_is_told_although_its_report_cannot_be_written(stopped: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out" / "summary.json").mkdir(parents=True)
    checked = foreshore("reconcile", "check", *stopped, "--out", tmp_path / "out")
    assert checked.stdout.splitlines()[-1] == "consistent findings=0"
    assert (checked.returncode, checked.stderr) == (
        2,
        f"foreshore: cannot write the report to {tmp_path / 'out'}: Is a directory; name another --out\n",
    )
