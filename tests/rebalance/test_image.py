"""What a checkpoint stores of a copy: what it costs to leave large values to the rows."""

from __future__ import annotations

from collections.abc import Iterator

from rebalance.fragment import FragmentState
from rebalance.image import LARGE_BYTES, fragment_of
from tests.support.images import image_of
from wal.records import Write

NAME = ("acc", 0)
MANY = 200


class Walked(list[bytes | None]):
    """Values of a write, and how often somebody has gone through all of them."""

    walks = 0

    def __iter__(self) -> Iterator[bytes | None]:
        """Once more."""
        Walked.walks += 1
        return super().__iter__()


def test_the_values_of_a_write_are_gone_through_a_few_times_however_many_are_left_to_the_rows() -> None:
    keys = [b"%04d" % number for number in range(MANY)]
    value = bytes(LARGE_BYTES + 1)
    write = Write("acc", 0, 1, 0, keys, Walked([value] * MANY))
    fragment = FragmentState(NAME)
    fragment.begin_epoch(1, 1)
    fragment.apply(write)
    rows = {key: (1, at, value) for at, key in enumerate(keys, 1)}
    Walked.walks = 0
    image = image_of(fragment, rows.get)
    assert len(image.held) == MANY
    assert Walked.walks < 10
    assert fragment_of(NAME, image, rows.get).tail() == [write]
