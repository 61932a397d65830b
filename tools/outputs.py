"""New directories that commands write: they are there whole, or not at all.

Who is interrupted, or finds the disk full, leaves nothing that looks like a result, and nothing that is in the way of who
begins again. A process that is killed leaves a directory whose name begins with a dot, which readers of tables pass over.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import UsageError


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory to write into, beside `out`, whose name it takes when the block ends; it goes if that ends by an error.

    Raises UsageError if `out` is there already or cannot be written, also where the block raises OSError.
    """
    aside = out.absolute().with_name(f".{out.absolute().name}.{secrets.token_hex(4)}")
    try:
        if out.is_symlink() or out.exists():
            raise FileExistsError
        aside.mkdir(parents=True)
        yield aside
        os.rename(aside, out)  # over an empty directory that came meanwhile, at most
    except FileExistsError:
        raise UsageError(f"{out} is there already: name a new directory") from None
    except OSError as error:
        if out.exists():
            raise UsageError(f"{out} came to be there meanwhile: name a new directory") from error
        raise UsageError(f"cannot write to {out}: {error.strerror}; name another --out") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
