"""The map for strangers says what is there: rooms, machines, walks, and what has to be touched to add something."""

from __future__ import annotations

import ast
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
    table = rows(section("Words").partition("| not in a name |")[0])
    words = [word for cells in table if cells[0] != "word" for word in re.split(r"[,;]| \(|\)", cells[0])]
    assert len(words) > 40
    for word in filter(None, (word.strip().lower() for word in words)):
        assert word in spoken, f"nobody says {word!r}"


def words_in(text: str) -> dict[str, None]:
    """The words of which the names in a module are made: attributes, variables, arguments, functions and classes."""
    names = dict.fromkeys(
        str(name)
        for node in ast.walk(ast.parse(text))
        for kind in ("id", "attr", "arg", "name")
        if isinstance(name := getattr(node, kind, None), str)
    )
    return {word.lower(): None for name in names for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_a_word_that_gave_way_to_another_does_not_come_back() -> None:
    assert set(words_in("class Hold:\n    def take_SHARE(s, homes): s._peakTime = 1")) == {
        *("hold", "take", "share", "s", "homes", "peak", "time")
    }
    table = rows(section("Words").partition("| not in a name |")[2])
    assert len(table) > 4
    found: list[str] = []
    for package in ("wal", "rebalance", "engine"):
        for file in sorted((ROOT / package).rglob("*.py")):
            said, where = words_in(file.read_text(encoding="utf-8")), str(file.relative_to(ROOT))
            for gone, _, kept in table:
                if not any(where == place or where.startswith(f"{place}/") for place in quoted(kept)):
                    found += [f"{where} says {word!r} in a name" for word in quoted(gone) if word in said]
    assert found == []


def test_a_word_stands_only_where_it_is_said_to() -> None:
    for _, _, kept in rows(section("Words").partition("| not in a name |")[2]):
        for place in quoted(kept):
            assert (ROOT / place).exists(), f"there is no {place}"


def pages_cited(text: str) -> list[str]:
    """The pages that a module names."""
    return re.findall(r"\b[\w/-]+\.md\b", text)


def test_no_module_cites_a_page_that_is_not_in_the_repository() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))}
    assert pages_cited("(system.md 4, docs/ids.md)") == ["system.md", "docs/ids.md"]
    for package in ("wal", "rebalance", "engine", "tools"):
        for file in sorted((ROOT / package).rglob("*.py")):
            lost = set(pages_cited(file.read_text(encoding="utf-8"))) - pages
            assert not lost, f"{file.relative_to(ROOT)} cites {lost}"


# To add something.

IMPORTS = "from __future__ import annotations\n"
STRUCT = """
class {toy}(msgspec.Struct, frozen=True, array_like=True, tag="toy"):
    {field}

"""
DEFINED = {
    "ToyRecord": ("wal/records.py", "\nRecord: TypeAlias = (\n", "    ToyRecord |\n"),
    "ToyMessage": ("engine/messages/data.py", "\nToReplication: TypeAlias =", ""),
    "ToyRequest": ("engine/protocol/requests.py", "\nRequest: TypeAlias = (\n", "    ToyRequest |\n"),
}
"""Where each toy is a class, before what, and what its union is told there: without that nobody has anything to hear."""
FIELD = {"ToyRecord": "id: int", "ToyMessage": "version: Version", "ToyRequest": "id: int"}


def case(depth: int, value: str, toy: str, body: str) -> tuple[str, str]:
    """A case of its own, before the one that must never be."""
    pad = " " * depth
    return f"{pad}case _:\n{pad}    {value}\n", f"{pad}case {toy}():\n{pad}    {body}\n"


OTHERS = "            case r.Promised() | r.Accepted() | r.Committed() | r.Boot() | r.Claimed() | r.Checkpoint():\n"
TOLD: dict[str, dict[str, list[tuple[str, str]]]] = {
    "ToyRecord": {
        "wal/records.py": [case(8, "assert_never(record)", "ToyRecord", "return")],
        "engine/state/replica.py": [case(12, "self._apply_vote(record)", "r.ToyRecord", "pass")],
        "engine/data/concerns.py": [case(8, "assert_never(record)", "r.ToyRecord", "return []")],
        "engine/offline/share.py": [
            case(12, "assert_never(mine)", "r.ToyRecord", "pass"),
            (OTHERS, "            case r.ToyRecord():\n                return record\n"),
        ],
        "tools/wal/filters.py": [case(12, "assert_never(record)", "r.ToyRecord", "wanted = True")],
        "tools/wal/objects.py": [case(12, "assert_never(record)", "r.ToyRecord", "raise NotImplementedError")],
        "tools/wal/records.py": [case(8, "assert_never(record)", "r.ToyRecord", 'return ""')],
    },
    "ToyMessage": {
        "engine/messages/__init__.py": [("    | Replicated\n", "    | ToyMessage\n")],
        "engine/messages/data.py": [("Confirm | Confirmed\n", "ToyMessage | ")],
        "engine/data/reads.py": [case(12, "assert_never(message)", "ToyMessage", "pass")],
    },
    "ToyRequest": {
        "engine/protocol/limits.py": [case(8, "assert_never(request)", "ToyRequest", "raise NotImplementedError")],
        "engine/protocol/sizes.py": [case(8, "assert_never(request)", "ToyRequest", "raise NotImplementedError")],
        "engine/node/node.py": [
            ("            Scan: self.reads.on_scan,\n", "            ToyRequest: self.reads.on_scan,\n")
        ],
    },
}
"""Who has to be told of each, and what stands before what."""

