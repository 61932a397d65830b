"""A cluster's directories and what can be done to copies of them, each with what a reconciliation must find.

The tests of the local engine and those of Spark tell the same stories.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine import aio
from engine.offline.directory import read_directory
from engine.state.store import CheckpointImage, Entry
from engine.state.store_lmdb import LmdbStore
from rebalance import table as topologies
from tests.support.directories import append, flip, lose, replace
from wal import list_segments
from wal import records as r
from wal.ids import Fragment, Version, partition_of

PARTITIONS = 16
IN_DOUBT = b"in doubt for now"
NOW_MS = 4_000_000_000_000
YEAR_MS = 365 * 86_400_000


async def story(database: aio.Database) -> None:
    """Puts, deletes, and transactions over several partitions. What is damaged later is settled by what follows it."""
    acc, bank = database.namespace("acc"), database.namespace("bank")
    await acc.put_many({b"k%d" % at: b"value of k%d." % at for at in range(400)})
    for at in range(0, 100, 5):
        await acc.delete(b"k%d" % at)
    for at in range(30):
        async with database.transaction() as tx:
            await tx.namespace("acc").put(b"k%d" % (at % 7), b"tx %d" % at)
            await tx.namespace("bank").put(b"b%d" % at, bytes(30))
            await tx.namespace("bank").put(b"c%d" % (at % 3), b"total %d" % at)
    for namespace in (acc, bank):
        await namespace.put_many({b"z%d" % at: b"" for at in range(100)})


class Damage(NamedTuple):
    """What is done to copies, what must be found of it (kind, where, key, on), and the exit code."""

    do: Callable[[Path], None]
    found: list[tuple[str, str, str | None, list[str]]]
    exit_code: int = 1


def fragment_of(key: bytes) -> Fragment:
    """The fragment of a key in the namespace `acc`."""
    return ("acc", partition_of(key, PARTITIONS))


def _where(key: bytes) -> str:
    return "{}/{}".format(*fragment_of(key))


def _entry(directory: Path, key: bytes) -> Entry:
    with read_directory(directory) as state:
        return dict(state.rows(fragment_of(key), lambda _key, _what: None))[key]


def _replace(directory: Path, key: bytes, entry: Entry | None) -> None:
    replace(directory, fragment_of(key), {key: entry})


def _nothing(root: Path) -> None:
    """The copies agree."""


def _flip(root: Path) -> None:
    assert flip(root / "n2", b"value of k301."), "the value is not in the store"


def _forge(root: Path) -> None:
    _replace(root / "n1", b"k302", msgspec.structs.replace(_entry(root / "n1", b"k302"), value=b"forged"))


def _several(root: Path) -> None:
    _replace(root / "n1", b"k310", None)
    _replace(root / "n2", b"k311", Entry(1, 1, b"older"))
    _replace(root / "n3", b"k312", msgspec.structs.replace(_entry(root / "n3", b"k312"), value=None))
    _replace(root / "n3", b"nowhere", Entry(1, 1, b"else"))


def _lose(root: Path) -> None:
    for node in ("n1", "n2", "n3"):
        lose(root / node, fragment_of(b"k313"), b"k313")


def _vote(root: Path) -> None:
    """Two nodes voted for a transaction, another write came after it, and then nothing for a year."""
    namespace, number = name = fragment_of(b"k320")
    for node in ("n1", "n2"):
        with read_directory(root / node) as state:
            lwm, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
        held = r.Write(namespace, number, epoch, lwm, keys=[b"k320"], values=[b"held"], stable=0, tx=IN_DOUBT)
        above = r.Write(namespace, number, epoch, lwm + 1, keys=[b"k321"], values=[b"above"], stable=0)
        prepare = r.Prepare(IN_DOUBT, number, epoch, [held], locks=[], participants=[number, 3], decision=3)
        append(root / node, [prepare, r.Update([above])], now_ms=NOW_MS)
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS + YEAR_MS)


def _just_voted(root: Path) -> None:
    """The same, one second before the end of the log."""
    _vote(root)
    for node in ("n1", "n2", "n3"):
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS + 1000)


def _damage_log(root: Path) -> None:
    segment = root / "n3" / "wal" / list_segments(root / "n3" / "wal")[-1].name
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    segment.write_bytes(data)


def _cut_short(root: Path) -> None:
    with (root / "n2" / "store" / "data.mdb").open("r+b") as file:
        file.truncate(20_000)


def _clash(root: Path) -> None:
    namespace, number = name = fragment_of(b"k330")
    with read_directory(root / "n2") as state:
        lwm, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
    overlap = r.Write(namespace, number, epoch, lwm - 1, keys=[b"x", b"y"], values=[b"", b""])
    append(root / "n2", [r.Update([overlap])], now_ms=NOW_MS)


def _leave_out(root: Path) -> None:
    shutil.rmtree(root / "n3")


def _sole_owner(root: Path) -> None:
    """n1 and n2 left the map in good order, one after the other; so n3 alone is in sync, and has the newest map."""
    _forge(root)
    adopt(root / "n3", owners=("n3",), in_sync=("n3",))


def _nobody_left(root: Path) -> None:
    """Every partition was lost with a fourth node; what is here is stale, and n2 is one counter further than the others."""
    name = fragment_of(b"k340")
    with read_directory(root / "n2") as state:
        lwm, epoch = state.fragments[name].counter.lwm, state.partitions[name[1]].epoch
    append(root / "n2", [r.Update([r.Write(*name, epoch, lwm, [b"k340"], [b"newer"])])], now_ms=NOW_MS)
    adopt(root / "n3", owners=("n4",), in_sync=("n4",), lost=True)


def adopt(directory: Path, *, owners: tuple[str, ...], in_sync: tuple[str, ...], lost: bool = False) -> None:
    """The node learned of a newer map, in which all partitions are placed so."""
    with read_directory(directory) as state:
        topology = state.topology
    assert topology is not None
    replaced = msgspec.structs.replace
    placements = tuple(replaced(p, owners=owners, in_sync=in_sync, lost=lost) for p in topology.placements)
    version = Version(topology.version[0] + 1, 0)
    newer = replaced(topology, version=version, placements=placements)
    append(directory, [r.Committed(version, topologies.encode(newer))], now_ms=NOW_MS)


def _one_counter_behind(root: Path) -> None:
    """Two copies have one update more than the third, and that for an hour."""
    namespace, number = name = fragment_of(b"k341")
    for node in ("n1", "n2"):
        with read_directory(root / node) as state:
            lwm, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
        append(
            root / node,
            [r.Update([r.Write(namespace, number, epoch, lwm, keys=[b"k341"], values=[b"newer"])])],
            now_ms=NOW_MS,
        )
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS + 3_600_000)


def _half(root: Path, *, trace: bool) -> None:
    """A transaction of two partitions was committed in one of them, and rolled back (or never heard of) in the other."""
    one, other = fragment_of(b"k342"), fragment_of(b"k343")
    assert one[1] != other[1]
    for node in ("n1", "n2", "n3"):
        with read_directory(root / node) as state:
            begun = {n: (state.fragments[n].counter.lwm, state.partitions[n[1]].epoch) for n in (one, other)}
        said: list[r.Record] = []
        for name, key, commit in ((one, b"k342", True), (other, b"k343", False)):
            if commit or trace:
                lwm, epoch = begun[name]
                write = r.Write(*name, epoch, lwm, [key], [b"half"], 0, IN_DOUBT)
                said.append(
                    r.Prepare(
                        IN_DOUBT,
                        name[1],
                        epoch,
                        [write],
                        locks=[],
                        participants=sorted([one[1], other[1]]),
                        decision=one[1],
                    )
                )
                said.append(r.Outcome(IN_DOUBT, name[1], epoch, commit, [(name[0], lwm, 1)]))
        append(root / node, said, now_ms=NOW_MS)


def _voted_and_committed_elsewhere(root: Path) -> None:
    """All copies of one partition voted and heard no more; the transaction's other partition has committed it."""
    one, other = fragment_of(b"k342"), fragment_of(b"k343")
    for node in ("n1", "n2", "n3"):
        with read_directory(root / node) as state:
            begun = {n: (state.fragments[n].counter.lwm, state.partitions[n[1]].epoch) for n in (one, other)}
        said: list[r.Record] = []
        for name, key in ((one, b"k342"), (other, b"k343")):
            lwm, epoch = begun[name]
            write = r.Write(*name, epoch, lwm, [key], [b"half"], 0, IN_DOUBT)
            said.append(
                r.Prepare(
                    IN_DOUBT, name[1], epoch, [write], locks=[], participants=sorted([one[1], other[1]]), decision=one[1]
                )
            )
        said.append(r.Outcome(IN_DOUBT, one[1], begun[one][1], True, [(one[0], begun[one][0], 1)]))
        append(root / node, said, now_ms=NOW_MS)


