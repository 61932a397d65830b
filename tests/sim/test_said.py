"""A run tells what no client ever said."""

from __future__ import annotations

from engine.protocol.requests import REQUESTS, Get, KeepLocks, Unlock
from tests.sim.said import Said, optional


def test_what_was_never_said_is_kinds_and_fields_of_others() -> None:
    said = Said()
    assert len(said.never) == len(REQUESTS)
    said.hear(Get(1, "acc", [b"k"]))
    assert "get" not in said.never
    assert [name for name in said.never if name.startswith("get.")] == [f"get.{name}" for name in optional(Get)]
    said.hear(Get(2, "acc", [b"k"], age_ms=5, stale=True))
    assert {"get.stale", "get.age_ms"}.isdisjoint(said.never)
    assert {"get.cut", "get.expiry", "get.within_ms"} <= set(said.never)


def test_a_kind_without_optional_fields_is_said_once_for_all() -> None:
    said = Said()
    said.hear(KeepLocks(1, [b"o"]))
    said.hear(Unlock(2, b"o"))
    assert not [name for name in said.never if name.startswith(("keep-locks", "unlock"))]
