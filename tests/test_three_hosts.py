"""`docs/three-hosts.md`, followed with three addresses of this machine for its three hosts."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

import engine
from tests.support.commands import Background, foreshore, free_port
from tests.support.patience import PATIENCE_SECONDS

PAGE = Path(__file__).parent.parent / "docs" / "three-hosts.md"
NAMES = ("n1", "n2", "n3")


def page(port: int) -> str:
    """What the page says, of 127.0.0.N and a port that is free."""
    return PAGE.read_text(encoding="utf-8").replace("10.0.0.", "127.0.0.").replace("7400", str(port))


def commands(text: str) -> list[list[str]]:
    """The words of each `foreshore` that the page has one type, without what only a host has."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    return [line.split()[1:] for line in blocks.splitlines() if line.strip().startswith("foreshore ")]


def configuration(text: str, name: str, root: Path) -> Path:
    """The page's configuration of n1, as it is on another host."""
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    swapped = {"1": name[1], name[1]: "1"}
    toml = re.sub(r"(?<=127\.0\.0\.)\d", lambda host: swapped.get(host[0], host[0]), toml)
    file = root / f"{name}.toml"
    file.write_text(toml.replace('"n1"', f'"{name}"').replace("/var/lib/foreshore", str(root / name)), encoding="utf-8")
    return file


def wait_for_status(words: list[str], code: int) -> str:
    """Ask until the command ends like this; what it said."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (asked := foreshore(*words)).returncode != code:
        assert time.monotonic() < until, f"{words} ends with {asked.returncode}:\n{asked.stdout}{asked.stderr}"
        time.sleep(0.1)
    return asked.stdout


@pytest.mark.processes
def test_three_hosts_become_a_cluster_as_the_page_says(tmp_path: Path) -> None:
    text = page(free_port())
    doctor, form, status = commands(text)
    fit = foreshore(*(word.replace("/var/lib/foreshore", str(tmp_path / "n1")) for word in doctor))
    assert "check=disk " in fit.stdout
    assert fit.returncode in (0, 1), fit.stderr  # 1: this machine is not fit, which is for it to say
    (start,) = re.findall(r"ExecStart=\S+/foreshore (.*)", text)
    words = {name: start.replace("/etc/foreshore.toml", str(configuration(text, name, tmp_path))).split() for name in NAMES}
    running = {name: Background(words[name], tmp_path / f"{name}.log") for name in NAMES}
    try:
        for node in running.values():
            node.wait_until_it_says(" listens on 127.0.0.")
        formed = foreshore(*form)
        assert formed.returncode == 0, formed.stderr
        wait_for_status(status, 0)
        (addresses,) = re.findall(r'engine\.connect\("(.*?)"\)', text)
        with engine.connect(addresses) as db:
            greetings = db.namespace("greetings", codec="str")
            greetings["hello"] = "world"
            running["n3"].signal(signal.SIGKILL)
            running["n3"].ended()
            greetings["hello"] = "again"
            assert "n3" in wait_for_status(status, 1)
            running["n3"] = Background(words["n3"], tmp_path / "n3.log")
            wait_for_status(status, 0)
            assert greetings["hello"] == "again"
        running["n1"].signal(signal.SIGTERM)
        assert running["n1"].ended() == 0
    finally:
        for node in running.values():
            node.kill()
