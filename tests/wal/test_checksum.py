"""The two implementations of each checksum say the same, and the fast one may be absent."""

from __future__ import annotations

import binascii
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import PATIENCE_SECONDS
from wal.checksum import IMPLEMENTATION, crc32c, reference_crc32c, reference_xmodem


def test_the_published_check_values_come_out() -> None:
    assert crc32c(b"123456789") == reference_crc32c(b"123456789") == 0xE3069283
    assert reference_xmodem(b"123456789") == 0x31C3


def test_the_hot_path_is_the_hardware_one_here() -> None:
    assert IMPLEMENTATION == "google_crc32c"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_both_crc32c_say_the_same_in_one_piece_and_in_two(left: bytes, right: bytes) -> None:
    whole = crc32c(left + right)
    assert whole == reference_crc32c(left + right)
    assert whole == crc32c(right, crc32c(left))
    assert whole == reference_crc32c(right, reference_crc32c(left))


@given(st.binary(max_size=300))
def test_the_slot_function_of_the_standard_library_is_xmodem(key: bytes) -> None:
    assert binascii.crc_hqx(key, 0) == reference_xmodem(key)


def test_without_the_hardware_library_there_is_one_warning_and_the_same_numbers() -> None:
    program = (
        "import sys, warnings\n"
        "sys.modules['google_crc32c'] = None\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    from wal.checksum import IMPLEMENTATION, crc32c\n"
        "assert IMPLEMENTATION == 'crcmod', IMPLEMENTATION\n"
        "assert crc32c(b'123456789', 0) == 0xE3069283\n"
        "assert len(caught) == 1, caught\n"
        "assert 'pip install google-crc32c' in str(caught[0].message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
