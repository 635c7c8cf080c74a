"""Where the archive takes its records from: the source of `brokers.pipeline`, asked without Spark.

The driver asks which logs there are and how far they go, executors for their records. What travels between
them is an `ArchiveInput`: options, and nothing open.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.pipeline.archiving.manifest import LogState, Manifest
from brokers.pipeline.archiving.plan import Extent
from brokers.pipeline.source.options import Options
from brokers.pipeline.source.origin import Origin
from brokers.pipeline.source.planning import open_place
from brokers.pipeline.source.spans import Span
from shared.storage import catalog
from shared.storage.os_disk import OsDisk

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class ArchiveInput:
    """`options`: the source's own, but for where to begin and to end, which is the archive's business."""

    options: Options

    @property
    def origin(self) -> str:
        """The kind of place, in words, for the manifest."""
        return "servers" if self.options.servers else f"a data folder's {self.options.namespace}"

    @contextmanager
    def look(self) -> Iterator["Look"]:
        """Look at the places as they are now, in the driver."""
        with ExitStack() as opened:
            places = {
                source: opened.enter_context(closing(open_place(self.options, source)))
                for source in self.options.sources
            }
            yield Look(self, places)

    def batches(self, log: Extent, start: int, stop: int) -> Iterator["pa.RecordBatch"]:
        """The records of [start, stop), in an executor. Raises DataLoss."""
        from brokers.pipeline.source import rows

        return rows.read(self.options, [_span(log, start, stop)])


@attrs.frozen
class Look:
    """The places of a feed, open. Its methods raise OSError where one cannot be reached."""

    feed: ArchiveInput
    places: Mapping[str, Origin]

    def extents(self, known: Manifest) -> list[Extent]:
        """Every log that is wanted and there, as of now.

        A data folder is known by its journal's id, wherever it is moved to, and a server by its address; but
        where one server is read and one was (so says `known`), it is the same.
        """
        options = self.feed.options
        found = []
        before = {name.rpartition("@")[2] for name in known.current()}
        for source, place in self.places.items():
            where = source if options.servers else _journal_id(source)
            if options.servers and len(self.places) == len(before) == 1:
                (where,) = before
            for spot in place.spots(options.topics).values():
                name = f"{spot.name}@{where}"
                found.append(Extent(name, spot.name, spot.first, spot.end, str(spot.id), spot))
        return sorted(found, key=lambda extent: extent.name)

    def is_another(self, log: LogState, extent: Extent) -> bool:
        """Whether the log was made again since it was archived."""
        return self.places[extent.spot.source].is_other(extent.spot, int(log.seen), log.end)

    def cuts(self, log: Extent, start: int, stop: int, bytes_each: int) -> Sequence[int]:
        """Records' offsets that cut [start, stop) into pieces of that size, about."""
        found: list[int] = []
        span = _span(log, start, stop)
        for at in range(start + bytes_each, stop, bytes_each):
            cut = self.places[span.source].cut(span, at)
            if (found[-1] if found else start) < cut < stop:
                found.append(cut)
        return found


def _span(log: Extent, start: int, stop: int) -> Span:
    spot = log.spot
    return Span(spot.source, spot.name, spot.id, start, stop)


def _journal_id(folder: str) -> str:
    """Which data folder it is. Raises OSError and ValueError."""
    disk = OsDisk(Path(folder), create=False, read_only=True)
    try:
        found = catalog.read(disk)
    finally:
        disk.release()
    return f"{found.journal_id:016x}" if found is not None else "new"
