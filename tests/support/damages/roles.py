"""Copies that the map calls otherwise, and nodes that are not here."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from tests.support.damages.rows import KEY
from tests.support.reconciled import ALL, Damage, adopt, forge, put_row, told, unreadable, write

TWO = ("n1", "n2")


def _leave_out(root: Path) -> None:
    shutil.rmtree(root / "n3")


def _leave_out_two(root: Path) -> None:
    for node in ("n2", "n3"):
        shutil.rmtree(root / node)


def _sole_owner(root: Path) -> None:
    """n1 and n2 left the map in good order, one after the other; so n3 alone is in sync, and has the newest map."""
    forge(root / "n1", KEY)
    adopt(root / "n3", owners=("n3",), in_sync=("n3",))


def _nobody_left(root: Path) -> None:
    """Every partition was lost with a fourth node; what is here is stale, and n2 is one counter further than the others."""
    write(root, ("n2",), b"k340", b"newer")
    adopt(root / "n3", owners=("n4",), in_sync=("n4",), lost=True)


def _moving(root: Path) -> None:
    """n3 is catching up; what it has is compared all the same."""
    forge(root / "n3", KEY)
    adopt(root / "n1", owners=ALL, in_sync=TWO)


def _leftover_behind(root: Path) -> None:
    """n3 left the map, and the others went on."""
    adopt(root / "n1", owners=TWO, in_sync=TWO)
    write(root, TWO, KEY, b"newer")


def _leftover_lost_a_row(root: Path) -> None:
    _leftover_behind(root)
    put_row(root / "n3", b"k303", None)


def _another_disk(root: Path) -> None:
    """n2 begins another life on another disk, as nobody else has heard."""
    identity = root / "n2" / "identity.json"
    identity.write_bytes(msgspec.json.encode(msgspec.json.decode(identity.read_bytes()) | {"allocation": "another"}))


def _another_disk_forged(root: Path) -> None:
    _another_disk(root)
    forge(root / "n2", KEY)


def _one_node_twice(root: Path) -> None:
    shutil.rmtree(root / "n2")
    shutil.copytree(root / "n1", root / "n2")


def _another_cluster(root: Path) -> None:
    identity = root / "n2" / "identity.json"
    identity.write_bytes(msgspec.json.encode(msgspec.json.decode(identity.read_bytes()) | {"cluster": "another"}))


ROLES = {
    "a copy that left the map, and is behind": Damage(_leftover_behind, [], 0),
    "a node left out": Damage(_leave_out, [], 3),
    "two nodes left out": Damage(_leave_out_two, [], 3),
    "a forged value on a copy that was left over": Damage(_sole_owner, [told("VALUE_MISMATCH", KEY, "n1")]),
    "a forged value on a copy that is catching up": Damage(_moving, [told("VALUE_MISMATCH", KEY, "n3")]),
    "a missing row on a copy that left the map": Damage(_leftover_lost_a_row, [told("MISSING_ON", b"k303", "n3")]),
    "every partition lost": Damage(_nobody_left, [], 3),
    "a disk that the cluster does not know": Damage(_another_disk, [], 3),
    "a forged value on a disk that the cluster does not know": Damage(
        _another_disk_forged, [told("VALUE_MISMATCH", KEY, "n2")]
    ),
    "the directory of one node in the place of another": Damage(_one_node_twice, [], 2),
    "a directory that calls itself one of another cluster": Damage(_another_cluster, unreadable("n2"), 3),
}
