"""Six mistakes of a user, and more: each is found by a type checker, in the environment that README makes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.patience import PATIENCE_SECONDS

APPLICATION = Path(__file__).with_name("application.py")


def test_what_a_type_checker_finds(tmp_path: Path) -> None:
    """As a user would: from another directory, with the installed package."""
    text = APPLICATION.read_text()
    copy = tmp_path / "application.py"
    copy.write_text(text)
    expected = {
        number: mark[1] for number, line in enumerate(text.splitlines(), 1) if (mark := re.search(r"# error: (\S+)$", line))
    }
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(copy)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert checked.stderr == ""
    found = {
        int(match[1]): match[2] for match in re.finditer(r"application\.py:(\d+): error: .*\[([a-z-]+)\]", checked.stdout)
    }
    assert found == expected, checked.stdout
    assert len(expected) >= 15


PUBLIC = tuple(
    f"engine/{name}.py"
    for name in ("aio", "api", "client/blocking", "client/codecs", "client/inside", "client/namespace", "testing/__init__")
)
TREE = Path(__file__).parents[2]
HOW_IT_RUNS = "Coroutine[Any, Any, "
"""What a coroutine is sent, and yields to its event loop, is nobody's to name."""


def _signatures(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The public functions and methods of a module as a type checker sees them: where there are overloads, these."""
    bodies = [("", tree.body)]
    bodies += [(f"{c.name}.", c.body) for c in tree.body if isinstance(c, ast.ClassDef) and not c.name.startswith("_")]
    for prefix, body in bodies:
        functions = [f for f in body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
        overloaded = {f.name for f in functions if any(ast.unparse(d) == "overload" for d in f.decorator_list)}
        for function in functions:
            shown = any(ast.unparse(d) == "overload" for d in function.decorator_list) == (function.name in overloaded)
            if shown and (not function.name.startswith("_") or function.name.startswith("__")):
                yield f"{prefix}{function.name}", function


def test_any_is_said_only_where_json_and_msgpack_are() -> None:
    """And of the parts of a tuple that is a key; what is not reached from `engine` or `engine.aio` is named here."""
    inner = {"open_embedded", "Transaction.inside", "codec_of", "key_of", "keys_of", "value_of", "range_of", "read_value"}
    inner |= {"TransactionNamespace.__init__"}
    found: list[str] = []
    for name in PUBLIC:
        for where, function in _signatures(ast.parse((TREE / name).read_text(encoding="utf-8"))):
            said = ast.unparse(function).partition(":\n")[0].replace(HOW_IT_RUNS, "")
            allowed = "'json', 'msgpack'" in said or where == "by_tuple" or where in inner
            if re.search(r"\bAny\b", said) and not allowed:
                found.append(f"{name}: {where}: {said}")
    assert found == []
