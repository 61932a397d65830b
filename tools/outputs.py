"""New directories and files that commands write: they are there whole, or not at all.

Who is interrupted, or finds the disk full, leaves nothing that looks like a result, and nothing that is in the way of who
begins again. A process that is killed leaves a directory whose name begins with a dot, which readers of tables pass over,
and which goes when somebody writes to the same place. Who is at work keeps a lock on his own.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import UsageError


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory to write into, beside `out`, whose name it takes when the block ends; it goes if that ends by an error.

    Raises UsageError if `out` is there already or cannot be written, also where the block raises OSError.
    """
    whole = out.absolute()
    aside, lock = whole.with_name(f".{whole.name}.{secrets.token_hex(4)}"), -1
    try:
        if out.is_symlink() or out.exists():
            raise FileExistsError
        _remove_left(whole)
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
        raise UsageError(f"cannot write to {out}: {error.strerror}; name another --out") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def new_file(out: Path, chunks: Iterable[bytes]) -> None:
    """Write a file that somebody may edit: one that is there already stays, and must be the same. What is no file, such as
    a pipe, is written to.

    Raises UsageError if `out` has something else in it or cannot be written, also where the chunks raise OSError.
    """
    aside = out.with_name(out.name + ".tmp")
    try:
        if out.exists() and not out.is_file():
            with out.open("wb") as file:
                file.writelines(chunks)
            return
        try:
            with aside.open("wb") as file:
                file.writelines(chunks)
            if not (out.is_symlink() or out.exists()):
                aside.replace(out)
            elif not (out.exists() and filecmp.cmp(aside, out, shallow=False)):
                raise UsageError(
                    f"{out} is there already, and has something else in it, which may be somebody's work: "
                    "name another --out, or remove it"
                )
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error


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


def _remove_left(whole: Path) -> None:
    """What nobody writes to any more, of those who were to write here."""
    name = re.compile(re.escape(f".{whole.name}.") + "[0-9a-f]{8}")
    for left in list(whole.parent.iterdir()) if whole.parent.is_dir() else []:
        if name.fullmatch(left.name):
            with suppress(OSError):
                _remove(left)


def _remove(left: Path) -> None:
    descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused: somebody is at work there
        shutil.rmtree(left, ignore_errors=True)
    finally:
        os.close(descriptor)


def sync_names(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
