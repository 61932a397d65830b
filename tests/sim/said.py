"""What clients say in a world: kinds of requests, and which of their optional fields with another value than the default.

What nobody ever says is tried by nobody: a run tells what that was.
"""

from __future__ import annotations

from functools import cache

import msgspec

from engine.protocol.requests import REQUESTS, Request


@cache
def optional(kind: type[Request]) -> dict[str, object]:
    """The fields that a request need not have, with their defaults."""
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
    return found


class Said:
    """What was not said yet."""

    def __init__(self) -> None:
        self._kinds: dict[type[Request], None] = dict.fromkeys(REQUESTS)
        self._fields = {kind: dict(optional(kind)) for kind in REQUESTS}

    def hear(self, request: Request) -> None:
        """A client asks."""
        kind = type(request)
        self._kinds.pop(kind, None)
        left = self._fields[kind]
        for name in [name for name, default in left.items() if getattr(request, name) != default] if left else ():
            del left[name]

    @property
    def never(self) -> list[str]:
        """What nobody has said: kinds, and fields of those that somebody has said."""
        tags = {kind: str(kind.__struct_config__.tag) for kind in REQUESTS}
        fields = [f"{tags[kind]}.{name}" for kind, left in self._fields.items() if kind not in self._kinds for name in left]
        return [tags[kind] for kind in self._kinds] + fields
