"""`foreshore cluster pause`, `resume` and `limit`: what an operator sees of them, and what is refused."""

from __future__ import annotations

import pytest

from engine.testing import cluster
from tests.support.patience import PATIENCE_SECONDS
from tools.cli import main
from tools.cluster_migrations import problem, told

NOBODY = "127.0.0.1:1"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["cluster", *words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.processes
def test_an_operator_pauses_limits_and_resumes_and_every_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(3, timeout=PATIENCE_SECONDS) as nodes:
        first, second, _ = nodes.addresses.split(",")
        assert run(capsys, "limit", first, "--bytes-per-second", "1000000")[:2] == (
            0,
            "migrations=running bytes_per_second=1000000\n",
        )
        code, out, err = run(capsys, "pause", second)
        assert (code, err) == (0, "")
        assert out.startswith("migrations=paused paused=balance since="), "the limit that stood is kept"
        since = out.split("since=")[1].split()[0]
        assert out.endswith(f"since={since} bytes_per_second=1000000\n")
        assert run(capsys, "pause", first)[:2] == (0, out), "it is so already"
        code, out, _ = run(capsys, "status", first)
        assert code == 1, "what an operator has paused is not as it should be"
        assert f"balancing is paused by order since version {since}, and 0 copies wait: " in out
        assert f"migrations=paused paused=balance since={since} bytes_per_second=1000000" in out
        for command in ("plan", "migrations"):
            assert f"paused by order since version {since}" in run(capsys, command, first)[1]
        code, out, _ = run(capsys, "pause", first, "--all", "--json")
        assert code == 0
        assert '"paused":"all"' in out
        assert "all copying is paused by order" in run(capsys, "status", second)[1]
        assert run(capsys, "resume", first)[:2] == (0, "migrations=running bytes_per_second=1000000\n")
        assert run(capsys, "limit", first, "--none")[:2] == (0, "migrations=running\n")
        code, out, _ = run(capsys, "status", first)
        assert code == 0, out
        assert "migrations=running" in out


@pytest.mark.parametrize("limit", ["0", "-1", "65535", str((1 << 40) + 1), "9" * 30])
def test_a_limit_that_is_no_limit_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "limit", NOBODY, "--bytes-per-second", limit)
    assert (code, out) == (2, "")
    assert "expected 65536 to 1099511627776" in err


@pytest.mark.parametrize("words", [[], ["--none", "--bytes-per-second", "65536"]])
def test_a_limit_and_none_exclude_each_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "limit", NOBODY, *words)
    assert code == 2
    assert "expected one of --bytes-per-second and --none" in err


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_who_is_not_there_takes_no_order(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command, NOBODY)
    assert (code, out) == (3, "")
    assert "no answer from 127.0.0.1:1" in err


def test_what_nobody_has_ordered_is_not_told() -> None:
    ordered = {"since": "0.0", "paused": "nothing", "paused_since": "0.0", "bytes_per_second": 0}
    assert problem(ordered, "nothing waits") == ""
    assert {name: value for name, value in told(ordered).items() if value is not None} == {"migrations": "running"}
