"""Who gives a transaction up wants nothing any more: neither what it holds, nor what it stands in line for."""

from __future__ import annotations

import pytest

from engine.data.locks import LockTable

A, B = ("acc", b"a"), ("acc", b"b")
ANN, BOB, CAT = (bytes(15) + name for name in (b"a", b"b", b"c"))


def test_a_place_in_the_line_is_given_up_with_everything_else() -> None:
    locks = LockTable(lambda _, __: 0)
    told: list[str] = []

    def wait(owner: bytes, *keys: tuple[str, bytes]) -> None:
        locks.wait_all(
            owner, list(keys), 10, lambda: told.append(f"{owner[-1:]!r} granted"), lambda held, _: told.append(held)
        )

    wait(ANN, A)
    wait(BOB, B, A)
    wait(CAT, A)
    assert told == ["b'a' granted"]
    assert not sum(locks.leaving(BOB))
    assert told[1:] == ["nobody: the transaction was given up"]
    assert not locks.keys_of(BOB)
    locks.release(ANN)
    assert told[2:] == ["b'c' granted"], "nobody waits behind one that has left"
    assert not sum(locks.leaving(CAT))
    assert locks.idle
    assert locks.next_expiry() is None or not locks.keys_of(CAT)


@pytest.mark.parametrize("why", ["it leaves", "it gives way"])
def test_what_else_a_transaction_waits_for_is_not_granted_because_it_gives_up(why: str) -> None:
    """It was to write a key, asked to read it as well, and the first is what stood before the second."""
    locks = LockTable(lambda _, __: 0)
    told: list[str] = []

    def wait(owner: bytes, *, shared: bool) -> None:
        locks.wait_all(
            owner,
            [A],
            10,
            lambda: told.append(f"{owner[-1:]!r} granted"),
            lambda *_: told.append("given up"),
            shared=shared,
        )

    wait(ANN, shared=True)
    wait(BOB, shared=False)
    wait(BOB, shared=True)
    assert told == ["b'a' granted"]
    if why == "it leaves":
        assert not sum(locks.leaving(BOB))
    else:
        locks.give_way(BOB, ())
    assert told[1:] == ["given up"] * 2
    assert not locks.keys_of(BOB)
    assert not locks.waiters
