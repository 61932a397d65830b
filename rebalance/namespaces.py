"""What the map says of a namespace, where the operator has said anything of it.

A namespace comes into being when it is first written, and the map need not know of it. One that was given settings, or was
dropped, has an entry here from then on. The entry of a dropped one stays: it says that an order which was given before is
void, however late it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from wal.ids import NO_VERSION, Namespace, Version

NAMESPACES_MAX = 1_000
"""So many have an entry in a map at most."""


class Stands(StrEnum):
    """Whether a namespace is there."""

    THERE = "there"
    MAKING = "making"  # nobody reads or writes it, while its primaries see whether anything is in it
    DROPPING = "dropping"  # nobody reads or writes it, while its primaries delete what is in it
    DROPPED = "dropped"  # nothing was left of it; whoever writes to it begins anew


class LossPolicy(StrEnum):
    """What may be done with a namespace while a partition of its group is LOST."""

    READ_WRITE_SAFE = "READ_WRITE_SAFE"  # all, but for what is in that partition
    READ_ONLY_SAFE = "READ_ONLY_SAFE"  # nothing of it is written anywhere


class NamespaceSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one namespace is to be like. `since`: the version of the map that said so first.

    `ttl_ms`: what is written without a time to live of its own lasts so long; 0: for good. `group`: the one in whose
    partitions its keys are, by its place in the map, and `placed` the version that said so, if it is not the first one.
    `loss`: see there. One that is being made has `to`, what it is to be like if nothing is in it.
    """

    since: Version = NO_VERSION
    ttl_ms: int = 0
    stands: Stands = Stands.THERE
    group: int = 0
    placed: Version = NO_VERSION
    loss: LossPolicy = LossPolicy.READ_WRITE_SAFE
    to: NamespaceSettings | None = None

    @property
    def usable(self) -> bool:
        """Whether it may be read and written."""
        return self.stands is Stands.THERE or self.stands is Stands.DROPPED


NOT_SAID = NamespaceSettings()
"""Of a namespace that the map does not know."""


def changed(
    before: dict[Namespace, NamespaceSettings], changes: Mapping[Namespace, NamespaceSettings], version: Version
) -> dict[Namespace, NamespaceSettings]:
    """The entries of a map of this version, which brings these changes."""
    if not changes:
        return before
    after = dict(before)
    for name, new in changes.items():
        known = before.get(name, NOT_SAID)
        placed = known.placed if new.group == known.group else version
        after[name] = msgspec.structs.replace(new, since=version, placed=placed)
    return after


def places_anew(before: Mapping[Namespace, NamespaceSettings], changes: Mapping[Namespace, NamespaceSettings]) -> bool:
    """Whether keys are elsewhere by a map that brings these changes, or by the one after it."""
    return any(
        new.stands is Stands.MAKING or new.group != before.get(name, NOT_SAID).group for name, new in changes.items()
    )


def told_unusable(name: Namespace, stands: Stands) -> str:
    """Why nothing is done with a namespace that is being made or dropped."""
    if stands is Stands.MAKING:
        return f"namespace {name!r} is being created with copies of its own: wait until that is done"
    return f"namespace {name!r} is being dropped: use another one, or wait until it is gone, and begin it anew"
