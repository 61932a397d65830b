"""The same mistakes, and README's examples, as pyright sees them in strict mode; `make check` runs this program as well."""

from __future__ import annotations

from tests.typing.__main__ import expected, problems


def test_what_pyright_finds() -> None:
    assert problems() == []


def test_a_mistake_is_one_by_its_mark() -> None:
    assert expected("a = 1\nb = c  # error: name-defined\nd = 2  # no error\n") == {2}
