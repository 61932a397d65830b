"""`python -m tests.typing`: what pyright, in strict mode, finds in an application and in README's examples.

The application's planted mistakes must be found, each at its line, and nothing else; README's examples have none.
"""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
APPLICATION = Path(__file__).with_name("application.py")
BEFORE = "from pathlib import Path\n\ndirectory = Path()\n"


class _Place(msgspec.Struct):
    line: int


class _Range(msgspec.Struct):
    start: _Place


class _Found(msgspec.Struct):
    file: str
    severity: str
    message: str
    range: _Range


class _Report(msgspec.Struct, rename="camel"):
    general_diagnostics: list[_Found]


def examples(text: str) -> str:
    """The examples of a page as one module; what is only looked at is given a name."""
    parts = [BEFORE]
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    told = doctest.DocTestParser().get_examples("\n".join(block for block in blocks if block.startswith(">>>")))
    for example in told:
        (statement, *_) = ast.parse(example.source).body
        looked_at = isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Call)
        parts.append(f"_ = {example.source}" if looked_at else example.source)
    parts += [block for block in blocks if not block.startswith(">>>")]
    return "\n".join(parts)


def expected(text: str) -> set[int]:
    """The lines on which a mistake is planted."""
    return {number for number, line in enumerate(text.splitlines(), 1) if re.search(r"# error: \S+$", line)}


def found(folder: Path) -> dict[str, dict[int, str]]:
    """What pyright says of the files of a folder: by file and line."""
    config = {"typeCheckingMode": "strict", "include": ["."], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_bytes(msgspec.json.encode(config))
    ran = subprocess.run(
        [Path(sys.executable).with_name("basedpyright"), "-p", folder, "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    report = msgspec.json.decode(ran.stdout, type=_Report)
    places: dict[str, dict[int, str]] = {}
    for one in report.general_diagnostics:
        if one.severity == "error":
            places.setdefault(Path(one.file).name, {}).setdefault(one.range.start.line + 1, one.message)
    return places


def problems() -> list[str]:
    """What is not found, and what is found that is none."""
    application = APPLICATION.read_text(encoding="utf-8")
    page = examples((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "application.py").write_text(application, encoding="utf-8")
        (folder / "readme.py").write_text(page, encoding="utf-8")
        places = found(folder)
    planted, said = expected(application), places.get("application.py", {})
    wrong = [f"application.py:{line}: a mistake is planted here, and not found" for line in sorted(planted - set(said))]
    wrong += [f"application.py:{line}: {said[line]}" for line in sorted(set(said) - planted)]
    lines = page.splitlines()
    wrong += [f"README: {lines[line - 1]}\n    {text}" for line, text in sorted(places.get("readme.py", {}).items())]
    return wrong if planted else ["application.py has no planted mistake"]


if __name__ == "__main__":
    wrong = problems()
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))
