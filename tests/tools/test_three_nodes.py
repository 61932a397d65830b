"""README's "Three nodes by hand" runs as it stands there, on other ports and in another directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from engine.turn.settings import Settings
from tests.support.commands import FORESHORE, environment, free_port
from tests.support.patience import PATIENCE_SECONDS
from tools.local_cluster import spawn

README = Path(__file__).parents[2] / "README.md"


def commands() -> list[str]:
    """The lines of the block."""
    section = README.read_text(encoding="utf-8").partition("## Three nodes by hand")[2].partition("\n## ")[0]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block, "the block is gone"
    return block[1].splitlines()


class Shell:
    """Runs lines of the block: in `directory`, with this Python's programs, each port of the block on a free one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports: dict[str, int] = {}
        self.background: list[subprocess.Popen[bytes]] = []

    def words(self, line: str) -> list[str]:
        """The program and its arguments."""
        moved = re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{self._port(found[1])}", line)
        program, *arguments = shlex.split(moved.removesuffix("&"))
        known = {"foreshore": FORESHORE, "python": (sys.executable,)}
        absolute = [str(self.directory / word) if word.startswith("data/") else word for word in arguments]
        return [*known[program], *absolute]

    def _port(self, written: str) -> int:
        if written not in self.ports:
            self.ports[written] = free_port()
        return self.ports[written]

    def start(self, line: str) -> None:
        """A line that ends in `&`."""
        log = os.open(self.directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self.background.append(spawn(self.words(line), output=log, errors=log))
        finally:
            os.close(log)

    def run(self, line: str) -> str:
        """Any other line; what it printed. It must succeed."""
        result = subprocess.run(
            self.words(line),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
            check=False,
            env=environment(),
        )
        said = f"{line}\n{result.stdout}{result.stderr}\n{(self.directory / 'log').read_text()}"
        assert result.returncode == 0, f"exit code {result.returncode}: {said}"
        return result.stdout


@pytest.mark.processes
def test_three_nodes_by_hand(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    answers: list[tuple[str, str]] = []
    try:
        for line in commands():
            if line.endswith("&"):
                shell.start(line)
            else:
                answers.append((line, shell.run(line)))
        _check(dict(answers), shell)
        assert shell.background[2].wait(PATIENCE_SECONDS) == 0, "n3 was stopped"
        assert [process.poll() for process in shell.background[:2]] == [None, None], "the others go on"
    finally:
        for process in shell.background:
            process.kill()
            process.wait(PATIENCE_SECONDS)


def _check(answers: dict[str, str], shell: Shell) -> None:
    """Each answer is what the page leads one to expect; a line that has no rule here is a line to think about."""
    assert len(shell.background) == 3
    n1 = f"127.0.0.1:{shell.ports['7401']}"
    for line, answer in answers.items():
        match line.split()[:3]:
            case ["foreshore", "cluster", "init"]:
                assert answer.startswith("formed foreshore ")
                assert answer.endswith(" members=n1,n2,n3\n")
            case ["foreshore", "cluster", "status"]:
                head, *members, last = answer.splitlines()
                assert f" partitions={Settings().partitions} backups=2 " in head
                assert [member.split()[0] for member in members] == ["node=n1", "node=n2", "node=n3"]
                assert f"node=n1 address={n1} state=serving" in members[0]
                assert last == "every copy is in sync"
            case ["python", "-c", _]:
                assert not answer
            case ["foreshore", "wal", "dump"]:
                assert re.fullmatch(
                    r"lsn=\d+ time=\S+ update greetings/\d+\(0,1\)e1 tx=[0-9a-f]{32} hello=5B\n(.* stable .*\n)?", answer
                )
            case ["foreshore", "wal", "stat"]:
                assert answer.startswith("node=n1 live segments=1 ")
                assert "namespace=greetings writes=1 updates=1 deletes=0" in answer
            case ["foreshore", "wal", "counters"]:
                rows = answer.splitlines()
                assert all(" copy=OWNING lwm=1 hwm=1 epoch=1 " in row for row in rows)
                for kept in ("greetings", "~codec"):  # a key, and in what codec the namespace is kept
                    copies = [row for row in rows if row.partition("=")[2].startswith(f"{kept}/")]
                    assert [row.split()[1] for row in copies] == ["node=n1", "node=n2", "node=n3"]
                    assert len({row.split("digest=")[1] for row in copies}) == 1
                assert len(rows) == 6
            case ["foreshore", "node", "stop"]:
                assert answer == "n3 is gone\n"
            case _:
                pytest.fail(f"nobody knows what to expect of {line!r}")
