"""Bytes on disk: they mean forever what they mean, and nothing that a disk can hold surprises the decoder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory import held_while
from tests.support.memory_disk import MemoryDisk
from tests.wal import golden
from tests.wal.logs import append, filled, open_log, reopened, update
from wal import LogTooNew, codec, crc32c, index_codec, read, reference_crc32c, verify
from wal.codec import (
    BLOCK_BYTES_MAX,
    BLOCK_HEADER_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    BlockHeader,
    FormatError,
    NewerFormat,
    NothingHere,
    SegmentHeader,
    Trailer,
)
from wal.growing import GrowingIndex
from wal.index import touched_by
from wal.records import KINDS, Boot, Origin, Prepare, Record, Update, Write
from wal.segment import segment_name

SEGMENT = segment_name(1)


def test_the_golden_log_is_read_as_it_was_written() -> None:
    blocks = list(read(golden.DIRECTORY))
    assert [block.records for block in blocks] == golden.BLOCKS
    assert [block.time_ms for block in blocks] == [1_700_000_000_000 + 1_000 * at for at in range(len(blocks))]
    assert verify(golden.DIRECTORY, reference=True).findings == []


def test_what_the_first_version_wrote_is_read_as_it_stands() -> None:
    """Fields that were added since have their defaults."""
    blocks = list(read(golden.FIRST_DIRECTORY))
    assert [block.records for block in blocks] == golden.BLOCKS[: golden.FIRST]
    assert verify(golden.FIRST_DIRECTORY, reference=True).findings == []


def test_who_a_client_is_was_said_without_what_its_session_is_called() -> None:
    """As versions wrote it that said each label with its transaction."""
    record = Origin(7, 2, golden.TX, "n1", "salary", "web-3", "127.0.0.1:51234")
    old = msgspec.msgpack.encode([["origin", *msgspec.structs.astuple(record)[:-1]]])
    assert msgspec.msgpack.decode(old, type=list[Record]) == [record]
    assert record.labels_all is False


def test_the_golden_archives_are_read_as_they_were_written() -> None:
    blocks = list(read(golden.ARCHIVE_DIRECTORY))
    assert [block.records for block in blocks] == golden.BLOCKS
    assert any(block.segment.endswith(".walz") for block in blocks)
    assert verify(golden.ARCHIVE_DIRECTORY, reference=True).findings == []


@pytest.mark.parametrize(
    ("written", "directory"),
    [
        (golden.write, golden.DIRECTORY),
        (golden.noted, golden.NOTED_DIRECTORY),
        (golden.parted, golden.PARTED_DIRECTORY),
        (golden.named, golden.NAMED_DIRECTORY),
        (golden.registered, golden.REGISTERED_DIRECTORY),
    ],
)
def test_the_golden_log_is_written_byte_for_byte_the_same_today(written: Callable[[], MemoryDisk], directory: Path) -> None:
    disk = written()
    assert disk.names() == sorted(path.name for path in directory.iterdir())
    for name in disk.names():
        assert disk.image(name) == (directory / name).read_bytes(), name


def test_the_golden_log_holds_every_kind_of_record() -> None:
    assert {type(record) for block in golden.BLOCKS for record in block} == set(KINDS)


def test_a_record_of_before_a_field_was_added_is_read() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["boot", 5]), type=Record) == Boot(5)


def test_a_header_says_what_it_was_made_of() -> None:
    header = SegmentHeader("tests", "n1", 12, 4096, 11, 1000, 0xDEADBEEF)
    data = codec.encode_header(header)
    assert len(data) == HEADER_BYTES
    decoded = codec.decode_header(data)
    assert decoded._replace(crc=0) == header
    assert codec.decode_header(data, reference_crc32c) == decoded


def test_a_name_that_does_not_fit_a_header_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        codec.encode_header(SegmentHeader("c" * 65, "n1", 1, 4096))


def test_a_header_of_a_newer_format_says_so_instead_of_being_damaged() -> None:
    data = bytearray(codec.encode_header(SegmentHeader("tests", "n1", 1, 4096)))
    data[8:10] = (codec.FORMAT + 1).to_bytes(2, "big")
    crc = crc32c(bytes(data[16:]), crc32c(bytes(data[:12])))
    data[12:16] = crc.to_bytes(4, "big")
    with pytest.raises(NewerFormat, match="format 2 is newer than 1"):
        codec.decode_header(bytes(data))


def test_zeros_are_nothing_and_never_a_block() -> None:
    with pytest.raises(NothingHere):
        codec.decode_block_header(bytes(64), 0, 64)
    with pytest.raises(NothingHere):
        codec.decode_block_header(bytes(8), 0, 8)
    with pytest.raises(FormatError, match="length is 0"):
        codec.decode_block_header(bytes(44) + codec.MARK, 0, BLOCK_HEADER_BYTES)


@pytest.mark.parametrize("length", [BLOCK_BYTES_MAX + 1, 2**32 - 1, 4096])
def test_a_length_is_believed_only_if_it_is_bounded_and_there(length: int) -> None:
    header = bytearray(_block(b"x" * 8)[:BLOCK_HEADER_BYTES])
    header[:4] = length.to_bytes(4, "big")
    with pytest.raises(FormatError, match="length is"):
        codec.decode_block_header(bytes(header), 0, 1024)


def test_a_block_is_valid_in_its_segment_only() -> None:
    data = _block(codec.encode_body([update(1)]))
    header = codec.decode_block_header(data, 0, len(data))
    codec.check_block(1, header, data)
    codec.check_block(1, header, data, reference_crc32c)
    with pytest.raises(FormatError, match="checksum"):
        codec.check_block(2, header, data)


def test_more_than_a_block_may_name_is_refused_before_it_is_written() -> None:
    with pytest.raises(ValueError, match="append them in parts"):
        codec.encode_body([update(1, 2000)], bytes_max=1000)  # the real bound is 256 MiB


def test_records_of_a_newer_version_are_a_clear_refusal_that_names_the_lsn() -> None:
    disk = filled([[update(1)], [update(2)]])
    body = msgspec.msgpack.encode([["hologram", 1, 2]])
    _append_raw(disk, body, records=1, lsn=3)
    with pytest.raises(LogTooNew, match="records cannot be decoded") as refusal:
        reopened(disk)
    assert refusal.value.lsn == 3
    assert "Start the version that wrote it" in str(refusal.value)
    kinds = [finding.kind for finding in verify(disk).findings]
    assert kinds == ["newer"]


def test_a_record_with_more_fields_than_this_version_knows_is_read() -> None:
    disk = filled([[update(1)]])
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(update(2)))
    known[1][0] += [0, b"", 0, 0, "a field of the future"]
    _append_raw(disk, msgspec.msgpack.encode([[*known, {"another": 1}]]), records=1, lsn=2)
    assert reopened(disk) == [update(1), update(2)]


def test_a_footer_says_what_the_builder_said() -> None:
    growing = GrowingIndex()
    for n in range(40):
        growing.add(256 + 64 * n, touched_by([update(n + 1, partition=n % 3)]))
    index = growing.whole()
    trailer = Trailer(40, 3000, 5, 9, 40, 40, 77, 0, 0, 1)
    trailer, footer = index_codec.encode_footer(trailer, index)
    assert len(footer) <= growing.bytes_max + TRAILER_BYTES
    header = SegmentHeader("tests", "n1", 1, 8192)
    assert codec.decode_trailer(footer[-TRAILER_BYTES:], header, 8192) == trailer
    decoded = index_codec.decode_index(footer[:-TRAILER_BYTES], trailer)
    assert decoded.starts == index.starts
    for fragment, entry in index.fragments.items():
        twin = decoded.fragments[fragment]
        assert (twin.low, twin.high, twin.blocks, twin.marks) == (entry.low, entry.high, entry.blocks, entry.marks)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(0, 3))
def test_junk_is_refused_by_every_decoder_with_its_own_error(junk: bytes, shift: int) -> None:
    header = SegmentHeader("tests", "n1", 1, 4096)
    trailer = Trailer(1, 256, 0, 0, 1, 1, 0, len(junk), crc32c(junk), 1)
    _refused(codec.decode_header, junk)
    _refused(codec.decode_header, codec.MAGIC + junk)
    _refused(codec.decode_block_header, junk, shift, max(0, len(junk) - shift))
    _refused(codec.decode_trailer, junk[:TRAILER_BYTES], header, 4096)
    _refused(index_codec.decode_index, junk, trailer)
    _refused(codec.decode_body, BlockHeader(len(junk), 0, 1, 1, 0, 0, 0, 0), bytes(BLOCK_HEADER_BYTES) + junk)


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=8) | st.text(max_size=8)
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
TAGS = st.sampled_from([str(kind.__struct_config__.tag) for kind in KINDS])


@settings(max_examples=150)
@given(st.lists(st.tuples(TAGS, st.lists(NESTED, max_size=8)), max_size=3))
def test_well_formed_messages_that_are_no_records_are_refused(records: list[tuple[str, list[object]]]) -> None:
    body = msgspec.msgpack.encode([[tag, *fields] for tag, fields in records])
    header = BlockHeader(len(body), 0, 1, len(records), 0, 0, 0, 0)
    _refused(codec.decode_body, header, bytes(BLOCK_HEADER_BYTES) + body)


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of four billion records
        b"\x91\x92\xa6update\xdd\xff\xff\xff\xff",  # an update of four billion writes
        b"\x91\x92\xa6update\x91" + b"\x91" * 100_000,  # a write nested deeper than any stack
        b"\x91\x98\xa6update\x90" + b"\x91" * 100_000 + b"\x90",  # the same in a field of the future
        b"\xc6\xff\xff\xff\xffabc",  # four gigabytes of binary
    ],
    ids=["array", "writes", "nested", "nested-future", "binary"],
)
def test_a_body_that_claims_the_impossible_is_refused_without_the_memory_for_it(body: bytes) -> None:
    refused, held = held_while(refused_as_newer, body)
    assert refused
    assert held < 4 << 20


def refused_as_newer(body: bytes) -> bool:
    """Whether the body of a block is taken for one of a format to come."""
    try:
        codec.decode_body(BlockHeader(len(body), 0, 1, 1, 0, 0, 0, 0), bytes(BLOCK_HEADER_BYTES) + body)
    except NewerFormat:
        return True
    return False


def test_a_marker_is_a_block_of_56_bytes() -> None:
    assert codec.block_size(len(codec.EMPTY_BODY)) == 56
    assert codec.decode_body(BlockHeader(1, 0, 1, 0, 0, 0, 0, 0), bytes(48) + codec.EMPTY_BODY) == []


def test_an_update_of_a_whole_segment_gets_a_segment_of_its_own() -> None:
    disk = filled([[update(1)]])
    log = open_log(disk)
    large = Update([Write("acc", 0, 1, 1, [b"k"], [b"v" * 10_000])])
    append(log, large)
    append(log, update(3))
    assert reopened(disk) == [update(1), large, update(3)]
    assert [info.bytes for info in log.segments()] == [2048, 12288]


def _refused(decode: Callable[..., object], *arguments: object) -> None:
    """Either it decodes, or it raises FormatError; anything else fails the test."""
    with suppress(FormatError):
        decode(*arguments)


def _block(body: bytes, *, lsn: int = 1, records: int = 1, previous_crc: int = 0) -> bytes:
    header = BlockHeader(len(body), 0, lsn, records, 0, 1_000, HEADER_BYTES, previous_crc)
    return b"".join(codec.encode_block(1, header, body)[0])


def _append_raw(disk: MemoryDisk, body: bytes, *, records: int, lsn: int) -> None:
    """Put a block at the end of the first segment, as another version could have."""
    file = disk.open(SEGMENT, write=True)
    image = disk.image(SEGMENT)
    at, crc = HEADER_BYTES, codec.decode_header(image[:HEADER_BYTES]).crc
    while any(image[at : at + 8]):
        found = codec.decode_block_header(image, at, len(image) - at)
        at, crc = at + found.size, found.crc
    file.write(at, _block(body, lsn=lsn, records=records, previous_crc=crc))
    file.sync()


def test_a_prepare_that_was_written_before_votes_could_be_held_back_is_read() -> None:
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(Prepare(b"t" * 16, 7, 1, [], [("acc", b"k")], [7, 9], 9)))
    assert now[-2:] == [0, False]
    before = msgspec.msgpack.encode(now[:-1])
    assert msgspec.msgpack.decode(before, type=Prepare).held is False