NAMES = {
    "engine/messages/__init__.py": "from engine.messages.data import ToyMessage\n",
    "engine/data/reads.py": "from engine.messages.data import ToyMessage\n",
    "engine/protocol/limits.py": "from engine.protocol.requests import ToyRequest\n",
    "engine/protocol/sizes.py": "from engine.protocol.requests import ToyRequest\n",
    "engine/node/node.py": "from engine.protocol.requests import ToyRequest\n",
}


def tell(root: Path, toy: str, file: str) -> None:
    """One file hears of a toy."""
    text = (root / file).read_text(encoding="utf-8")
    for before, told in TOLD[toy][file]:
        assert before in text, f"{file} has {before!r}"
        text = text.replace(before, told + before)
    (root / file).write_text(text.replace(IMPORTS, IMPORTS + "\n" + NAMES.get(file, ""), 1), encoding="utf-8")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a record, a message and a request more, of which all have been told who must be."""
    root = tmp_path_factory.mktemp("toys")
    shutil.copy(ROOT / "pyproject.toml", root)
    if (ROOT / ".mypy_cache").exists():  # what `make check` knows of the modules that stay as they are
        shutil.copytree(ROOT / ".mypy_cache", root / "cache")
    for package in ("wal", "rebalance", "engine", "tools"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for toy, (file, before, union) in DEFINED.items():
        text = (root / file).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{file} has {before!r}"
        (root / file).write_text(
            text.replace(before, STRUCT.format(toy=toy, field=FIELD[toy]) + before + union), encoding="utf-8"
        )
    for toy, files in TOLD.items():
        for file in files:
            tell(root, toy, file)
    return root


def left_out(told: Path, toy: str, file: str) -> str:
    """The text of a file that was not told."""
    text = (ROOT / file).read_text(encoding="utf-8")
    defined, before, union = DEFINED[toy]
    return text.replace(before, STRUCT.format(toy=toy, field=FIELD[toy]) + before + union) if defined == file else text


def checked(root: Path) -> set[str]:
    """The files in which the type checker misses a case for a toy, or finds anything else."""
    packages = [word for package in ("wal", "rebalance", "engine", "tools") for word in ("-p", package)]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(root / "cache"), *packages],
        cwd=root,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
    ).stdout
    return {line.partition(":")[0] for line in said.splitlines() if ": error: " in line}


def made(root: Path) -> str:
    """What is said when a node is made; nothing if all is well."""
    code = (
        "from engine.node.node import Node; from engine.state.replica import Replica; "
        "from engine.state.store import LayeredStore; from engine.state.store_memory import MemoryStore; "
        "from engine.turn.settings import Settings; "
        "Node(Settings(), Replica(LayeredStore(MemoryStore())), node='n1', allocation='d', address='a:1', durable_lsn=0)"
    )
    return subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=root,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PYTHONPATH": str(root)},
    ).stderr


SAID_BY_THE_NODE = {
    "engine/messages/__init__.py": "every message has its machine",
    "engine/messages/data.py": "every message has its machine",
    "engine/node/node.py": "every request has its machine",
}
"""Who notices that these were not told: a node, when it is made. Of any other the type checker says which it was."""


@pytest.mark.slow
def test_each_file_that_was_not_told_of_a_new_record_message_or_request_is_found(told: Path) -> None:
    assert checked(told) == set(), "told everybody, nobody complains"
    assert made(told) == ""
    left = {file: left_out(told, toy, file) for toy, files in TOLD.items() for file in files}
    for file, sentence in SAID_BY_THE_NODE.items():
        whole = (told / file).read_text(encoding="utf-8")
        (told / file).write_text(left.pop(file), encoding="utf-8")
        assert sentence in made(told), f"{file} was not told"
        (told / file).write_text(whole, encoding="utf-8")
    for file, text in left.items():  # all at once: a case that is missing in one module is seen in no other one
        (told / file).write_text(text, encoding="utf-8")
    assert checked(told) == set(left)


def test_who_has_to_be_told_is_what_the_map_says() -> None:
    touched = {what: quoted(files) for what, files, _ in rows(section("To add something"))}
    assert set(touched["a record type"]) == set(TOLD["ToyRecord"])
    assert {"engine/messages/__init__.py", "engine/messages/data.py"} == {*TOLD["ToyMessage"]} & set(touched["a message"])
    assert set(touched["a client request"]) == {DEFINED["ToyRequest"][0], *TOLD["ToyRequest"]}


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
