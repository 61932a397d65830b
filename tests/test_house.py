"""The house keeps its rules: who may import what, no iteration over sets where things are decided, no run without
assertions. Each rule is shown a breach of it, so that it is known to notice."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import networkx
import pytest

from tests.conftest import LONGEST, rank
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("wal", "rebalance", "engine", "tools")

DOING = {
    "wal": {
        "archive",
        "archiver",
        "beside",
        "checksum",
        "cut",
        "disk",
        "errors",
        "history",
        "index",
        "kept",
        "live_notes",
        "log",
        "outline",
        "packed",
        "probe",
        "reader",
        "recovery",
    }
    | {"registering", "repair", "scan", "seeking", "segment_file", "segment_walk", "segments", "stored", "walk", "whole"},
    "engine": {"aio", "api", "errors", "siblings"},
    "engine.client": {
        "admin",
        "agreeing",
        "blocking",
        "claims",
        "blocking_namespaces",
        "blocking_snapshots",
        "snapshots",
        "codecs",
        "deciding",
        "entered",
        "inside",
        "keeping",
        "leases",
        "loop",
        "moments",
        "namespace",
        "namespaces",
        "oneshot",
        "operations",
        "outside",
        "running",
        "session",
        "single",
        "sockets",
        "timing",
        "together",
        "unclosed",
    }
    | {"transaction"},
    "engine.host": {
        "data_directory",
        "driver",
        "duties",
        "archiving",
        "preparing",
        "embedded",
        "links",
        "pulse",
        "server",
        "sockets",
        "transport",
    },
    "engine.offline": {"directory", "live", "refusals", "repair", "rows", "share"},
    "engine.protocol": {"resolver"},
    "engine.state": {"identity", "recover", "store_apply", "store_errors", "store_file", "store_lmdb", "store_sums"}
    | {"store_raw", "store_reads", "store_writer"},
    "engine.testing": {"node", "plugin"},
}
"""Modules that do, or that neither do nor decide; every other one decides, and stands in the contract."""


def contract() -> dict[str, list[str]]:
    """The contract about deciding modules, as pyproject.toml has it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    found: dict[str, list[str]] = next(c for c in contracts if c["name"].startswith("what decides "))
    return found


def deciding() -> list[Path]:
    """The files of the deciding modules."""
    files: list[Path] = []
    for module in contract()["source_modules"]:
        path = ROOT / module.replace(".", "/")
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return files


def test_every_module_either_decides_or_does() -> None:
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in deciding()}
    for file in (file for package in ("wal", "rebalance", "engine") for file in sorted((ROOT / package).rglob("*.py"))):
        package = ".".join(file.parent.relative_to(ROOT).parts)
        name = f"{package}.{file.stem}"
        if file.stem != "__init__":
            does = file.stem in DOING.get(package, set())
            assert does != (name in names), f"{name}: say in the contract that it decides, or here that it does"


def test_at_the_top_of_the_engine_stands_what_an_application_imports() -> None:
    top = {file.stem for file in (ROOT / "engine").glob("*.py")}
    assert top == {"__init__", "aio", "api", "errors", "siblings"}


# Imports.


