"""Why a directory cannot be folded, as errors that a command tells apart without the fold."""

from __future__ import annotations

from engine.errors import CorruptionError


class DoesNotFold(CorruptionError):
    """Checkpoint and log are readable, and contradict each other; a smaller share may fold."""


class LogLost(CorruptionError):
    """The log does not reach the checkpoint, or is another node's, or is not there at all."""
