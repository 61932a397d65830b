"""New directories and files that commands write: they are there whole, or not at all.

Who is interrupted, or finds the disk full, leaves nothing that looks like a result, and nothing that is in the way of who
begins again; nor is what was there before touched. A process that is killed leaves a directory or a file whose name begins
with a dot, which readers of tables pass over, and which goes when somebody writes to the same place. Who is at work keeps a
lock on his own.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from engine.errors import Error, UsageError
from tools.terminal import Unreadable
from wal import DiskFull
from wal.disk import FULL


@contextmanager
def new_directory(out: Path, *, otherwise: str = "name another --out") -> Iterator[Path]:
    """A directory to write into, beside `out`, whose name it takes when the block ends; it goes if that ends by an error.

    Raises UsageError if `out` is there already or cannot be written, and Unreadable if there is no room for it, also where
    the block raises OSError or DiskFull. `otherwise` is what whoever is told may do.
    """
    whole = out.absolute()
    aside, lock = _aside(whole), -1
    try:
        if out.is_symlink() or out.exists():
            raise FileExistsError
        _remove_left(whole.parent, _asides(whole))
        aside.mkdir(parents=True)
        lock = _locked(aside)
        yield aside
        os.fsync(lock)
        os.rename(aside, out)  # over an empty directory that came meanwhile, at most
        sync_names(whole.parent)
    except FileExistsError:
        raise UsageError(f"{out} is there already: name a new directory") from None
    except OSError as error:
        if out.exists():
            raise UsageError(f"{out} came to be there meanwhile: name a new directory") from error
        raise unwritten(f"cannot write to {out}: {error.strerror}", error.errno, otherwise) from error
    except DiskFull as error:
        raise Unreadable(f"cannot write to {out}: {error.reason}, or {otherwise}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


@contextmanager
def folder_of_its_own(prefix: str) -> Iterator[Path]:
    """A folder that only this process and its children use, for as long as the block goes on, where such folders lie. What
    others that were killed have left of this prefix goes."""
    place = Path(gettempdir())
    _remove_left(place, re.compile(re.escape(prefix) + "[a-z0-9_]{8}"))
    new = Path(mkdtemp(prefix=f".{prefix}", dir=place))
    folder = place / new.name[1:]
    try:
        lock = _locked(new)
        new.rename(folder)  # nobody who looks for what was left sees it before it is locked
        try:
            yield folder
        finally:
            os.close(lock)
    finally:
        for path in (new, folder):
            shutil.rmtree(path, ignore_errors=True)


def new_file(out: Path, chunks: Iterable[bytes]) -> None:
    """Write a file that somebody may edit: one that is there already stays, and must be the same. What is no file, such as
    a pipe, is written to.

    Raises UsageError if `out` has something else in it or cannot be written, and Unreadable if there is no room for it,
    also where the chunks raise OSError.
    """
    with _told_of(out):
        if _is_no_file(out):
            _written_to(out, chunks)
            return
        with _beside(out, chunks) as aside:
            if not (out.is_symlink() or out.exists()):
                aside.replace(out)
                sync_names(out.parent)
            elif not (out.exists() and filecmp.cmp(aside, out, shallow=False)):
                raise UsageError(
                    f"{out} is there already, and has something else in it, which may be somebody's work: "
                    "name another --out, or remove it"
                )


def put_file(out: Path, chunks: Iterable[bytes]) -> None:
    """Write a file, in the place of one that is there. What is no file, such as a pipe, is written to.

    Raises UsageError if `out` cannot be written, and Unreadable if there is no room for it, also where the chunks raise
    OSError: then it is as it was.
    """
    with _told_of(out):
        if _is_no_file(out):
            _written_to(out, chunks)
            return
        whole = Path(os.path.realpath(out))  # /dev/stdout is a link to what it is
        with _beside(whole, chunks) as aside:
            aside.replace(whole)
            sync_names(whole.parent)


def put_files(directory: Path, files: Mapping[str, Iterable[bytes]]) -> None:
    """Write files that belong together into a directory, made if it is not there, in the place of those that are there.

    Where the last of them is, all are, and of one writer, if several write at once. Raises OSError; if there is no room
    for all of them, or the chunks raise it, what was there stays as it is.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        asides = {name: stack.enter_context(_beside(directory / name, chunks)) for name, chunks in files.items()}
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        with suppress(OSError):  # where there are such locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        (directory / [*files][-1]).unlink(missing_ok=True)
        for name, aside in asides.items():
            aside.replace(directory / name)
        os.fsync(descriptor)


def _is_no_file(out: Path) -> bool:
    return out.exists() and not out.is_file()


def _written_to(out: Path, chunks: Iterable[bytes]) -> None:
    with out.open("wb") as file:
        file.writelines(chunks)


@contextmanager
def _told_of(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritten(f"cannot write {out}: {error.strerror}", error.errno, "name another place") from error


def unwritten(what: str, number: int | None, otherwise: str) -> Error:
    """Why something could not be written: who named the place was wrong, unless that is only full."""
    if number in FULL:
        return Unreadable(f"{what}: free some space, or {otherwise}")
    return UsageError(f"{what}; {otherwise}")


@contextmanager
def _beside(whole: Path, chunks: Iterable[bytes]) -> Iterator[Path]:
    """All of the chunks in a file beside the one that is to have them, durably; it goes if it was not given that name."""
    _remove_left(whole.parent, _asides(whole))
    aside = _aside(whole)
    try:
        with aside.open("xb") as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
            yield aside
    finally:
        aside.unlink(missing_ok=True)


def _aside(whole: Path) -> Path:
    return whole.with_name(f".{whole.name}.{secrets.token_hex(4)}")


def _asides(whole: Path) -> re.Pattern[str]:
    return re.compile(re.escape(f".{whole.name}.") + "[0-9a-f]{8}")


def check_place(out: Path, option: str = "--out", *, directory: bool = False) -> None:
    """Refuse, before anything is read for it, a file that cannot be written, or a directory that is not there and cannot be
    made, as far as that can be known. Raises UsageError."""
    place = out.absolute() if directory else out.absolute().parent
    while directory and not (place.exists() or place.is_symlink()):
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK) and (directory or not out.is_dir()):
        return
    why = "it is a directory" if out.is_dir() and not directory else f"{place} is no directory that may be written to"
    raise UsageError(f"cannot write to {out}: {why}; name another {option}")


def _locked(directory: Path) -> int:
    """A descriptor of a directory, and a lock on it for as long as that is open, where there are such locks."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove_left(place: Path, name: re.Pattern[str]) -> None:
    """What nobody writes to any more, of those who were to write here under such a name."""
    for left in list(place.iterdir()) if place.is_dir() else []:
        if name.fullmatch(left.name):
            with suppress(OSError):
                _remove(left)


def _remove(left: Path) -> None:
    descriptor = os.open(left, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused: somebody is at work there
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()
    finally:
        os.close(descriptor)


def sync_names(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