def _forge_everywhere(root: Path) -> None:
    """One value is changed, with a right checksum, on all three copies."""
    for node in ("n1", "n2", "n3"):
        _replace(root / node, b"k302", msgspec.structs.replace(_entry(root / node, b"k302"), value=b"forged"))


def _misplace(root: Path) -> None:
    """All copies have a row in a partition that its key does not hash to, and their logs say so."""
    number = (fragment_of(b"k344")[1] + 1) % PARTITIONS
    for node in ("n1", "n2", "n3"):
        with read_directory(root / node) as state:
            lwm, epoch = state.fragments["acc", number].counter.lwm, state.partitions[number].epoch
        append(
            root / node, [r.Update([r.Write("acc", number, epoch, lwm, keys=[b"k344"], values=[b"here"])])], now_ms=NOW_MS
        )


def _forget_fragment(root: Path) -> None:
    """A whole fragment, its rows and its counters, is gone from one store."""
    store = LmdbStore(root / "n2" / "store")
    name = fragment_of(b"k345")
    store.write(CheckpointImage(store.load().lsn, {}, {name: None}, {}, cleared=[name], rows={}))
    store.close()


def _swap_log(root: Path) -> None:
    """The log of n1 lies in the directory of n2."""
    shutil.rmtree(root / "n2" / "wal")
    shutil.copytree(root / "n1" / "wal", root / "n2" / "wal")


