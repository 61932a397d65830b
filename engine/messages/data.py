"""How writes reach the copies, and how a read is confirmed."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from wal import records as r
from wal.ids import NO_ERA, NO_VERSION, Era, Number, Version


class Replicate(msgspec.Struct, frozen=True, array_like=True, tag="replicate", gc=False):
    """Records for the copies of partitions whose primary the sender is; answered batch by batch.

    Every batch below `over` was answered by all that had to: whatever of it is still on its way says nothing new.
    `era`: the sender's, which is that of nothing newer than this batch.
    """

    version: Version
    sequence: Number
    records: list[r.Record]
    over: Number = 0
    era: Era = NO_ERA


class Replicated(msgspec.Struct, frozen=True, array_like=True, tag="replicated", gc=False):
    """These batches are durable here, as the log is up to `durable_lsn`: a disk that begins with less was set back."""

    version: Version
    sequences: list[Number]
    durable_lsn: Number


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="confirm", gc=False):
    """Am I still your primary? Asked before a read is answered, for all reads of a turn at once.

    `placed`: the very map that is asked about, by a copy which wants to know whether it was waited for until now.
    """

    version: Version
    sequence: Number
    placed: Version = NO_VERSION


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed", gc=False):
    """At this moment I have not left this version."""

    version: Version
    sequence: Number


ToReplication: TypeAlias = Replicate | Replicated
ToReads: TypeAlias = Confirm | Confirmed
