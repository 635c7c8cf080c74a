"""Where the archive takes its records from: the pipeline's source, asked without Spark.

The driver asks which logs there are and how far they go. Executors ask for their records. An `ArchiveInput`
travels between them: it has options, and nothing open.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.pipeline.archiving.manifest import LogState, Manifest
from brokers.pipeline.archiving.plan import NamedLog
from brokers.pipeline.source.options import EARLIEST, SourceOptions
from brokers.pipeline.source.planning import offsets, open_readers
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.reader import SourceReader, rules
from shared.storage import catalog
from shared.storage.os_disk import OsDisk

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class ArchiveInput:
    """`options`: the source's own, without a begin and an end, which the manifest knows."""

    options: SourceOptions

    @property
    def origin(self) -> str:
        """The kind of source, in words, for the manifest."""
        return "servers" if self.options.servers else f"a data folder's {self.options.namespace}"

    @contextmanager
    def look(self) -> Iterator["Look"]:
        """Open the sources as they are now, in the driver."""
        with open_readers(self.options) as readers:
            yield Look(self, readers)

    def by_range(self, ranges: Sequence[LogRange]) -> Iterator[tuple[LogRange, Iterator["pa.RecordBatch"]]]:
        """Yield each range with its records, in an executor. A source is opened once. Raises DataLoss."""
        from brokers.pipeline.source import rows

        return rows.by_range(self.options, ranges)


@attrs.frozen
class Look:
    """The open sources of an input. Its methods raise OSError if one cannot be reached."""

    feed: ArchiveInput
    readers: Mapping[str, SourceReader]

    def logs(self, known: Manifest) -> list[NamedLog]:
        """Return every wanted log that is there now, by name.

        A data folder is known by its journal's id, so it may be moved. A server is known by its address. If
        one server is read, and `known` has one, it is the same one: it may get a new address.
        """
        options = self.feed.options
        logs: list[NamedLog] = []
        before = {name.rpartition("@")[2] for name in known.current()}
        for source, reader in self.readers.items():
            where = source if options.servers else _journal_id(source)
            if options.servers and len(self.readers) == len(before) == 1:
                (where,) = before
            found = reader.logs(options.topics)
            if options.starting.default is not EARLIEST:  # of logs that nothing was archived of yet
                new = {name: log for name, log in found.items() if f"{name}@{where}" not in known.current()}
                starts = offsets(reader, new, options.starting, rules(options))
                found |= {name: log.part(starts[name], log.stop) for name, log in new.items()}
            logs += [(f"{name}@{where}", log) for name, log in found.items()]
        return sorted(logs, key=itemgetter(0))

    def is_another(self, known: LogState, log: LogRange) -> bool:
        """Whether the log was deleted and made again after it was archived."""
        return self.readers[log.source].is_other(log, int(known.seen), known.end)

    def cut(self, whole: LogRange, offset: int) -> int:
        """Return where an index entry begins near `offset`. The range is cut there."""
        return self.readers[whole.source].cut(whole, offset)


def _journal_id(folder: str) -> str:
    """Return the journal's id of a data folder. Raises OSError and ValueError."""
    with OsDisk(Path(folder), create=False, read_only=True) as disk:
        found = catalog.read(disk)
    return f"{found.journal_id:016x}" if found is not None else "new"
