"""The bytes of the data folder: golden values, round trips, and nothing raised on garbage."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shared.storage import catalog, format
from shared.storage.catalog import Catalog, LogLine
from shared.storage.format import Flag, IndexEntry

payloads = st.lists(st.binary(max_size=40) | st.sampled_from([b"", b"same size", b"x" * 300]), max_size=120)


def encode(payloads: list[bytes]) -> bytes:
    return b"".join(map(format.record, payloads))


def boundaries(data: bytes) -> list[int]:
    found, position = [0], 0
    while position < len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "big")
        found.append(position)
    return found


def test_a_record_is_the_specs_hex_example() -> None:
    assert format.record(b"hello-world").hex(" ") == "00 00 00 0b 68 65 6c 6c 6f 2d 77 6f 72 6c 64"


@given(payloads, st.integers(0, 4000))
def test_walking_stops_at_the_last_boundary_not_above_the_stop(payloads: list[bytes], stop: int) -> None:
    data = encode(payloads)
    stop = min(stop, len(data))
    ends = [b for b in boundaries(data) if b <= stop]
    assert format.skip_records(data, 0, stop) == (ends[-1], len(ends) - 1)


@given(st.integers(1, 300), st.integers(0, 299), st.integers(0, 3))
def test_a_run_of_equal_lengths_ends_where_one_differs(records: int, odd: int, byte: int) -> None:
    data = bytearray(encode([b"12345678"] * records))
    if odd < records:
        data[odd * 12 + byte] ^= 1
    position, count = 0, 0
    while position + 4 <= len(data):
        size = 4 + int.from_bytes(data[position : position + 4], "big")
        if position + size > len(data):
            break
        position, count = position + size, count + 1
    assert format.skip_records(data, 0, len(data)) == (position, count)


@given(payloads, st.integers(1, 500))
def test_pieces_are_whole_records_and_leave_nothing_out(payloads: list[bytes], size: int) -> None:
    data = encode(payloads)
    position, total = 0, 0
    for start, end, records in format.split_records(data, size):
        assert start == position
        assert format.count_records(data[start:end]) == records
        assert end - start <= size or records == 1
        position, total = end, total + records
    assert (position, total) == (len(data), len(payloads))


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_bytes_that_end_inside_a_record_are_refused(cut: int) -> None:
    data = encode([b"abc", b"de"])[:-cut]
    assert format.count_records(data) is None
    with pytest.raises(ValueError, match="inside a record"):
        list(format.split_records(data, 8))


def batch(parts: list[bytes], entries: int) -> bytes:
    return bytes(
        format.pack_batch(
            parts,
            sum(map(len, parts)),
            lsn=1024,
            synced_lsn=512,
            time_ms=7,
            journal_id=9,
            entries=entries,
            previous_lsn=512,
        )
    )


def test_a_batch_is_laid_out_as_the_page_says() -> None:
    body = format.record(b"hello")
    data = batch([format.pack_entry(format.Kind.APPEND, 3, 40, len(body), 1), body], 1)
    assert len(data) == 512
    assert data[:4] == b"BRJ1"
    assert struct.unpack(">QQQQQIQI", data[8:64]) == (1024, 512, 7, 9, 32 + 9, 1, 512, 0)
    assert struct.unpack(">I", data[4:8])[0] == crc32c(data[8 : 64 + 41])
    assert data[64 : 64 + 41].hex() == (
        "01000000 00000001 0000000000000003 0000000000000028 0000000000000009 0000000568656c6c6f".replace(
            " ", ""
        )
    )
    assert not any(data[64 + 41 :])


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_a_batch_comes_back_as_it_was_packed(bodies: list[bytes]) -> None:
    parts = []
    for number, body in enumerate(bodies):
        parts += [format.pack_entry(format.Kind.APPEND, number, 10 * number, len(body), 1), body]
    data = batch(parts, len(bodies))
    found = format.unpack_batch(data)
    assert found is not None
    assert len(data) == found.size
    assert len(data) % 512 == 0
    assert format.batch_is_good(found, data)
    payload = data[64 : 64 + found.payload_bytes]
    entries = format.unpack_entries(payload, found.entries)
    assert entries is not None
    assert [payload[e.body_start : e.body_end] for e in entries] == bodies
    assert [(e.log_id, e.offset) for e in entries] == [(n, 10 * n) for n in range(len(bodies))]
    assert format.unpack_entries(payload, found.entries + 1) is None


def test_every_flipped_bit_of_a_batch_is_found() -> None:
    data = bytearray(batch([b"0123456789abcdef" * 2], 1))
    for bit in range((64 + 32) * 8):
        data[bit // 8] ^= 1 << bit % 8
        found = format.unpack_batch(bytes(data))
        assert found is None or not format.batch_is_good(found, data)
        data[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_of_an_index_is_found() -> None:
    header = bytearray(format.pack_index_header(5, 123))
    assert format.unpack_index_header(header) == (5, 123)
    entry = IndexEntry(1, 2, 3, 4, 5, 6, Flag.UNVERIFIED)
    data = bytearray(format.pack_index_entry(entry, 5))
    assert len(header) == len(data) == 64
    assert format.unpack_index_entry(data, 5) == entry
    assert format.unpack_index_entry(data, 6) is None, "another log's entry"
    assert format.unpack_index_entry(bytes(64), 0) is None
    for bit in range(64 * 8):
        for block in (header, data):
            block[bit // 8] ^= 1 << bit % 8
        assert format.unpack_index_header(header) is None
        assert format.unpack_index_entry(data, 5) is None
        for block in (header, data):
            block[bit // 8] ^= 1 << bit % 8


@given(st.binary(max_size=200))
def test_garbage_is_none_and_never_an_exception(data: bytes) -> None:
    assert format.unpack_batch(data) is None
    assert format.unpack_index_header(data) is None
    assert format.unpack_index_entry(data, 0) is None
    assert format.unpack_lines(data) is None
    assert catalog.unpack(data) is None
    format.unpack_entries(data, 3)
    assert format.format_number(data) is None


def test_the_catalog_comes_back_and_every_flipped_bit_is_found() -> None:
    line = LogLine(1, "logmq", "orders", "orders", "always", 5, 0, 40)
    packed = Catalog(0xAB, 512, 2, 6, True, [line]).pack()
    assert catalog.unpack(packed) == Catalog(0xAB, 512, 2, 6, True, [line])
    for bit in range(len(packed) * 8):
        data = bytearray(packed)
        data[bit // 8] ^= 1 << bit % 8
        assert catalog.unpack(bytes(data)) is None


def test_a_format_file_says_its_number() -> None:
    assert format.format_number(format.FORMAT_TEXT % 1) == 1
    assert format.format_number(format.FORMAT_TEXT % 12) == 12
    assert format.format_number(b"something else 1\n") is None
