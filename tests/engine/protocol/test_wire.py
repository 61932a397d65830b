"""Frames: what was said comes out, wherever the stream was cut, and what is damaged or too long does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ProtocolError
from engine.protocol.wire import FRAME_BYTES_MAX, HELLO_BYTES_MAX, LARGE_BYTES, FrameReader, frame, framed


def payload(size: int) -> bytes:
    """Something to say that is about so large."""
    return bytes(size)


@given(st.lists(st.integers(0, 300), max_size=8), st.lists(st.integers(1, 90), min_size=1, max_size=20))
@settings(max_examples=100)
def test_wherever_a_stream_is_cut_the_payloads_come_out(sizes: list[int], cuts: list[int]) -> None:
    stream, reader, found, at = b"".join(frame(payload(size)) for size in sizes), FrameReader(), list[bytes](), 0
    for turn in range(len(stream) + 1):
        piece = stream[at : at + cuts[turn % len(cuts)]]
        found += reader.feed(piece)
        at += len(piece)
        if at == len(stream):
            break
    assert found == [b"".join(framed(payload(size)))[8:] for size in sizes]


def test_a_large_payload_is_not_copied_to_be_sent() -> None:
    assert len(framed(payload(LARGE_BYTES))) == 2
    assert len(framed(payload(10))) == 1
    assert b"".join(framed(payload(LARGE_BYTES))) == frame(payload(LARGE_BYTES))


@pytest.mark.parametrize("cut", [1, 8, 9, 50])
def test_a_frame_that_is_damaged_is_refused_however_it_comes(cut: int) -> None:
    said = bytearray(frame(payload(100)))
    said[60] ^= 1
    reader = FrameReader()
    assert not list(reader.feed(bytes(said[:cut])))
    with pytest.raises(ProtocolError, match="does not match its checksum"):
        list(reader.feed(bytes(said[cut:])))


def test_a_frame_that_claims_too_much_is_refused_before_it_is_kept() -> None:
    with pytest.raises(ProtocolError, match="claims"):
        list(FrameReader().feed((HELLO_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4)))


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"-ERR unknown command\r\n"])
def test_who_speaks_another_protocol_is_told_by_how_it_begins(said: bytes) -> None:
    with pytest.raises(ProtocolError, match="the other side does not speak Foreshore's protocol") as told:
        list(FrameReader().feed(said))
    assert f"it begins with {said[:8]!r}" in str(told.value)
    greeted = FrameReader()
    greeted.limit = FRAME_BYTES_MAX
    with pytest.raises(ProtocolError, match=r"^a frame claims"):
        list(greeted.feed(said))
