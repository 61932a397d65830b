"""How a planted mistake is told. That pyright finds each, and no other, `python -m tests.typing` says in `make check`."""

from __future__ import annotations

from tests.typing.__main__ import expected


def test_a_mistake_is_one_by_its_mark() -> None:
    assert expected("a = 1\nb = c  # error: name-defined\nd = 2  # no error\n") == {2}
