"""When whoever is wanted and is not there is dialed again: the rule of a node's links, and of the simulator's; clients
pause alike.

    dialing --> met --> lost --+
       |                       v
       +--- no answer --->  a pause, longer each time  --> dialing

Whoever is dialed may come to speak to us meanwhile. Then a pause is for nothing, and so is an attempt that has heard
nothing for a while: the machine was off, or the way was cut, when it asked to connect, and a kernel asks again after one
second, after two more, and after four.

Where a node meets itself, at a seed that is its own address in another spelling, nobody is likely to be met soon: pauses
grow much longer there. A name may lead elsewhere by and by, so they end, and whoever listens there and speaks ends them.
"""

from __future__ import annotations

REDIAL_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts; the last for ever."""
ITSELF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Pauses while each attempt meets nobody but who makes it; the last for ever."""
VAIN_SECONDS = 0.5
"""An attempt that was not answered for so long was not heard."""


def pause_after(failed: int) -> float:
    """Seconds until the next attempt, when so many, one or more, have failed since somebody answered."""
    return REDIAL_SECONDS[min(failed, len(REDIAL_SECONDS)) - 1]


class Redial:
    """What is known of the attempts to reach somebody; who uses it has the clock, in seconds."""

    def __init__(self) -> None:
        self.attempts = 0  # that failed since somebody answered
        self._begun = 0.0  # when the last one did
        self._itself = False  # whether it met who made it
        self._as_itself = 0  # so many in a row did

    def begin(self, now: float) -> None:
        """An attempt is made."""
        self._begun = now

    def met(self) -> None:
        """Somebody answered."""
        self.attempts = 0

    def met_itself(self) -> None:
        """Who made the attempt answered."""
        self._itself = True

    def pause(self) -> float:
        """Nobody did, or who did is gone: for so long it is waited until the next attempt."""
        self.attempts += 1
        self._as_itself = self._as_itself + 1 if self._itself else 0
        self._itself = False
        if self._as_itself:
            return ITSELF_SECONDS[min(self._as_itself, len(ITSELF_SECONDS)) - 1]
        return pause_after(self.attempts)

    def is_vain(self, now: float) -> bool:
        """Whether the attempt that is under way is worse than another one, now that whoever is dialed speaks."""
        return now >= self._begun + VAIN_SECONDS
