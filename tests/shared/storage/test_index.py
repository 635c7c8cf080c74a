"""Index entries: what an index says about a log."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shared.storage import format, index
from shared.storage.format import IndexEntry
from shared.storage.os_disk import OsDisk
from shared.units import KIB


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
    closed, left = index.extend(None, 0, 40, chunks, [len(sizes) for sizes in batches], 1000)
    entries = all_entries(closed, left)
    check(entries, b"".join(chunks), 40)
    for entry in entries:
        assert entry.length < 128 * KIB or entry.records == 1
    for entry in closed:
        assert entry.length >= 64 * KIB or any(m.length > 64 * KIB for m in entries)


@given(st.lists(st.tuples(st.integers(0, 90 * KIB), st.booleans()), min_size=1, max_size=9))
def test_a_record_in_two_pieces_is_marked_as_one(sizes: list[tuple[int, bool]]) -> None:
    chunks: list[bytes | memoryview] = []
    counts = []
    for size, in_two in sizes:
        record = records(size)
        cut = min(len(record), 30) if in_two else 0
        chunks += (record[:cut], memoryview(record)[cut:]) if cut else (record,)
        counts += [0, 1] if cut else [1]
    closed, left = index.extend(None, 0, 40, chunks, counts, 1000)
    check(all_entries(closed, left), b"".join(chunks), 40)


def test_an_index_entry_goes_on_where_the_last_append_left_it() -> None:
    one, two = records(10, 20), records(30)
    _, left = index.extend(None, 0, 0, [one], [2], 1000)
    assert left == IndexEntry(0, 1000, 1000, len(one), 2, crc32c(one))
    closed, left = index.extend(left, 1000, len(one), [two], [1], 1200)
    assert not closed
    assert left == IndexEntry(0, 1000, 1200, len(one + two), 3, crc32c(one + two))


def test_times_never_go_down_when_the_clock_does() -> None:
    _, left = index.extend(None, 5000, 0, [records(1)], [1], 1000)
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
