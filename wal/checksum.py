"""The two checksums of the house, each with a reference that anybody can read.

`crcmod` defines the polynomials: CRC-32C (Castagnoli) for everything in the log, CRC-16/XMODEM for slots. The hot path
takes the same CRC-32C from `google_crc32c`, which uses the processor's instruction and is twenty times faster at 16 KiB
(`foreshore bench log` shows both). Without it the numbers are the same and the log is slower: a warning,
not another format.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, cast

Checksum = Callable[[bytes, int], int]
"""(data, checksum of what came before) -> checksum of both."""


@cache
def _crcmod(name: str) -> Checksum:
    """One of its predefined functions; who has the hardware's does not wait for them."""
    import crcmod.predefined  # noqa: PLC0415

    return cast("Checksum", crcmod.predefined.mkPredefinedCrcFun(name))


def reference_crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C by crcmod: what `foreshore wal verify --reference` and the tests compare the hot path with."""
    return _crcmod("crc-32c")(data, crc)


def reference_xmodem(data: bytes, crc: int = 0) -> int:
    """CRC-16/XMODEM by crcmod: the reference of `wal.ids.slot_of`."""
    return _crcmod("xmodem")(data, crc)


def _hardware() -> Any | None:
    """google_crc32c's `extend` if its C extension is there, else None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own warning about pure Python; ours below says what follows from it
        try:
            import google_crc32c  # noqa: PLC0415  # optional, and the warning filter must be in force while it loads
        except ImportError:
            return None
    return google_crc32c.extend if google_crc32c.implementation == "c" else None


_extend = _hardware()

if _extend is None:
    warnings.warn(
        "google_crc32c with its C extension is not installed: the log is checked by crcmod, with the same numbers but "
        "20 times slower; `pip install google-crc32c` to change that",
        RuntimeWarning,
        stacklevel=1,
    )
    IMPLEMENTATION = "crcmod"
    crc32c = reference_crc32c
else:
    IMPLEMENTATION = "google_crc32c"
    _hardware_extend = _extend

    def crc32c(data: bytes, crc: int = 0) -> int:
        """CRC-32C of `data`, continuing from `crc`. Takes `bytes` only: the C extension refuses other buffers."""
        return _hardware_extend(crc, data)  # type: ignore[no-any-return]  # the extension has no annotations