def imports_of(file: Path, modules: Collection[str]) -> set[str]:
    """The modules of ours that one imports: anywhere in it, also where only a type checker looks."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {f"{module}.{a.name}" if f"{module}.{a.name}" in modules else module for a in names}
    return found & set(modules)


def circles(root: Path) -> list[list[str]]:
    """The modules of a tree that import each other, in whatever way."""
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }
    graph: networkx.DiGraph[str] = networkx.DiGraph(
        (name, other) for name, file in files.items() for other in imports_of(file, files)
    )
    return sorted(sorted(found) for found in networkx.strongly_connected_components(graph) if len(found) > 1)


def test_no_module_imports_itself_by_way_of_others(tmp_path: Path) -> None:
    assert circles(ROOT) == []
    for name in ("one", "two"):
        (tmp_path / "wal").mkdir(exist_ok=True)
        other = "two" if name == "one" else "one"
        text = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wal import {other}\n"
        (tmp_path / "wal" / f"{name}.py").write_text(text, encoding="utf-8")
    assert circles(tmp_path) == [["wal.one", "wal.two"]], "a circle is noticed"


def broken(root: Path) -> str:
    """What the import contracts say of a tree."""
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=root,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PYTHONPATH": str(root)},
    )
    assert (result.returncode == 0) == (" 0 broken" in result.stdout), result.stderr
    return result.stdout


def test_the_import_contracts_notice_a_breach(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for module, line in (
        ("engine/data/locks.py", "import time"),
        ("engine/host/duties.py", "import threading"),
        ("wal/counters.py", "import engine.errors"),
        ("rebalance/choice.py", "from engine.host.driver import Driver"),
        ("rebalance/table.py", "from rebalance.ports import Node"),
        ("engine/client/codecs.py", "import rich"),
        ("engine/client/calls.py", "import engine.turn.settings"),
        ("engine/cluster/pace.py", "from engine.data.locks import LockTable"),
        ("tools/config.py", "import tests.support"),
    ):
        with (tmp_path / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    said = broken(tmp_path)
    assert "0 kept, 8 broken" in said.replace("\n", " "), said
    for breach in (
        "engine.data.locks -> time",
        "wal.counters -> engine.errors",
        "rebalance.choice -> engine.host.driver",
        "rebalance.table -> rebalance.ports",
        "engine.client.codecs -> rich",
        "engine.client.calls -> engine.turn.settings",
        "engine.cluster.pace -> engine.data.locks",
        "tools.config -> tests",
    ):
        assert breach in said


def test_the_heart_needs_nothing_but_the_log() -> None:
    """All of `rebalance` can be loaded without the engine, an event loop or a socket."""
    rules = sorted(f"rebalance.{file.stem}" for file in (ROOT / "rebalance").glob("*.py") if file.stem != "__init__")
    code = f"import sys, {', '.join(rules)}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=True,
    ).stdout.split()
    assert {"rebalance", "wal"} <= set(loaded)
    assert not {"engine", "tools", "asyncio", "socket", "lmdb"} & set(loaded)


# Bounds: what a reader can hold in mind.

BOUNDED = ("rebalance", "wal", "engine", "tools")
MODULE_LINES_MAX = 450
FUNCTION_LINES_MAX = 50
"""From its first statement on: what it takes and what it promises is not what it does."""
BARE_MAX = 5
"""Arguments that a call may pass by their place alone."""
VARIADIC = {"pack", "print", "run"}
"""What takes any number of arguments of one kind: the fields of a packed struct, the words of a command."""
HEART = 0.1
"""So much of what a node is made of is `rebalance`, at least; the programs around it grow by themselves."""


def too_large(name: str, text: str) -> list[str]:
    """What in a module is larger than a reader can hold in mind."""
    lines = text.count("\n")
    found = [f"{name} has {lines} lines"] if lines > MODULE_LINES_MAX else []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not _is_one_match(node):
                body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
                assert node.end_lineno is not None
                long = node.end_lineno - body[0].lineno + 1
                if long > FUNCTION_LINES_MAX:
                    found.append(f"{name}:{node.lineno}: {node.name} has {long} lines")
            case ast.Call(func=func, args=args):
                bare = sum(not isinstance(argument, ast.Starred) for argument in args)
                if bare > BARE_MAX and ast.unparse(func).rpartition(".")[2] not in VARIADIC:
                    found.append(f"{name}:{node.lineno}: {ast.unparse(func)} is given {bare} arguments without their names")
    return found


def _is_one_match(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A match over a closed union is as long as the union: it ends in `assert_never`, and is flat."""
    matches = [statement for statement in function.body if isinstance(statement, ast.Match)]
    return any("assert_never(" in ast.unparse(match.cases[-1].body[-1]) for match in matches)


