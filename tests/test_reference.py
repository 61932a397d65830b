"""The reference of the API is made from docstrings, has everything that is public, and no link in it is broken."""

from __future__ import annotations

from pathlib import Path

import engine
from tests.reference import broken_links, make


def test_the_reference_is_whole(tmp_path: Path) -> None:
    assert make(tmp_path) == []
    page = (tmp_path / "engine.html").read_text(encoding="utf-8")
    assert [name for name in engine.__all__ if f'id="{name}"' not in page] == []
    assert {path.stem for path in (tmp_path / "engine").glob("*.html")} == {"aio", "errors", "testing"}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"><a href="#x"></a><a href="b.html"></a><a href="#y"></a><a href="https://e"></a>'
    )
    assert broken_links(tmp_path) == ["a.html: b.html", "a.html: #y"]
