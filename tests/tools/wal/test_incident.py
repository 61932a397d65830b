"""docs/incident.md, walked: each command is run as it stands there, and says what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import aio
from tests.support.commands import objects, wal
from tests.support.directories import build, zero_last_blocks
from tests.support.pages import PAGES, check_says, steps_of
from wal import read

STEPS = steps_of("incident.md")
EXIT_CODES = {"key": 1, "tx": 1, "diff": 1, "verify": 4, "dump": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes: a balance was moved, and one node has lost the outcome."""

    async def story(database: aio.Database) -> None:
        async with await aio.connect(database.where, client_name="web-3") as web:
            await web.namespace("accounts").put(b"ann", b"100")
            await web.namespace("accounts").put(b"bob", b"20")
        async with (
            await aio.connect(database.where, client_name="batch") as batch,
            batch.transaction(label="month-end") as tx,
        ):
            await tx.namespace("accounts").put(b"ann", b"70")
            await tx.namespace("accounts").put(b"bob", b"50")

    root = tmp_path_factory.mktemp("incident")
    left = build(root, story)
    left[0].parent.rename(root / "data")
    third = root / "data" / "n3"
    lost = min(int(str(item["lsn"])) for item in objects("dump", third, "--type", "outcome"))
    zero_last_blocks(third, sum(block.last_lsn >= lost for block in read(third / "wal")))
    return root


def test_the_page_has_its_steps() -> None:
    assert [command.split()[2] for command, _ in STEPS] == ["key", "tx", "diff", "verify", "dump"]
    assert len(STEPS) == (PAGES / "incident.md").read_text(encoding="utf-8").count("```sh")


@pytest.mark.parametrize(("command", "says"), STEPS, ids=[command.split()[2] for command, _ in STEPS])
def test_a_step_says_what_the_page_says(command: str, says: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    program, verb, *rest = command.split()[1:]
    result = wal(verb, *rest)
    assert (program, result.exit_code) == ("wal", EXIT_CODES[verb]), result.output
    check_says(says, result.stdout)