def test_nothing_is_larger_than_a_reader_can_hold_in_mind() -> None:
    found: list[str] = []
    for file in (file for package in BOUNDED for file in sorted((ROOT / package).rglob("*.py"))):
        found += too_large(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    assert found == []


def test_a_module_a_function_and_a_call_that_are_too_large_are_noticed() -> None:
    assert too_large("m", "a = 1\n" * 451) == ["m has 451 lines"]
    body = "    a = 1\n" * 50
    assert too_large("m", f'def f():\n    """A promise."""\n{body}') == []
    assert too_large("m", f"async def f():\n{body}    a = 2\n") == ["m:1: f has 51 lines"]
    union = "".join(f"        case {at}:\n            f({at})\n" for at in range(30))
    match = f"def f(a):\n    match a:\n{union}        case _:\n            "
    assert too_large("m", f"{match}assert_never(a)\n") == []
    assert too_large("m", f"{match}pass\n") == ["m:1: f has 63 lines"]
    assert too_large("m", "f(1, 2, 3, 4, 5, a=6)\nf(*a)") == []
    assert too_large("m", "f(1, 2, 3, 4, 5, 6)") == ["m:1: f is given 6 arguments without their names"]


def test_the_heart_is_not_lost_among_the_rooms() -> None:
    size = {
        package: sum(file.read_text(encoding="utf-8").count("\n") for file in (ROOT / package).rglob("*.py"))
        for package in ("wal", "rebalance", "engine")
    }
    assert size["rebalance"] >= HEART * sum(size.values()), size


def test_no_function_is_too_complex() -> None:
    """Of the checks that always run: ruff counts, and nobody in the product is let off."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert told["mccabe"]["max-complexity"] == 20
    assert "C901" in told["select"]
    let_off = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for package in BOUNDED
        for file in sorted((ROOT / package).rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if "noqa" in line and "C901" in line and "one case for each" not in line
    ]
    assert let_off == []


# The fence: may a node act on what was said under a version?

BY_ITS_PARTS = {
    "engine/data/admission.py": "a request came under no version, and was let in because this node serves",
    "engine/data/writes.py": "the same in one step, for how it nearly always is",
    "engine/cluster/handovers.py": "who has stopped for a full exchange drains for no step",
    "engine/cluster/standing.py": "nor does it promise to follow without one",
    "engine/cluster/membership.py": "what is told of this node",
    "engine/cluster/reasons.py": "whether an exchange did not end",
    "engine/cluster/leaving.py": "who is held up is not asked to stop the cluster",
    "engine/node/admin.py": "an operator is told",
    "engine/turn/core.py": "here it is kept",
    "rebalance/ports.py": "here the fence is said, once",
}
"""Where it is asked whether the node is frozen without asking for the whole fence (`may_act`), and why."""


def test_the_fence_is_said_once_and_each_exception_gives_its_reason() -> None:
    found: dict[str, int] = {}
    for package in ("rebalance", "engine"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr == "frozen" and ast.unparse(node.value) != "message":
                    found[str(file.relative_to(ROOT))] = node.lineno
    assert set(found) == set(BY_ITS_PARTS)


# Effects: who decides says what it owes to the core and to the desk.

EFFECTS_NAMED_IN = ("engine/turn/", "engine/node/", "engine/host/", "engine/testing/")


def names_effects(text: str) -> list[int]:
    """The lines of a module on which it reaches for what a turn owes."""
    found: list[int] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(attr="effects") | ast.Name(id="effects") | ast.ImportFrom(module="engine.turn.effects"):
                found.append(node.lineno)
    return found


def test_effects_are_named_where_they_are_made_and_paid_and_nowhere_else() -> None:
    assert names_effects("from engine.turn.effects import Effects\ncore.effects.log.append(1)\n") == [1, 2]
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for package in ("rebalance", "engine")
        for file in sorted((ROOT / package).rglob("*.py"))
        if not str(file.relative_to(ROOT)).startswith(EFFECTS_NAMED_IN)
        for line in names_effects(file.read_text(encoding="utf-8"))
    ]
    assert found == []


# Rules: what a machine keeps only it changes.

_CHANGES = {"append", "appendleft", "clear", "discard", "extend", "pop", "popitem", "popleft", "setdefault", "update"}


def machines_of_a_node() -> set[str]:
    """What a node is made of, as its parts are called wherever one is given another."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / "engine/node/machines.py").read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id=kind))) if kind[
                0
            ].isupper():
                found.add(name)
    return found


def changed_of_others(text: str, machines: set[str]) -> list[int]:
    """The lines of a module which put something into a collection of another machine, or take something out."""

    def of_another(node: ast.AST) -> bool:
        match node:
            case ast.Subscript(value=inside):
                return of_another(inside)
            case ast.Attribute(value=ast.Attribute(attr=name)):
                return name.lstrip("_") in machines
        return False

    found: list[int] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=inside, ctx=ast.Store() | ast.Del()) if of_another(inside):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=inside, attr=name)) if name in _CHANGES and of_another(inside):
                found.append(node.lineno)
    return found


def test_no_machine_changes_what_another_one_keeps() -> None:
    machines = machines_of_a_node()
    assert {"writes", "locks", "coordinator", "participant", "supply", "exchange"} <= machines
    for line in (
        "self.writes.under_way[tx] = 1",
        "del self._locks.owners[1][2]",
        "self.participant.voting.pop(tx, None)",
        "node.exchange.lists.append(1)",
    ):
        assert changed_of_others(line, machines) == [1], line
    for line in ("self.under_way[tx] = 1", "found = self.writes.under_way[tx]", "self.participant.finish(local)"):
        assert changed_of_others(line, machines) == [], line
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for package in ("rebalance", "engine")
        for file in sorted((ROOT / package).rglob("*.py"))
        for line in changed_of_others(file.read_text(encoding="utf-8"), machines)
    ]
    assert found == []


# Rules: each takes a closed union of its own.


def hears_all(text: str) -> dict[str, bool]:
    """Of each rule that takes messages: whether `on` has a case for each kind, and says that there is no other."""
    found: dict[str, bool] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "takes" for part in node.body
        ):
            on = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "on"), None)
            found[node.name] = on is not None and _is_one_match(on)
    return found


