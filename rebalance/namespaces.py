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
    DROPPING = "dropping"  # nobody reads or writes it, while its primaries delete what is in it
    DROPPED = "dropped"  # nothing was left of it; whoever writes to it begins anew


class NamespaceSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one namespace is to be like. `since`: the version of the map that said so first.

    `ttl_ms`: what is written without a time to live of its own lasts so long; 0: for good.
    """

    since: Version = NO_VERSION
    ttl_ms: int = 0
    stands: Stands = Stands.THERE


NOT_SAID = NamespaceSettings()
"""Of a namespace that the map does not know."""


def changed(
    before: dict[Namespace, NamespaceSettings], changes: Mapping[Namespace, NamespaceSettings], version: Version
) -> dict[Namespace, NamespaceSettings]:
    """The entries of a map of this version, which brings these changes."""
    if not changes:
        return before
    return before | {name: msgspec.structs.replace(new, since=version) for name, new in changes.items()}


def told_dropping(name: Namespace) -> str:
    """Why nothing is done with a namespace that is being dropped."""
    return f"namespace {name!r} is being dropped: use another one, or wait until it is gone, and begin it anew"
