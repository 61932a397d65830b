"""`foreshore cluster namespaces`: what there is, settings, and the end of one, over three nodes."""

from __future__ import annotations

import time
from functools import partial

import msgspec
import pytest

from engine.testing import cluster
from tests.support.patience import PATIENCE_SECONDS
from tools.cli import main


def _told(
    capsys: pytest.CaptureFixture[str], address: str, *words: str, command: str = "namespaces"
) -> tuple[int, str, str]:
    """The exit code of a command, and what it printed."""
    with pytest.raises(SystemExit) as ended:
        main(["cluster", command, address, *words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.processes
def test_an_operator_sees_namespaces_gives_them_settings_and_drops_them(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(3, timeout=PATIENCE_SECONDS) as nodes, nodes.connect(timeout=PATIENCE_SECONDS) as db:
        told = partial(_told, capsys, nodes.addresses.split(",")[0])
        db.namespace("orders").put_many({b"%d" % n: b"v" for n in range(10)})
        usual = "backups=2 async_backups=0 loss_policy=READ_WRITE_SAFE\n"
        assert told() == (0, f"namespace=orders rows=10 state=THERE {usual}", "")
        assert told("--set", "carts", "--ttl", "3600")[:2] == (
            0,
            f"namespace=carts rows=0 ttl=3600.000 state=THERE {usual}namespace=orders rows=10 state=THERE {usual}",
        )
        carts = db.namespace("carts")
        carts.put(b"k", b"v")
        assert carts.expires_at(b"k") is not None
        code, out, err = told("--drop", "orders")
        assert (code, out) == (1, "")
        assert "has 10 rows, which would be gone for good: say --yes" in err
        code, out, err = told("--drop", "orders", "--yes", "--json")
        assert code == 0, err
        (line,) = out.splitlines()
        copies = {"backups": 2, "async_backups": 0, "loss_policy": "READ_WRITE_SAFE"}
        assert msgspec.json.decode(line) == {"namespace": "carts", "rows": 1, "ttl": 3600.0, "state": "THERE"} | copies
        assert db.namespace("orders").count() == 0
        code, _, err = told("--drop", "orders", "--yes")
        assert (code, "there is no namespace 'orders' to be dropped: there are carts" in err) == (1, True)
        for words in (["--set", "~tx"], ["--set", "a/b"], ["--drop", "a/b", "--yes"], ["--drop", ""]):
            code, out, err = told(*words)
            assert (code, out) == (2, ""), err
        assert told("--set", "a", "--drop", "b")[0] == 2
        assert told("--ttl", "5")[0] == 2
        for ttl in ("-3", "0", "1e300"):
            code, out, err = told("--set", "a", "--ttl", ttl)
            assert (code, out, "expected a number of seconds above 0" in err) == (2, "", True)
        assert told("--async-backups", "1")[0] == 2


@pytest.mark.processes
def test_an_operator_gives_a_namespace_asynchronous_copies(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(3, timeout=PATIENCE_SECONDS) as nodes, nodes.connect(timeout=PATIENCE_SECONDS) as db:
        told = partial(_told, capsys, nodes.addresses.split(",")[0])
        code, out, err = told("--set", "far", "--backups", "1", "--async-backups", "1", "--loss-policy", "READ_ONLY_SAFE")
        assert (code, out) == (
            0,
            "namespace=far rows=0 state=THERE backups=1 async_backups=1 loss_policy=READ_ONLY_SAFE\n",
        ), err
        code, _, err = told("--set", "more", "--async-backups", "5")
        assert code == 1
        assert "backups is 2 (the cluster's) and async_backups is 5: expected 6 at most in all" in err
        assert told("--set", "more", "--async-backups", "7")[0] == 2
        code, out, err = told("--set", "more", "--async-backups", "2", "--json")
        assert code == 0, err
        found = [msgspec.json.decode(line) for line in out.splitlines()]
        assert [(row["namespace"], row["backups"], row["async_backups"]) for row in found] == [
            ("far", 1, 1),
            ("more", 2, 2),
        ]
        db.namespace("far").put(b"k", b"v")
        code, _, err = told("--set", "far", "--backups", "1", "--async-backups", "2")
        assert (code, "expected the backups that it has" in err) == (1, True)
        (info,) = [info for info in db.namespaces() if info.name == "far"]
        assert (info.rows, info.backups, info.async_backups) == (1, 1, 1)
        for number in ("0", "1"):
            code, _, err = told("--set", f"many{number}", "--backups", "5", "--async-backups", number)
            assert code == 0, err
        code, out, _ = told(command="status")
        assert code == 1
        assert out.count("3 of 6 copies at most in namespaces with 5 backups: only n1, n2, n3 hold data") == 1
        assert (" groups=backups:" in out, "{" in out) == (True, False), "a line is for a person and for grep"


@pytest.mark.processes
def test_without_a_majority_an_operator_is_told_so_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """And not, after the whole timeout, that there was no connection to somebody."""
    with cluster(3, timeout=PATIENCE_SECONDS) as nodes:
        told = partial(_told, capsys, nodes.addresses.split(",")[0])
        nodes.kill("n2")
        nodes.kill("n3")
        until = time.monotonic() + PATIENCE_SECONDS
        while "no majority of the baseline is there" not in told(command="status")[1]:
            assert time.monotonic() < until, "it went on to hear one"
        for words in ([], ["--drop", "orders", "--yes"], ["--set", "carts"]):
            code, out, err = told(*words, "--timeout", str(PATIENCE_SECONDS))
            assert (code, out) == (1, "")
            assert "n1 hears no majority of n1, n2, n3: until one is there nobody says" in err