def test_every_rule_has_a_case_for_each_message_that_it_takes() -> None:
    rule = "class A(Rule):\n    takes = get_args(U)\n    def on(self, sender, message):\n        match message:\n"
    assert hears_all(f"{rule}            case _:\n                assert_never(message)\n") == {"A": True}
    assert hears_all(f"{rule}            case _:\n                pass\n") == {"A": False}
    assert hears_all("class A(Rule):\n    takes = get_args(U)\n") == {"A": False}
    found: dict[str, bool] = {}
    for package in ("rebalance", "engine"):
        for file in sorted((ROOT / package).rglob("*.py")):
            found |= hears_all(file.read_text(encoding="utf-8"))
    assert len(found) >= 11
    assert [name for name, whole in found.items() if not whole] == []


# Sets: their order differs from run to run.

_ORDERED_BY = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "fromkeys", "extend", "join", "reversed"}
_MAKES_SETS = {"set", "frozenset", "union", "intersection", "difference", "symmetric_difference"}
_FORGETS_ORDER = {"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len", "update"}


class _Sets(ast.NodeVisitor):
    """Finds where a module takes things out of a set in the set's own order."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: list[int] = []
        self._names: set[str] = set()
        self._forgiven: set[ast.AST] = set()
        for node in ast.walk(tree):
            match node:
                case ast.AnnAssign(target=target, annotation=annotation) if _is_set_type(annotation):
                    self._names.add(_name(target))
                case ast.arg(arg=name, annotation=annotation) if annotation is not None and _is_set_type(annotation):
                    self._names.add(name)
                case ast.Assign(targets=targets, value=value) if self._is_set(value):
                    self._names |= {_name(target) for target in targets}
        self._names.discard("")
        self.visit(tree)

    def _is_set(self, node: ast.AST) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=func):
                return _name(func) in _MAKES_SETS
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), right=right):
                return any(self._is_set(side) or _is_keys(side) for side in (left, right))
            case ast.Name() | ast.Attribute():
                return _name(node) in self._names
        return False

    def _take(self, node: ast.AST) -> None:
        if self._is_set(node):
            self.found.append(node.lineno)  # type: ignore[attr-defined]  # every expression has a line

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node.func) in _FORGETS_ORDER:
            self._forgiven |= set(node.args)
        elif _name(node.func) in _ORDERED_BY:
            for argument in node.args:
                self._take(argument)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._take(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._take(node.value)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and node not in self._forgiven:
            for generator in node.generators:
                self._take(generator.iter)
        super().generic_visit(node)


def _is_set_type(annotation: ast.AST) -> bool:
    return ast.unparse(annotation).partition("[")[0] in {"set", "frozenset", "AbstractSet"}


def _is_keys(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in {"keys", "items"}


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def sets_walked(text: str) -> list[int]:
    """The lines on which a module depends on the order of a set."""
    return _Sets(ast.parse(text)).found


@pytest.mark.parametrize("file", deciding(), ids=lambda file: f"{file.parent.name}.{file.stem}")
def test_what_decides_walks_no_set(file: Path) -> None:
    assert sets_walked(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "for x in {1, 2}: pass",
        "[x for x in set(y)]",
        "{x: 1 for x in frozenset(y)}",
        "list({x for x in y})",
        "a: set[int] = make()\nfor x in a: pass",
        "self.a = set()\ntuple(self.a)",
        "def f(a: set[int]):\n    return [*a]",
        "for x in a.keys() - b: pass",
        "next(iter(a.union(b)))",
        "dict.fromkeys({1} | b)",
    ],
)
def test_a_walk_over_a_set_is_noticed(line: str) -> None:
    assert sets_walked(line)


@pytest.mark.parametrize(
    "line", ["sorted({1, 2})", "any(x for x in {1})", "1 in {1}", "for x in (1, 2): pass", "len(set(y))"]
)
def test_what_does_not_depend_on_the_order_is_let_be(line: str) -> None:
    assert sets_walked(line) == []


# Assertions.


def _refusals() -> Iterator[tuple[str, ...]]:
    yield "-m", "tools.cli", "node", "start", "--data", "data"
    yield "-c", "import engine; engine.open('data')"
    yield "-c", "import asyncio, engine.aio; asyncio.run(engine.aio.open('data'))"


@pytest.mark.parametrize("program", list(_refusals()))
def test_no_node_runs_without_its_assertions(program: tuple[str, ...], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-O", *program],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert result.returncode != 0
    assert "assertions are part of a node: run Python without -O" in result.stderr
    assert not (tmp_path / "data").exists()


# The order of the tests.


def test_what_lasts_longest_begins_first_and_is_there() -> None:
    assert [long for long in LONGEST if not (ROOT / long).exists()] == []
    names = ["tests/wal/test_log.py::test_a", "tests/crash/test_kill.py::test_b", "tests/spark/test_c.py::test_c"]
    assert sorted(names, key=rank) == names[::-1]
