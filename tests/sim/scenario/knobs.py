"""What `cluster` may say: the shape, and every setting of `engine.turn.settings` by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_type_hints

from engine.turn.settings import Durability, Settings
from tests.sim.machine import CLUSTER
from tests.sim.scenario.language import Statement, duration, size, unknown
from wal.ids import NodeId, check_name

LEASE_MS = 24 * 3_600_000
"""In a story nobody forgets a transaction: a lease lasts a day unless the story says otherwise."""
NODES_MAX = 32

SHAPE = ("nodes", "backups", "partitions", "affinity", "store", "seed", "domains", "latency", "fsync")
_SETTINGS = get_type_hints(Settings)
_OWN = ("cluster", "domain")  # said in another way


@dataclass(frozen=True)
class Shape:
    """A cluster as a story begins it."""

    nodes: list[NodeId]
    settings: Settings
    ring: bool
    lmdb: bool
    seed: int
    domains: dict[NodeId, str]
    latency_ns: int
    fsync_ns: int


def shape_of(statement: Statement) -> Shape:
    """What a `cluster` statement asks for."""
    options = dict(statement.options)
    known = [*SHAPE, *(name for name in _SETTINGS if name not in _OWN)]
    for name in options:
        if name not in known:
            raise unknown(statement, name, "option of cluster", known)
    if statement.words:
        raise statement.error(f"cluster takes options only, not {statement.words[0]!r}")
    nodes = _nodes(statement, options.pop("nodes", "3"))
    changes: dict[str, object] = {
        "cluster": CLUSTER,
        "partitions": 32,
        "backups": min(2, len(nodes) - 1),
        "lock_lease_ms": LEASE_MS,
        "anti_entropy_ms": 0,
        "mutations_bytes": 0,
        "wal_segment_bytes": 256 << 10,
        "wal_total_bytes": 64 << 20,
    }
    for name in list(options):
        if name in _SETTINGS:
            changes[name] = setting(statement, name, options.pop(name))
    settings = Settings(**changes)  # type: ignore[arg-type]  # each value was made by its field's type
    if settings.partitions & (settings.partitions - 1) or not 1 <= settings.partitions <= 16384:
        raise statement.error(f"partitions={settings.partitions}: expected a power of two up to 16384")
    if not 0 <= settings.backups <= 6:
        raise statement.error(f"backups={settings.backups}: expected 0 to 6")
    if settings.wal_total_bytes < 3 * settings.wal_segment_bytes:
        raise statement.error(
            f"wal_total_bytes={settings.wal_total_bytes}: expected at least three segments of {settings.wal_segment_bytes}"
        )
    affinity = _one_of(statement, options.get("affinity", "ring"), "affinity", ("ring", "rendezvous"))
    store = _one_of(statement, options.get("store", "memory"), "store", ("memory", "lmdb"))
    return Shape(
        nodes,
        settings,
        affinity == "ring",
        store == "lmdb",
        statement.number("seed", 1),
        _domains(statement, options.get("domains", ""), nodes),
        _time(statement, "latency", "200us"),
        _time(statement, "fsync", "200us"),
    )


def setting(statement: Statement, name: str, text: str) -> object:
    """A setting's value from its text, by the field's type."""
    kind = _SETTINGS[name]
    try:
        if kind is bool:
            values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            if text.lower() not in values:
                raise ValueError(f"{text!r} is neither true nor false")
            return values[text.lower()]
        if kind is Durability:
            return Durability(text.upper())
        if kind is int:
            if name.endswith("_ms") and not text.lstrip("-").isdigit():
                return duration(text) // 1_000_000
            return size(text)
    except ValueError as error:
        raise statement.error(f"{name}={text}: {error}") from None
    return text


def _nodes(statement: Statement, text: str) -> list[NodeId]:
    if text.isdigit():
        if not 1 <= int(text) <= NODES_MAX:
            raise statement.error(f"nodes={text}: expected 1 to {NODES_MAX}")
        return [f"n{number}" for number in range(1, int(text) + 1)]
    names = text.split(",")
    try:
        for name in names:
            check_name("node", name)
    except ValueError as error:
        raise statement.error(f"nodes={text}: expected a number, or names with commas between them; {error}") from None
    return names


def _domains(statement: Statement, text: str, nodes: Sequence[NodeId]) -> dict[NodeId, str]:
    """`domains=n1:a,n2:b`."""
    found: dict[NodeId, str] = {}
    for part in filter(None, text.split(",")):
        node, _, domain = part.partition(":")
        if node not in nodes or not domain:
            raise statement.error(f"domains={text}: expected node:domain with commas between them")
        found[node] = domain
    return found


def _one_of(statement: Statement, text: str, name: str, allowed: Sequence[str]) -> str:
    if text not in allowed:
        raise statement.error(f"{name}={text}: expected {' or '.join(allowed)}")
    return text


def _time(statement: Statement, name: str, default: str) -> int:
    try:
        return duration(statement.option(name, default))
    except ValueError as error:
        raise statement.error(f"{name}: {error}") from None


def ring(nodes: Sequence[NodeId], domains: Mapping[NodeId, str], partitions: int, copies: int) -> list[list[NodeId]]:
    """Owners in a ring, as in the tables of Ignite's design: partition 0 at n1 n2 n3, partition 1 at n2 n3 n1.

    So that whoever reads a story can tell where everything is. Domains are not heeded; `affinity=rendezvous` does.
    """
    members = sorted(set(nodes), key=_natural)
    count = len(members)
    copies = min(copies, count)
    return [[members[(partition + i) % count] for i in range(copies)] for partition in range(partitions)]


def _natural(name: NodeId) -> tuple[str, int, str]:
    """n2 comes before n10."""
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return (head, int(tail) if tail else -1, name)
