"""What a node is to a partition: each map, promotion and handover leads from one role to one other."""

from __future__ import annotations

import pytest

from rebalance.partition import LocalPartition, Role
from rebalance.table import Placement
from tests.support.placed import placed_at_once

LEADING = Placement(1, 1, ("n1", "n2"), ("n1", "n2"))
AGAIN = Placement(2, 2, ("n1", "n2"), ("n1", "n2"))
SMALLER = Placement(3, 1, ("n1",), ("n1",))
FOLLOWING = Placement(4, 2, ("n2", "n1"), ("n1", "n2"))
LOADING = Placement(5, 1, ("n2", "n1"), ("n2",))
BEHIND = Placement(8, 1, ("n2",), ("n2",), asynchronous=("n1",))
GONE = Placement(6, 1, ("n2", "n3"), ("n2", "n3"))
LOST = Placement(7, 1, ("n1",), ("n1",), lost=True)


def held(role: Role) -> LocalPartition:
    """A partition on n1 that came to a role by what leads there."""
    known = {Role.MOVING: LOADING, Role.ASYNC: BEHIND, Role.BACKUP: FOLLOWING, Role.NONE: GONE, Role.LOST: LOST}
    placement = known.get(role, LEADING)
    local = LocalPartition(0, placement)
    placed_at_once(local, placement, "n1")
    if role in (Role.PRIMARY, Role.DRAINING):
        local.activate()
    if role is Role.DRAINING:
        local.hand_over()
    assert local.role is role
    return local


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("placement", "becomes"),
    [
        (AGAIN, Role.PROMOTING),
        (FOLLOWING, Role.BACKUP),
        (LOADING, Role.MOVING),
        (BEHIND, Role.ASYNC),
        (GONE, Role.NONE),
        (LOST, Role.LOST),
    ],
    ids=lambda it: it.name if isinstance(it, Role) else "",
)
def test_a_map_makes_of_any_role_what_it_says(role: Role, placement: Placement, becomes: Role) -> None:
    local = held(role)
    before = (local.mine, local.epoch, local.placement.primary, role)
    is_new = placed_at_once(local, placement, "n1")
    assert local.role is becomes
    assert is_new == (before != (local.mine, local.epoch, local.placement.primary, becomes))


@pytest.mark.parametrize("role", Role)
def test_whom_the_map_does_not_list_is_nothing_to_it(role: Role) -> None:
    local = held(role)
    placed_at_once(local, LEADING, None)
    assert (local.role, local.mine, local.active, local.in_sync) == (Role.NONE, False, False, False)


def test_who_stays_primary_in_its_epoch_goes_on_as_it_was() -> None:
    for role, then in (
        (Role.PROMOTING, Role.PROMOTING),
        (Role.PRIMARY, Role.PRIMARY),
        (Role.DRAINING, Role.PRIMARY),
        (Role.BACKUP, Role.PROMOTING),
        (Role.MOVING, Role.PROMOTING),
    ):
        local = held(role)
        assert placed_at_once(local, SMALLER, "n1") == (not held(role).mine), "it is new to those who were not"
        assert local.role is then


def test_only_a_primary_that_serves_is_drained_and_it_may_keep_the_partition() -> None:
    for role in Role:
        local = held(role)
        local.hand_over()
        assert (local.role is Role.DRAINING) == (role in (Role.PRIMARY, Role.DRAINING))
        local.keep()
        assert local.role is (Role.PRIMARY if role is Role.DRAINING else role)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.PROMOTING])
def test_only_a_promotion_makes_a_partition_serve(role: Role) -> None:
    with pytest.raises(AssertionError, match="no promotion of it was due"):
        held(role).activate()


def test_a_role_says_whether_this_node_leads_serves_and_is_in_sync() -> None:
    assert [role for role in Role if held(role).mine] == [Role.PROMOTING, Role.PRIMARY, Role.DRAINING]
    assert [role for role in Role if held(role).active] == [Role.PRIMARY, Role.DRAINING]
    assert [role for role in Role if held(role).in_sync] == [Role.BACKUP, Role.PROMOTING, Role.PRIMARY, Role.DRAINING]