def _on(key: bytes) -> str:
    return f"partition {fragment_of(key)[1]}"


_VOTED = f"partition {fragment_of(b'k320')[1]}"

DAMAGES = {
    "nothing": Damage(_nothing, [], 0),
    "a flipped bit": Damage(_flip, [("UNREADABLE", _where(b"k301"), "k301", ["n2"])]),
    "a forged value": Damage(_forge, [("VALUE_MISMATCH", _where(b"k302"), "k302", ["n1"])]),
    "several rows": Damage(
        _several,
        [
            ("MISSING_ON", _where(b"k310"), "k310", ["n1"]),
            ("VERSION_MISMATCH", _where(b"k311"), "k311", ["n2"]),
            ("TOMBSTONE_MISMATCH", _where(b"k312"), "k312", ["n3"]),
            ("EXTRA_ON", _where(b"nowhere"), "nowhere", ["n3"]),
        ],
    ),
    "a row that no copy has any more": Damage(
        _lose,
        [
            *(("CONTENTS_MISMATCH", _where(b"k313"), None, [node]) for node in ("n1", "n2", "n3")),
            ("STORE_DIFFERS_FROM_LOG", _where(b"k313"), "k313", ["n1", "n2", "n3"]),
        ],
    ),
    "a transaction in doubt": Damage(
        _vote,
        [
            ("TX_UNRESOLVED", _VOTED, None, ["n1", "n2"]),
            ("COUNTER_GAP", _where(b"k320"), None, ["n1", "n2"]),
        ],
    ),
    "a damaged log": Damage(_damage_log, [("UNREADABLE", "-", None, ["n3"])], 3),
    "a store cut short": Damage(_cut_short, [("UNREADABLE", "-", None, ["n2"])], 3),
    "two histories": Damage(_clash, [("UNREADABLE", f"partition {fragment_of(b'k330')[1]}", None, ["n2"])], 3),
    "a node left out": Damage(_leave_out, [], 3),
    "a forged value on a copy that was left over": Damage(
        _sole_owner, [("VALUE_MISMATCH", _where(b"k302"), "k302", ["n1"])]
    ),
    "every partition lost": Damage(_nobody_left, [], 3),
    "a copy one counter behind": Damage(_one_counter_behind, [("BEHIND", _where(b"k341"), None, ["n3"])]),
    "committed here and rolled back there, on all copies": Damage(
        lambda root: _half(root, trace=True), [("TX_PARTIAL", _on(b"k343"), None, ["n1", "n2", "n3"])]
    ),
    "committed here and never heard of there": Damage(
        lambda root: _half(root, trace=False), [("TX_PARTIAL", _on(b"k343"), None, ["n1", "n2", "n3"])]
    ),
    "voted here and committed there": Damage(
        _voted_and_committed_elsewhere, [("TX_PARTIAL", _on(b"k343"), None, ["n1", "n2", "n3"])]
    ),
    "one value changed on all copies": Damage(
        _forge_everywhere, [("STORE_DIFFERS_FROM_LOG", _where(b"k302"), "k302", ["n1", "n2", "n3"])]
    ),
    "a row in a partition of another": Damage(
        _misplace,
        [("MISPLACED", "acc/{}".format((fragment_of(b"k344")[1] + 1) % PARTITIONS), "k344", ["n1", "n2", "n3"])],
    ),
    "a fragment that is gone from one store": Damage(
        _forget_fragment,
        [("COUNTER_GAP", _where(b"k345"), None, ["n2"]), ("BEHIND", _where(b"k345"), None, ["n2"])],
    ),
    "the log of another node": Damage(_swap_log, [("UNREADABLE", "-", None, ["n2"])], 3),
}
