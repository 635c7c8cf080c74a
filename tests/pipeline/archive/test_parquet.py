"""Ranges of logs as Parquet files, compared with the records as plain Python has them."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.archiving import names, parquet
from brokers.pipeline.archiving.manifest import ByteRange, NotContinuous, Part
from brokers.pipeline.archiving.parquet import Work, write
from brokers.pipeline.archiving.places import place_of

NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000
DAY = 86_400_000_000


def batch(records: Sequence[tuple[int, int, bytes]]) -> pa.RecordBatch:
    """`records`: offset, time in microseconds, value."""
    offsets, times, values = zip(*records, strict=True) if records else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array(values, pa.binary()),
        ],
        names=["offset", "timestamp", "value"],
    )


def laid(values: Sequence[bytes], days: Sequence[int], start: int = 0) -> list[tuple[int, int, bytes]]:
    """Records as a log has them: each offset is where the one before ends."""
    found, at = [], start
    for value, day in zip(values, days, strict=True):
        found.append((at, NOON + day * DAY, value))
        at += 4 + len(value)
    return found


def end_of(records: Sequence[tuple[int, int, bytes]]) -> int:
    return records[-1][0] + 4 + len(records[-1][2])


def work(start: int, end: int, *, gaps: bool = False) -> Work:
    return Work("orders#1", "orders", ByteRange(start, end), "a-1", gaps_allowed=gaps)


def rows(root: Path, parts: Sequence[Part]) -> Iterator[tuple[int, int, bytes]]:
    for part in parts:
        table = pq.read_table(root / part.fresh_path, partitioning=None)
        assert table.num_rows == part.records
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        yield from zip(table["offset"].to_pylist(), times, table["value"].to_pylist(), strict=True)


@given(
    values=st.lists(st.binary(max_size=20), min_size=1, max_size=30),
    steps=st.lists(st.integers(0, 1), min_size=30, max_size=30),
    cut=st.integers(0, 30),
)
def test_what_is_written_is_what_was_there_a_file_a_day(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes], steps: list[int], cut: int
) -> None:
    root = tmp_path_factory.mktemp("archive")
    days = [sum(steps[: number + 1]) for number in range(len(values))]
    records = laid(values, days)
    written = write(place_of(root), work(0, end_of(records)), [batch(records[:cut]), batch(records[cut:])])
    assert list(rows(root, written.parts)) == records
    assert written.gaps == []
    assert len(written.parts) == len(set(days))
    assert [part.start for part in written.parts[1:]] == [part.end for part in written.parts[:-1]]
    for part in written.parts:
        day = date.fromisoformat(part.date).toordinal() - date(2026, 1, 31).toordinal()
        assert part.records == days.count(day)
        assert part.file_bytes == (root / part.fresh_path).stat().st_size


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (laid([b"a", b"b"], [0, 0]) + laid([b"c"], [0], start=11), "no records from 10 to 11"),
        (laid([b"a", b"b"], [0, 0]) + laid([b"b"], [0], start=5), "a record at 5 after all up to 10"),
        (laid([b"a", b"b"], [0, 0]) + laid([b"b"], [0], start=9), "a record at 9 after all up to 10"),
        (laid([b"a"], [0], start=1), "no records from 0 to 1"),
        (laid([b"a"], [0]), "no records from 5 to 16"),
        (laid([b"a" * 20], [0]), "records up to 24"),
        (laid([b"a" * 13], [0]), "records up to 17"),
    ],
    ids=["a hole", "twice", "half twice", "late", "early", "behind", "just behind"],
)
def test_records_that_do_not_tile_the_range_are_refused(
    tmp_path: Path, records: list[tuple[int, int, bytes]], text: str
) -> None:
    with pytest.raises(NotContinuous, match=text):
        write(place_of(tmp_path), work(0, 16), [batch(records)])
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_file_is_synced_whole_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []

    def sync(fd: int) -> None:
        assert list(tmp_path.rglob("*.parquet")) == []
        synced.append((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    (part,) = write(place_of(tmp_path), work(0, 5), [batch(laid([b"a"], [0]))]).parts
    assert synced == [((tmp_path / part.fresh_path).stat().st_ino, part.file_bytes)]


def test_gaps_that_are_allowed_are_told_and_part_the_files(tmp_path: Path) -> None:
    records = laid([b"a", b"b"], [0, 0], start=3) + laid([b"c"], [0], start=20)
    written = write(place_of(tmp_path), work(0, 30, gaps=True), [batch(records)])
    assert list(rows(tmp_path, written.parts)) == records
    assert written.gaps == [ByteRange(0, 3), ByteRange(13, 20), ByteRange(25, 30)]
    assert [(part.start, part.end) for part in written.parts] == [(3, 13), (20, 25)]


def test_an_empty_range_of_gaps_alone_has_no_file(tmp_path: Path) -> None:
    written = write(place_of(tmp_path), work(0, 30, gaps=True), [])
    assert written == parquet.Written([], [ByteRange(0, 30)])


def test_what_is_held_for_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 100)
    records = laid([b"x" * 100] * 5, [0] * 5)
    (part,) = write(place_of(tmp_path), work(0, end_of(records)), [batch([each]) for each in records]).parts
    assert pq.read_metadata(tmp_path / part.fresh_path).num_row_groups == 5
    assert list(rows(tmp_path, [part])) == records


def test_a_file_says_what_it_holds_and_nothing_unfinished_looks_like_one(tmp_path: Path) -> None:
    records = laid([b"a"], [0])

    def dying() -> Iterator[pa.RecordBatch]:
        yield batch(records)
        assert not list(tmp_path.rglob("*.parquet"))
        raise OSError("the reader fails")

    with pytest.raises(OSError, match="the reader fails"):
        write(place_of(tmp_path), work(0, 10), dying())
    assert not list(tmp_path.rglob("*.parquet"))
    (part,) = write(place_of(tmp_path), work(0, 5), [batch(records)]).parts
    metadata = pq.read_metadata(tmp_path / part.fresh_path).metadata
    assert metadata[b"brokers.topic"] == b"orders"
    assert metadata[b"brokers.log"] == b"orders#1"
    assert metadata[b"brokers.range"] == b"0-5"
    name = names.parse_file(Path(part.fresh_path).name)
    assert name == names.FileName(0, 5, names.log_key("orders#1"), "a-1")
