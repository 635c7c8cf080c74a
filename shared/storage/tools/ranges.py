"""What can be said of each byte of a log, range by range."""

from collections.abc import Iterator
from enum import Enum

import attrs
from crc32c import crc32c

from shared.storage import format
from shared.storage.format import IndexEntry
from shared.storage.tools.view import FolderView, LogReader, LogView


class State(Enum):
    """How far a range can be trusted."""

    GOOD = "good"  # its CRC, made when it was written, agrees
    UNVERIFIED = "unverified"  # its CRC was made later, when an index was rebuilt, and agrees
    UNCOVERED = "uncovered"  # whole records, but nothing says that they are the ones written
    DAMAGED = "damaged"


@attrs.frozen
class Range:
    """`length` bytes of a log from `offset` on; `text` says what is wrong, if something is.

    `last_ms`: the time of its last record, None where nothing tells.
    """

    offset: int
    length: int
    records: int
    state: State
    text: str = ""
    last_ms: int | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length


def ranges(view: FolderView, log: LogView, reader: LogReader, start: int, stop: int) -> Iterator[Range]:
    """The ranges that touch [start, stop), in order and without gaps, from the first kept offset to the end.

    Reads every byte of them. The index's gaps are walked record by record.
    """
    position = log.first
    found = view.read_index(log)
    for entry in found.entries if found is not None else []:
        if entry is None or entry.end <= position:
            continue
        if entry.offset >= stop or entry.offset >= log.end:
            break
        if entry.offset < position > log.first:
            continue  # it overlaps its neighbour: its CRC cannot be asked
        if entry.offset > position:
            yield from _gap(log, reader, position, entry.offset, start)
        if entry.end > start:
            checked = _of_entry(reader, entry)
            if view.live and entry.offset < position and checked.state is State.DAMAGED:
                continue  # more may be dropped by now than we know of, and be a hole
            yield checked if entry.offset >= position else _kept(checked, reader, position)
        position = entry.end
    if position < min(stop, log.end):
        yield from _gap(log, reader, position, log.end, start)


def _of_entry(reader: LogReader, entry: IndexEntry) -> Range:
    if entry.damaged:
        return _damaged(entry, "the journal lost what stood here")
    data = reader.read(entry.offset, entry.length)
    if len(data) < entry.length:
        return _damaged(entry, f"the file ends {entry.length - len(data)} bytes too early")
    if crc32c(data) != entry.crc32c:
        return _damaged(entry, "these are not the bytes that were written (CRC)")
    if format.count_records(data) != entry.records:
        return _damaged(entry, "the length fields do not lead to the range's end")
    state = State.UNVERIFIED if entry.unverified else State.GOOD
    return Range(entry.offset, entry.length, entry.records, state, "", entry.last_ms)


def _kept(whole: Range, reader: LogReader, first: int) -> Range:
    """What is kept of an entry's range: the records before `first`, a record's start, are dropped."""
    dropped = format.count_records(reader.read(whole.offset, first - whole.offset)) or 0
    records = max(whole.records - dropped, 0)
    return attrs.evolve(whole, offset=first, length=whole.end - first, records=records)


def _damaged(entry: IndexEntry, text: str) -> Range:
    return Range(entry.offset, entry.length, entry.records, State.DAMAGED, text, entry.last_ms)


def _gap(log: LogView, reader: LogReader, position: int, stop: int, wanted: int) -> Iterator[Range]:
    """A range that no entry covers: some of it may stand in the journal, whose batches have CRCs."""
    while position < stop:
        end, state = stop, State.UNCOVERED
        for patch in log.patches_in(position, stop):
            if patch.offset > position and state is State.UNCOVERED:
                end = patch.offset
            elif patch.offset <= (end if state is State.GOOD else position):
                end, state = patch.offset + patch.length, State.GOOD
                continue
            break
        end = min(end, stop)
        records = 0
        reached = position
        for offset, payload in reader.records(position, end):
            records += 1
            reached = offset + format.LENGTH_BYTES + len(payload)
        if reached > max(position, wanted):
            yield Range(position, reached - position, records, state)
        if reached < end:
            text = "no whole record stands here, and the index says nothing of it"
            yield Range(reached, end - reached, 0, State.DAMAGED, text)
        position = end
