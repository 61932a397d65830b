"""Namespaces with copies of their own, told with one node that is its own cluster: in which partitions their keys are."""

from __future__ import annotations

import pytest

from engine.cluster.namespaces import GROUPS_MAX
from engine.messages import SetNamespace
from engine.protocol.requests import Check, Code, CommitTx, Done, Failed, Get, Put, Remap, Rows, Scan, Scanned, Values
from rebalance.namespaces import LossPolicy, NamespaceSettings, Stands
from rebalance.table import Group
from tests.engine.data.test_expiry import CLIENT, value_in
from tests.engine.data.test_namespaces import Named
from tests.support.maps import a_map, grouped
from wal.ids import DECISIONS, NO_VERSION, Version, tx_of

Part = tuple[str, list[bytes], list[bytes | None]]


class Grouped(Named):
    """A node, the operator of it, and where keys are."""

    def give(self, name: str = "acc", *, backups: int = 2, wait_ms: int = 3_000, **more: str) -> str:
        """Order copies of its own for a namespace; why that is refused, or nothing."""
        said = self.node.core.namespaces.get(name)
        seen = str(said.since if said is not None else NO_VERSION)
        reply = self.told(name=name, seen=seen, ttl_ms="0", backups=str(backups), **more)
        self.idle(wait_ms)
        return reply.message if isinstance(reply, Failed) else ""

    def places(self, name: str = "acc") -> list[int]:
        """The partitions that have something of it."""
        return sorted(number for namespace, number in self.node.core.replica.fragments if namespace == name)

    def group(self, name: str = "acc") -> Group:
        """In which group it is, as the map says."""
        top = self.node.core.topology
        assert top is not None
        return top.group_of(top.first_of(name))


def test_its_keys_are_in_partitions_of_another_group_and_nobody_elses_are() -> None:
    alone = Grouped()
    alone.ask(Put(1, tx_of(CLIENT, 1), "other", [b"k"], [b"v"]))
    assert alone.give() == ""
    assert (alone.group(), alone.group("other"), alone.is_now) == (Group(2), Group(0), Stands.THERE)
    alone.ask(Put(2, tx_of(CLIENT, 2), "acc", [b"k", b"l"], [b"v", b"v"]))
    partitions = alone.node.core.topology.partitions  # type: ignore[union-attr]
    assert all(number >= partitions for number in alone.places())
    assert all(number < partitions for number in alone.places("other"))
    assert value_in(alone.ask(Get(3, "acc", [b"k"]))) == value_in(alone.ask(Get(4, "other", [b"k"]))) == b"v"


def test_a_transaction_over_groups_is_decided_where_its_first_key_is() -> None:
    alone = Grouped()
    assert alone.give() == ""
    writes: list[Part] = [("acc", [b"k"], [b"v"]), ("other", [b"k"], [b"w"])]
    assert isinstance(alone.ask(CommitTx(1, tx_of(CLIENT, 1), tx_of(CLIENT, 1), True, writes, [], [])), Done)
    assert value_in(alone.ask(Get(2, "acc", [b"k"]))) == b"v"
    assert value_in(alone.ask(Get(3, "other", [b"k"]))) == b"w"
    assert alone.places(DECISIONS) in ([], alone.places())


def test_what_asks_by_an_older_map_is_sent_to_look_at_a_newer_one() -> None:
    alone = Grouped()
    assert alone.give() == ""
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    (number,) = alone.places()
    assert isinstance(alone.ask(Scan(2, "acc", [0], b"", None, 10)), Remap)
    assert isinstance(alone.ask(Scan(3, "acc", [0], b"", None, 1, count=True)), Remap)
    assert isinstance(alone.ask(Scan(4, "acc", [0], b"", None, 10, stale=True, age_ms=-1)), Remap)
    found = alone.ask(Scan(5, "acc", [number], b"", None, 10))
    assert isinstance(found, Rows)
    assert found.keys == [b"k"]
    range_of_old = Scanned("acc", b"", None, [(0, 1, 0)], [])
    refused = alone.ask(Check(6, tx_of(CLIENT, 2), [], [], scanned=[range_of_old]))
    assert isinstance(refused, Failed)
    assert (refused.code, refused.retryable) == (Code.CONFLICT, True)


def test_what_was_written_keeps_its_copies_and_its_other_settings_may_change() -> None:
    alone = Grouped()
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    said = alone.give()
    assert "was written with 0 backups: expected the same, and found 2 backups; create another one and copy" in said
    assert alone.give(backups=0, loss="READ_ONLY_SAFE") == ""
    assert alone.node.core.namespaces["acc"].loss is LossPolicy.READ_ONLY_SAFE
    assert alone.places() == [number for number in alone.places() if number < 1_000]


def test_nobody_reads_or_writes_what_is_being_made() -> None:
    alone = Grouped()
    alone.node.core.namespaces = {"acc": NamespaceSettings(stands=Stands.MAKING)}
    tx = tx_of(CLIENT, 1)
    for asked in (
        Put(1, tx, "acc", [b"k"], [b"v"]),
        Get(2, "acc", [b"k"]),
        Scan(3, "acc", [0], b"", None, 1),
        CommitTx(4, tx, tx, True, [("acc", [b"k"], [b"v"])], [], []),
    ):
        reply = alone.ask(asked)
        assert isinstance(reply, Failed)
        assert "is being created with copies of its own" in reply.message
    assert alone.places() == []


