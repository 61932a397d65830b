"""`foreshore cluster namespaces`: what there is, settings, and the end of one, over three nodes."""

from __future__ import annotations

import msgspec
import pytest

from engine.testing import cluster
from tests.support.patience import PATIENCE_SECONDS
from tools.cli import main


@pytest.mark.processes
def test_an_operator_sees_namespaces_gives_them_settings_and_drops_them(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(3, timeout=PATIENCE_SECONDS) as nodes, nodes.connect(timeout=PATIENCE_SECONDS) as db:
        address = nodes.addresses.split(",")[0]

        def told(*words: str) -> tuple[int, str, str]:
            with pytest.raises(SystemExit) as ended:
                main(["cluster", "namespaces", address, *words])
            said = capsys.readouterr()
            return int(ended.value.code or 0), said.out, said.err

        db.namespace("orders").put_many({b"%d" % n: b"v" for n in range(10)})
        assert told() == (0, "namespace=orders rows=10 state=THERE\n", "")
        assert told("--set", "carts", "--ttl", "3600")[:2] == (
            0,
            "namespace=carts rows=0 ttl=3600.000 state=THERE\nnamespace=orders rows=10 state=THERE\n",
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
        assert msgspec.json.decode(line) == {"namespace": "carts", "rows": 1, "ttl": 3600.0, "state": "THERE"}
        assert db.namespace("orders").count() == 0
        code, _, err = told("--drop", "orders", "--yes")
        assert (code, "there is no namespace 'orders' to be dropped: there are carts" in err) == (1, True)
        assert told("--set", "~tx")[0] == 1
        assert told("--set", "a", "--drop", "b")[0] == 2
        assert told("--ttl", "5")[0] == 2
