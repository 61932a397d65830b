"""Faults by which a node forgets nothing of what is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.messages import Replicate
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, replace
from wal.ids import NodeId

LEAKS = Faults()


@LEAKS.fault("memory")
def who_held_what_is_never_forgotten(machine: Machine) -> None:
    """A participant goes on knowing as whom each transaction held its locks, when it has none any more."""
    assert machine.node is not None
    replace(machine.node.participant, "_forget_owner", lambda tx: None)


@LEAKS.fault("memory")
def batches_that_are_over_are_remembered(machine: Machine) -> None:
    """A copy goes on knowing all batches that it has taken, although its primary says up to which they are over."""
    assert machine.node is not None

    def on_replicate(original: Callable[..., Any], sender: NodeId, message: Replicate, *rest: Any) -> Any:
        return original(sender, msgspec.structs.replace(message, over=0), *rest)

    around(machine.node.replication, "on_replicate", on_replicate)
