"""A plan as a file: a header, and behind it a line for each action. Nothing but where a line stands is held of it.

Who reads one sets its lines aside first, so that an editor that saves meanwhile changes nothing of what is carried out.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.errors import UsageError
from tools.reconcile.aside import Lines
from tools.reconcile.plans import FORMAT, Act, Action, Header
from tools.shown import HASH_BYTES

L = TypeVar("L")


class SavedPlan:
    """A plan that was read: its header, its digest, and its actions as often as one asks for them."""

    def __init__(self, lines: Lines, digest: str, name: str) -> None:
        """Raises UsageError that names the line which is none of a plan."""
        self.digest = digest
        self.changes = 0  # how many there are to make: a refetch is one on each copy
        self._lines = lines
        self._places = array("Q")
        place = 0
        header: Header | None = None
        for at, line in enumerate(lines, 1):
            if header is None:
                header = _line(line, at, Header, name)
                if header.plan != FORMAT:
                    raise UsageError(f"{name} is a plan of format {header.plan}: expected {FORMAT}")
            elif line.strip():
                self.changes += len(places_of(_line(line, at, Action, name)))
                self._places.append(place)
            place += len(line) + 1
        self.header = header if header is not None else _line(b"", 1, Header, name)

    def __iter__(self) -> Iterator[Action]:
        return self.at(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def placed(self) -> Iterator[tuple[int, Action]]:
        """All actions, each with the place at which it can be read again."""
        return zip(self._places, self, strict=True)

    def at(self, places: Iterable[int]) -> Iterator[Action]:
        """The actions that stand at these places."""
        return (msgspec.json.decode(self._lines.at(place), type=Action) for place in places)


def places_of(action: Action) -> list[str]:
    """Where an action is done: on the copies that are wrong, or once, in the cluster, whose name is empty."""
    match action.action:
        case Act.REFETCH:
            return action.on
        case Act.PUT | Act.DELETE | Act.COMMIT:
            return [""]
        case Act.WITH | Act.NONE:
            return []


def read_plan(path: Path) -> SavedPlan:
    """A plan that `foreshore reconcile plan` wrote, or that somebody edited. Raises UsageError."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)

    def told() -> Iterator[bytes]:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                yield line.rstrip(b"\r\n")

    lines = Lines()
    try:
        lines.add(told())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a plan of `foreshore reconcile plan`") from error
    return SavedPlan(lines, digest.hexdigest(), str(path))


def _line(line: bytes, at: int, kind: type[L], name: str) -> L:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"{name}, line {at}: {error}: expected a plan of `foreshore reconcile plan`") from None