def test_what_was_written_just_before_it_was_made_stays_where_it_is() -> None:
    alone = Grouped()
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    before = alone.places()
    # Whoever took the order had not heard of that write, which another node took.
    alone.node.membership.orders.namespaces.handle(SetNamespace("acc", NO_VERSION, 7_000, backups=2))
    version = alone.node.core.version
    alone.idle(3_000)
    assert alone.node.core.version.minor == version.minor + 2, "it was to be made, and is not"
    assert alone.is_now == Stands.THERE
    assert (alone.group(), alone.places()) == (Group(0), before)
    assert alone.node.core.namespaces["acc"].ttl_ms == 0, "nothing of the order was carried out"
    assert value_in(alone.ask(Get(900, "acc", [b"k"]))) == b"v"


def test_a_name_that_was_dropped_may_be_created_with_other_copies() -> None:
    alone = Grouped()
    assert alone.give() == ""
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    first = alone.places()
    alone.order(drop=True)
    assert (alone.is_now, alone.group()) == (Stands.DROPPED, Group(0))
    assert alone.give(backups=4) == ""
    alone.ask(Put(2, tx_of(CLIENT, 2), "acc", [b"l"], [b"v"]))
    assert alone.group() == Group(4)
    reply = alone.ask(Get(3, "acc", [b"k", b"l"]))
    assert isinstance(reply, Values)
    assert [value for _, _, value in reply.values] == [None, b"v"]
    counter = alone.node.core.replica.fragments["acc", first[0]].counter
    assert counter.lwm == counter.hwm == 2, "the counters of its old life stay"


def test_an_order_that_is_repeated_or_late_makes_nothing() -> None:
    alone = Grouped()
    assert alone.give() == ""
    version = alone.node.core.version
    orders = alone.node.membership.orders.namespaces
    orders.handle(SetNamespace("acc", NO_VERSION, 0, backups=5))
    alone.idle(2_000)
    assert (alone.node.core.version, alone.group()) == (version, Group(2))
    orders.handle(SetNamespace("acc", Version(9, 9), 0, drop=True))
    alone.idle(2_000)
    assert alone.node.core.version == version


def test_there_are_as_many_groups_as_there_are_numbers_of_copies_and_no_more_partitions_than_a_store_can_name() -> None:
    assert sum(1 for b in range(7) for a in range(7) if a + b <= 6) == GROUPS_MAX
    alone = Grouped()
    for backups in range(1, 7):
        assert alone.give(f"ns{backups}", backups=backups) == ""
    assert alone.give("another", backups=3) == "", "of the same number there may be more"
    top = alone.node.core.topology
    assert top is not None
    assert top.all_groups == tuple(map(Group, range(7)))
    assert len(top.placements) == 7 * top.partitions
    alone.node.core.topology = grouped(a_map(1 << 14, "n1", "n2", "n3"), Group(1), Group(2))
    orders = alone.node.membership.orders.namespaces
    said = orders.give(SetNamespace("more", NO_VERSION, backups=5))
    assert "with 4 of them there would be 65536 partitions: expected at most 28 groups and 65535 partitions" in said
    assert "namespaces with 0 backups, 1 backups, 2 backups need none" in said
    orders.handle(SetNamespace("more", NO_VERSION, backups=5))
    assert orders.standing(alone.node.core.topology) == ({}, []), "nor does one that comes late make it"


@pytest.mark.parametrize(
    "more",
    [
        {"backups": "7"},
        {"backups": "-1"},
        {"backups": "x"},
        {"backups": "4", "async_backups": "3"},
        {"async_backups": "1"},
        {"loss": "IGNORE"},
    ],
)
def test_copies_that_cannot_be_meant_are_refused(more: dict[str, str]) -> None:
    alone = Grouped()
    reply = alone.told(name="acc", seen="0.0", ttl_ms="0", **more)
    assert isinstance(reply, Failed)
    assert reply.code == Code.USAGE


def test_nothing_is_written_anywhere_in_it_while_a_partition_is_lost_if_it_is_to_be_so() -> None:
    alone = Grouped()
    assert alone.give(backups=0, loss="READ_ONLY_SAFE") == ""
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    alone.node.core.read_only = {"acc": 0}  # as by a map in which that one is
    refused = alone.ask(Put(2, tx_of(CLIENT, 2), "acc", [b"k"], [b"w"]))
    assert isinstance(refused, Failed)
    assert (refused.code, refused.retryable) == (Code.LOST, True)
    writes: list[Part] = [("other", [b"k"], [b"x"]), ("acc", [b"k"], [b"w"])]
    both = alone.ask(CommitTx(3, tx_of(CLIENT, 3), tx_of(CLIENT, 3), True, writes, [], []))
    assert isinstance(both, Failed)
    assert both.code == Code.LOST
    assert value_in(alone.ask(Get(4, "acc", [b"k"]))) == b"v"
    assert isinstance(alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"])), Done), "what was done is told again"
    assert isinstance(alone.ask(Put(5, tx_of(CLIENT, 5), "other", [b"k"], [b"v"])), Done)
