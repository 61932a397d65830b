"""README shows only what runs: its examples are these tests."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import engine

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_of_the_api_run(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if b.startswith(">>>")]
    assert len(blocks) >= 6, "the page lost its examples"
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    names: dict[str, object] = {"engine": engine, "directory": tmp_path / "node"}
    test = parser.get_doctest("\n".join(blocks), names, "README.md", "README.md", 0)
    problems: list[str] = []
    runner.run(test, out=problems.append)
    assert not runner.failures, "".join(problems)
