"""The bytes of the data folder: golden values, round trips, and nothing raised on garbage."""

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from shared.storage import catalog, format, index
from shared.storage.catalog import Catalog, LogLine
from shared.storage.entries import extend, extend_by_tail
from shared.storage.format import EntryFlag, IndexEntry
from shared.storage.os_disk import OsDisk
from shared.units import KIB

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
@example([b"", b"\0"], 8)  # the stop is inside a record
def test_walking_stops_at_the_last_boundary_not_above_the_stop(payloads: list[bytes], stop: int) -> None:
    data = encode(payloads)
    stop = min(stop, len(data))
    ends = [b for b in boundaries(data) if b <= stop]
    assert format.skip_records(data, 0, stop) == (ends[-1], len(ends) - 1)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_bytes_that_end_inside_a_record_are_refused(cut: int) -> None:
    data = encode([b"abc", b"de"])[:-cut]
    assert format.count_records(data) is None
    with pytest.raises(ValueError, match="inside a record"):
        list(format.split_records(data, 8))


def batch(parts: list[bytes], entries: int) -> bytes:
    return bytes(format.pack_batch(1024, 512, 7, 9, sum(map(len, parts)), entries, 512, parts))


def test_a_batch_is_laid_out_as_the_page_says() -> None:
    body = format.record(b"hello")
    data = batch([format.pack_entry(format.EntryKind.APPEND, 3, 40, len(body), 1), body], 1)
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
        parts += [format.pack_entry(format.EntryKind.APPEND, number, 10 * number, len(body), 1), body]
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
    entry = IndexEntry(1, 2, 3, 4, 5, 6, EntryFlag.UNVERIFIED)
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


@given(st.text(), st.text(), st.integers(0, 1 << 63))
def test_a_logs_line_is_the_json_of_its_fields(name: str, file: str, number: int) -> None:
    line = LogLine(number, "logmq", name, file, "interval:50ms", number + 1, number + 2, number + 3)
    fields = line._asdict()
    assert catalog.pack_line(line._replace(local=number)) == format.pack_line(
        fields | {"local": number} if number else {key: fields[key] for key in fields if key != "local"}
    )


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


# -- index entries: what an index says about a log


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[OsDisk]:
    with OsDisk(tmp_path) as disk:
        yield disk


def records(*sizes: int) -> bytes:
    return b"".join(format.record(bytes([n % 251]) * size) for n, size in enumerate(sizes))


def all_entries(closed: list[IndexEntry], left: IndexEntry | None) -> list[IndexEntry]:
    return [*closed, left] if left is not None else closed


def check(entries: list[IndexEntry], data: bytes, start: int = 0) -> None:
    """The entries cover `data` without gaps, at record boundaries, with the right counts and CRCs."""
    position = start
    for entry in entries:
        assert entry.offset == position
        piece = data[position - start :][: entry.length]
        assert format.count_records(piece) == entry.records
        assert crc32c(piece) == entry.crc32c
        position = entry.end
    assert position == start + len(data)


