"""Pages whose commands are run as they stand there, each with what it says below it."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs"


def steps_of(page: str) -> list[tuple[str, str]]:
    """The commands of a page that are followed by what they say, and that."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(r"^```sh\n([^`]*)\n```$\s*^```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def programs_of(page: str) -> list[tuple[str, str]]:
    """The Python of a page that is followed by what it prints, and that."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$\s*^```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def check_says(expected: str, said: str) -> None:
    """Whether all lines of a page are there, in their order; `…` stands for anything."""
    lines = iter(said.splitlines())
    for line in expected.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))) + (".*" if line.endswith("…") else ""))
        assert any(pattern.search(one) for one in lines), f"it does not say: {line}\n{said}"
