"""How a consistent cut of the whole database is taken, in two rounds; `docs/cut.md` says why that is enough."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from wal.ids import NO_VERSION, Era, Version


class EnterEra(msgspec.Struct, frozen=True, array_like=True, tag="enter-era", gc=False):
    """What you decide from now on is of this era; keep what it overwrites, and withhold your answers to clients.

    `placed`: the map by which the round began. Whoever has come to lead other partitions since does not enter.
    """

    version: Version
    era: Era
    placed: Version = NO_VERSION


class Entered(msgspec.Struct, frozen=True, array_like=True, tag="entered", gc=False):
    """I have, in this version, and have not left the version."""

    version: Version
    era: Era


class SealCut(msgspec.Struct, frozen=True, array_like=True, tag="seal-cut", gc=False):
    """All have entered the era: give the answers, and keep for these holders what is older than the era."""

    version: Version
    cut: Era
    holders: list[bytes]


class Sealed(msgspec.Struct, frozen=True, array_like=True, tag="sealed", gc=False):
    """I do. `held`: no answer left this node between its entering and its hearing that all had entered."""

    version: Version
    cut: Era
    held: bool


ToCuts: TypeAlias = EnterEra | SealCut
ToRounds: TypeAlias = Entered | Sealed
