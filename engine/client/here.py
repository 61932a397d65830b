"""What belongs to its process: a database and all that it gives out cannot be copied, pickled or sent to another one."""

from __future__ import annotations

from typing import NoReturn

from engine.errors import UsageError


class OfThisProcess:
    """Refuses `pickle` and `copy`, which would take a connection for a value."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} belongs to its process, and cannot be copied or pickled: give another process the "
            "addresses and names, and connect there"
        )
