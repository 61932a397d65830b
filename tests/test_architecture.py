"""The map for strangers says what is there: rooms, machines, walks, and what has to be touched to add something."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROOMS = sorted(path.name for path in (ROOT / "engine").iterdir() if path.is_dir() and (path / "__init__.py").exists())


def section(title: str) -> str:
    """The text under a heading."""
    assert f"## {title}\n" in MAP, f"there is no section {title!r}"
    return MAP.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def test_the_rooms_are_those_of_the_engine() -> None:
    table = rows(MAP.partition("| room of `engine` |")[2].partition("\n\n")[0])
    named = [name for cells in table if len(cells) == 2 for name in quoted(cells[0])]
    top = {path.stem for path in (ROOT / "engine").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted({*ROOMS, *top})


def test_every_machine_stands_in_the_room_that_it_is_said_to() -> None:
    room, seen = "", 0
    for cells in rows(section("Decide in one place, do in another")):
        found = re.match(r"\*\*`([a-z.]+)`\*\*", cells[0])
        names = quoted(cells[0])
        if found:
            room, names = found[1], names[1:]
        for name in names:
            module = name if "." in name else f"{room}.{name}"
            assert importlib.util.find_spec(module) is not None, f"there is no {module}"
            seen += 1
    assert seen > 30


@pytest.mark.parametrize("title", ["Decide in one place, do in another", "Two walks, and three flows by name"])
def test_who_is_named_on_a_walk_is_there(title: str) -> None:
    modules = [name for name in quoted(section(title)) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name)]
    assert len(modules) > 5
    for name in modules:
        first = name.partition(".")[0]
        module = f"engine.{name}" if first in ROOMS else name
        assert importlib.util.find_spec(module) is not None, f"there is no {module}"


def test_every_word_of_the_glossary_is_spoken_in_the_code() -> None:
    spoken = "\n".join(
        path.read_text(encoding="utf-8").lower()
        for package in ("wal", "rebalance", "engine")
        for path in (ROOT / package).rglob("*.py")
    )
    table = rows(section("Words"))
    words = [word for cells in table if cells[0] != "word" for word in re.split(r"[,;]| \(|\)", cells[0])]
    assert len(words) > 40
    for word in filter(None, (word.strip().lower() for word in words)):
        assert word in spoken, f"nobody says {word!r}"


# To add something.

TOYS = {
    "wal/records.py": ("Record", "\nRecord: TypeAlias = (\n"),
    "engine/messages/__init__.py": ("Message", "\nMessage: TypeAlias = (\n"),
    "engine/protocol/requests.py": ("Request", "\nRequest: TypeAlias = (\n"),
}
TOY = """
class Toy{kind}(msgspec.Struct, frozen=True, array_like=True, tag="toy"):
    id: int

{union}    Toy{kind} |
"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a record, a message and a request more, of which nothing but the unions knows."""
    root = tmp_path_factory.mktemp("toys")
    shutil.copy(ROOT / "pyproject.toml", root)
    for package in ("wal", "rebalance", "engine", "tools"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, (kind, union) in TOYS.items():
        text = (root / file).read_text(encoding="utf-8")
        assert text.count(union) == 1, f"{file} has its union"
        text = text.replace(union, TOY.format(kind=kind, union=union))
        if "import msgspec" not in text:
            text = text.replace("from typing import", "import msgspec\nfrom typing import", 1)
        (root / file).write_text(text, encoding="utf-8")
    return root


@pytest.mark.slow
def test_each_file_that_a_new_record_must_be_told_to_is_named_by_the_type_checker(toys: Path) -> None:
    packages = [word for package in ("wal", "rebalance", "engine", "tools") for word in ("-p", package)]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(toys / "cache"), *packages],
        cwd=toys,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
    ).stdout
    touched = {what: quoted(files) for what, files, _ in rows(section("To add something"))}
    omitted = {
        kind: {line.partition(":")[0] for line in checked.splitlines() if f"Toy{kind}" in line}
        for kind in ("Record", "Request")
    }
    assert omitted["Record"] == set(touched["a record type"]), checked
    assert omitted["Request"] == {"engine/protocol/limits.py"} < set(touched["a client request"]), checked


@pytest.mark.parametrize(
    ("left", "told"), [("Message", "every message has its machine"), ("Request", "every request has its machine")]
)
def test_a_message_and_a_request_without_a_machine_are_noticed_when_a_node_is_made(
    toys: Path, tmp_path: Path, left: str, told: str
) -> None:
    shutil.copytree(toys, tmp_path / "tree", ignore=shutil.ignore_patterns("__pycache__", "cache"))
    for file, (kind, _) in TOYS.items():
        if kind != left:
            shutil.copy(ROOT / file, tmp_path / "tree" / file)
    code = (
        "from engine.node.node import Node; from engine.state.replica import Replica; "
        "from engine.state.store import LayeredStore, MemoryStore; from engine.turn.settings import Settings; "
        "Node(Settings(), Replica(LayeredStore(MemoryStore())), node='n1', allocation='d', address='a:1', durable_lsn=0)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "tree",
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PYTHONPATH": str(tmp_path / "tree")},
    )
    assert made.returncode != 0
    assert told in made.stderr


def test_what_has_to_be_touched_is_there() -> None:
    table = rows(section("To add something"))[1:]
    assert [cells[0] for cells in table] == [
        "a record type",
        "a message",
        "a client request",
        "a verb of the command",
        "a fault kind",
        "a setting",
    ]
    for cells in table:
        for name in quoted(" ".join(cells[1:])):
            assert (ROOT / name).exists(), f"there is no {name}"
