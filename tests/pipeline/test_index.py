"""An index file as the source reads it, held against a list of the entries that are good in it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.source.folder import LogIndex
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry, pack_index_entry
from shared.storage.index import entry_position
from tests.support.fake_disk import FakeDisk

LOG_ID = 7
GOOD, TORN, ANOTHERS, ZERO = "good", "torn", "another's", "zero"


def entry(entry: IndexEntry, state: str) -> bytes:
    data = pack_index_entry(entry, LOG_ID + (state == ANOTHERS))
    if state == ZERO:
        return bytes(INDEX_ENTRY_BYTES)
    return data[:40] + b"torn" + data[44:] if state == TORN else data


def laid(lengths: Sequence[int], gaps: Sequence[int]) -> list[IndexEntry]:
    """Entries behind each other, each `gap` behind the one before; times go up by two."""
    found, at = [], 0
    for number, (length, gap) in enumerate(zip(lengths, gaps, strict=True)):
        at += gap
        found.append(IndexEntry(at, 2 * number, 2 * number + 1, length, 1, 0))
        at += length
    return found


def opened(entries: Sequence[IndexEntry], states: Sequence[str], more: bytes = b"") -> LogIndex:
    disk = FakeDisk()
    fd = disk.open("orders.idx", create=True)
    data = bytes(entry_position(0)) + b"".join(map(entry, entries, states)) + more
    disk.write(fd, data, 0)
    return LogIndex(disk, fd, LOG_ID)


@given(data=st.data())
def test_it_tells_what_is_good_whatever_stands_between(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    trimmed = data.draw(st.integers(0, count))
    states = [ZERO] * trimmed + data.draw(
        st.lists(
            st.sampled_from([GOOD, GOOD, GOOD, TORN, ANOTHERS]),
            min_size=count - trimmed,
            max_size=count - trimmed,
        )
    )
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 0, 2]), min_size=count, max_size=count))
    entries = laid(lengths, gaps)
    found = opened(entries, states, bytes(data.draw(st.integers(0, INDEX_ENTRY_BYTES - 1))))
    good = [entry for entry, state in zip(entries, states, strict=True) if state == GOOD]
    assert found.count == count
    assert found.last() == (good[-1] if good else None)
    for time in range(-1, 2 * count + 2):
        later = [entry for entry in good if entry.last_ms >= time]
        assert found.at_time(time) == (later[0] if later else None)
    end = entries[-1].end if entries else 0
    for offset in range(end + 2):
        before = [entry for entry in good if entry.offset <= offset]
        assert found.at_or_before(offset) == (before[-1] if before else None)
        for stop in (offset, offset + 1, offset + 4, end + 1):
            touching = [entry for entry in good if entry.end > offset and entry.offset < stop]
            assert list(found.entries(offset, stop)) == touching


def test_without_a_file_it_has_nothing() -> None:
    found = LogIndex(FakeDisk(), None, LOG_ID)
    assert found.count == 0
    assert (found.last(), found.at_time(0), found.at_or_before(0)) == (None,) * 3
    assert list(found.entries(0, 100)) == []
