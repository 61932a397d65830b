"""`foreshore node metrics`: what nodes say of themselves, for whoever collects figures."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from engine.errors import Error
from tests.support.commands import FORESHORE, Node, foreshore, free_port, nodes
from tests.support.exposition import exposed
from tests.support.patience import PATIENCE_SECONDS, next_line
from tools.metrics import metrics_server
from tools.node_metrics import Asker, metrics

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with nodes(tmp_path_factory.mktemp("metrics"), "n1") as (first,):
        yield first


def test_what_a_node_says_of_itself_is_what_prometheus_reads(node: Node) -> None:
    found = foreshore("node", "metrics", node.address)
    assert (found.returncode, found.stderr) == (0, "")
    told = exposed(found.stdout)
    status: dict[str, Any] = json.loads(foreshore("node", "status", node.address, "--json").stdout)
    assert told["foreshore_up"] == {f'address="{node.address}"': 1}
    assert told["foreshore_serving"] == {'node="n1"': 1}
    assert told["foreshore_partitions"] == {'node="n1",role="primary"': 16}
    assert told["foreshore_disk_needed_bytes"] == {'node="n1"': status["disk"]["next_bytes"]}
    assert told["foreshore_maps_total"]['node="n1",step="full"'] == status["maps"]["full"] == 1
    assert 0 < told["foreshore_turns_total"]['node="n1"'] <= status["turns"]["taken"]
    (info,) = told["foreshore_node_info"]
    assert f'cluster_id="{status["cluster"]}"' in info


def test_a_node_that_does_not_answer_is_a_figure_and_says_why(node: Node) -> None:
    away = f"127.0.0.1:{free_port()}"
    found = foreshore("node", "metrics", away, node.address)
    assert found.returncode == 3
    assert exposed(found.stdout)["foreshore_up"] == {f'address="{away}"': 0, f'address="{node.address}"': 1}
    assert found.stderr.startswith(f"foreshore: no answer from {away}: ")


def test_whoever_asks_is_told_what_is_so_by_then(tmp_path: Path) -> None:
    asked = Node(tmp_path, "n1")
    address = asked.address
    words = ["node", "metrics", address, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*FORESHORE, *words], stdout=subprocess.PIPE, text=True)
    try:
        url = next_line(process, "address").split()[-1]
        told = _get(url)
        assert told["foreshore_formed"] == told["foreshore_serving"] == {'node="n1"': 0}
        assert "foreshore_partitions_lost" not in told
        assert foreshore("cluster", "init", address, "--nodes", "n1").returncode == 0
        assert _get(f"{url}?x=1")["foreshore_formed"] == {'node="n1"': 1}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.removesuffix("metrics"), timeout=PATIENCE_SECONDS)
        asked.kill()
        assert _get(url) == {"foreshore_up": {f'address="{address}"': 0}}
    finally:
        asked.kill()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130


def _get(url: str) -> dict[str, dict[str, float]]:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return exposed(answer.read().decode())


def test_an_address_that_is_taken_or_none_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = f"127.0.0.1:{taken.getsockname()[1]}"
        found = foreshore("node", "metrics", "127.0.0.1:7400", "--listen", there)
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr == f"foreshore: --listen {there}: Address already in use; name another address\n"
    found = foreshore("node", "metrics", "7400")
    assert (found.returncode, found.stdout) == (2, "")


def test_a_node_at_two_addresses_tells_once(node: Node) -> None:
    host, port = node.address.split(":")
    again = f"localhost:{port}"
    assert host != "localhost"
    told = exposed(foreshore("node", "metrics", node.address, again).stdout)
    assert told["foreshore_up"] == {f'address="{node.address}"': 1, f'address="{again}"': 1}
    assert len(told["foreshore_node_info"]) == 2
    assert told["foreshore_serving"] == {'node="n1"': 1}


def test_two_nodes_of_one_name_are_told_of(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with nodes(tmp_path, "n1") as (namesake,):
        found = foreshore("node", "metrics", namesake.address, node.address)
        asked = foreshore("node", "status", namesake.address, "--json"), foreshore("node", "status", node.address, "--json")
    assert exposed(found.stdout)["foreshore_serving"] == {'node="n1"': 1}
    assert found.returncode == 1
    assert found.stderr == (
        f"foreshore: {node.address} and {namesake.address} are n1 of two clusters, and only the second one tells its "
        "figures: name those of each cluster to a `node metrics` of its own\n"
    )
    statuses: dict[str, dict[str, Any]] = dict(zip(("a:1", "b:1"), (json.loads(one.stdout) for one in asked), strict=True))

    async def answer(address: str) -> dict[str, Any]:
        return statuses[address]

    with Asker(["a:1", "b:1"], answer) as asker:
        assert asker.text() == asker.text()
    assert capsys.readouterr().err.count("b:1 and a:1 are n1 of two clusters") == 1, "once, and not each time"


def test_nodes_are_asked_once_for_all_who_come_meanwhile() -> None:
    asked = list[str]()

    async def answer(address: str) -> Error:
        asked.append(address)
        await asyncio.sleep(0)
        return Error("gone")

    async def four() -> list[str]:
        return await asyncio.gather(*(asker.told() for _ in range(4)))

    with Asker(["a:1", "b:1"], answer) as asker:
        assert len(dict.fromkeys(asyncio.run(four()))) == 1
        assert asked == ["a:1", "b:1"]
        asker.text()
    assert asked == ["a:1", "b:1"] * 2, "who comes later is told what is so by then"


def test_a_name_service_that_says_nothing_is_waited_for_no_longer_than_its_node() -> None:
    silent = Event()

    async def answer(_: str) -> Error:
        asyncio.get_running_loop().run_in_executor(None, silent.wait)  # where its name leads: given up before it is known
        return Error("gone")

    try:
        with Asker(["a:1"], answer) as asker:
            assert exposed(asker.text())["foreshore_up"] == {'address="a:1"': 0}
    finally:
        silent.set()


def test_no_name_service_is_asked_before_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("the name service was asked for this machine's name")

    monkeypatch.setattr(socket, "getfqdn", asked)
    with metrics_server("127.0.0.1:0", lambda: "") as server:
        assert server.url.startswith("http://127.0.0.1:")


def test_names_that_would_end_a_label_are_escaped() -> None:
    told = metrics({'a"b\\c\nd:1': Error("gone")})
    assert exposed(told)["foreshore_up"] == {'address="a\\"b\\\\c\\nd:1"': 0}


@pytest.mark.parametrize(
    "wrong",
    [
        "a 1",
        "# TYPE a gauge\na 1\n",
        "# HELP a b\n# TYPE a gauge\na{b=c} 1\n",
        "# HELP a b\n# TYPE a gauge\nb 1\n",
        '# HELP a b\n# TYPE a gauge\na{quantile="0.5"} 1\n',
        "# HELP a_count b\n# TYPE a_count gauge\na_count 1\n",
    ],
)
def test_what_is_no_such_format_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        exposed(wrong)
