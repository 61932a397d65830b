"""`python -m tests.sim`: what it prints, and its exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.turn.effects import Effects
from engine.turn.events import Event
from tests.sim.__main__ import main
from tests.sim.machine import Machine
from tests.sim.run import run_seed

QUIET = ["--rate", "checkpoint=1", "--rate", "reset=1", "--storm", "1"]


def claim_too_much(machine: Machine) -> None:
    """A deliberate fault: n2 believes that its disk has more than it has."""
    node = machine.node
    assert node is not None
    if machine.name != "n2":
        return
    turn = node.turn

    def boastful(now: int, events: Sequence[Event]) -> Effects:
        node.core.durable_lsn = 1 << 40
        return turn(now, events)

    node.turn = boastful  # type: ignore[method-assign]  # this is the fault


def test_a_seed_that_finds_nothing_says_what_it_did_and_another_one_has_another_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That the same one has the same trace, in one process and in two: `test_calls`, `test_determinism`."""
    assert main(["run", "--seed", "10", *QUIET]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 10: nothing found; ")
    assert " deliveries, " in said
    digest = said.rpartition("; trace ")[2].strip()
    assert digest
    assert run_seed(11, rates={"checkpoint": 1.0, "reset": 1.0}, storm_ns=10**9).digest not in ("", digest)


def test_many_seeds_are_summed_up_with_the_rare_paths_they_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seeds", "10-11", "--jobs", "1", *QUIET]) == 0
    said = capsys.readouterr().out
    assert "\n2 seeds, " in said
    assert "\nfaults: " in said
    assert "\nfaults that never came: power, " in said
    assert "\nrare paths: " in said
    assert said.endswith("failing seeds: none\n2 of 2 seeds done, 0 left, 0 failed\n")


def test_a_failing_seed_prints_commit_options_story_and_the_command_that_plays_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--seeds", "10", "--jobs", "1", *QUIET], plant=claim_too_much) == 1
    said = capsys.readouterr().out
    assert "\nseed 10 at commit " in said
    assert " partitions, " in said
    assert "; faults: checkpoint, reset\n" in said
    assert "\n  store-ahead: n2 " in said
    assert "; its story:\n     " in said
    assert "\n  again: python -m tests.sim run --seed 10 --rate checkpoint=1 --rate reset=1 --storm 1 -v\n" in said
    assert said.endswith("failing seeds: 10\n1 of 1 seeds done, 0 left, 1 failed\n")


def test_one_failing_seed_prints_its_trace_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seed", "10", "-v", *QUIET], plant=claim_too_much) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "    1.000000 world   n1 starts, life 1"
    assert last.startswith("  again: ")


def test_faults_that_a_failing_seed_does_not_need_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seed", "10", "--shrink", *QUIET], plant=claim_too_much) == 1
    assert capsys.readouterr().out.endswith("\nit needs only: no fault at all\n")


def test_a_long_run_leaves_a_line_in_the_record(tmp_path: Path) -> None:
    record = tmp_path / "record.md"
    record.write_text("| day | seeds | commit | found |\n", encoding="utf-8")
    assert main(["long", "--seeds", "10", "--jobs", "1"], plant=claim_too_much, record=record) == 1
    _, line = record.read_text(encoding="utf-8").splitlines()
    assert "| 10-10 | " in line
    assert "seed 10: store-ahead: n2 " in line


def test_a_long_run_goes_on_where_its_last_part_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, book = tmp_path / "record.md", tmp_path / "seeds.jsonl"
    part = ["long", "--seeds", "10-11", "--jobs", "1", "--storm", "1", "--resume", str(book)]
    assert main([*part, "--minutes", "0"], record=record) == 0
    assert capsys.readouterr().out.endswith("0 of 2 seeds done, 2 left, 0 failed\n")
    assert not record.exists(), "it is not done yet"
    assert main(["long", "--seeds", "10", *part[3:]], record=tmp_path / "other.md") == 0
    assert main(part, record=record) == 0
    said = capsys.readouterr()
    assert said.out.endswith("2 of 2 seeds done, 0 left, 0 failed\n")
    assert "\n1 seeds, " in said.out, "seed 10 was done before"
    assert "| 10-11 | " in record.read_text(encoding="utf-8")


def test_what_is_turned_is_what_the_seed_has(capsys: pytest.CaptureFixture[str]) -> None:
    turned = ["--nodes", "5", "--backups", "1", "--density", "2"]
    assert main(["run", "--seed", "10", *QUIET, *turned], plant=claim_too_much) == 1
    said = capsys.readouterr().out
    assert "5 nodes, " in said
    assert ", 1 backups, " in said
    assert "--rate reset=1 --nodes 5 --backups 1 --storm 1 --density 2 -v" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "the following arguments are required: command"),
        (["run"], "one of the arguments --seed --seeds is required"),
        (["run", "--seeds", "9-3"], "'9-3': expected a range such as 1-300"),
        (["run", "--seed", "x"], "invalid int value: 'x'"),
        (["run", "--seed", "1", "--rate", "moon=1"], "there is no fault 'moon': expected one of power, kill"),
        (["run", "--seed", "1", "--rate", "kill=often"], "'kill=often': expected a rate such as kill=2.0"),
        (["run", "--seed", "1", "--nodes", "12"], "--nodes 12: expected 1 to 9"),
        (["run", "--seed", "1", "--shape", "round"], "--shape round: expected one of small, wide, many, deep, widest"),
        (["run", "--seed", "1", "--density", "0"], "--density 0: expected 0.01 to 100"),
        (["run", "--seed", "1", "--rate", "kill=-1"], "'kill=-1': expected a rate such as kill=2.0"),
    ],
)
def test_a_command_that_makes_no_sense_says_why(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert why in capsys.readouterr().err
