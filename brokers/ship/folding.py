"""A snapshot's parts: which bytes of each log the bucket lacks, read and packed in a thread.

What a log got since the last snapshot is a new section. Shorter sections before it are read again and joined
to it, as long as they are not much longer than what comes. So a log has few sections however often it is
folded, and each byte is sent again some ten times at most, until it is in a section of full size. Sections of
many logs share an object.

Sections that have what this disk has no longer stay as they are, whatever else happens: nothing but them can
be read. And a section is only sent anew where the disk still has its very bytes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import attrs
from crc32c import crc32c

from brokers.ship.formats import NewSection, Section, pack_part
from shared.storage.catalog import LogLine
from shared.storage.files import FileGone
from shared.storage.format import IndexEntry
from shared.storage.shipping import Shipping

Sections = dict[int, list[tuple[str, Section]]]
"""By log id: the sections of a log in order, each with the key of its object."""

_JOINED_TIMES = 2
"""A section is joined to what comes behind it where it is at most so many times as long."""


@attrs.define
class PackedPart:
    """An object of parts, ready to be sent."""

    data: memoryview
    directory: list[Section]


class _Gone(Exception):
    """A log was deleted before its bytes were read."""

    def __init__(self, log_id: int) -> None:
        super().__init__(log_id)
        self.log_id = log_id


@attrs.define(eq=False)
class Fold:
    """What one snapshot sends. `sections`: what is kept of the last one, and then what was sent. `stale`:
    keys of objects that are mostly of no use any more, whose sections are sent anew.
    """

    shipping: Shipping
    lines: Sequence[LogLine]
    before: Sections
    part_bytes: int
    epoch: int
    stale: Collection[str] = ()
    sections: Sections = attrs.Factory(dict)
    memory: bytearray = attrs.Factory(bytearray)
    """Of the last object, for the next one."""
    _waiting: list[NewSection] = attrs.Factory(list)
    _size: int = 0

    def parts(self) -> Iterator[PackedPart]:
        """The objects to be sent, one in memory at a time. In a thread. Raises OSError.

        The caller tells the key of each by `sent` before it asks for the next.
        """
        for line in self.lines:
            if line.end <= line.first:
                continue
            try:
                kept = self._kept(line)
                if kept:
                    self.sections[line.id] = kept
                if kept and kept[-1][1].end == line.end:
                    continue
                for new in self._new_sections(line, kept):
                    if self._size and self._size + new.length > self.part_bytes:
                        yield from self._packed()
                    self._waiting.append(new)
                    self._size += new.length
            except (FileGone, FileNotFoundError):
                self._drop(line.id)
        yield from self._packed()

    def sent(self, key: str, directory: Iterable[Section]) -> None:
        """The last object is in the bucket, under this key."""
        for section in directory:
            self.sections.setdefault(section.log_id, []).append((key, section))

    def has_dropped(self) -> bool:
        """Whether anything was dropped while it was read: then instants before now cannot be restored."""
        return any(
            line.end > line.first and self.shipping.has_dropped(line.id, line.first) for line in self.lines
        )

    def _packed(self) -> Iterator[PackedPart]:
        """The object of what waits, unless all of that is deleted."""
        while self._waiting:
            try:
                data, directory = pack_part(
                    self._waiting,
                    self._read,
                    journal_id=self.shipping.journal_id,
                    epoch=self.epoch,
                    memory=self.memory,
                )
            except _Gone as gone:
                self._drop(gone.log_id)
            else:
                self._waiting, self._size = [], 0
                assert isinstance(data.obj, bytearray)
                self.memory = data.obj
                yield PackedPart(data, directory)

    def _drop(self, log_id: int) -> None:
        """A log is deleted: the journal says so further on."""
        self.sections.pop(log_id, None)
        self._waiting = [new for new in self._waiting if new.log_id != log_id]
        self._size = sum([new.length for new in self._waiting])

    def _read(self, new: NewSection, target: memoryview) -> None:
        try:
            self.shipping.read_log(new.log_id, new.first, target)
        except (FileGone, FileNotFoundError):
            raise _Gone(new.log_id) from None

    def _kept(self, line: LogLine) -> list[tuple[str, Section]]:
        """The sections that stay, of those from before."""
        kept = [each for each in self.before.get(line.id, ()) if each[1].end > line.first]
        for number, (key, section) in enumerate(kept):
            if section.first < line.local:
                continue
            if section.end > line.end or (key in self.stale and self._is_here(line, section)):
                del kept[number:]
                break
        end = kept[-1][1].end if kept else max(line.first, line.local)
        while kept and kept[-1][1].end < line.end:
            last = kept[-1][1]
            if last.length > _JOINED_TIMES * (line.end - end) or line.end - last.first > self.part_bytes:
                break
            if last.first < line.local or not self._is_here(line, last):
                break
            kept.pop()
            end = last.first
        return kept

    def _is_here(self, line: LogLine, section: Section) -> bool:
        """Whether the disk has a section's bytes as they were sent, but for what was dropped since."""
        if section.first >= line.first:
            data = self.shipping.log_bytes(line.id, section.first, section.length)
            return crc32c(data) == section.crc32c
        entries = self.shipping.index_entries(line.id, line.first, section.end)
        read = self.shipping.log_bytes
        return all(
            entry.damaged or crc32c(read(line.id, entry.offset, entry.length)) == entry.crc32c
            for entry in entries
        )

    def _new_sections(self, line: LogLine, kept: list[tuple[str, Section]]) -> Iterator[NewSection]:
        start = kept[-1][1].end if kept else max(line.first, line.local)
        entries = self.shipping.index_entries(line.id, start, line.end)
        if kept and entries and entries[0].offset != start:  # the index was made anew: so are the sections
            kept[:] = [placed for placed in kept if placed[1].first < line.local]
            start = max(line.first, line.local)
            entries = self.shipping.index_entries(line.id, start, line.end)
        if not kept and entries:
            start = min(start, entries[0].offset)  # an entry that is kept in part is sent whole
        for first, end, group in _grouped(entries, start, line.end, self.part_bytes):
            yield NewSection(line.id, line.namespace, line.name, first, end, group)


def _grouped(
    entries: list[IndexEntry], start: int, stop: int, size: int
) -> Iterator[tuple[int, int, list[IndexEntry]]]:
    """Cut [start, stop) at entries' starts into ranges of at most `size`, but for one longer entry.

    What no entry covers, because they are damaged, goes with the range before it.
    """
    first, group = start, list[IndexEntry]()
    for entry in entries:
        if group and entry.end - first > size:
            yield first, entry.offset, group
            first, group = entry.offset, []
        group.append(entry)
    if first < stop:
        yield first, stop, group
