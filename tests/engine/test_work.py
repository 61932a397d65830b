"""Work that grows with what is asked, and not with its square: what is walked is counted, twice as much for twice as much.

Nothing here looks at a clock. Each test does a thing at one size and at twice the size.
"""

from __future__ import annotations

from engine.locks import Key, LockTable


class Counted:
    """How often something was looked at."""

    def __init__(self) -> None:
        self.times = 0

    def place(self, key: bytes) -> int:
        """The partition of a key, as a lock table asks for it."""
        self.times += 1
        return int.from_bytes(key[:2], "big")


def _ended(keys: int, partitions: int) -> int:
    """How often keys were looked at while a prepared transaction ended, partition by partition."""
    counted = Counted()
    table = LockTable(counted.place)
    held: dict[int, list[Key]] = {}
    for at in range(keys):
        held.setdefault(at % partitions, []).append(("n", (at % partitions).to_bytes(2, "big") + b"%d" % at))
    for mine in held.values():
        table.pin(b"t", mine)
    counted.times = 0
    for number, mine in held.items():
        assert list(table.keys_in_doubt(number)) == mine
        found = table.keys_in(b"t", number)
        assert found == mine
        counted.times += len(found)
        table.release(b"t", found)
    assert not len(table)
    assert not table.is_owner(b"t")
    return counted.times


def test_a_transaction_ends_with_work_that_grows_with_its_keys() -> None:
    assert _ended(4_000, 400) <= 2 * _ended(2_000, 200)


def _dropped(others: int) -> int:
    counted = Counted()
    table = LockTable(counted.place)
    for at in range(others):
        table.pin(b"other", [("n", b"\0\1%d" % at)])
    table.pin(b"t", [("n", b"\0\2k")])
    counted.times = 0
    table.drop({2})
    assert len(table) == others
    return counted.times


def test_the_loss_of_a_partition_costs_what_is_held_in_it() -> None:
    assert _dropped(2_000) == _dropped(1_000)
