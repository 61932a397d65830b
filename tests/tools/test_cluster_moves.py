"""What `foreshore cluster migrations` says of a member, from what that said twice."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from engine.errors import Unavailable
from tools import cluster_moves
from tools.cli import app
from tools.cluster_commands import too_few
from tools.cluster_moves import row_of
from tools.cluster_orders import void
from tools.terminal import ExitCode

FIRST = {"moving": 4, "behind": 100, "fragments": 10, "rows": 1_000, "updates": 0, "differ": 0, "put_off": 0, "held": 0}


def test_a_rate_and_the_time_left_come_of_two_answers() -> None:
    row = row_of("n1", FIRST, FIRST | {"behind": 60, "rows": 5_000, "updates": 1_000}, 2.0)
    assert (row["state"], row["per_second"], row["seconds_left"]) == ("moving", 2_500, 3.0)


def test_nothing_is_said_of_the_time_left_where_nothing_becomes_less() -> None:
    row = row_of("n1", FIRST, FIRST, 1.0)
    assert (row["per_second"], row["seconds_left"]) == (0, None)


def test_a_node_that_started_again_has_no_rate_yet() -> None:
    assert row_of("n1", FIRST, FIRST | {"rows": 3}, 1.0)["per_second"] is None
    assert row_of("n1", None, FIRST, 1.0)["per_second"] is None


def test_a_node_that_is_whole_or_silent_says_so() -> None:
    assert row_of("n1", FIRST, FIRST | {"behind": 0, "moving": 0}, 1.0)["state"] == "whole"
    assert row_of("n1", FIRST, FIRST | {"held": 100}, 1.0)["state"] == "held"
    assert row_of("n1", FIRST, None, 1.0) == {"node": "n1", "state": "NO-ANSWER"}


def test_it_is_said_when_there_are_too_few_nodes_for_asynchronous_copies() -> None:
    groups = [{"backups": 1, "async_backups": 1, "copies": 2}, {"backups": 0, "async_backups": 3, "copies": 1}]
    asked = {"baseline": ["n1", "n2"], "backups": 1, "copies": 2, "groups": groups}
    assert list(too_few(asked)) == [
        "0 of 1 asynchronous copies at most of each partition: only n1, n2 hold data",
        "1 of 3 asynchronous copies at most of namespaces with 0 backups: only n1, n2 hold data",
    ]
    assert list(too_few(asked | {"baseline": ["n1", "n2", "n3", "n4"]})) == []


def test_who_does_not_answer_is_named_in_the_exit_code_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def question(address: str, command: str) -> dict[str, object]:
        if command == "status":
            members = [{"node": n, "address": f"{n}:1", "moving": 0} for n in ("n1", "n2")]
            return {"formed": True, "members": members, "baseline": ["n1", "n2", "n3"]}
        if address == "n2:1":
            raise Unavailable("no answer from n2:1")
        return {"behind": 0, "fragments": {}, "rows": {}, "updates": {}, "differed": {}, "put_off": 0, "held": 0}

    monkeypatch.setattr(cluster_moves, "question", question)
    result = CliRunner().invoke(app, ["cluster", "migrations", "n1:1", "--interval", "0.05"])
    assert (result.exit_code, "node=n2 state=NO-ANSWER" in result.stdout) == (ExitCode.UNREADABLE, True)
    assert result.stderr == (
        "foreshore: of the baseline n3 is not here: what is to be taken there is told when it is back\n"
        "foreshore: no answer from n2: what is taken there is not told\n"
    )


def test_of_two_orders_about_the_baseline_the_losing_one_is_void_at_once() -> None:
    cost = {"given_on": "2.0", "baseline": ["n1", "n2"]}
    assert void(cost, {"baseline": ["n1", "n2", "n3"], "baselined": "2.0"}) == "", "it is waited for"
    said = void(cost, {"baseline": ["n1", "n3"], "baselined": "3.0"})
    assert said.startswith("the baseline is n1,n3 since map 3.0, by another order: this one was given on what map 2.0 said")
    assert void({}, {"baseline": ["n1", "n3"], "baselined": "3.0"}) == "", "a node of a version before says no more"
