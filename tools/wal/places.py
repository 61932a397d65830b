"""Where a log is: a data directory, its `wal` or `store`, or segment files; and that it may be read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.offline.live import is_live
from engine.state.identity import directories_in, read_identity
from tools.terminal import Unreadable
from wal import DirectoryDisk, Owner, Source, parts
from wal.segment import segment_lsn

if TYPE_CHECKING:
    from wal.cut import Loss


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at a path. `directory` and `node` are there if it is, or is in, a data directory."""

    path: Path
    log: Path | None
    directory: Path | None = None
    node: str = ""
    cluster: str = ""
    live: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """The node, or the path if nobody says whose it is."""
        return self.node or str(self.path)

    @property
    def owner(self) -> Owner | None:
        """Whose log it should be, if the directory says so."""
        return (self.cluster, self.node) if self.node else None

    @property
    def log_bytes(self) -> int:
        """The size of its segments' files, as far as they can be seen; whoever reads them says what cannot."""
        if self.log is None:
            return 0
        size = 0
        with suppress(OSError):
            for file in [self.log] if self.log.is_file() else self.log.iterdir():
                if segment_lsn(file.name) is not None:
                    with suppress(FileNotFoundError):  # a live log is trimmed
                        size += file.stat().st_size
        return size

    @property
    def source(self) -> Source:
        """What `wal.reader` reads. Raises Unreadable."""
        if self.log is None:
            raise Unreadable(f"{self.path} has no log: expected a data directory, its wal, or a segment file")
        return [self.log] if self.log.is_file() else self.log


def losses_of(place: Place) -> list[Loss]:
    """What `cut` and `repair` left out of this log."""
    if place.log is None or not place.log.is_dir():
        return []
    from wal.cut import read_losses  # noqa: PLC0415  # few ask

    with DirectoryDisk(place.log, read_only=True) as disk:
        return read_losses(disk)


def loss_text(loss: Loss) -> str:
    """What such a log lacks, for a person."""
    from wal.cut import loss_name  # noqa: PLC0415

    return (
        f"`foreshore wal {loss.by}` left LSN {loss.first_lsn} to {loss.last_lsn} out, of {loss.source}: take them "
        f"from peers, and then remove its note, {loss_name(loss)}"
    )


def empty_text(place: Place) -> str:
    """That the log of a data directory is not there at all, for a person; empty where it is, or none belongs there."""
    if place.directory is None or place.log is None or parts(place.source):
        return ""
    return f"{place.log} has no segment: a node that was ever started has one, and its start in it"


def place_of(text: str) -> Place:
    """What stands at a path that a person gave. Raises Unreadable."""
    path = Path(text)
    try:
        if path.is_file():
            return _file(path)
        if not path.is_dir():
            raise Unreadable(f"{path} is not a data directory: there is nothing")
        if path.name in {"wal", "store"} and (path.parent / "identity.json").exists():
            return _directory(path, path.parent)
        if any(segment_lsn(entry.name) is not None for entry in path.iterdir()):
            return Place(path=path, log=path)
        return _directory(path, path)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}; is it mounted, and may you read it?") from error
    except UsageError as error:
        raise Unreadable(str(error)) from error


def check_names(places: list[Place]) -> None:
    """Raise UsageError unless each directory is another node's, of one cluster."""
    seen: dict[str, Place] = {}
    for place in places:
        if place.name in seen:
            raise UsageError(f"{seen[place.name].path} and {place.path} both belong to {place.name!r}: name each node once")
        seen[place.name] = place
    clusters = sorted({place.cluster for place in places if place.cluster})
    if len(clusters) > 1:
        raise UsageError(f"the directories belong to clusters {', '.join(clusters)}: name those of one cluster")


def _file(path: Path) -> Place:
    if segment_lsn(path.name) is None:
        raise Unreadable(f"{path} is not a segment of a log: expected a name like 00000000000000000001.wal")
    return Place(path=path, log=path)


def _directory(path: Path, directory: Path) -> Place:
    try:
        identity = read_identity(directory)
        problem = ""
    except CorruptionError as error:
        identity, problem = None, str(error)
    log = directory / "wal"
    if identity is None and not log.is_dir():
        if problem:
            raise Unreadable(problem)
        raise Unreadable(
            f"{directory} is not a data directory: expected identity.json, wal and store, found none of them"
            f"{directories_in(directory)}"
        )
    return Place(
        path=path,
        log=log if log.is_dir() else None,
        directory=directory,
        node=identity.node if identity is not None else "",
        cluster=identity.cluster if identity is not None else "",
        live=is_live(directory),
        problem=problem,
    )
