"""What an operator sees of nodes that are set to different things, as real processes."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.support.commands import Node, foreshore
from tests.support.patience import PATIENCE_SECONDS


@pytest.mark.processes
def test_status_names_who_is_less_durable_and_who_is_not_heard(tmp_path: Path) -> None:
    first = Node(tmp_path, "n1")
    running = [first]
    try:
        second = Node(tmp_path, "n2", "--durability", "NONE", "--backups", "5", seeds=[first.address])
        running.append(second)
        third = Node(tmp_path, "n3", "--heartbeat-ms", "2000", "--suspicion-ms", "9000", seeds=[first.address])
        running.append(third)
        third.wait_until_it_says("n1 is not heard, nor hears this node: it beats each 250 ms")
        refused = foreshore("cluster", "init", first.address, "--nodes", "n1,n2,n3", "--timeout", "3")
        assert refused.returncode == 1
        assert "n3 and n1 do not hear each other: heartbeat_ms 2000 and suspicion_ms 9000 of n3" in refused.stderr
        assert foreshore("cluster", "init", first.address, "--nodes", "n1,n2").returncode == 0

        told = foreshore("cluster", "status", first.address)
        assert told.returncode == 1
        assert "durability differs: FSYNC on n1; NONE on n2: of a write that is acknowledged" in told.stdout
        assert "n3 and n1 do not hear each other" in told.stdout
        assert " durability=FSYNC,NONE " in told.stdout
        rows = [line for line in told.stdout.splitlines() if line.startswith("node=")]
        assert [row.split()[2] for row in rows] == ["durability=FSYNC", "durability=NONE"]
        whole = msgspec.json.decode(foreshore("cluster", "status", first.address, "--json").stdout)
        assert whole["durability"] == ["FSYNC", "NONE"]
        assert whole["members"]["n2"]["status"]["habits"]["durability"] == "NONE"
        assert whole["members"]["n1"]["status"]["peers"]["n3"]["apart"]

        second.wait_until_it_says("backups is 5 here, and 2 in cluster foreshore")
        seen = foreshore("node", "status", second.address).stdout
        assert "\ndurability=NONE heartbeat_ms=250 suspicion_ms=1500\n" in seen
        assert "backups 5 was given to this node and counts for nothing: in its cluster it is 2" in seen

        for node, name in ((second, "n2"), (third, "n3")):
            assert foreshore("node", "stop", node.address).returncode == 0
            for said in ("ready", "log"):
                (tmp_path / f"{name}.{said}").unlink()
            running.append(Node(tmp_path, name, seeds=[first.address]))
        until, expected = time.monotonic() + PATIENCE_SECONDS, " durability=FSYNC primaries_per_member="
        while "differs" in told.stdout or "do not hear" in told.stdout or expected not in told.stdout:
            assert time.monotonic() < until, told.stdout
            told = foreshore("cluster", "status", first.address)
    finally:
        for node in running:
            node.kill()
