"""What a node's last checkpoint says of one key's copy, without folding anything: the map, the row, how far it reaches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.state.node_image import NodeImage
from engine.state.store import Entry
from engine.state.store_errors import StoreError
from engine.state.store_lmdb import LmdbStore
from rebalance import table as topologies
from rebalance.image import FragmentImage
from rebalance.table import Topology
from tools.terminal import complain
from tools.wal.places import Place
from wal import Block, inspect
from wal import records as r
from wal.footer import speaking_of
from wal.ids import MAPS, Fragment


class AtRest(msgspec.Struct, frozen=True):
    """The last checkpoint, up to `lsn`. The log has every record of the fragment above counter `history_from`."""

    lsn: int = 0
    topology: Topology | None = None
    entry: Entry | None = None
    history_from: int = 0


def at_rest(place: Place, fragment: Fragment, key: bytes) -> AtRest:
    """What a directory's checkpoint says; nothing where there is none, or none that can be read."""
    if place.directory is None:
        return AtRest()
    try:
        store = LmdbStore(place.directory / "store", read_only=True)
        try:
            loaded = store.load()
            node = loaded.node.get("node")
            image = loaded.fragments.get(fragment)
            return AtRest(
                loaded.lsn,
                _map(msgspec.msgpack.decode(node, type=NodeImage).committed[1]) if node else None,
                store.get(fragment, key),
                msgspec.msgpack.decode(image, type=FragmentImage).history_from if image else 0,
            )
        finally:
            store.close()
    except (StoreError, msgspec.MsgspecError, ValueError) as error:
        complain(f"{place.path}: the store is left out: {error}")
        return AtRest()


def partitions_of_cluster(places: Sequence[Place]) -> int:
    """How many partitions the cluster has, by whoever of its nodes can tell; 0 if nobody can. It never changes."""
    for place in places:
        known = at_rest(place, MAPS, b"").topology
        if known is not None:
            return known.partitions
    for place in places:
        for found in inspect(place.source, owner=place.owner, ask=speaking_of([MAPS])):
            if isinstance(found, Block):
                for record in found.records:
                    known = _map(record.topology) if isinstance(record, r.Committed) else None
                    if known is not None:
                        return known.partitions
    return 0


def _map(data: bytes) -> Topology | None:
    try:
        return topologies.decode(data) if data else None
    except ValueError:
        return None