@given(st.lists(st.lists(st.integers(0, 90 * KIB), min_size=1, max_size=6), min_size=1, max_size=6))
def test_index_entries_cover_every_record_and_stay_small(batches: list[list[int]]) -> None:
    chunks = [records(*sizes) for sizes in batches]
    closed, left = extend(None, 0, 40, chunks, [len(sizes) for sizes in batches], 1000)
    entries = all_entries(closed, left)
    check(entries, b"".join(chunks), 40)
    for entry in entries:
        assert entry.length < 128 * KIB or entry.records == 1
    for entry in closed:
        assert entry.length >= 64 * KIB or any(m.length > 64 * KIB for m in entries)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60 * KIB)), min_size=1, max_size=40),
    st.lists(st.integers(0, 20 * KIB), max_size=3),
    st.integers(0, 10 * KIB),
)
def test_entries_of_many_small_commits_are_those_of_one_commit_after_the_other(
    commits: list[tuple[int, int]], before: list[int], waiting: int
) -> None:
    # All within the 200 ms that an entry covers: what the log sums up between two closings has no more.
    earlier = [records(*before)] if before else []
    closed, left = extend(None, 0, 40, earlier, [len(before)] if before else [], 900)
    entry, at, now_ms, expected = left, 40 + len(b"".join(earlier)), 1000, list(closed)
    tail, summed = bytearray(waiting), []
    for later_ms, size in commits:
        chunk = records(size // 2, size // 2)
        now_ms += later_ms
        more, entry = extend(entry, now_ms, at, [chunk], [2], now_ms)
        expected += more
        at += len(chunk)
        tail += chunk
        summed.append((now_ms, len(chunk), 2))
    more, summed_entry = extend_by_tail(left, at, tail, summed)
    assert [*closed, *more] == expected
    assert summed_entry == entry


def test_times_never_go_down_when_the_clock_does() -> None:
    _, left = extend(None, 5000, 0, [records(1)], [1], 1000)
    assert left is not None
    assert (left.first_ms, left.last_ms) == (5000, 5000)


def test_an_index_file_comes_back_and_a_bad_entry_is_none(disk: OsDisk) -> None:
    fd = disk.open("a.idx", create=True)
    index.write_header(disk, fd, 7, 99)
    entries = [IndexEntry(n * 10, n, n, 10, 1, n) for n in range(5)]
    index.write_entries(disk, fd, 7, 0, entries)
    disk.write(fd, bytes(64), index.entry_position(0))
    disk.write(fd, b"\xff", index.entry_position(3) + 5)
    found = index.read_index(disk, fd)
    assert found == index.IndexFile(7, 99, 1, [entries[1], entries[2], None, entries[4]])
    assert found is not None
    assert found.end == 50
    disk.write(fd, b"\xff", 20)
    assert index.read_index(disk, fd) is None
    disk.close(fd)


@given(sizes=st.lists(st.sampled_from([0, 5, 1000, 30 * KIB, 200 * KIB]), max_size=40), cut=st.integers(0, 9))
def test_a_rebuilt_index_is_unverified_and_ends_with_the_last_whole_record(
    sizes: list[int], cut: int
) -> None:
    from tests.support.fake_disk import FakeDisk

    disk = FakeDisk()
    data = records(3, *sizes)
    kept = data[: len(data) - cut]
    fd = disk.open("a.log", create=True)
    disk.write(fd, kept, 0)
    entries, end = index.rebuild(partial(disk.read, fd), 7, len(kept), 1)
    whole = format.skip_records(kept, 7, len(kept))[0]
    assert end == whole
    check(entries, kept[7:whole], 7)
    assert all(entry.unverified and not entry.damaged for entry in entries)
    assert all(index.entry_matches(disk, fd, entry) for entry in entries)


def test_an_index_entry_does_not_match_bytes_that_changed(disk: OsDisk) -> None:
    data = records(100, 100)
    fd = disk.open("a.log", create=True)
    disk.write(fd, data, 0)
    entries, _ = index.rebuild(partial(disk.read, fd), 0, len(data), 1)
    disk.write(fd, b"!", 50)
    assert not index.entry_matches(disk, fd, entries[0])
    disk.truncate(fd, 60)
    assert not index.entry_matches(disk, fd, entries[0])
    disk.close(fd)


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


@given(st.lists(st.tuples(st.integers(0, 90 * KIB), st.booleans()), min_size=1, max_size=9))
def test_a_record_in_two_pieces_is_marked_as_one(sizes: list[tuple[int, bool]]) -> None:
    chunks: list[bytes | memoryview] = []
    counts = []
    for size, in_two in sizes:
        record = records(size)
        cut = min(len(record), 30) if in_two else 0
        chunks += (record[:cut], memoryview(record)[cut:]) if cut else (record,)
        counts += [0, 1] if cut else [1]
    closed, left = extend(None, 0, 40, chunks, counts, 1000)
    check(all_entries(closed, left), b"".join(chunks), 40)
