"""Chunks to rows, against the plain way: one record after the other."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.source import framing
from brokers.pipeline.source.framing import NotRecords
from brokers.pipeline.source.ranges import LogRange, RecordChunk
from shared.storage import format
from shared.storage.format import IndexEntry

PAYLOADS = st.lists(st.one_of(st.binary(max_size=20), st.just(b"same"), st.binary(max_size=300)), min_size=1)
ALIKE = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=30)
)
PARTS = st.one_of(st.lists(PAYLOADS, min_size=1, max_size=8), ALIKE.map(lambda payloads: [payloads]))


def laid(parts: list[list[bytes]], offset: int = 0) -> RecordChunk:
    """A chunk with an index entry for each part."""
    entries, data = [], b""
    for number, payloads in enumerate(parts):
        part = b"".join(map(format.record, payloads))
        entries.append(IndexEntry(offset + len(data), 1000 + number, 0, len(part), len(payloads), 0))
        data += part
    return RecordChunk(offset, data, entries)


def bounds(parts: list[list[bytes]], offset: int = 0) -> list[int]:
    sizes = [format.LENGTH_BYTES + len(payload) for payloads in parts for payload in payloads]
    return list(accumulate(sizes, initial=offset))


@given(PARTS, st.integers(0, 1 << 40))
def test_rows_are_the_records_with_their_offsets_and_their_entrys_time(
    parts: list[list[bytes]], offset: int
) -> None:
    chunk = laid(parts, offset)
    batch = framing.rows(LogRange("here", "orders", 1, offset, chunk.end), chunk)
    assert batch.schema.equals(framing.SCHEMA)
    batch.validate(full=True)
    assert batch["value"].to_pylist() == [payload for payloads in parts for payload in payloads]
    assert batch["offset"].to_pylist() == bounds(parts, offset)[:-1]
    times = [(1000 + number) * 1000 for number, payloads in enumerate(parts) for _ in payloads]
    assert batch["timestamp"].cast("int64").to_pylist() == times
    assert set(batch["topic"].to_pylist()) == {"orders"}


@given(PARTS, st.data())
def test_what_lies_outside_of_the_span_is_left_out(parts: list[list[bytes]], data: st.DataObject) -> None:
    chunk = laid(parts, 64)
    places = bounds(parts, 64)
    first = data.draw(st.integers(0, len(places) - 1))
    last = data.draw(st.integers(first, len(places) - 1))
    batch = framing.rows(LogRange("here", "orders", 1, places[first], places[last]), chunk)
    whole = framing.rows(LogRange("here", "orders", 1, 0, 1 << 40), chunk)
    assert batch.equals(whole.slice(first, last - first))
    some = framing.rows(
        LogRange("here", "orders", 1, places[first], places[last]), chunk, ["timestamp", "topic"]
    )
    assert some.equals(batch.select(["timestamp", "topic"]))
    all_of_them = framing.rows(LogRange("here", "orders", 1, 0, 1 << 40), chunk, ["timestamp"])
    assert all_of_them.equals(whole.select(["timestamp"]))


@given(PARTS, st.integers(1, 400) | st.just((1 << 63) - 1))
def test_of_values_no_more_bytes_are_taken_than_asked_for(parts: list[list[bytes]], most: int) -> None:
    chunk = laid(parts)
    everything = LogRange("here", "orders", 1, 0, 1 << 40)
    batch = framing.rows(everything, chunk, value_bytes=most)
    batch.validate(full=True)
    assert batch["value"].to_pylist() == [payload[:most] for payloads in parts for payload in payloads]
    others = ["topic", "offset", "timestamp"]
    assert batch.select(others).equals(framing.rows(everything, chunk).select(others))


def described(parts: list[list[bytes]]) -> list[tuple[list[int], list[int]]]:
    """Parts' lengths and counts: as they are, each record a part, and all in one part."""
    entries = laid(parts).entries
    records = [format.LENGTH_BYTES + len(payload) for payloads in parts for payload in payloads]
    return [
        ([entry.length for entry in entries], [entry.records for entry in entries]),
        (records, [1] * len(records)),
        ([sum(records)], [len(records)]),
    ]


@given(PARTS, st.sampled_from([1, 40]))
def test_the_starts_of_all_records_are_found(parts: list[list[bytes]], times: int) -> None:
    data = laid(parts * times).data
    for lengths, counts in described(parts * times):
        assert framing.starts(data, lengths, counts).tolist() == bounds(parts * times)


@given(PARTS, st.sampled_from([1, 40]), st.data())
def test_other_bytes_are_never_taken_for_so_many_records(
    parts: list[list[bytes]], times: int, data: st.DataObject
) -> None:
    parts = parts * times
    chunk = laid(parts)
    field = data.draw(st.sampled_from(bounds(parts)[:-1])) + data.draw(st.integers(0, 3))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(chunk.data)
    damaged[field] ^= 1 << bit
    for lengths, counts in described(parts):
        try:
            found = framing.starts(damaged, lengths, counts)
        except NotRecords:
            continue
        # A flipped length may lead to other whole records, as many, as long: only a CRC tells those.
        at = found.tolist()
        assert len(at) == sum(counts) + 1
        assert at[-1] == len(damaged)
        assert all(a + 4 + format.length_at(damaged, a)[0] == b for a, b in pairwise(at))


@pytest.mark.parametrize("much", [-1, 1, 4, 100])
def test_a_last_length_that_is_wrong_does_not_end_with_its_chunk(much: int) -> None:
    payloads = [b"x" * (number % 5) for number in range(60)] + [b"last"]
    chunk = bytearray(b"".join(map(format.record, payloads)))
    chunk[-8:-4] = (4 + much).to_bytes(4, "big")
    with pytest.raises(NotRecords):
        framing.starts(chunk, [len(chunk)], [len(payloads)])
