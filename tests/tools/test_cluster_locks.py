"""`foreshore cluster locks` and `cluster transactions`: what the members say, laid together, and how one is given up."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

import engine
from engine.testing import cluster
from tests.support.commands import free_port
from tests.support.patience import PATIENCE_SECONDS
from tools.cli import main
from tools.cluster_locks import rings_of, together
from tools.terminal import Row

ANN, BOB, EVE = "0a" * 16, "0b" * 16, "0e" * 16


def test_a_ring_of_waits_over_nodes_is_seen_once_and_a_line_is_none() -> None:
    line: list[Row] = [{"tx": ANN, "waits_for": BOB, "node": "n1"}]
    assert rings_of(line) == []
    assert rings_of([*line, {"tx": EVE, "waits_for": ANN, "node": "n2"}]) == []
    ring: list[Row] = [*line, {"tx": BOB, "waits_for": EVE, "node": "n2"}, {"tx": EVE, "waits_for": ANN, "node": "n3"}]
    assert rings_of(ring) == [[ANN, BOB, EVE]]


def _page(kind: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "rows": list(rows)}


def test_what_all_members_say_of_a_transaction_is_one_line_and_the_oldest_comes_first() -> None:
    held = {"tx": ANN, "label": "salary", "client": "web", "partitions": 1}
    prepared = {"tx": ANN, "id": EVE, "decision": 3, "participants": 2}
    told = {
        "n1": [_page("holds", held | {"keys": 2, "age_ms": 500}), _page("prepared", prepared | {"age_ms": 100})],
        "n2": [
            _page("holds", held | {"keys": 5, "age_ms": 900}),
            _page("waits", {"tx": BOB, "label": "", "client": "", "age_ms": 2_000}),
            _page("prepared", prepared | {"age_ms": 100}),
        ],
        "n3": None,
    }
    first, second = together(told)
    assert (first["tx"], first["state"], first["age_s"], first["locks"]) == (BOB, "waiting", 2.0, 0)
    assert (second["tx"], second["state"], second["age_s"], second["locks"]) == (ANN, "prepared", 0.9, 7)
    assert (second["commits_as"], second["prepared"], second["participants"], second["decided_in"]) == (EVE, 2, 2, 3)
    assert (second["label"], second["client"], second["nodes"]) == ("salary", "web", "n1,n2")


class Shell:
    """The command, in this process."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self.capsys = capsys

    def __call__(self, verb: str, *words: object) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with pytest.raises(SystemExit) as ended:
            main(["cluster", verb, self.address, *map(str, words)])
        told = self.capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    def told(self, verb: str, *words: object) -> Any:
        """The answer, as a program has it."""
        code, out, err = self(verb, *words, "--json")
        assert code == 0, err
        return msgspec.json.decode(out)


@pytest.mark.processes
def test_who_waits_for_whom_is_seen_and_one_is_given_up_for_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(3, timeout=PATIENCE_SECONDS) as nodes:
        address = nodes.addresses.split(",")[0]
        shell = Shell(address, capsys)
        with engine.connect(nodes.addresses, client_name="web-3") as db:
            accounts = db.namespace("accounts", codec="json")
            accounts.put_many({f"k{n}": 1 for n in range(20)})
            forgotten = db.transaction(label="forgotten", timeout=600)
            mine = forgotten.namespace(accounts)
            for n in range(20):
                mine.put(f"k{n}", 2)
            done: list[None] = []

            def pay() -> None:
                db.run(lambda tx: tx.namespace(accounts).put("k7", 3), label="pay", timeout=PATIENCE_SECONDS)
                done.append(None)

            other = threading.Thread(target=pay)
            other.start()
            until = time.monotonic() + PATIENCE_SECONDS
            while not (seen := shell.told("locks"))["waits"]:
                assert time.monotonic() < until, "nobody is seen to wait"
            (wait,) = seen["waits"]
            assert (wait["key"], wait["label"], wait["mode"], wait["client"]) == ("accounts:k7", "pay", "write", "web-3")
            held = [row for row in seen["locks"] if row["label"] == "forgotten"]
            assert (len(held), {row["mode"] for row in held}, seen["rings"]) == (20, {"write"}, [])
            assert {row["node"] for row in held} == {"n1", "n2", "n3"}
            assert {row["tx"] for row in held} == {wait["waits_for"]}

            code, out, err = shell("locks", "--limit", 3, "--tx", wait["waits_for"])
            assert (code, len(out.splitlines()), "there are more locks than these 3" in err) == (0, 4, True), out

            found = {row["label"]: row for row in shell.told("transactions")["transactions"]}
            assert (found["forgotten"]["state"], found["forgotten"]["locks"]) == ("open", 20)
            assert (found["forgotten"]["nodes"], found["forgotten"]["client"]) == ("n1,n2,n3", "web-3")
            assert found["pay"]["state"] in ("waiting", "open")
            assert shell.told("transactions", "--older-than", 3_600) == {"transactions": [], "silent": []}

            tx = str(found["forgotten"]["tx"])
            given = shell.told("transactions", "--kill", f"{tx}@5")  # as `Transaction.id` and the errors show an id
            assert (given["tx"], given["locks"], given["voted_on"]) == (tx, 20, "")
            other.join(PATIENCE_SECONDS)
            assert done, "who waited for it goes on"
            with pytest.raises(engine.Conflict, match="was lost"):
                forgotten.commit()
            assert accounts["k7"] == 3
            code, out, err = shell("transactions", "--kill", tx)
            assert (code, out, f"nothing is known of transaction {tx}" in err) == (1, "", True), err
        code, out, err = shell("transactions", "--kill", "salary")
        assert (code, out, "is no id of a transaction: expected 32 hexadecimal digits" in err) == (2, "", True), err
        nodes.kill("n3")
        code, out, err = shell("locks", "--json")
        assert (code, msgspec.json.decode(out)["silent"]) in ((3, ["n3"]), (0, [])), err


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["locks", "transactions"])
def test_a_node_that_is_not_there_is_no_answer(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    code, out, err = Shell(nowhere, capsys)(verb)
    assert (code, out, err.startswith(f"foreshore: no answer from {nowhere}")) == (3, "", True), err
