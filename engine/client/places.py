"""Where a client finds the partitions: the newest table that it has seen, and the nodes that it is connected to."""

from __future__ import annotations

from engine.protocol.addresses import Address
from engine.protocol.requests import Table
from rebalance import table
from rebalance.table import Topology
from wal.ids import NodeId

SILENCE_MS = 1_000
"""A node that does not answer for so long may be gone without a word: others are asked for the table."""


def leading_in(topology: Topology) -> list[int]:
    """A partition of each primary."""
    first = {placed.primary: number for number, placed in reversed(list(enumerate(topology.placements)))}
    return [number for primary, number in first.items() if primary is not None]


class Places:
    """The table and the connections of one client; where each partition's primary is follows from both."""

    def __init__(self, seeds: list[Address], domain: str) -> None:
        self.seeds = seeds
        self.domain = domain
        self.topology: Topology | None = None
        self.number = 0  # of the table in use: `Version.number`
        self.leading: list[int] = []  # a partition of each primary
        self.addresses: dict[NodeId, Address] = {}
        self.route: list[Address | None] = []  # partition -> its primary's address, if there is a connection
        self.connected: dict[Address, bool] = {}
        self.mute: dict[Address, int] = {}  # copies that did not answer what any may, and when that was (ns)
        self.to_connect: list[Address] = list(seeds)
        self.refusals: dict[Address, str] = {}  # why there is no connection

    def known(self) -> list[Address]:
        """Everyone who may have a table."""
        return list(dict.fromkeys([*self.addresses.values(), *self.seeds]))

    def why_not(self, address: Address) -> str:
        """Why there is no table from it."""
        if self.connected.get(address):
            return "it is in no cluster yet"
        return self.refusals.get(address, "no answer yet")

    def connect(self, address: Address) -> None:
        """See that there is a connection to it."""
        if address not in self.connected:
            self.connected[address] = False
            self.to_connect.append(address)

    def on_connected(self, address: Address) -> None:
        """A connection was made."""
        self.connected[address] = True
        self._reroute()

    def on_disconnected(self, address: Address) -> None:
        """A connection broke."""
        self.connected.pop(address, None)
        self._reroute()

    def has_not_answered(self, address: Address, now: int) -> None:
        """A copy did not answer what any of them may: others are asked first."""
        self.mute[address] = now

    def has_answered(self, address: Address) -> None:
        """It did after all."""
        self.mute.pop(address, None)

    def take(self, reply: Table) -> bool:
        """A table came; whether it is newer than the one in use, of the same cluster, and in use from now on."""
        if not reply.topology or (self.topology is not None and reply.version <= self.topology.version):
            return False
        try:
            decoded = table.decode(reply.topology)
        except ValueError:
            return False
        if self.topology is not None and decoded.cluster != self.topology.cluster:
            return False
        self.topology = decoded
        self.number = decoded.version.number
        self.leading = leading_in(decoded)
        self.addresses = {m.node: m.address for m in decoded.members}
        for address in self.addresses.values():
            self.connect(address)
        self._reroute()
        return True

    def _reroute(self) -> None:
        """The table, or a connection, is another one now."""
        if self.topology is None:
            return
        up = {node: address for node, address in self.addresses.items() if self.connected.get(address)}
        self.route = [up.get(p.primary or "") for p in self.topology.placements]

    def nearest(self, number: int, attempts: int, heard_since: int, *, any_age: bool) -> Address | None:
        """A copy that a client is connected to: of the near ones if there are any, and at each attempt another.

        One in sync; or an asynchronous one, of which nobody can tell how old it is, where `any_age` will do.

        Those that have been mute since `heard_since` come last.
        """
        top = self.topology
        assert top is not None
        placed = top.placements[number]
        copies = placed.in_sync + placed.asynchronous if any_age and not attempts else placed.in_sync
        names = [name for name in copies if self.connected.get(self.addresses.get(name, ""))]
        if not names:
            return None
        heard = [name for name in names if self.mute.get(self.addresses[name], heard_since) <= heard_since]
        near = [name for name in heard if self.domain and top.domains.get(name) == self.domain]
        if attempts < len(near):
            return self.addresses[near[attempts]]
        names = heard or names
        return self.addresses[names[(number + attempts) % len(names)]]
