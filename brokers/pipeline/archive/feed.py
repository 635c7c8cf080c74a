"""Where the archive takes its records from: the source of `brokers.pipeline`, asked without Spark.

The driver asks which logs there are and how far they go, executors for their records. What travels between
them is a `Feed`: options, and nothing open.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.pipeline.archive.manifest import LogState
from brokers.pipeline.archive.plan import Extent
from brokers.pipeline.source.options import Options
from brokers.pipeline.source.places import open_place
from brokers.pipeline.source.spans import Span
from shared.storage import catalog
from shared.storage.os_disk import OsDisk

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class Feed:
    """`options`: the source's own, but for where to begin and to end, which is the archive's business."""

    options: Options

    @property
    def origin(self) -> str:
        """The kind of place, in words, for the manifest."""
        return "servers" if self.options.servers else f"a data folder's {self.options.namespace}"

    def extents(self) -> list[Extent]:
        """Every log that is wanted and there, as of now. Raises OSError where a place cannot be reached."""
        found = []
        for source in self.options.sources:
            where = source if self.options.servers else _journal_id(source)
            with closing(open_place(self.options, source)) as place:
                for spot in place.spots(self.options.topics).values():
                    seen = str(spot.id) if spot.id else ""
                    name = f"{spot.name}@{where}"
                    found.append(Extent(name, spot.name, spot.first, spot.end, seen, spot))
        return sorted(found, key=lambda extent: extent.name)

    def is_another(self, log: LogState, extent: Extent) -> bool:
        """Whether the log was made again since."""
        return bool(log.seen and extent.seen and log.seen != extent.seen)

    def cuts(self, log: Extent, start: int, stop: int, bytes_each: int) -> Sequence[int]:
        """Records' offsets that cut [start, stop) into pieces of that size, about."""
        found: list[int] = []
        span = _span(log, start, stop)
        with closing(open_place(self.options, log.spot.source)) as place:
            for at in range(start + bytes_each, stop, bytes_each):
                cut = place.cut(span, at)
                if (found[-1] if found else start) < cut < stop:
                    found.append(cut)
        return found

    def batches(self, log: Extent, start: int, stop: int) -> Iterator["pa.RecordBatch"]:
        """The records of [start, stop), in an executor. Raises DataLoss."""
        from brokers.pipeline.source import data_source

        return data_source.read(self.options, data_source.Share((_span(log, start, stop),)))


def _span(log: Extent, start: int, stop: int) -> Span:
    spot = log.spot
    return Span(spot.source, spot.name, spot.id, start, stop, spot.file)


def _journal_id(folder: str) -> str:
    """Which data folder it is, wherever it was moved to. Raises OSError and ValueError."""
    disk = OsDisk(Path(folder), create=False, read_only=True)
    try:
        found = catalog.read(disk)
    finally:
        disk.release()
    return f"{found.journal_id:016x}" if found is not None else "new"
