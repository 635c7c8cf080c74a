"""A span of a log, read where some of it is damaged: what is good comes, and all else is told."""

import re

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.source.folder import RangeReader
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.reader import LossPolicy
from shared.storage.format import EntryFlag, IndexEntry

GOOD, FLIPPED, LOST, UNTOLD = "good", "flipped", "lost", "untold"
SAYS = {
    FLIPPED: "these are not the bytes that were written (CRC)",
    LOST: "the journal lost what stood here",
    UNTOLD: "the index says nothing of what stands here (brokers fsck --repair makes it again)",
    "short": "the file is too short",
}
FLAGS = {LOST: EntryFlag.DAMAGED}


def as_of_now(why: str, offset: int, first_kept: int | None) -> str:
    """What is said where the log is gone, or retention has dropped what stands before `first_kept`."""
    if first_kept is None:
        return "the log has been deleted"
    return f"retention dropped it (the first kept offset is {first_kept})" if offset < first_kept else why


@given(data=st.data())
def test_what_is_good_is_read_and_the_rest_told_once(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    states = [data.draw(st.sampled_from([GOOD, GOOD, GOOD, FLIPPED, FLIPPED, LOST, UNTOLD])) for _ in lengths]
    end = sum(lengths)
    log = bytes(range(1, end + 1))
    file_bytes = data.draw(st.just(end) | st.just(end) | st.integers(0, end))
    start = data.draw(st.just(0) | st.integers(0, end))
    stop = data.draw(st.just(end) | st.integers(start, end))
    first_kept = data.draw(st.just(0) | st.none() | st.integers(0, end))
    chunk_bytes = data.draw(st.sampled_from([1, 4, 7, 100]))

    entries, good, why, at, stored = [], [], {}, 0, bytearray(log)
    for length, state in zip(lengths, states, strict=True):
        entry = IndexEntry(at, 0, 0, length, 1, crc32c(log[at : at + length]), FLAGS.get(state, 0))
        at += length
        if state != UNTOLD and start < entry.end and entry.offset < stop:
            entries.append(entry)
        if state == FLIPPED:
            stored[entry.offset] ^= 0x80
        wrong = state
        if wrong in (GOOD, FLIPPED) and entry.end > file_bytes:
            wrong = "short"
        if wrong == GOOD and entry in entries:
            good.append(entry)
        if wrong != GOOD:
            why |= dict.fromkeys(range(max(entry.offset, start), min(entry.end, stop)), SAYS[wrong])
    told: list[str] = []
    policy = LossPolicy(True, told.append)
    span = LogRange("here", "orders", 1, start, stop)
    stored = stored[:file_bytes]
    reader = RangeReader(
        span,
        lambda length, offset: bytes(stored[offset : offset + length]),
        lambda: first_kept,
        policy,
        False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brokers.pipeline.source.ranges.CHUNK_BYTES", chunk_bytes)
        chunks = list(reader.chunks(iter(entries)))

    assert [entry for chunk in chunks for entry in chunk.entries] == good
    for chunk in chunks:
        assert chunk.data == log[chunk.offset : chunk.end]
        assert [entry.offset for entry in chunk.entries] == [
            chunk.offset,
            *(entry.end for entry in chunk.entries[:-1]),
        ]
        assert len(chunk.data) <= chunk_bytes or len(chunk.entries) == 1
    lost = [re.fullmatch(r"orders in here: offsets (\d+) to (\d+) are lost: (.*)", text) for text in told]
    said = [(at, each[3]) for each in lost if each for at in range(int(each[1]), int(each[2]))]
    assert sorted(said) == sorted((at, as_of_now(text, at, first_kept)) for at, text in why.items())
    assert all(lost)
