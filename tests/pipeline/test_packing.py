"""Rows to records: the same pieces whenever the same rows come."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.source.writing import PackedRecords, Packer, framed
from logmq.runs import encode

rows = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.binary(max_size=30)), max_size=40)


def packed(rows: list[tuple[str, bytes]], cuts: list[int], bytes_max: int) -> list[PackedRecords]:
    packer = Packer(bytes_max, 1 << 20)
    pieces: list[PackedRecords] = []
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(edges):
        topics = pa.array([topic for topic, _ in rows[start:stop]], pa.string())
        pieces += packer.add(topics, pa.array([value for _, value in rows[start:stop]], pa.binary()))
    return [*pieces, *packer.rest()]


def plain(rows: list[tuple[str, bytes]], topic: str, bytes_max: int) -> list[tuple[bytes, int]]:
    """The pieces of one topic, made a row at a time."""
    pieces: list[list[bytes]] = [[]]
    for name, value in rows:
        if name == topic:
            if pieces[-1] and sum(4 + len(each) for each in [*pieces[-1], value]) > bytes_max:
                pieces.append([])
            pieces[-1].append(value)
    return [(encode(piece)[0], len(piece)) for piece in pieces if piece]


@given(rows, st.lists(st.integers(0, 100), max_size=4), st.integers(1, 120))
def test_each_topics_rows_are_packed_in_order_however_they_come(
    rows: list[tuple[str, bytes]], cuts: list[int], bytes_max: int
) -> None:
    pieces = packed(rows, cuts, bytes_max)
    for topic in "abc":
        found = [(piece.records, piece.count) for piece in pieces if piece.topic == topic]
        assert found == plain(rows, topic, bytes_max)


@given(st.lists(st.binary(max_size=9)), st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_a_column_is_laid_out_as_a_log_is(values: list[bytes], skipped: int, kind: pa.DataType) -> None:
    records, starts = framed(pa.array(values, kind).slice(skipped))
    expected, lengths = encode(values[skipped:])
    assert bytes(records[starts[0] : starts[-1]]) == expected
    assert [b - a for a, b in itertools.pairwise(starts)] == lengths


def test_what_is_held_for_many_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And given out at the same rows, however these are divided."""
    monkeypatch.setattr("brokers.pipeline.source.writing.CHECKED_ROWS", 15)
    names, values = pa.array([f"t{number}" for number in range(20)]), pa.array([b"x"] * 20)
    packer = Packer(1000, 50)
    assert len(list(packer.add(names, values))) == 15
    assert len(list(packer.rest())) == 5
    packer = Packer(1000, 50)
    assert list(packer.add(names.slice(0, 14), values.slice(0, 14))) == []
    assert len(list(packer.add(names.slice(14), values.slice(14)))) == 15
    assert len(list(packer.rest())) == 5
