"""What a node's last checkpoint says of one key's copy, without folding anything: the map, the row, how far it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.state.store_errors import StoreError, StoreTooNew
from tools.terminal import ExitCode
from tools.wal.places import Place
from wal import Block, inspect
from wal import records as r
from wal.footer import speaking_of
from wal.ids import MAPS, Fragment

if TYPE_CHECKING:
    from engine.state.store import Entry
    from rebalance.table import Topology
    from tools.wal.trouble import Trouble


class AtRest(msgspec.Struct, frozen=True):
    """The last checkpoint, up to `lsn`. The log has every record of the fragment above counter `history_from`."""

    lsn: int = 0
    topology: Topology | None = None
    entry: Entry | None = None
    history_from: int = 0


def at_rest(place: Place, fragment: Fragment, key: bytes, trouble: Trouble) -> AtRest:
    """What a directory's checkpoint says; nothing where there is none, or none that can be read, which is told once."""
    if place.directory is None:
        return AtRest()
    from engine.state.node_image import NodeImage  # noqa: PLC0415  # who has only a log does not wait for a store
    from engine.state.store_lmdb import LmdbStore  # noqa: PLC0415
    from rebalance.image import FragmentImage  # noqa: PLC0415

    try:
        store = LmdbStore(place.directory / "store", read_only=True)
        try:
            loaded = store.load()
            node = loaded.node.get("node")
            image = loaded.fragments.get(fragment)
            return AtRest(
                loaded.lsn,
                map_of(msgspec.msgpack.decode(node, type=NodeImage).committed[1]) if node else None,
                store.get(fragment, key),
                msgspec.msgpack.decode(image, type=FragmentImage).history_from if image else 0,
            )
        finally:
            store.close()
    except (StoreError, msgspec.MsgspecError, ValueError) as error:
        trouble.leave_out(place, error, ExitCode.UNREADABLE if isinstance(error, StoreTooNew) else ExitCode.DAMAGED)
        return AtRest()


def map_of_cluster(places: Sequence[Place], trouble: Trouble) -> Topology | None:
    """The newest map that a node's store has; or one of those in the logs; None if nobody can tell."""
    stored = [known for place in places if (known := at_rest(place, MAPS, b"", trouble).topology) is not None]
    if stored:
        return max(stored, key=lambda known: known.version)
    newest: Topology | None = None
    for place in places:
        for found in inspect(place.source, owner=place.owner, ask=speaking_of([MAPS])):
            if isinstance(found, Block):
                for record in found.records:
                    known = map_of(record.topology) if isinstance(record, r.Committed) else None
                    if known is not None and (newest is None or known.version > newest.version):
                        newest = known
    return newest


def map_of(data: bytes) -> Topology | None:
    """A map, if there is one that this version can read."""
    from rebalance import table as topologies  # noqa: PLC0415  # maps are seldom, and their hashes come with OpenSSL

    try:
        return topologies.decode(data) if data else None
    except ValueError:
        return None
