"""The first answer of two is taken with the second: a put, or a get, of a client that is alone takes a turn less."""

from __future__ import annotations

import pytest

from engine.node.node import Node
from tests.sim.bytecodes import count


def test_who_answers_first_of_two_is_heard_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    together = count(5, 1)
    monkeypatch.setattr(Node, "can_wait", lambda *_: False)
    apart = count(5, 1)
    for what in ("put", "get"):
        assert together[what].turns < apart[what].turns - 0.5, what
        assert together[what].said.keys() == apart[what].said.keys()
