"""What can be wrong with a log, as a value (`Finding`) and as the refusals that `Log.open` raises.

Each says which segment, offset and LSN, what was expected and found, what it costs, and what the reader can do next.
A `Finding` is for tools that look at all of a broken log; an error is for a node, which must not run on one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["torn", "unfollowed", "damaged", "missing", "replaced", "index", "stray", "foreign", "newer"]

_HARMLESS: frozenset[Kind] = frozenset({"torn", "unfollowed", "index", "stray"})


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be, and what it costs.

    `torn`: the log ends in a block that is not whole, and nothing here proves that it was promised. `damaged`: bytes
    changed, or a file has another size than it was made with. `missing`: a segment, or the log's beginning, is gone.
    `unfollowed`: the last segment is sealed, and has no successor. `replaced`: a whole segment that is not the one its
    neighbour knew. `index`: a footer that is made again from the blocks. `stray`: bytes where zeros should be.
    `foreign`: of another node or cluster. `newer`: written by a newer version.
    """

    kind: Kind
    segment: str
    offset: int
    lsn: int
    what: str
    cost: str
    until: int = 0
    """The first LSN behind it that is there again, and follows what stands before; 0 if nothing does, or nobody knows."""

    def costs(self, from_lsn: int) -> bool:
        """Whether it may cost a reader anything who needs the records from `from_lsn` on."""
        return self.damage and not 0 < self.until <= max(from_lsn, self.lsn)

    @property
    def damage(self) -> bool:
        """Whether records that were promised may be lost; the rest is worth a line and nothing more."""
        return self.kind not in _HARMLESS

    def __str__(self) -> str:
        return f"{self.kind} segment={self.segment} offset={self.offset} lsn={self.lsn}: {self.what}; costs {self.cost}"


class LogError(Exception):
    """A log that cannot be used as it was asked for. `finding` says where and why."""

    advice = ""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding}. {self.advice}" if self.advice else str(finding))
        self.finding = finding

    @property
    def segment(self) -> str:
        """The file that is concerned."""
        return self.finding.segment

    @property
    def offset(self) -> int:
        """The first byte that is not as it should be."""
        return self.finding.offset

    @property
    def lsn(self) -> int:
        """The first record that is concerned."""
        return self.finding.lsn


class LogDamaged(LogError):
    """Records that were promised are damaged or missing."""

    advice = (
        "`foreshore wal verify DIRECTORY` shows all of it. Take this node's copies from its peers, or, if it is alone, "
        "accept the loss with `foreshore node start --accept-loss`: everything from there on is set aside, not deleted"
    )


class LogForeign(LogError):
    """A log of another cluster or another node."""

    advice = (
        "Start the node with the name and the cluster that the log belongs to, or give it the right data directory; "
        "nothing was changed"
    )


class LogTooNew(LogError):
    """A log, or a record in it, that a newer version of this program wrote."""

    advice = "Start the version that wrote it, or a newer one; nothing was changed"


class LogBehindStore(LogError):
    """The store holds more than the log does: synced records are gone, or the directories do not belong together."""

    advice = (
        "Compare the two directories: were they restored from different moments? Take this node's copies from its "
        "peers, or, if it is alone, accept the loss with `foreshore node start --accept-loss`"
    )


class LogClosed(Exception):
    """The log was closed; open it again."""
