"""`python -m tests.reference DIR`: the reference of the API, made from docstrings as static pages without a broken link."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.patience import PATIENCE_SECONDS

MODULES = ["engine", "!engine\\.", "engine.aio", "engine.errors", "engine.testing"]
"""What an application uses; the rest of the engine is for those who read its source."""


class _Page(HTMLParser):
    """The names and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what it names, and where it leads."""
        for name, value in attrs:
            if value is not None and name == "id":
                self.names.add(value)
            elif value is not None and name in {"href", "src"}:
                self.links.append(value)


def broken_links(folder: Path) -> list[str]:
    """The links within some pages that lead nowhere."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    broken: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            if not target.exists() or (parts.fragment and there is not None and unquote(parts.fragment) not in there.names):
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    return broken


def make(folder: Path) -> list[str]:
    """Write the pages; what is broken about them."""
    subprocess.run(
        [Path(sys.executable).with_name("pdoc"), "--no-show-source", "--output-directory", folder, *MODULES],
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    return broken_links(folder)


if __name__ == "__main__":
    wrong = make(Path(sys.argv[1]))
    print("\n".join(wrong) or f"{sys.argv[1]}/index.html")
    sys.exit(bool(wrong))
