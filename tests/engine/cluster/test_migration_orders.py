"""Orders about migrations on one node that is its own cluster: on what they are given, and which of them are void."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.cluster.namespaces import ORDER_MS_MAX
from engine.messages import SetMigrations
from engine.protocol.requests import Admin, Code, Failed, Report
from rebalance.migrations import BYTES_PER_SECOND_MAX, BYTES_PER_SECOND_MIN, NOT_ORDERED, Migrations, Paused
from rebalance.table import decode, encode
from tests.engine.data.test_expiry import Story
from wal.ids import Version


class Ordered(Story):
    """A node, and the operator of it."""

    def told(self, seen: str = "", paused: str = "nothing", limit: str = "0") -> Report | Failed:
        """What the operator is answered."""
        words = {"seen": [seen or str(self.ordered.since)], "paused": [paused], "bytes_per_second": [limit]}
        reply = self.ask(Admin(800, "migrations", words))
        assert isinstance(reply, Report | Failed)
        return reply

    def order(self, paused: Paused, limit: int = 0) -> None:
        """It is carried out."""
        assert isinstance(self.told("", paused, str(limit)), Report)
        self.idle(3_000)
        assert (self.ordered.paused, self.ordered.bytes_per_second) == (paused, limit)

    @property
    def ordered(self) -> Migrations:
        """What the map says."""
        topology = self.node.core.topology
        assert topology is not None
        return topology.migrations

    @property
    def status(self) -> dict[str, Any]:
        """What the node says of it."""
        reply = self.ask(Admin(801, "status", {}))
        assert isinstance(reply, Report)
        told: dict[str, Any] = msgspec.json.decode(reply.body)["migrations"]
        return told


def test_an_order_is_in_the_map_and_a_limit_leaves_a_pause_as_old_as_it_is() -> None:
    alone = Ordered()
    assert alone.ordered == NOT_ORDERED
    alone.order(Paused.BALANCE)
    paused = alone.ordered
    assert paused.since == paused.paused_since == alone.node.core.version
    alone.order(Paused.BALANCE, BYTES_PER_SECOND_MIN)
    assert alone.ordered.since > paused.since == alone.ordered.paused_since
    assert alone.status == {
        "since": str(alone.ordered.since),
        "paused": "balance",
        "paused_since": str(paused.since),
        "bytes_per_second": BYTES_PER_SECOND_MIN,
    }
    assert alone.node.supply.throttle.rate == BYTES_PER_SECOND_MIN
    alone.order(Paused.ALL, BYTES_PER_SECOND_MAX)
    assert alone.ordered.paused_since == alone.ordered.since, "another pause begins anew"
    alone.order(Paused.NOTHING)
    assert (alone.ordered.paused_since, alone.node.supply.throttle.rate) == (Version(0, 0), 0)


def test_an_order_on_what_stands_no_more_is_refused_and_a_late_one_is_void() -> None:
    alone = Ordered()
    alone.order(Paused.ALL)
    refused = alone.told("0.0", "balance")
    assert isinstance(refused, Failed)
    assert "changed meanwhile: this was asked of what version 0.0 said" in refused.message
    first = alone.ordered
    alone.order(Paused.NOTHING)
    version = alone.node.core.version
    orders = alone.node.membership.orders
    orders.handle(SetMigrations(first.since, Paused.ALL))
    alone.idle(3_000)
    assert (alone.node.core.version, alone.ordered.paused) == (version, Paused.NOTHING)


def test_the_first_of_two_orders_on_the_same_stands_until_it_is_too_old() -> None:
    alone = Ordered()
    orders, topology = alone.node.membership.orders, alone.node.core.topology
    assert topology is not None
    first, second = SetMigrations(Version(0, 0), Paused.ALL), SetMigrations(Version(0, 0), Paused.BALANCE)
    orders.handle(first)
    orders.handle(second)
    assert orders.of_migrations(topology) == Migrations(paused=Paused.ALL)
    alone.node.core.now += (ORDER_MS_MAX + 1) * 1_000_000
    orders.handle(second)
    assert orders.of_migrations(topology) == Migrations(paused=Paused.BALANCE), "nobody waits for the first any more"
    alone.node.core.now += (ORDER_MS_MAX + 1) * 1_000_000
    assert orders.of_migrations(topology) is None


@pytest.mark.parametrize(
    ("seen", "paused", "limit"),
    [
        ("now", "all", "0"),
        ("0.0", "everything", "0"),
        ("0.0", "", "0"),
        ("0.0", "all", "-1"),
        ("0.0", "all", str(BYTES_PER_SECOND_MIN - 1)),
        ("0.0", "all", str(BYTES_PER_SECOND_MAX + 1)),
        ("0.0", "all", "9" * 40),
        ("0.0", "all", "\N{ARABIC-INDIC DIGIT ONE}"),
    ],
)
def test_an_order_that_says_nothing_is_refused(seen: str, paused: str, limit: str) -> None:
    alone = Ordered()
    refused = alone.told(seen, paused, limit)
    assert isinstance(refused, Failed)
    assert refused.code == Code.USAGE
    assert alone.ordered == NOT_ORDERED


def test_words_that_are_missing_or_doubled_are_refused() -> None:
    alone = Ordered()
    for words in ({}, {"seen": ["0.0"], "paused": ["all", "nothing"], "bytes_per_second": ["0"]}):
        refused = alone.ask(Admin(800, "migrations", words))
        assert isinstance(refused, Failed)
        assert "needs one value of" in refused.message


def test_a_map_from_before_there_were_orders_is_read() -> None:
    alone = Ordered()
    topology = alone.node.core.topology
    assert topology is not None
    fields = msgspec.msgpack.decode(encode(topology))
    assert decode(msgspec.msgpack.encode(fields[:-1])) == topology
