"""How commands ask nodes: a name service that says nothing keeps no command waiting."""

from __future__ import annotations

import socket
from threading import Event
from typing import Any

import pytest

from engine.errors import Unavailable
from tests.support.patience import PATIENCE_SECONDS
from tools.asking import question, run


def test_a_name_service_that_says_nothing_is_given_up_with_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, waited = Event(), list[bool]()

    def asked(*_: Any, **__: Any) -> list[Any]:
        waited.append(silent.wait(PATIENCE_SECONDS))
        return []

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    try:
        with pytest.raises(Unavailable) as told:
            run(question("db.example:7400", "status", timeout=0.1))
        assert not waited, "nobody waits until it has answered"
        assert str(told.value) == (
            "no answer from db.example:7400: no word from the name service of db.example within 0.1 s"
        )
    finally:
        silent.set()


def test_a_name_that_is_not_known_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    with pytest.raises(Unavailable) as told:
        run(question("db.example:7400", "status"))
    assert str(told.value) == (
        "no answer from db.example:7400: the name db.example is not known: Name or service not known"
    )
