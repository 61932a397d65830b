"""What a checkpoint stores, to be looked at."""

from __future__ import annotations

import msgspec

from engine.state.encoding import pieces_of_fragment
from engine.state.loaded import Loaded, whole
from engine.state.store import CheckpointImage
from rebalance.fragment import FragmentState
from rebalance.image import FragmentImage, Row, take_down


def image_of(fragment: FragmentState, row: Row | None = None) -> FragmentImage:
    """Of a fragment, made as a checkpoint makes it; `row` says what the rows of the checkpoint have."""
    pieces = pieces_of_fragment(take_down(fragment), row or (lambda _: None))
    return msgspec.msgpack.decode(b"".join(piece.data for piece in pieces), type=FragmentImage)


def loaded(image: CheckpointImage) -> Loaded:
    """What a store that was empty holds after it."""
    fragments = {name: whole(state) for name, state in image.fragments.items() if state is not None}
    partitions = {number: whole(state) for number, state in image.partitions.items()}
    return Loaded(image.lsn, {name: whole(data) for name, data in image.node.items()}, fragments, partitions)
