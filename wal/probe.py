"""Names for rare paths, so that a test run can tell which of them it never reached.

`probe("exchange.outbid")` costs one function call; who wants to count installs a listener. The names are collected from
the source by the tests, so a probe that no run reaches is reported rather than forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def probe(name: str) -> None:
    """This rare path was reached."""
    for listener in _listeners:
        listener(name)


def listen(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call `listener` with each probe's name from now on; return what stops it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)
