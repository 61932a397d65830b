"""`foreshore bench` measures what it says: shape, and that what it counts is there. Never how fast anything is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tests.support.commands import foreshore
from tools.bench.cli import FIGURES, app
from tools.bench.cluster import memory_of
from tools.bench.failures import victims
from tools.bench.figures import Measured, Miscounted, Setting, count_is
from tools.bench.transfer import SMALL_MORE
from tools.cli import app as foreshore_app

UPDATES = 300


def measured(stdout: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figures and the machine, as `--json` prints them."""
    *figures, last = map(msgspec.json.decode, stdout.splitlines())
    for figure in figures:
        msgspec.convert({name: value for name, value in figure.items() if name != "reached"}, Measured)
        assert figure["value"] > 0 or figure["goal"] == 0, "some are to be nothing at all"
        assert figure["counted"] > 0
        assert (figure["reached"] is None) == (figure["goal"] is None)
    return figures, last["machine"]


def bench(directory: Path, *arguments: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure in this process, with sizes that say nothing about speed."""
    options = ["--seconds", "0.05", "--updates", str(UPDATES), "--dir", str(directory), "--json"]
    result = CliRunner().invoke(app, [*map(str, arguments), *options])
    assert result.exit_code == 0, result.stderr
    assert not list(directory.iterdir()), "nothing is left behind"
    return measured(result.stdout)


def test_the_log_is_replayed_and_supplied_whole(tmp_path: Path) -> None:
    figures, machine = bench(tmp_path, "replay", "history", "history")
    counted = {figure["figure"]: figure["counted"] for figure in figures}
    assert counted["replay"] == counted["history"] == UPDATES
    assert 0 < counted["history-end"] <= UPDATES
    assert machine["cores"] >= 1
    assert machine["fdatasync_us"] > 0


def test_an_embedded_node_counts_what_it_acknowledged(tmp_path: Path) -> None:
    figures, _ = bench(tmp_path, "embedded-puts", "embedded-batches")
    puts, batches = figures
    assert (puts["figure"], puts["unit"]) == ("embedded-puts", "puts/s")
    assert batches["counted"] % 100 == 0


def test_labels_are_measured_by_what_only_they_put_into_the_log(tmp_path: Path) -> None:
    bytes_of, _ = (figures for figures in bench(tmp_path, "labels")[0])
    assert bytes_of["unit"] == "%"
    assert bytes_of["parts"]["labels"] == 4


@pytest.mark.parametrize("name", ["embedded-puts", "embedded-batches", "labels"])
def test_there_is_a_figure_though_the_time_is_over_at_once(tmp_path: Path, name: str) -> None:
    """As on a machine that does something else for longer than what is measured."""
    setting = Setting(directory=tmp_path, seconds=0.0, updates=UPDATES, hours=1, say=print)

    async def measure() -> list[Measured]:
        return await FIGURES[name](setting, name)

    for figure in asyncio.run(measure()):
        assert figure.value > 0
        assert figure.counted > 0


@pytest.mark.processes
def test_a_reconciliation_is_measured_over_stopped_nodes(tmp_path: Path) -> None:
    figures, _ = bench(tmp_path, "reconcile", "reconcile-skew")
    assert {figure["counted"] for figure in figures} == {3 * UPDATES}
    assert [figure["figure"] for figure in figures] == ["reconcile"] * 5 + ["reconcile-skew"]


def test_archives_are_measured_by_what_is_read_of_them(tmp_path: Path) -> None:
    options = ["--updates", "12000", "--dir", str(tmp_path), "--json"]
    result = foreshore("bench", "archives", *options)
    assert result.returncode == 0, result.stderr
    figures, _ = measured(result.stdout)
    assert [figure["figure"] for figure in figures] == ["archives-sealed", "archives", "archives-archives"]


def test_the_parts_of_log_and_store_are_measured(tmp_path: Path) -> None:
    figures, _ = bench(tmp_path, "log", "store")
    assert {figure["figure"] for figure in figures} == {"log", "store"}
    assert len({figure["what"] for figure in figures}) == len(figures)


@pytest.mark.processes
def test_three_nodes_count_what_they_acknowledged(tmp_path: Path) -> None:
    result = foreshore("bench", "transactions-64", "--seconds", "0.1", "--dir", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    figures, machine = measured(result.stdout)
    assert [figure["figure"] for figure in figures] == ["transactions-64"]
    assert machine["command"].startswith("foreshore bench transactions-64 ")
    assert "n1, n2, n3 form a cluster" in result.stderr
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.processes
def test_what_transactions_take_of_the_processor_is_measured_over_nodes_and_client(tmp_path: Path) -> None:
    names = ["one-shot-64", "one-partition-64", "read-only-64"]
    result = foreshore("bench", *names, "--seconds", "0.1", "--dir", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    figures, _ = measured(result.stdout)
    assert [figure["figure"] for figure in figures] == names
    for figure in figures:
        assert figure["unit"] == "us"
        assert figure["value"] == pytest.approx(figure["parts"]["node processor us each"] + figure["parts"]["client's"])


@pytest.mark.processes
def test_a_full_transfer_is_measured_by_what_both_nodes_count(tmp_path: Path) -> None:
    figures, _ = bench(tmp_path, "transfer")
    assert [(figure["unit"], figure["counted"]) for figure in figures] == [("rows/s", SMALL_MORE * UPDATES)]


@pytest.mark.processes
def test_a_rolling_restart_is_measured_by_what_clients_waited_and_nodes_stopped(tmp_path: Path) -> None:
    result = foreshore("bench", "rolling-restart", "--updates", "1000", "--seconds", "0.5", "--dir", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    figures, _ = measured(result.stdout)
    stops, puts = figures
    assert (stops["figure"], stops["unit"], stops["goal"]) == ("rolling-restart", "ms", 0)
    assert stops["counted"] > 100, "what was there before, and all that was put"
    assert puts["figure"] == "rolling-restart-puts"
    assert 0 < puts["parts"]["p50 ms"] <= puts["parts"]["p99 ms"] <= puts["value"]


def test_a_figure_that_is_not_known_names_those_that_are() -> None:
    result = CliRunner().invoke(foreshore_app, ["bench", "put-64"])
    assert result.exit_code == 2
    assert all(name in result.stderr for name in FIGURES)


def test_what_was_acknowledged_and_is_not_counted_is_an_error() -> None:
    count_is("updates", 7, 7)
    with pytest.raises(Miscounted, match=r"updates: 7 were acknowledged and 6 are counted"):
        count_is("updates", 7, 6)


def test_a_missed_goal_is_said_in_its_row() -> None:
    slow = Measured(figure="x", what="it", value=1_999.5, unit="puts/s", goal=2_000, counted=9, seconds=1)
    assert slow.row()["verdict"] == "MISSED"
    assert slow.row()["goal"] == ">= 2,000 puts/s"
    late = Measured(figure="x", what="it", value=1.25, unit="s", goal=2, at_most=True, counted=9, seconds=1)
    assert late.row()["verdict"] == "reached"
    assert late.row()["measured"] == "1.25 s"


def test_the_memory_of_a_process_is_told_by_what_it_holds() -> None:
    parts = memory_of("self")
    assert parts["own"] > 0
    assert parts["programs"] > 0
    assert set(parts) == {"own", "LMDB's pages", "programs"}


@pytest.mark.processes
def test_the_memory_of_a_transfer_is_watched_on_both_sides(tmp_path: Path) -> None:
    result = foreshore("bench", "transfer-memory", "--updates", "1000", "--dir", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    figures, _ = measured(result.stdout)
    assert [figure["counted"] for figure in figures] == [1_000, 1_000]
    assert all(figure["parts"]["at rest MiB"] > 0 for figure in figures)


def test_the_stages_of_a_transfer_are_told_by_side_and_size(tmp_path: Path) -> None:
    result = foreshore("bench", "transfer-parts", "--updates", "2000", "--dir", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    figures, _ = measured(result.stdout)
    assert [figure["counted"] for figure in figures] == [2_000] * 3 + [100] * 3
    assert all(figure["value"] > 0 for figure in figures)


def test_of_several_that_are_killed_at_once_the_coordinator_is_one() -> None:
    leads = {"n1": 300, "n2": 290, "n3": 310, "n4": 305}
    status = {"coordinator": "n1", "members": [{"node": node, "primary": count} for node, count in leads.items()]}
    assert victims(status, 1) == ["n3"]
    assert victims(status, 2) == ["n1", "n3"]
    assert victims(status, 3) == ["n1", "n3", "n4"]
